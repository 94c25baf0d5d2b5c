"""What the engine asks of a database: intents in batches, every write fenced.

A store keeps five kinds of rows. A **run** is one execution of an instance (a restart makes a new run with the next
number; the one with the highest number is current). A **fact** is one thing that happened in a run; facts are only ever
added. A **task** is the run's place in the queue: when it is due, who holds it, and under which epoch. An **event**
is a message to a run. A **log** line is what the code said.

The fence
---------
Each claim raises the task's ``epoch`` and sets its ``owner``. Every write of a turn names both, and the store
applies it only if they still match, in the same transaction. A turn that lost its lease changes nothing and is told
``LOST``. What the fence does *not* prevent: the loser's step functions may have run, or may still be running, in
the outside world. Steps are therefore at-least-once; only their recorded result is exactly-once.

Time is in integer milliseconds since 1970 by the store's own clock, and never goes through a worker's.
Payloads are bytes of ASCII JSON, encoded and decoded elsewhere.

What the conformance suite (``tests/store``) does not say is not part of this contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag, StrEnum
from typing import Any, NamedTuple, Protocol

from holdfast.core.model import Status, TaskKind
from holdfast.ports import Clock

# --- facts


class FactState(IntEnum):
    RESULT = 0
    """The final outcome of a step, timer or wait: written once, never changed."""
    START = 1
    """A wait that began (with its ``wake_at``), or an attempt that has been running long enough to be worth showing."""
    FAILURE = 2
    """An attempt that failed or was lost; ``wake_at`` is when the next one may start."""


class Fact(NamedTuple):
    """One thing that happened in a run, keyed ``(run, state, key, n)``. A tuple, because it is also the row."""

    state: int
    key: str
    n: int
    """0 for results and waits, the attempt's number for attempts."""
    kind: str
    at: int
    started_at: int
    seq: int | None = None
    """The place of a RESULT in the order in which the code saw results; None for the other states."""
    ok: bool = True
    value: bytes | None = None
    """The result, or the error when ``ok`` is false."""
    name: str | None = None
    """None where the name is the key."""
    attempts: int = 0
    max_attempts: int | None = None
    timeout_ms: int | None = None
    wake_at: int | None = None
    event_type: str | None = None
    event: int | None = None
    """The number of the event a wait consumed: its payload is stored once, with the event."""


class Mail(NamedTuple):
    """An event of a run. ``n`` counts from 1 in each run, in the order of arrival."""

    n: int
    type: str
    payload: bytes | None
    created_at: int
    sender: str | None = None
    delivered_at: int | None = None
    consumed_by: str | None = None


class Log(NamedTuple):
    level: str
    category: str
    message: str
    data: bytes | None
    at: int
    step_key: str | None = None
    attempt: int | None = None
    is_replay: bool = False


class StoredLog(NamedTuple):
    n: int
    line: Log


# --- runs


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run's row, and what its task says when it still has one."""

    run: int
    workflow: str
    instance_id: str
    number: int
    kind: str
    status: Status
    params: bytes | None
    output: bytes | None
    error: bytes | None
    queue: str
    priority: int
    created_at: int
    updated_at: int
    started_at: int | None
    completed_at: int | None
    instance: int
    """The first run's id: the order of a list, and what its cursor names."""
    seed: int = 0
    """What the run's randomness grows from (64 bits, signed); a restart keeps it."""
    note: str | None = None
    """Why the engine paused it, or the reason it was terminated with."""
    run_at: int | None = None
    owner: str | None = None
    losses: int = 0
    pausing: bool = False
    """A pause was asked for and has not taken effect yet."""


@dataclass(slots=True)
class NewRun:
    """A run to create. With ``owner`` it is born claimed, so that a local worker can begin at once."""

    workflow: str
    instance_id: str
    params: bytes | None = None
    kind: str = "workflow"
    queue: str = "default"
    priority: int = 0
    delay_ms: int = 0
    seed: int = 0
    owner: str | None = None
    lease_ms: int = 0


FIRST_EPOCH = 1
"""The epoch of a run that was born claimed, and of any run's first claim."""


@dataclass(frozen=True, slots=True)
class Created:
    """The answer to a NewRun: the run that has the id now, and whether this call made it."""

    created: bool
    run: RunRecord
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class NewEvent:
    workflow: str
    instance_id: str
    type: str
    payload: bytes | None = None
    dedup: str | None = None
    """The same key twice in one run is one event."""
    sender: str | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """The run an event went to, as it was then (None: no such instance). Nothing is written to a terminal run."""

    run: RunRecord | None
    accepted: bool
    duplicate: bool = False
    woken: bool = False
    """The run's task became due, or its owner was signalled."""


# --- tasks


SUSPECT_LOSSES = 2


class TaskRef(NamedTuple):
    """A claimed task: the four values that every write of a turn must match."""

    run: int
    unit: int
    owner: str
    epoch: int


class Signal(IntFlag):
    """What others want of a task while it is held."""

    NONE = 0
    MAIL = 1
    PAUSE = 2


