"""What the engine asks of a database: intents in batches, every write fenced.

A store keeps these kinds of rows. A **run** is one execution of an instance (a restart, a retry, a tick of a schedule
makes a new run with the next number; the one with the highest number is current). A **fact** is one thing that happened
in a run; facts are only ever added. A **task** is the run's place in the queue: when it is due, who holds it, and under
which epoch. An **event** is a message to a run. A **log** line is what the code said. A **watch** says who is to be
told when a run ends.

Between runs
------------
All that one run does to another is an ``Act``: applied in the transaction of the commit that carries it, under the
fence of who does it, together with the fact that says what came of it. So it happens exactly once, whoever crashes
when, and needs no key of its own. All that reaches a run from others is mail. The engine's own mail has topics that
begin with ``@`` (``EXIT``, ``REPLY``, ``CANCEL``); users cannot send to those, and they wake a run whatever it waits
for, unless it is paused.

How a run ends
--------------
By ``Finish`` in a commit, by ``terminate`` or ``restart``, by an act, to make room for another, by its parent's end. In
the same transaction, if no run comes after it: whoever watches it gets an ``EXIT`` event (or watches the one that comes
after). And its living children are treated as their ``parent_close`` says (unless ``NextRun.continues``): those that
are terminated by this in the same way, down to the last.

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


EXIT = "@exit"
"""Of a run that was watched: ``sender`` is its pid, the payload ``{"watch", "status", "output", "error", "note"}``.

``watch`` is the number of the Watch flags; output and error are the run's own JSON, or null; note is text, or null.
"""
REPLY = "@reply"
"""The answer to an event with ``ask``: ``{"ask", "ok", "value"}``. ``sender`` is the pid of who answers."""
CANCEL = "@cancel"
"""A cancellation was asked for: ``{"reason", "deadlineMs"}``, each of which may be null."""
ANY_TOPIC = "*"
"""Among topics: every event, whatever its type."""


class Mail(NamedTuple):
    """An event of a run. ``n`` counts from 1 in each run, in the order of arrival."""

    n: int
    type: str
    payload: bytes | None
    created_at: int
    sender: str | None = None
    delivered_at: int | None = None
    consumed_by: str | None = None
    ask: str | None = None
    """Set if the sender waits for an answer: the key under which it does."""


@dataclass(frozen=True, slots=True)
class Mailbag:
    """Undelivered events of a run, the oldest first, and what is known of the rest."""

    mail: Sequence[Mail]
    complete: bool
    """These are all there are (of the topics asked for)."""
    last: int
    """The number of the last event the run has got at all, delivered or not; 0: none ever."""


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
    parent: str | None = None
    """The pid of the run that started it as a child."""
    attempt: int = 1
    """How many times the workflow as a whole was tried, with this one."""
    options: bytes | None = None
    """What it was started with, as far as only the engine reads it; its successors inherit it."""
    memo: bytes | None = None
    search: bytes | None = None
    """Its attributes as JSON, for people. What is looked for is in ``Attributes.terms``."""
    current: bool = True
    """No other run of the instance came after it."""
    run_at: int | None = None
    owner: str | None = None
    losses: int = 0
    pausing: bool = False
    """A pause was asked for and has not taken effect yet."""
    expires_at: int | None = None
    """When it is ended if it has not ended by then (see ``Expiry``)."""
    expiry: str | None = None
    topics: frozenset[str] = frozenset()
    """Of which events one would wake it; only while nobody holds it."""

    @property
    def pid(self) -> str:
        return f"{self.workflow}/{self.instance_id}"


@dataclass(frozen=True, slots=True)
class Term:
    """One value under which a run can be found. Numbers and texts are never equal; a list of texts is several terms."""

    key: str
    value: str | int | float


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a run says of itself. Replaces what it said before; None leaves that as it is."""

    memo: bytes | None = None
    search: bytes | None = None
    terms: Sequence[Term] = ()
    """All of them, with ``search``."""


class ParentClose(StrEnum):
    """What becomes of a child that lives when its parent has ended."""

    TERMINATE = "terminate"
    ABANDON = "abandon"
    REQUEST_CANCEL = "request_cancel"


class Watch(IntFlag):
    """Why somebody is told of the end of a run."""

    MONITOR = 1
    LINK = 2
    ASK = 4
    """It was asked something, and may end without an answer."""


class Expiry(StrEnum):
    """What it means that a run's time has run out. Who claims an overdue run ends it accordingly."""

    RUN = "run"
    EXECUTION = "execution"
    CANCEL = "cancel"
    """It was asked to cancel, and did not in time."""


