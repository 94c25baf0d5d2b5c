"""Runs: their rows, what they are started with, and what is sent to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.model import Status
from holdfast.store.protocol.facts import Fact, Mail
from holdfast.store.protocol.units import NewUnit

if TYPE_CHECKING:
    from holdfast.store.protocol.commits import Commit, Committed
    from holdfast.store.protocol.tasks import Claim

ABOUT_NOW_MS = 200
"""By how much the clock of a store and what a worker takes for it differ at most, for a time to be believed."""


@dataclass(slots=True)
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


@dataclass(slots=True)
class Term:
    """One value under which a run can be found. Numbers and texts are never equal; a list of texts is several terms."""

    key: str
    value: str | int | float


@dataclass(slots=True)
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
    plan: Sequence[Fact] = ()
    """PLAN facts, written with the run."""
    units: Sequence[NewUnit] = ()
    """Parts that are claimed by themselves. The run itself (unit 0) is then due when all of them are done.

    With ``owner`` it is units that are born claimed (``room``), and never the run itself.
    """
    room: int = 0
    """How many of the units that are due ``owner`` takes at most; those with the lowest numbers."""


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


@dataclass(slots=True)
class Created:
    """The answer to a NewRun: the run that has the id now, and whether this call made it."""

    answer: Answer
    """DONE, EXISTING, EXISTS or ENDED."""
    run: RunRecord
    epoch: int = 0
    mail: Sequence[Mail] = ()
    """The letters, if it was made."""
    units: Sequence[int] = ()
    """Those that were born claimed, each with FIRST_EPOCH."""
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


@dataclass(slots=True)
class Claimant:
    """Who takes a run that an event wakes: no need to look for it afterwards."""

    owner: str
    lease_ms: int
    queues: Sequence[str]


@dataclass(slots=True)
class Foreseen:
    """The turn that an event is going to cause, worked out before the event is sent by who has the run in memory.

    It comes true if nothing has happened to the run since. Then its commit may be written along with the event.
    """

    run: RunRecord
    """As it rests, which is all that is known of it."""
    n: int
    """The event's number."""
    at: int
    """When it comes, which the store accepts if that is about now."""
    commit: Commit
    """The first of the turn, under the fence that a claim would give it."""

    def time(self, now: int, run: RunRecord) -> int:
        """When the event comes, by the store's clock. ``run``: as it is then; what is due is not moved behind it."""
        due = run.run_at is not None and run.run_at <= now
        return now if due or abs(self.at - now) > ABOUT_NOW_MS else self.at

    def is_met_by(self, claim: Claim) -> bool:
        """Whether that is what has come: nothing else is known to the run, and nobody else had it."""
        if claim.task != self.commit.task or claim.lost or claim.mailbag.last != self.n or not claim.mailbag.mail:
            return False
        last = claim.mailbag.mail[-1]
        return last.n == self.n and last.created_at == self.at


@dataclass(slots=True)
class NewEvent:
    workflow: str
    instance_id: str
    type: str
    payload: bytes | None = None
    dedup: str | None = None
    """The same key twice in one line of runs (``NextRun``) is one event."""
    sender: str | None = None
    ask: str | None = None
    """The sender waits for an answer, under this key."""
    claimant: Claimant | None = None
    """Takes the run if this event wakes it, it is in one of the claimant's queues, and it is no suspect."""
    foreseen: Foreseen | None = None
    """What the claimant is going to do then. A store that makes nothing of it is right too."""


@dataclass(slots=True)
class Sent:
    """The run an event went to, as it was then (None: no such instance). Nothing is written to a terminal run."""

    run: RunRecord | None
    accepted: bool
    duplicate: bool = False
    woken: bool = False
    """The run's task became due, or its owner was signalled."""
    claim: Claim | None = None
    """The claimant has it now."""
    committed: Committed | None = None
    """The foreseen commit was applied with the event; there is nothing else to claim then."""


class Reply(NamedTuple):
    """What was answered to an event that asked."""

    ok: bool
    """False: it was rejected, and ``value`` is the reason."""
    value: bytes | None