@dataclass(frozen=True, slots=True)
class WorkerCard:
    """Who a worker is."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker's row. One that left in order has none; one that died keeps it for a day."""

    card: WorkerCard
    started_at: int
    seen_at: int
    """Its last heartbeat."""
    alive: bool
    """Its lease has not run out."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Claim:
    task: TaskRef
    kind: TaskKind
    lost: bool
    """The one who held it before did not give it back."""
    run: RunRecord
    mail: Sequence[Mail]
    """Undelivered events, oldest first."""


@dataclass(frozen=True, slots=True)
class ClaimResult:
    claims: Sequence[Claim]
    next_due: int | None
    """When the earliest unclaimed task of these queues and workflows is due (None: none is)."""
    now: int
    """The store's time of this claim."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a cold replay needs besides the claim."""

    facts: Sequence[Fact]
    mail: Mapping[int, Mail]
    """Consumed events by number."""
    logged: int
    """How many lines the workflow code itself has stored: so many will come again in a replay."""


class Held(NamedTuple):
    run: int
    unit: int
    epoch: int
    signal: Signal


class Freed(NamedTuple):
    """A task whose lease ran out: it can be claimed again, or was parked because that happened too often."""

    run: int
    unit: int
    losses: int
    parked: bool


# --- commit


class Statement(NamedTuple):
    """A user's SQL statement that is part of a step."""

    sql: str
    args: tuple[Any, ...]


class LiveTransaction(Protocol):
    """An open transaction for a step's own reads and writes, on a connection of its own.

    It ends with the commit that carries it (``Observed.transaction``), applied or not, or by ``rollback``.
    """

    async def execute(self, sql: str, args: tuple[Any, ...]) -> int:
        """Run a statement; how many rows it changed."""
        ...

    async def fetch(self, sql: str, args: tuple[Any, ...]) -> Sequence[Mapping[str, Any]]: ...

    async def rollback(self) -> None:
        """Undo everything and give the connection back. After the end: nothing."""
        ...


class Delivery(NamedTuple):
    """An event consumed by a wait."""

    event: int
    step_key: str
    at: int


@dataclass(slots=True)
class Observed:
    """What became known: it is written whenever the fence holds."""

    facts: Sequence[Fact] = ()
    deliveries: Sequence[Delivery] = ()
    logs: Sequence[Log] = ()
    statements: Sequence[Statement] = ()
    starts: Sequence[NewRun] = ()
    sends: Sequence[NewEvent] = ()
    transaction: LiveTransaction | None = None
    """The step's own transaction: all of this commit is written in it, and it is over afterwards."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The run ends: its row becomes terminal and its task goes."""

    status: Status
    output: bytes | None = None
    error: bytes | None = None


@dataclass(frozen=True, slots=True)
class Park:
    """The engine pauses the run because it cannot go on by itself; ``note`` says why."""

    note: str


@dataclass(frozen=True, slots=True)
class Release:
    """The run waits: its task is given back, due at ``run_at`` (None: only a message or a person can wake it).

    An event whose type is among ``topics`` wakes it. If there is one that the turn has not seen (``Commit.seen``), the
    task is due at once instead: no wake-up is lost between the look and the release.
    ``status`` ACTIVE is for a turn that stops early and wants to go on later.
    """

    run_at: int | None
    kind: TaskKind
    topics: frozenset[str] = frozenset()
    status: Status = Status.WAITING


@dataclass(slots=True)
class Follows:
    """What the code did after that. Left out if a pause was asked for: it is then done again after the resume."""

    facts: Sequence[Fact] = ()
    logs: Sequence[Log] = ()
    next: Finish | Park | Release | None = None
    """None: the turn goes on and keeps its task."""


@dataclass(slots=True)
class Commit:
    """All that one turn writes, in one transaction or not at all.

    Order inside: fence, statements, starts and sends, facts, deliveries, logs, then what follows.
    ``in_flight`` is how many steps of the turn are still running: a pause takes effect with the first commit that
    has none.
    """

    task: TaskRef
    observed: Observed = field(default_factory=Observed)
    follows: Follows = field(default_factory=Follows)
    in_flight: int = 0
    started_at: int | None = None
    """Set once, by the first commit of a run that has no ``started_at`` yet."""
    seen: int = 0
    """The number of the last event that the turn was told of."""


class Verdict(StrEnum):
    APPLIED = "applied"
    LOST = "lost"
    """The fence did not hold; nothing was written."""
    PAUSING = "pausing"
    """A pause was asked for: what was observed is written, what follows is not, and steps are still in flight."""
    PAUSED = "paused"
    """As PAUSING, and the run is paused now and its task released."""
    REJECTED = "rejected"
    """A user's statement failed, or an event has nowhere to go; nothing of this commit was written."""


@dataclass(frozen=True, slots=True)
class Committed:
    verdict: Verdict
    signal: Signal = Signal.NONE
    """With APPLIED and a kept task: what is waiting for the turn. MAIL is cleared by being read here."""
    due_now: bool = False
    """With APPLIED and Release: a message came in between, and the task is due at once."""
    unique: bool = False
    """With REJECTED: it was a uniqueness violation."""
    unreachable: bool = False
    """With REJECTED: an event was to be sent to a run that ended or never was."""
    message: str = ""
    """With REJECTED: what the database said."""
    started: Sequence[Created] = ()
    sent: Sequence[Sent] = ()