class OnConflict(StrEnum):
    """A run with the id lives."""

    USE_EXISTING = "use_existing"
    FAIL = "fail"
    TERMINATE_EXISTING = "terminate_existing"


class OnReuse(StrEnum):
    """A run with the id has ended."""

    USE_EXISTING = "use_existing"
    ALLOW = "allow"
    ALLOW_IF_FAILED = "allow_if_failed"
    REJECT = "reject"


class Letter(NamedTuple):
    """An event that is sent with the start of a run."""

    type: str
    payload: bytes | None


@dataclass(slots=True)
class NewRun:
    """A run to create. With ``owner`` it is born claimed, so that a local worker can begin at once.

    One with a delay is WAITING until then, any other is ACTIVE.
    """

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
    on_conflict: OnConflict = OnConflict.USE_EXISTING
    on_reuse: OnReuse = OnReuse.USE_EXISTING
    options: bytes | None = None
    attributes: Attributes | None = None
    expires_ms: int | None = None
    """From now. ``expiry`` says what it is."""
    expiry: Expiry | None = None
    letters: Sequence[Letter] = ()
    """In its mailbox before anything else; also sent to a living run that is used in its place."""
    sender: str | None = None
    """Of the letters."""
    parent: str | None = None
    parent_run: int | None = None
    """With ``parent``: the run itself. It watches the new one from the start, as ``watch`` says."""
    parent_close: ParentClose = ParentClose.TERMINATE
    watch: Watch = Watch.MONITOR
    eager: bool = True
    """Whether it may be born claimed. For the engine; a store looks at ``owner`` only."""


FIRST_EPOCH = 1
"""The epoch of a run that was born claimed, and of any run's first claim."""


class Answer(StrEnum):
    """What came of a request."""

    DONE = "done"
    EXISTING = "existing"
    """Of a start: another run has the id, and is used."""
    EXISTS = "exists"
    """Of a start: another run has the id, which is against the request's policy. Nothing was written."""
    ENDED = "ended"
    """The run has ended, so the request means nothing (for a start: its letters do not reach the existing run)."""
    MISSING = "missing"
    """There is no such run."""

    @property
    def ok(self) -> bool:
        return self in (Answer.DONE, Answer.EXISTING)


@dataclass(frozen=True, slots=True)
class Created:
    """The answer to a NewRun: the run that has the id now, and whether this call made it."""

    answer: Answer
    """DONE, EXISTING, EXISTS or ENDED."""
    run: RunRecord
    epoch: int = 0
    mail: Sequence[Mail] = ()
    """The letters, if it was made."""
    touched: Touched | None = None
    """What else that changed: a run that was terminated to make room, or got letters."""

    @property
    def created(self) -> bool:
        return self.answer is Answer.DONE


@dataclass(slots=True)
class Touched:
    """Which other runs a write has changed, so that whoever holds them here learns of it at once."""

    ended: list[int] = field(default_factory=list)
    woken: list[int] = field(default_factory=list)
    """Got mail: due now, or their holder is signalled."""
    work: bool = False
    """Something became due."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who takes a run that an event wakes: no need to look for it afterwards."""

    owner: str
    lease_ms: int
    queues: Sequence[str]


@dataclass(frozen=True, slots=True)
class NewEvent:
    workflow: str
    instance_id: str
    type: str
    payload: bytes | None = None
    dedup: str | None = None
    """The same key twice in one run is one event."""
    sender: str | None = None
    ask: str | None = None
    """The sender waits for an answer, under this key."""
    claimant: Claimant | None = None
    """Takes the run if this event wakes it, it is in one of the claimant's queues, and it is no suspect."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The run an event went to, as it was then (None: no such instance). Nothing is written to a terminal run."""

    run: RunRecord | None
    accepted: bool
    duplicate: bool = False
    woken: bool = False
    """The run's task became due, or its owner was signalled."""
    claim: Claim | None = None
    """The claimant has it now."""


class Reply(NamedTuple):
    """What was answered to an event that asked."""

    ok: bool
    """False: it was rejected, and ``value`` is the reason."""
    value: bytes | None


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
    mailbag: Mailbag


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
class NextRun:
    """The run that takes the place of one that ends: a continuation, another attempt, the next tick of a schedule.

    It has the same instance, the next number, and queue, priority, kind, seed, parent, options, memo and search of the
    one before, and is watched by those who watched that. What was not consumed of its mail is moved to it, in order;
    the engine's only with ``continues``, except CANCEL, which always is. With ``continues`` it also gets the living
    children, and watches what the one before did; otherwise they are treated as at any end, and its own watches are
    dropped. An expiry that is a CANCEL stays, if it is the earlier one.
    """

    params: bytes | None
    run_at: int | None = None
    """Not before (WAITING until then); None: now."""
    attempt: int = 1
    expires_ms: int | None = None
    """From ``run_at``."""
    expiry: Expiry | None = None
    continues: bool = False
    options: bytes | None = None
    """In place of those of the one before; None: the same."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The run ends: its row becomes terminal and its task goes."""

    status: Status
    output: bytes | None = None
    error: bytes | None = None
    note: str | None = None
    next: NextRun | None = None


