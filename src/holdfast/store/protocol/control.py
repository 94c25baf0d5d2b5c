"""Control requests: what operators, clients and other runs ask of the current run of an instance.

``TerminateRun`` and ``CancelRun`` are also operations: a run sends them in its commit (``Following.operations``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.facts import Fact, Watch
from holdfast.store.protocol.requests import Query
from holdfast.store.protocol.runs import AffectedRuns, Expiry, NewEvent, Reply, RunRecord, Sent
from holdfast.store.protocol.units import Advance, NewUnit


@dataclass(frozen=True, slots=True)
class PauseRun:
    """Pause the run at once if its task has no owner, else signal the owner. A paused run is not changed."""

    workflow: str
    instance_id: str


@dataclass(frozen=True, slots=True)
class ResumeRun:
    """Make a paused run due (kind RESUME), or withdraw a pause that has not taken effect; else do nothing.

    The count of losses is reset, except for a loss that no claim has reported.
    """

    workflow: str
    instance_id: str


@dataclass(frozen=True, slots=True)
class TerminateRun:
    """End the run now. The row is terminal and the task is deleted, with all units, in the same transaction."""

    workflow: str
    instance_id: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Send the run a CANCEL event. A run that has not ended at the deadline expires. A graph ends at once."""

    workflow: str
    instance_id: str
    payload: bytes
    """The payload of the CANCEL event."""
    deadline_ms: int | None = None
    children_only: bool = False
    """Do nothing if the run is not a child of the run that requests this: a fork awaits children of its origin."""


@dataclass(frozen=True, slots=True)
class RestartRun:
    """Create a run with the next number that starts from the beginning.

    The old run is ended (TERMINATED) if it has not ended. It stays readable and keeps its events. The new run
    inherits the PLAN facts, params, options, parent, memo, search and watchers; its attempt is 1.
    """

    workflow: str
    instance_id: str
    expires_ms: int | None = None
    """As in ``NewRun``."""
    expiry: Expiry | None = None
    options: bytes | None = None
    """Replaces the options of the old run; None keeps them."""
    units: Sequence[NewUnit] = ()
    """As in ``NewRun``."""
    run: int | None = None
    """Restart only if this is the current run of the instance; otherwise the request is refused."""
    line: int | None = None
    """Restart only if the current run is in the line of this run; otherwise the request is refused."""


@dataclass(frozen=True, slots=True)
class RedeliverOutbox:
    """Make the parked outbound events of the run due again, with no attempts counted. Also for ended runs."""

    workflow: str
    instance_id: str
    number: int | None = None
    """The run with this number; None: the current run."""


@dataclass(frozen=True, slots=True)
class MoveRun:
    """Set the version of the run. A pinned run is claimed by workers of the new version from its next claim on.

    An owner of the run, or of one of its units, keeps it until it releases it.
    """

    workflow: str
    instance_id: str
    version: str
    pinned: bool = False
    """Pin the run if it is not pinned yet."""


@dataclass(frozen=True, slots=True)
class ContinueRun:
    """Create a run that continues from the recorded history of another run, its source.

    Without ``fork_id`` the new run is the successor of the source, which must be the current run of its instance and
    ERRORED. The source stays as it is; its undelivered events move to the successor. With ``fork_id`` the new run is
    the first of another instance, and all events stay with the source. The new run inherits the PLAN facts, time of its
    start, options, seed, memo and search attributes of the source.
    """

    workflow: str
    instance_id: str
    run: int
    """The source."""
    facts: Sequence[Fact]
    """The history of the new run, without PLAN facts."""
    events: Sequence[int]
    """Numbers of the source's events that the facts refer to; they are copied."""
    origin: bytes
    params: bytes | None
    fork_id: str | None = None
    expires_ms: int | None = None
    expiry: Expiry | None = None
    options: bytes | None = None
    units: Sequence[NewUnit] = ()
    open_nodes: int = 0
    """The number of units that unit 0 waits for; items are not among them."""
    watches: Sequence[tuple[str, Watch]] = ()
    """Pids that the new run watches. The exit event of a run that has ended is sent at once.

    The links of a fork are one-way: its end does not end the partners, which are linked to the source.
    """


