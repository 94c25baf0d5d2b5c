"""What can be asked for, and in which form it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.model import Status
from holdfast.store.protocol.runs import RunRecord, Touched, Watch


class Condition(NamedTuple):
    """A run has a term with this key whose value is so compared to this one. Numbers compare with numbers only."""

    key: str
    op: str
    """``=``, ``<``, ``<=``, ``>`` or ``>=``."""
    value: str | int | float


class Relative(NamedTuple):
    """Another run that this one has to do with."""

    pid: str
    status: Status


@dataclass(slots=True)
class Relations:
    """At most a hundred of each, the oldest first."""

    children: Sequence[Relative]
    """Current runs of all that it started, also those that have ended."""
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
    """All of them must hold."""
    id_prefix: str | None = None
    """Only instances whose id begins with this text."""


@dataclass(slots=True)
class PageQuery:
    """A page of a run's events or logs, by their numbers."""

    run: int
    after: int | None = None
    """Exclusive; follows the order: with ``descending`` it means older than."""
    limit: int | None = None
    descending: bool = False
    level: str | None = None
    category: str | None = None


class Steered(NamedTuple):
    """The run somebody wanted something of (None: no such instance), and which others that changed."""

    run: RunRecord | None
    touched: Touched


class Migrated(NamedTuple):
    """The version of the schema before and after."""

    before: int
    after: int
