"""Commits: everything that one turn writes in one transaction, including its operations on other runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from holdfast.core.facts import Delivery, Fact, Log, Watch
from holdfast.core.model import Status, TaskKind
from holdfast.core.statement import Statement
from holdfast.store.protocol.control import CancelRun, TerminateRun
from holdfast.store.protocol.outbox import Outbound
from holdfast.store.protocol.runs import (
    AffectedRuns,
    Attributes,
    Created,
    Expiry,
    NewEvent,
    NewRun,
    Reply,
    RequestResult,
    Sent,
)
from holdfast.store.protocol.streams import StreamWrite
from holdfast.store.protocol.tasks import Signal
from holdfast.store.protocol.units import NewUnit, TaskRef


class LiveTransaction(Protocol):
    """An open transaction for the reads and writes of one step, on its own connection.

    The transaction ends with the commit that carries it (``Observed.transaction``), whether that commit is applied or
    not, or by ``rollback``.
    """

    dialect: str
    """``sqlite`` or ``postgresql``: the dialect of its statements."""

    async def execute(self, sql: str, args: tuple[Any, ...]) -> int:
        """Execute a statement and return the number of rows that it changed."""
        ...

    async def fetch(self, sql: str, args: tuple[Any, ...]) -> Sequence[Mapping[str, Any]]: ...

    async def rollback(self) -> None:
        """Roll the transaction back and release the connection. Does nothing after the transaction has ended."""
        ...


@dataclass(slots=True)
class Observed:
    """The observed part of a commit: results and consumed events. It is written whenever the fence holds."""

    facts: Sequence[Fact] = ()
    deliveries: Sequence[Delivery] = ()
    logs: Sequence[Log] = ()
    statements: Sequence[Statement] = ()
    starts: Sequence[NewRun] = ()
    sends: Sequence[NewEvent] = ()
    outbox: Sequence[Outbound] = ()
    transaction: LiveTransaction | None = None
    """The live transaction of the step. The whole commit is written in it, and the commit ends it."""

    @property
    def transactional(self) -> bool:
        """True if the commit has writes besides the run's own rows, which may be rejected."""
        return bool(self.statements or self.starts or self.sends or self.transaction)


@dataclass(slots=True)
class NextRun:
    """The successor of a run that ends: a continuation, a retry of the workflow, or the next tick of a schedule.

    The successor belongs to the same instance and has the next number. It inherits the queue, priority, kind, seed,
    parent, options, memo, search and watchers of its predecessor. Undelivered events are moved to the successor in
    their order; the engine's own events only with ``continues``, except CANCEL, which is always moved. With
    ``continues`` the successor also inherits the children that have not ended and the predecessor's watches on other
    runs. Without it, ``parent_close`` is applied to the children as at any end, and these watches are dropped. An
    expiry of kind CANCEL is kept if it is the earlier one.

    The successor belongs to the *line* of its predecessor: a ``NewEvent.dedup`` key is unique within a line. A run
    that is created in another way, including by ``RestartRun``, begins a new line.
    """

    params: bytes | None
    run_at: int | None = None
    """Earliest start; the run is WAITING until then. None: now."""
    attempt: int = 1
    expires_ms: int | None = None
    """Relative to ``run_at``."""
    expiry: Expiry | None = None
    continues: bool = False
    options: bytes | None = None
    """Replaces the options of the predecessor; None keeps them."""
    units: Sequence[NewUnit] = ()
    """As in ``NewRun``. PLAN facts are copied from the predecessor."""


@dataclass(slots=True)
class Finish:
    """End of the run: its row becomes terminal and its task is deleted."""

    status: Status
    output: bytes | None = None
    error: bytes | None = None
    note: str | None = None
    next: NextRun | None = None


# --- operations: effects of a run on other runs


class WatchRun(NamedTuple):
    """Watch a run. If it has ended already, the EXIT event is sent at once."""

    workflow: str
    instance_id: str
    watch: Watch
    """With LINK the other run also watches this one."""


class UnwatchRun(NamedTuple):
    """Stop watching a run. The result is DONE even if this run did not watch it."""

    workflow: str
    instance_id: str
    watch: Watch


class ReplyToEvent(NamedTuple):
    """Reply to an event of the run's own mailbox.

    The reply is stored with the event. If a run asked, the reply is also sent to that run as a REPLY event. The result
    is DONE even if the asking run has ended, because no run waits for the reply any more.
    """

    event: int
    reply: Reply
    trace: str | None = None
    """The trace context of the replying run, as JSON."""


