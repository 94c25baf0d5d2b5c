"""Schedules and their ticks: rows, queries, and the change that takes ticks up and starts their runs.

A **schedule** has a revision, which every change increments. A change names the revision that it was computed from, and
is applied only if the schedule still has it. The runs of ticks are created in the transaction of the change that
advances the schedule past these ticks: of any number of workers that take up the same tick, one starts its run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from holdfast.core.model import Status
from holdfast.store.protocol.control import Audit
from holdfast.store.protocol.requests import Query
from holdfast.store.protocol.runs import Created, NewRun

KEPT_TICKS = 100
"""Number of the newest ticks of a schedule that are kept. Older ones are kept only while they are queued."""


class TickState(StrEnum):
    """The state of a tick. Once a worker has recorded the end of the run, a tick has the run's status instead."""

    QUEUED = "queued"
    STARTED = "started"
    CANCELLING = "cancelling"
    """Started, and its run was asked to end because of a later tick."""
    SKIPPED = "skipped"
    MISSED = "missed"
    """No worker took up the tick in time. One missed tick stands for all ticks that were missed together."""
    GONE = "gone"
    """Started, and its run was deleted before a worker recorded its end."""


OPEN_TICKS = (TickState.STARTED, TickState.CANCELLING)


@dataclass(slots=True)
class TickRow:
    """A tick of a schedule that was taken up, triggered or backfilled."""

    n: int
    """The number of the tick in its schedule, in the order in which the ticks were taken up."""
    tick: int
    """The time for which the run is scheduled."""
    cause: str
    """``tick``, ``trigger`` or ``backfill``."""
    overlap: str
    """The policy for this tick."""
    state: str
    workflow: str
    instance_id: str
    at: int
    """The time at which the state was written."""
    status: Status | None = None
    """The status of the run now; None: there is no run. Not written."""
    output: bytes | None = None
    """The output of the run, if it is complete. Not written, and only read for open ticks."""
    run: int | None = None


@dataclass(slots=True)
class ScheduleRow:
    """A stored schedule."""

    name: str
    workflow: str
    content: bytes
    """The spec, the policies and the start options, as JSON."""
    params: bytes | None
    declaration: str | None
    """Digest of what the code declares; None: created at run time; REMOVED: no longer declared."""
    paused: bool
    note: str | None
    created_at: int
    updated_at: int
    revision: int
    next_tick: int | None
    """The next tick that is not taken up yet."""
    due_at: int | None
    """The time at which a worker has to check the schedule next; None: never."""
    seq: int
    """Number of ticks so far."""
    result: bytes | None
    """The output of the last successful run."""
    result_n: int
    """The number of the tick of the last successful run."""
    ticks: Sequence[TickRow] = ()
    """Ticks that the query asked for. Not written."""


REMOVED = "removed"
"""The declaration of a schedule that the code no longer declares."""


@dataclass(frozen=True, slots=True)
class ScheduleByName(Query[list[ScheduleRow]]):
    name: str
    ticks: int = 0
    """Number of the newest ticks to read; 0: the open and the queued ones, as ``DueQuery`` does."""


@dataclass(frozen=True, slots=True)
class SchedulePage(Query[list[ScheduleRow]]):
    """Schedules in the order of their names."""

    after: str = ""
    limit: int = 25
    workflows: Sequence[str] | None = None
    """Only schedules of these workflows."""
    ticks: int = 1
    """Number of the newest ticks to read of each."""


ScheduleQuery = ScheduleByName | SchedulePage


class DueSchedules(NamedTuple):
    rows: list[ScheduleRow]
    """Due schedules with their open ticks and the first of their queued ticks."""
    next_due: int | None
    """The time of the next due schedule of these workflows; in the past if more than ``limit`` are due."""
    now: int
    """The time of the store."""


@dataclass(frozen=True, slots=True)
class DueQuery(Query[DueSchedules]):
    """Due schedules, the longest overdue first, with their open and queued ticks."""

    workflows: Sequence[str]
    """The workflows that the caller can start."""
    limit: int
    names: Sequence[str] = ()
    """Names of schedules to return whether or not they are due."""


MAX_QUEUED = 100
"""Number of queued ticks that are read with a schedule."""


@dataclass(slots=True)
class ScheduleChange:
    """A new version of a schedule, with the ticks that it writes and the runs that it starts."""

    name: str
    revision: int
    """The revision that the change was computed from; 0: the schedule must not exist yet."""
    row: ScheduleRow | None
    """The new content; the store sets the revision and, of a new schedule, the time of creation. None: delete."""
    ticks: Sequence[TickRow] = ()
    """Added, or replaced by their number."""
    runs: Sequence[NewRun] = ()
    audit: Audit | None = None


class ScheduleChanged(NamedTuple):
    applied: bool
    """False: the schedule has another revision; nothing was written."""
    created: Sequence[Created] = ()
