"""The queue: tasks, who holds them, and the workers that do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol.facts import Fact, Mail, Mailbag
from holdfast.store.protocol.runs import RunRecord
from holdfast.store.protocol.units import TaskRef

SUSPECT_LOSSES = 2


class Signal(IntFlag):
    """What others want of a task while it is held."""

    NONE = 0
    MAIL = 1
    PAUSE = 2


@dataclass(slots=True)
class WorkerCard:
    """Who a worker is."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int


@dataclass(slots=True)
class WorkerRecord:
    """A worker's row. One that left in order has none; one that died keeps it for a day."""

    card: WorkerCard
    started_at: int
    seen_at: int
    """Its last heartbeat."""
    alive: bool
    """Its lease has not run out."""


@dataclass(slots=True)
class ClaimRequest:
    owner: str
    lease_ms: int
    limit: int
    queues: Sequence[str]
    workflows: frozenset[str]
    """Only these: what a worker has not registered it leaves to others."""
    suspects: bool = True
    """Whether it may also take one task, and no more, that lost its last ``SUSPECT_LOSSES`` holders in a row.

    Whoever holds many runs dies with all of them, so losses fall on the innocent too. Suspects are therefore held
    one at a time by each worker: the guilty one soon dies alone.
    """
    run: int | None = None
    """Only units of this run, in the order of their numbers; 0 with its mail. Nothing that is overdue."""


@dataclass(slots=True)
class Claim:
    task: TaskRef
    kind: TaskKind
    lost: bool
    """The one who held it before did not give it back."""
    run: RunRecord
    mailbag: Mailbag
    at: int | None = None
    """The store's time of the claim: the mailbag has what came until then. None: there was no claim, it began so."""


@dataclass(slots=True)
class ClaimResult:
    claims: Sequence[Claim]
    next_due: int | None
    """When the earliest unclaimed task of these queues and workflows is due, or any run expires (None: none does)."""
    now: int
    """The store's time of this claim."""
    overdue: Sequence[Claim] = ()
    """Runs of any workflow and queue that have expired, also paused ones and such that another worker held until now.

    They come on top of ``limit`` (with a limit of 0: none), a bounded number at a time. Their mailbags are empty.
    Whoever gets them ends them.
    """


@dataclass(slots=True)
class Snapshot:
    """All that a cold replay needs besides the claim."""

    facts: Sequence[Fact]
    mail: Mapping[int, Mail]
    """The events that facts name, by number."""
    logged: int
    """How many lines the workflow code itself has stored: so many will come again in a replay."""


class Held(NamedTuple):
    run: int
    unit: int
    epoch: int
    signal: Signal


class Heartbeat(NamedTuple):
    """Progress of an attempt that is under way under this claim."""

    task: TaskRef
    fact: Fact
    """With state HEARTBEAT."""


class Lease(NamedTuple):
    """How long a held task stays claimed without a heartbeat of its worker."""

    task: TaskRef
    lease_ms: int


class Freed(NamedTuple):
    """A task whose lease ran out: it can be claimed again, or was parked because that happened too often."""

    run: int
    unit: int
    losses: int
    parked: bool