Operation = NewRun | NewEvent | WatchRun | UnwatchRun | CancelRun | TerminateRun | ReplyToEvent


@dataclass(slots=True)
class RecordedOperation:
    """An operation, and the fact that records its result.

    The store sets ``ok`` and ``value`` of the fact from the result: ``value`` is the JSON text of the ``RequestResult``
    (``"done"``). Every result is recorded, also MISSING and ENDED: none of them rejects the commit.
    """

    operation: Operation
    fact: Fact


@dataclass(slots=True)
class Park:
    """Pause by the engine, because the run cannot continue without intervention; ``note`` is the reason."""

    note: str


@dataclass(slots=True)
class Release:
    """Suspension of the run: its task is released, due at ``run_at`` (None: only an event or a request wakes it).

    An event whose type is among ``topics`` wakes the run. If the mailbox has such an event that the turn has not seen
    (``Commit.seen``), the task is due at once instead, so no wake-up is lost between reading the mailbox and releasing.
    ``status`` is ACTIVE if the turn stops early and continues later.
    """

    run_at: int | None
    kind: TaskKind
    topics: frozenset[str] = frozenset()
    status: Status = Status.WAITING


@dataclass(frozen=True, slots=True)
class Following:
    """The following part of a commit: what the code did after the observed part.

    The store omits it if a pause was requested; the code then repeats it after the resume.
    """

    facts: Sequence[Fact] = ()
    logs: Sequence[Log] = ()
    attributes: Attributes | None = None
    operations: Sequence[RecordedOperation] = ()
    """Applied in this order, after all other rows and before ``next``, which is then None or a Finish."""
    next: Finish | Park | Release | None = None
    """None: the turn continues and keeps its task."""
    streams: Sequence[StreamWrite] = ()
    """Items that the workflow's code wrote. A commit with such items may affect any number of streams of its run."""

    def then(self, next: Finish | Park | Release | None) -> Following:
        """The same following part with another ``next``."""
        return Following(self.facts, self.logs, self.attributes, self.operations, next, self.streams)


NOTHING_FOLLOWS = Following()
"""The following part of most commits: the turn continues with the calls that the code requested."""


@dataclass(slots=True)
class Commit:
    """Everything that one turn writes at one time, in one transaction or not at all.

    Order inside: fence, statements, starts and sends, facts, deliveries, logs, then the following part.
    ``in_flight`` is the number of steps of the turn that are still running, or whose outcome is not in this commit. A
    pause takes effect with the first commit that has none.
    """

    task: TaskRef
    observed: Observed = field(default_factory=Observed)
    following: Following = NOTHING_FOLLOWS
    in_flight: int = 0
    started_at: int | None = None
    """The run's ``started_at``; ignored if the run has one already."""
    seen: int = 0
    """``MailboxPage.last`` of the turn's last read of the mailbox."""


class Verdict(StrEnum):
    APPLIED = "applied"
    LOST = "lost"
    """The fence did not hold; nothing was written."""
    PAUSING = "pausing"
    """A pause was requested and steps are in flight. The observed part is written, the following part is not."""
    PAUSED = "paused"
    """A pause was requested and no steps are in flight. As PAUSING; the run is paused and its task released."""
    REJECTED = "rejected"
    """A user's statement failed, or the recipient of an event has ended or does not exist. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The store's reply to a commit."""

    verdict: Verdict
    signal: Signal = Signal.NONE
    """With APPLIED and a kept task: the signals of the task. Returning the EVENTS signal clears it."""
    due_now: bool = False
    """With APPLIED and Release: an event arrived in the meantime, and the task is due at once."""
    unique: bool = False
    """With REJECTED: the cause is a uniqueness violation."""
    unreachable: bool = False
    """With REJECTED: the recipient of an event has ended or does not exist."""
    message: str = ""
    """With REJECTED: the database's error message."""
    started: Sequence[Created] = ()
    sent: Sequence[Sent] = ()
    operation_results: Sequence[RequestResult] = ()
    """With APPLIED: one for each operation."""
    claimed_children: Sequence[Created] = ()
    """Runs that operations created claimed."""
    affected: AffectedRuns | None = None


PLAINLY_APPLIED = Committed(Verdict.APPLIED)
"""The reply to most commits: applied, and nothing else to report."""


class LateResults(NamedTuple):
    """Results and log lines that a worker had not yet written when its run was ended by another process."""

    run: int
    facts: Sequence[Fact]
    """Results of steps that had finished. They are added only to a terminated run; existing facts are not changed."""
    logs: Sequence[Log]
    """Log lines of cancelled attempts."""