# --- acts: what a run does to others


class WatchRun(NamedTuple):
    """Be told of the end of a run. One that has ended already is told of at once."""

    workflow: str
    instance_id: str
    watch: Watch
    """LINK goes both ways: the other run watches this one too."""


class UnwatchRun(NamedTuple):
    """The opposite. DONE also if there was nothing to undo."""

    workflow: str
    instance_id: str
    watch: Watch


class CancelRun(NamedTuple):
    workflow: str
    instance_id: str
    payload: bytes
    """Of the CANCEL event."""
    deadline_ms: int | None


class TerminateRun(NamedTuple):
    workflow: str
    instance_id: str
    reason: str | None


class AnswerEvent(NamedTuple):
    """Answer an event of one's own mailbox: kept with the event and, if a run asked, sent to it as REPLY.

    DONE also if that run has ended: nobody waits any more.
    """

    event: int
    reply: Reply


Deed = NewRun | NewEvent | WatchRun | UnwatchRun | CancelRun | TerminateRun | AnswerEvent


@dataclass(slots=True)
class Act:
    """Something a run does to others, and the fact that says it was done.

    The store writes the fact with ``ok`` and ``value`` set by its answer: the JSON text of the word (``"done"``). All
    answers are facts, also MISSING and ENDED: none of them refuses the commit.
    """

    deed: Deed
    fact: Fact


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
    attributes: Attributes | None = None
    acts: Sequence[Act] = ()
    """Done in this order, after all else and before ``next``. With acts, ``next`` is None or a Finish."""
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
    """``Mailbag.last`` of the last look into the mailbox."""


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
    acted: Sequence[Answer] = ()
    """With APPLIED: one for each act."""
    births: Sequence[Created] = ()
    """Runs made by acts, that were born claimed."""
    touched: Touched | None = None


# --- reads


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


@dataclass(frozen=True, slots=True)
class Relations:
    """At most a hundred of each, the oldest first."""

    children: Sequence[Relative]
    """Current runs of all that it started, also those that have ended."""
    watches: Sequence[tuple[str, Watch]]
    watched_by: Sequence[tuple[str, Watch]]


@dataclass(frozen=True, slots=True)
class ListQuery:
    workflow: str | None = None
    status: Status | None = None
    before: int | None = None
    """Only instances older than this ``RunRecord.instance``."""
    limit: int = 25
    search: Sequence[Condition] = ()
    """All of them must hold."""


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


class Steered(NamedTuple):
    """The run somebody wanted something of (None: no such instance), and which others that changed."""

    run: RunRecord | None
    touched: Touched


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
        """Make runs.

        An id that exists, also earlier in the same batch, is treated as the request's policies say. A run that comes
        after another of its instance has the next number; of the other it has those who watch it, and nothing else.
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

    async def terminate(self, workflow: str, instance_id: str, reason: str | None = None) -> Steered:
        """End it now.

        The row is terminal and the task is gone before this returns. Answers the run as it was before.
        """
        ...

    async def cancel(self, workflow: str, instance_id: str, payload: bytes, deadline_ms: int | None) -> Steered:
        """Send it a CANCEL event; with a deadline, it expires then at the latest. Answers the run as it was before."""
        ...

    async def restart(
        self,
        workflow: str,
        instance_id: str,
        expires_ms: int | None = None,
        expiry: Expiry | None = None,
        options: bytes | None = None,
    ) -> Steered:
        """Begin again with the next run number. ``options``: in place of those of the old run; None: the same.

        The old run, ended (TERMINATED) if it was not, stays readable, and its mail stays with it. The new one has its
        params, options, parent, memo and search, and those who watched it; its attempt is 1. Answers the new run.
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

    async def undelivered(self, run: int, topics: frozenset[str] | None = None, after: int = 0) -> Mailbag:
        """The oldest undelivered events with a number higher than ``after``, a bounded number of them.

        ``topics``: only of these types, and the engine's own. None: of all.
        """
        ...

    async def reply(self, run: int, dedup: str) -> Reply | None:
        """What was answered to the event with this key; None: nothing yet."""
        ...

    async def relations(self, run: int) -> Relations: ...

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
