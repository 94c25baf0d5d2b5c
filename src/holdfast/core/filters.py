"""Filters of instances, for lists, bulk actions, and restricting what a caller of the HTTP API can reach.

This module defines the conditions of a filter, decides whether an instance matches, and combines filters. The store
finds the matching instances.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypedDict, TypeVar

from holdfast.core.attributes import Condition, conditions, matches
from holdfast.core.model import Status, StatusName, to_ms
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

_ID_PREFIX = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_-]*")
_TEXTS = ("workflow", "error", "version", "queue")
_TIMES = ("created_after", "created_before", "ended_after", "ended_before")
_MAX_TEXT = 1000
T = TypeVar("T")


class ListConditions(TypedDict, total=False):
    """The conditions of ``app.list``: the fields of ``Filter`` without the workflow."""

    status: StatusName | None
    search: Mapping[str, Any] | None
    error: str | None
    created_after: datetime | None
    created_before: datetime | None
    ended_after: datetime | None
    ended_before: datetime | None
    id_prefix: str | None
    version: str | None
    queue: str | None


class Named(Protocol):
    """A workflow, chain or graph."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter that matches the instances that meet all conditions. Every instance meets a condition that is ``None``.

    The conditions apply to the current run of an instance. Conditions about the end (``error``, ``ended_after``,
    ``ended_before``) leave open runs out. A time range includes its ``after`` and excludes its ``before``.

    Example::

        Filter(id_prefix="acme-")
        Filter(search={"tenant": "acme", "total": (">=", 100)})
        Filter(workflow="fulfil", status="errored", error="KeyError", ended_after=an_hour_ago)
    """

    workflow: str | Named | None = None
    """The name of a workflow, chain or graph, or the definition itself."""
    status: str | None = None
    search: Mapping[str, Any] | None = None
    """Conditions on attributes of the run, as in ``app.list``: a value to equal, or a comparison."""
    error: str | None = None
    """The name of the error that ended the run, as ``details.error.name`` shows it."""
    created_after: datetime | None = None
    created_before: datetime | None = None
    ended_after: datetime | None = None
    ended_before: datetime | None = None
    id_prefix: str | None = None
    """A prefix of the instance id. It cannot be empty, so that a missing value does not match every instance."""
    version: str | None = None
    """The release whose worker or client started the run (``WorkerConfig.version``)."""
    queue: str | None = None

    def __post_init__(self) -> None:
        if self.workflow is not None and not isinstance(self.workflow, str):
            object.__setattr__(self, "workflow", getattr(self.workflow, "name", self.workflow))
        if self.status is not None and self.status not in [status.value for status in Status]:
            raise InvalidOptionError(f"status must be one of {', '.join(Status)}, not {shown(self.status)}")
        if self.id_prefix is not None and not _is_id_prefix(self.id_prefix):
            raise InvalidOptionError(
                f"id_prefix must be the beginning of an instance id (letters, digits, '-' and '_', not starting with "
                f"'-'), not {shown(self.id_prefix)}"
            )
        for name in _TEXTS:
            _check_text(name, getattr(self, name))
        for name in _TIMES:
            _check_time(name, getattr(self, name))
        self.conditions()

    def conditions(self) -> list[Condition]:
        """The conditions on attributes, as a flat list."""
        if self.search is None:
            return []
        if not isinstance(self.search, Mapping):
            raise InvalidOptionError(f"search must be a mapping of names to values, not {shown(self.search)}")
        return [condition for key, spec in self.search.items() for condition in conditions(key, spec)]

    @property
    def created(self) -> TimeRange:
        return TimeRange.of(self.created_after, self.created_before)

    @property
    def ended(self) -> TimeRange:
        return TimeRange.of(self.ended_after, self.ended_before)

    @property
    def by_id_only(self) -> bool:
        """True if the filter depends on the workflow and the instance id only."""
        values = (self.status, self.error, self.version, self.queue, *(getattr(self, name) for name in _TIMES))
        return not self.search and all(value is None for value in values)

    def fits_id(self, workflow: str, instance_id: str) -> bool:
        return self.workflow in (None, workflow) and instance_id.startswith(self.id_prefix or "")

    def fits(self, run: FilteredRun) -> bool:
        """True if the filter matches an instance with this current run."""
        pairs = ((self.status, run.status), (self.error, run.error), (self.version, run.version))
        return (
            self.fits_id(run.workflow, run.instance_id)
            and all(wanted in (None, value) for wanted, value in (*pairs, (self.queue, run.queue)))
            and self.created.contains(run.created_at)
            and self.ended.contains(run.completed_at)
            and all(matches(condition, run.search) for condition in self.conditions())
        )


class FilteredRun(NamedTuple):
    """The properties of a run that a filter tests."""

    workflow: str
    instance_id: str
    status: Status
    search: Mapping[str, Any]
    error: str | None
    """The name of the error that ended the run."""
    created_at: int
    completed_at: int | None
    version: str | None
    queue: str


class TimeRange(NamedTuple):
    """Times from ``low`` (included) to ``high`` (excluded), in milliseconds; None: no bound."""

    low: int | None = None
    high: int | None = None

    @classmethod
    def of(cls, after: datetime | None, before: datetime | None) -> TimeRange:
        return cls(None if after is None else to_ms(after), None if before is None else to_ms(before))

    @property
    def bounded(self) -> bool:
        return self != ANY_TIME

    def contains(self, at: int | None) -> bool:
        """True if the time is in the range. Without bounds this is true also for None."""
        if not self.bounded:
            return True
        return at is not None and (self.low is None or at >= self.low) and (self.high is None or at < self.high)

    def __and__(self, other: TimeRange) -> TimeRange:
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return TimeRange(max(lows, default=None), min(highs, default=None))


ANY_TIME = TimeRange()


class CombinedFilter(NamedTuple):
    """The conjunction of several filters."""

    workflow: str | None
    status: Status | None
    conditions: list[Condition]
    id_prefix: str | None
    error: str | None
    version: str | None
    queue: str | None
    created: TimeRange
    ended: TimeRange


class _ContradictionError(Exception):
    """No instance can match all filters."""


def combine(filters: Iterable[Filter]) -> CombinedFilter | None:
    """Combine filters into one that matches what all of them match. None: no instance can match."""
    filters = list(filters)
    try:
        return _combine(filters)
    except _ContradictionError:
        return None


def _combine(filters: list[Filter]) -> CombinedFilter:
    prefixes = sorted((f.id_prefix for f in filters if f.id_prefix is not None), key=len)
    if any(not prefixes[-1].startswith(prefix) for prefix in prefixes):
        raise _ContradictionError
    status = _common(f.status for f in filters)
    created, ended = ANY_TIME, ANY_TIME
    for one in filters:
        created, ended = created & one.created, ended & one.ended
    return CombinedFilter(
        _common(None if f.workflow is None else str(f.workflow) for f in filters),
        None if status is None else Status(status),
        [condition for f in filters for condition in f.conditions()],
        prefixes[-1] if prefixes else None,
        _common(f.error for f in filters),
        _common(f.version for f in filters),
        _common(f.queue for f in filters),
        created,
        ended,
    )


def _common(values: Iterable[T | None]) -> T | None:
    """The only value besides None, or None if there is none."""
    distinct = {value for value in values if value is not None}
    if len(distinct) > 1:
        raise _ContradictionError
    return distinct.pop() if distinct else None


def _check_text(name: str, value: object) -> None:
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= _MAX_TEXT):
        raise InvalidOptionError(f"{name} must be text of 1 to {_MAX_TEXT} characters, not {shown(value)}")


def _check_time(name: str, value: object) -> None:
    if value is not None and not (isinstance(value, datetime) and value.tzinfo is not None):
        raise InvalidOptionError(f"{name} must be an aware datetime, not {shown(value)}")


def _is_id_prefix(value: object) -> bool:
    return isinstance(value, str) and _ID_PREFIX.fullmatch(value) is not None
