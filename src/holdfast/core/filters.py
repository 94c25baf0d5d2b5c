"""Filters of instances: what a list asks for, and what a caller of the HTTP API may reach.

Owns what a filter can say, whether an instance fits it, and how several filters become one. Finding the instances that
fit is the store's job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.core.attributes import Compared, conditions, holds
from holdfast.core.model import Status
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

_ID_PREFIX = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Instances that meet all of these conditions. A condition that is ``None`` is met by every instance.

    Example::

        Filter(id_prefix="acme-")
        Filter(search={"tenant": "acme", "total": (">=", 100)})
    """

    status: str | None = None
    search: Mapping[str, Any] | None = None
    """Attributes of the run, as in ``app.list``: equal to a value, or compared."""
    id_prefix: str | None = None
    """What the instance id begins with. Never empty, so that a missing value cannot mean every instance."""

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in [status.value for status in Status]:
            raise InvalidOptionError(f"status must be one of {', '.join(Status)}, not {shown(self.status)}")
        if self.id_prefix is not None and not _begins_an_id(self.id_prefix):
            raise InvalidOptionError(
                f"id_prefix must be the beginning of an instance id (letters, digits, '-' and '_', not starting with "
                f"'-'), not {shown(self.id_prefix)}"
            )
        self.conditions()

    def conditions(self) -> list[Compared]:
        """The conditions on attributes, one by one."""
        if self.search is None:
            return []
        if not isinstance(self.search, Mapping):
            raise InvalidOptionError(f"search must be a mapping of names to values, not {shown(self.search)}")
        return [one for key, asked in self.search.items() for one in conditions(key, asked)]

    @property
    def by_id_only(self) -> bool:
        """True if the id alone decides."""
        return self.status is None and not self.search

    def fits_id(self, instance_id: str) -> bool:
        return self.id_prefix is None or instance_id.startswith(self.id_prefix)

    def fits(self, instance_id: str, status: Status, search: Mapping[str, Any]) -> bool:
        """True if an instance with this id, and with a current run of this status and these attributes, is meant."""
        return (
            self.fits_id(instance_id)
            and (self.status is None or self.status == status)
            and all(holds(one, search) for one in self.conditions())
        )


class Combined(NamedTuple):
    """Several filters as one."""

    status: Status | None
    conditions: list[Compared]
    id_prefix: str | None


def combined(filters: Iterable[Filter]) -> Combined | None:
    """The instances that fit all of ``filters``; None if there can be none."""
    every = list(filters)
    statuses = {one.status for one in every if one.status is not None}
    prefixes = sorted((one.id_prefix for one in every if one.id_prefix is not None), key=len)
    if len(statuses) > 1 or any(not prefixes[-1].startswith(one) for one in prefixes):
        return None
    return Combined(
        Status(statuses.pop()) if statuses else None,
        [condition for one in every for condition in one.conditions()],
        prefixes[-1] if prefixes else None,
    )


def _begins_an_id(value: object) -> bool:
    return isinstance(value, str) and _ID_PREFIX.fullmatch(value) is not None
