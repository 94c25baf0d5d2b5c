"""Filters of instances, for lists and for restricting what a caller of the HTTP API can reach.

This module defines the conditions of a filter, decides whether an instance matches, and combines filters. The store
finds the matching instances.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.core.attributes import Condition, conditions, matches
from holdfast.core.model import Status
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

_ID_PREFIX = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter that matches the instances that meet all conditions. Every instance meets a condition that is ``None``.

    Example::

        Filter(id_prefix="acme-")
        Filter(search={"tenant": "acme", "total": (">=", 100)})
    """

    status: str | None = None
    search: Mapping[str, Any] | None = None
    """Conditions on attributes of the run, as in ``app.list``: a value to equal, or a comparison."""
    id_prefix: str | None = None
    """A prefix of the instance id. It cannot be empty, so that a missing value does not match every instance."""

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in [status.value for status in Status]:
            raise InvalidOptionError(f"status must be one of {', '.join(Status)}, not {shown(self.status)}")
        if self.id_prefix is not None and not _is_id_prefix(self.id_prefix):
            raise InvalidOptionError(
                f"id_prefix must be the beginning of an instance id (letters, digits, '-' and '_', not starting with "
                f"'-'), not {shown(self.id_prefix)}"
            )
        self.conditions()

    def conditions(self) -> list[Condition]:
        """The conditions on attributes, as a flat list."""
        if self.search is None:
            return []
        if not isinstance(self.search, Mapping):
            raise InvalidOptionError(f"search must be a mapping of names to values, not {shown(self.search)}")
        return [condition for key, spec in self.search.items() for condition in conditions(key, spec)]

    @property
    def by_id_only(self) -> bool:
        """True if the filter depends on the instance id only."""
        return self.status is None and not self.search

    def fits_id(self, instance_id: str) -> bool:
        return self.id_prefix is None or instance_id.startswith(self.id_prefix)

    def fits(self, instance_id: str, status: Status, search: Mapping[str, Any]) -> bool:
        """True if the filter matches an instance with this id and a current run of this status and attributes."""
        return (
            self.fits_id(instance_id)
            and (self.status is None or self.status == status)
            and all(matches(condition, search) for condition in self.conditions())
        )


class CombinedFilter(NamedTuple):
    """The conjunction of several filters."""

    status: Status | None
    conditions: list[Condition]
    id_prefix: str | None


def combine(filters: Iterable[Filter]) -> CombinedFilter | None:
    """Combine filters into one that matches what all of them match. None: no instance can match."""
    filters = list(filters)
    statuses = {f.status for f in filters if f.status is not None}
    prefixes = sorted((f.id_prefix for f in filters if f.id_prefix is not None), key=len)
    if len(statuses) > 1 or any(not prefixes[-1].startswith(prefix) for prefix in prefixes):
        return None
    return CombinedFilter(
        Status(statuses.pop()) if statuses else None,
        [condition for f in filters for condition in f.conditions()],
        prefixes[-1] if prefixes else None,
    )


def _is_id_prefix(value: object) -> bool:
    return isinstance(value, str) and _ID_PREFIX.fullmatch(value) is not None
