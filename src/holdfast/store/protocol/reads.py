"""Queries for runs, facts, events, logs and workers, and their results. A query is a request of ``Store.read``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.facts import Fact, MailboxPage, StoredEvent, StoredLog, Watch
from holdfast.core.filters import ANY_TIME, TimeRange
from holdfast.core.model import Status
from holdfast.store.protocol.requests import Query
from holdfast.store.protocol.runs import Reply, RunRecord
from holdfast.store.protocol.tasks import Snapshot, VersionCount, WorkerRecord


class Condition(NamedTuple):
    """A comparison that one of the run's search terms must satisfy. Numbers compare with numbers only."""

    key: str
    op: str
    """``=``, ``<``, ``<=``, ``>`` or ``>=``."""
    value: str | int | float


class RelatedRun(NamedTuple):
    """A child of a run."""

    pid: str
    status: Status


@dataclass(slots=True)
class Relations:
    """Children, watches and watchers of a run: at most a hundred of each, the oldest first."""

    children: Sequence[RelatedRun]
    """The current run of each child instance, also of those that have ended."""
    watches: Sequence[tuple[str, Watch]]
    watched_by: Sequence[tuple[str, Watch]]
    forks: Sequence[str] = field(default_factory=list)
    """Pids of the runs that were forked from any run of the instance, the newest first."""


@dataclass(frozen=True, slots=True)
class RunsById(Query[list[RunRecord]]):
    """The runs with these ids, in this order; ids without a run are left out."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class RunByName(Query[list[RunRecord]]):
    """The current run of an instance, or the run with this number; the result is empty if there is none."""

    workflow: str
    instance_id: str
    number: int | None = None


@dataclass(frozen=True, slots=True)
class CurrentRuns(Query[list[RunRecord]]):
    """A page of the current runs that match all filters, newest instance first. Every filter uses an index.

    A range of times that holds many runs is not selective: the store then tests the runs in the order of the page.
    """

    workflow: str | None = None
    status: Status | None = None
    before: int | None = None
    """Only instances older than this ``RunRecord.instance``; with ``ascending``, only newer ones."""
    limit: int = 25
    search: Sequence[Condition] = ()
    """Conditions that must all hold."""
    id_prefix: str | None = None
    """Only instances whose id begins with this text."""
    error: str | None = None
    """The name of the error that ended the run."""
    version: str | None = None
    queue: str | None = None
    created: TimeRange = ANY_TIME
    ended: TimeRange = ANY_TIME
    ascending: bool = False
    """The oldest instance first."""


RunQuery = RunsById | RunByName | CurrentRuns


@dataclass(frozen=True, slots=True)
class FactsQuery(Query[list[Fact]]):
    """All facts of a run, those of one state (one range scan), or those of that state with these keys.

    The facts are ordered by state, key and n.
    """

    run: int
    state: int | None = None
    keys: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class MailboxQuery(Query[MailboxPage]):
    """The oldest undelivered events of a run with a number higher than ``after``, at most one page."""

    run: int
    topics: frozenset[str] | None = None
    """Only events of these types, and the engine's own. None: all types."""
    after: int = 0


@dataclass(frozen=True, slots=True)
class EventsQuery(Query[list[StoredEvent]]):
    """A page of a run's events, by their numbers."""

    run: int
    after: int | None = None
    """The number before the page, exclusive, in the order of the page: with ``descending``, numbers below it follow."""
    limit: int | None = None
    descending: bool = False


@dataclass(frozen=True, slots=True)
class LogsQuery(Query[list[StoredLog]]):
    """A page of a run's log lines, by their numbers. ``after``: as in ``EventsQuery``."""

    run: int
    after: int | None = None
    limit: int | None = None
    descending: bool = False
    level: str | None = None
    category: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotQuery(Query[Snapshot]):
    """The data that a replay needs besides the claim."""

    run: int


@dataclass(frozen=True, slots=True)
class ReplyQuery(Query[Reply | None]):
    """The reply of any run of this run's line (see ``NextRun``) to the event with this key; None: none yet."""

    run: int
    dedup: str


@dataclass(frozen=True, slots=True)
class RepliesQuery(Query[dict[int, Reply]]):
    """The replies to events of a run's mailbox, by the numbers of the events; those without a reply are absent."""

    run: int
    events: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RelationsQuery(Query[Relations]):
    run: int


@dataclass(frozen=True, slots=True)
class WorkersQuery(Query[list[WorkerRecord]]):
    """All registered workers, in the order of their registration."""


@dataclass(frozen=True, slots=True)
class VersionsQuery(Query[list[VersionCount]]):
    """The number of unfinished runs by version, of one workflow or of all; runs without a version come last."""

    workflow: str | None = None


class Migrated(NamedTuple):
    """The version of the schema before and after."""

    before: int
    after: int