@dataclass(frozen=True, slots=True)
class ResolveStep:
    """Send a RESOLVE event to a run that has not ended: the outcome of a step, decided by hand."""

    workflow: str
    instance_id: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReplyByHand:
    """Reply to an ask in the mailbox of a run that has not ended, in place of the run's code.

    As with ``ReplyToEvent``, the reply is stored with the event and sent to the asking run, and the first reply stays:
    that of the code has no effect then. Refused if the run is not the current one, if the event is not an ask, or if it
    has another reply.
    """

    workflow: str
    instance_id: str
    number: int
    """The number of the run whose mailbox has the event."""
    event: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class ResolveUnit:
    """Write the outcome of a unit that was decided by hand, and delete the task of the unit, even if it is owned.

    Refused if the run has ended, or if the unit has no task any more: its own outcome was written first. Units that
    become due are not claimed.
    """

    workflow: str
    instance_id: str
    advance: Advance
    """Its ``task`` names the run and the unit, and no owner. It neither releases nor adds units."""


@dataclass(frozen=True, slots=True)
class DeleteInstance:
    """Delete all runs of an instance, with all their rows. Refused if the current run has not ended."""

    workflow: str
    instance_id: str
    run: int | None = None
    """Delete only if this is the current run; otherwise the request is refused."""


@dataclass(frozen=True, slots=True)
class RecordAction:
    """Change nothing; the audit record of this request is about another request, such as a start or an event."""

    workflow: str
    instance_id: str
    refused: bool = False
    """True if the client has refused the other request because of the state of the run."""


@dataclass(frozen=True, slots=True)
class SendEvent:
    """Send an event of an actor, so that the request has an audit record. ``ControlResult.sent`` has the result."""

    event: NewEvent

    @property
    def workflow(self) -> str:
        return self.event.workflow

    @property
    def instance_id(self) -> str:
        return self.event.instance_id


class Audit(NamedTuple):
    """A control request as its record shows it."""

    action: str
    actor: str | None = None
    reason: str | None = None


class AuditRow(NamedTuple):
    """A record of a control request."""

    n: int
    at: int
    actor: str | None
    action: str
    target: str
    reason: str | None
    outcome: str


@dataclass(frozen=True, slots=True)
class AuditQuery(Query[list[AuditRow]]):
    """A page of records, the newest first: of one target, or of all."""

    target: str | None = None
    before: int | None = None
    """Only records with a lower number."""
    limit: int = 25


DONE, REFUSED, DUPLICATE = "done", "refused", "duplicate"
"""Outcomes of audited requests; DUPLICATE: the event was sent before. That of ``ContinueRun`` names the new run."""

ControlRequest = (
    PauseRun | ResumeRun | TerminateRun | CancelRun | RestartRun | RedeliverOutbox | MoveRun | ContinueRun | ResolveStep
    | ReplyByHand | ResolveUnit | DeleteInstance | RecordAction | SendEvent
)  # fmt: skip


class ControlResult(NamedTuple):
    """The run that a control request addressed (None: no such run), and the other runs that were affected."""

    run: RunRecord | None
    """The run as it was before the request; after RestartRun the new run."""
    affected: AffectedRuns
    redelivered: int = 0
    """With RedeliverOutbox: the number of events that are due again."""
    refused: bool = False
    """True if the state of the run does not allow the request; nothing was changed."""
    sent: Sent | None = None
    """With SendEvent."""


def audited_outcome(request: ControlRequest, result: ControlResult) -> tuple[str, str]:
    """The target and the outcome in the audit record of a request on a run that exists."""
    refused = result.refused or (isinstance(request, RecordAction) and request.refused)
    outcome = REFUSED if refused else DONE
    if result.sent is not None and result.sent.duplicate:
        outcome = DUPLICATE
    if isinstance(request, ContinueRun) and not result.refused and result.run is not None:
        outcome = f"{result.run.pid} run {result.run.number}"
    return f"{request.workflow}/{request.instance_id}", outcome
