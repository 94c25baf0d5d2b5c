"""What a turn writes, and what it does to other runs: one transaction, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol.facts import Delivery, Fact, Log
from holdfast.store.protocol.outbox import Outbound
from holdfast.store.protocol.runs import (
    Answer,
    Attributes,
    Created,
    Expiry,
    NewEvent,
    NewRun,
    Reply,
    Sent,
    Touched,
    Watch,
)
from holdfast.store.protocol.tasks import Signal
from holdfast.store.protocol.units import NewUnit, TaskRef


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


@dataclass(slots=True)
class Observed:
    """What became known: it is written whenever the fence holds."""

    facts: Sequence[Fact] = ()
    deliveries: Sequence[Delivery] = ()
    logs: Sequence[Log] = ()
    statements: Sequence[Statement] = ()
    starts: Sequence[NewRun] = ()
    sends: Sequence[NewEvent] = ()
    outbox: Sequence[Outbound] = ()
    transaction: LiveTransaction | None = None
    """The step's own transaction: all of this commit is written in it, and it is over afterwards."""

    @property
    def transactional(self) -> bool:
        """It writes more than the run itself, which may be refused."""
        return bool(self.statements or self.starts or self.sends or self.transaction)


@dataclass(slots=True)
class NextRun:
    """The run that takes the place of one that ends: a continuation, another attempt, the next tick of a schedule.

    It has the same instance, the next number, and queue, priority, kind, seed, parent, options, memo and search of the
    one before, and is watched by those who watched that. What was not consumed of its mail is moved to it, in order;
    the engine's only with ``continues``, except CANCEL, which always is. With ``continues`` it also gets the living
    children, and watches what the one before did; otherwise they are treated as at any end, and its own watches are
    dropped. An expiry that is a CANCEL stays, if it is the earlier one.

    It is of the same *line* as the one before: a key under which an event was sent to one of them (``NewEvent.dedup``)
    is known to all. A run that is made otherwise, by ``restart`` too, begins a line.
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
    units: Sequence[NewUnit] = ()
    """As of ``NewRun``. PLAN facts are those of the one before."""


@dataclass(slots=True)
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


@dataclass(slots=True)
class Park:
    """The engine pauses the run because it cannot go on by itself; ``note`` says why."""

    note: str


@dataclass(slots=True)
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
    ``in_flight`` is how many steps of the turn are still running, or have ended with an outcome that is not in this
    commit: a pause takes effect with the first commit that has none.
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


@dataclass(slots=True)
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
