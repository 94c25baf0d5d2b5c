"""Parameters and results of the reading intents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.model import Status
from holdfast.store.protocol.runs import AffectedRuns, RunRecord, Watch


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


@dataclass(slots=True)
class ListQuery:
    workflow: str | None = None
    status: Status | None = None
    before: int | None = None
    """Only instances older than this ``RunRecord.instance``."""
    limit: int = 25
    search: Sequence[Condition] = ()
    """Conditions that must all hold."""
    id_prefix: str | None = None
    """Only instances whose id begins with this text."""


@dataclass(slots=True)
class PageQuery:
    """A page of a run's events or logs, by their numbers."""

    run: int
    after: int | None = None
    """The number before the page, exclusive, in the order of the page: with ``descending``, numbers below it follow."""
    limit: int | None = None
    descending: bool = False
    level: str | None = None
    category: str | None = None


class ControlResult(NamedTuple):
    """The run that a control request addressed (None: no such instance), and the other runs that were affected."""

    run: RunRecord | None
    affected: AffectedRuns


class Migrated(NamedTuple):
    """The version of the schema before and after."""

    before: int
    after: int