# --- reads


@dataclass(frozen=True, slots=True)
class ListQuery:
    workflow: str | None = None
    status: Status | None = None
    before: int | None = None
    """Only instances older than this ``RunRecord.instance``."""
    limit: int = 25


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A page of a run's events or logs, by their numbers."""

    run: int
    after: int | None = None
    """Exclusive; follows the order: with ``descending`` it means older than."""
    limit: int | None = None
    descending: bool = False
    level: str | None = None
    category: str | None = None


class Migrated(NamedTuple):
    """The version of the schema before and after."""

    before: int
    after: int


class Store(Protocol):
    """One database. All calls are safe to make concurrently; batches are one transaction."""

    # --- life

    async def open(self, *, migrate: bool = True) -> Migrated:
        """Connect; bring the schema up to date, or with ``migrate=False`` only check it."""
        ...

    async def close(self) -> None: ...

    async def now(self) -> int: ...

    @property
    def clock(self) -> Clock:
        """The store's time, without asking it each time."""
        ...

    # --- what a client writes

    async def create(self, runs: Sequence[NewRun], *, connection: Any = None) -> list[Created]:
        """Make runs with number 0.

        An id that exists, also earlier in the same batch, gives ``created=False`` and its current run.
        ``connection``: the caller's own, of the database's driver. It is written in the transaction open there, and
        neither ends it nor needs one.
        """
        ...

    async def send(self, events: Sequence[NewEvent], *, connection: Any = None) -> list[Sent]:
        """Add events to the mailboxes of runs. ``connection``: as for ``create``."""
        ...

    async def pause(self, workflow: str, instance_id: str) -> RunRecord | None:
        """Pause at once if nobody holds the task, else signal its holder.

        Answers the run as it was before; terminal runs stay.
        """
        ...

    async def resume(self, workflow: str, instance_id: str) -> RunRecord | None:
        """Make a paused run due (kind RESUME, losses forgotten), or withdraw a pause not in effect. Else nothing."""
        ...

    async def terminate(self, workflow: str, instance_id: str, reason: str | None = None) -> RunRecord | None:
        """End it now.

        The row is terminal and the task is gone before this returns. Answers the run as it was before.
        """
        ...

    async def restart(self, workflow: str, instance_id: str) -> RunRecord | None:
        """Begin again with the next run number.

        The old run, ended if it was not, stays readable. Answers the new run.
        """
        ...

    # --- what a worker writes

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Take due tasks: resuming before starting, then lower priority number, then the longest due."""
        ...

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        """Apply each under its own fence. One that is lost or rejected does not touch the others.

        A commit that holds a RESULT, or gives the task back, forgets the task's losses.
        """
        ...

    async def heartbeat(self, owner: str, lease_ms: int) -> list[Held]:
        """Extend every lease of ``owner``.

        What is not in the answer is lost. MAIL signals are cleared by being read.
        """
        ...

    async def signals(self, owner: str) -> list[Held]:
        """The tasks of ``owner`` that somebody wants something of. MAIL signals are cleared by being read."""
        ...

    async def reap(self, max_losses: int) -> list[Freed]:
        """Free tasks whose lease ran out, counting a loss; park (pause) a run at ``max_losses`` of them in a row."""
        ...

    async def enroll(self, worker: WorkerCard, lease_ms: int) -> None:
        """Write down that a worker is there; ``heartbeat`` renews it. Rows of workers dead for a day go."""
        ...

    async def dismiss(self, owner: str) -> None:
        """A worker has left in order."""
        ...

    async def begin(self) -> LiveTransaction:
        """Open a transaction for a step."""
        ...

    async def release(self, tasks: Sequence[TaskRef]) -> int:
        """Give tasks back, due now, without a loss. Stale ones are passed over. Answers how many were given back."""
        ...

    # --- reads

    async def load(self, run: int) -> Snapshot: ...

    async def undelivered(self, run: int) -> list[Mail]: ...

    async def find(self, workflow: str, instance_id: str, number: int | None = None) -> RunRecord | None:
        """The current run, or the one with that number."""
        ...

    async def get(self, runs: Sequence[int]) -> list[RunRecord]: ...

    async def facts(self, run: int) -> list[Fact]: ...

    async def events(self, query: PageQuery) -> list[Mail]: ...

    async def logs(self, query: PageQuery) -> list[StoredLog]: ...

    async def workers(self) -> list[WorkerRecord]:
        """All that are enrolled, the longest first."""
        ...

    async def changed(self, since: int | None) -> int:
        """Wait until another process wrote something that may concern this one; a number that stands for it.

        ``since``: the last number that was answered; None answers at once. Answers after a moment in any case, then
        perhaps with the same number. It may be wrong in one direction only: a new number although nothing happened.
        """
        ...

    async def list(self, query: ListQuery) -> list[RunRecord]:
        """Current runs, newest instance first; every filter is backed by an index."""
        ...
