"""Runs and events: the run record, requests to create runs and to send events, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.facts import Fact, StoredEvent, Watch
from holdfast.core.model import DEFAULT_QUEUE, Status
from holdfast.core.origin import Origin
from holdfast.store.protocol.start_policies import StartPolicy
from holdfast.store.protocol.units import NewUnit

if TYPE_CHECKING:
    from holdfast.store.protocol.commits import Commit, Committed
    from holdfast.store.protocol.permits import LimitKey
    from holdfast.store.protocol.tasks import Claim

MAX_CLOCK_SKEW_MS = 200
"""Maximum tolerated skew between the store's clock and the worker's."""


@dataclass(slots=True)
class RunRecord:
    """A run's row, with the columns of its task if it still has one."""

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
    """The id of the instance's first run. Lists are ordered by it, and their cursor names it."""
    seed: int = 0
    """The seed of the run's random numbers (64 bits, signed); a restart keeps it."""
    note: str | None = None
    """The reason why the engine paused the run, or why the run was terminated."""
    parent: str | None = None
    """The pid of the run that started this run as a child."""
    attempt: int = 1
    """The number of this attempt of the whole workflow, counted from 1."""
    options: bytes | None = None
    """Start options that only the engine reads; successors inherit them."""
    memo: bytes | None = None
    search: bytes | None = None
    """The search attributes as JSON, for display. Queries use ``Attributes.terms``."""
    current: bool = True
    """True for the last run of its instance."""
    version: str | None = None
    """The release (``WorkerConfig.version``) that started the run; None: not known."""
    pinned: bool = False
    """True if only workers of ``version`` claim the run."""
    origin: bytes | None = None
    """The run whose history this run continues, as JSON (``core.origin``). None: the run began with no history."""
    run_at: int | None = None
    owner: str | None = None
    losses: int = 0
    pausing: bool = False
    """A pause was requested and has not taken effect yet."""
    expires_at: int | None = None
    """The time at which the run is ended if it has not ended before (see ``Expiry``)."""
    expiry: str | None = None
    topics: frozenset[str] = frozenset()
    """Event types that wake this run; empty while its task is owned."""
    damage: str | None = None
    """The reason why the row cannot be read. The status is then PAUSED, whatever the stored one is."""

    @property
    def pid(self) -> str:
        return f"{self.workflow}/{self.instance_id}"

    @property
    def replayed_number(self) -> int:
        """The number of the run that recorded the beginning of the history."""
        return self.number if self.origin is None else Origin.decode(self.origin).replayed_number

    @property
    def key_number(self) -> int:
        """The run number in idempotency keys: a retry uses the keys of the run that failed."""
        number = None if self.origin is None else Origin.decode(self.origin).key_number
        return self.number if number is None else number


def damaged_record(fields: Sequence[Any], status: object) -> RunRecord:
    """The record of a row with an unknown status. Its run is neither executed nor ended, and is shown as paused."""
    record = RunRecord(*fields)
    record.damage = f"the stored status {status!r} is unknown"
    record.note = f"RUN_DAMAGED: {record.damage}"
    return record


@dataclass(slots=True)
class Term:
    """A key and value by which a run is found. Numbers and texts are never equal. A list of texts is several terms."""

    key: str
    value: str | int | float


@dataclass(slots=True)
class Attributes:
    """The memo and search attributes of a run. Each replaces the previous one; None keeps it."""

    memo: bytes | None = None
    search: bytes | None = None
    terms: Sequence[Term] = ()
    """All search terms; replaced together with ``search``."""


_NO_ATTRIBUTES = Attributes()


class ParentClose(StrEnum):
    """The policy for a child that has not ended when its parent ends."""

    TERMINATE = "terminate"
    ABANDON = "abandon"
    REQUEST_CANCEL = "request_cancel"


class Expiry(StrEnum):
    """The limit that ``RunRecord.expires_at`` enforces. The worker that claims an overdue run ends it accordingly."""

    RUN = "run"
    EXECUTION = "execution"
    CANCEL = "cancel"
    """The deadline of a cancellation request."""


class OnConflict(StrEnum):
    """Policy for a start whose id belongs to a run that has not ended."""

    USE_EXISTING = "use_existing"
    FAIL = "fail"
    TERMINATE_EXISTING = "terminate_existing"


class OnReuse(StrEnum):
    """Policy for a start whose id belongs to a run that has ended."""

    USE_EXISTING = "use_existing"
    ALLOW = "allow"
    ALLOW_IF_FAILED = "allow_if_failed"
    REJECT = "reject"
    RETRY_IF_FAILED = "retry_if_failed"
    """As USE_EXISTING for the store. The client repairs a run that failed, and repeats the request."""


class StartEvent(NamedTuple):
    """An event that is sent together with the start of a run."""

    type: str
    payload: bytes | None


@dataclass(slots=True)
class NewRun:
    """A run to create. With ``owner`` the run is created claimed, so that a local worker can begin at once.

    A run with a delay is WAITING until the delay has passed; any other run is ACTIVE.
    """

    workflow: str
    instance_id: str
    params: bytes | None = None
    kind: str = "workflow"
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    delay_ms: int = 0
    seed: int = 0
    owner: str | None = None
    lease_ms: int = 0
    on_conflict: OnConflict = OnConflict.USE_EXISTING
    on_reuse: OnReuse = OnReuse.USE_EXISTING
    reuse_after_ms: int = 0
    """With ``OnReuse.ALLOW``: an ended run that was created less than this time ago is used instead of a new one."""
    options: bytes | None = None
    attributes: Attributes | None = None
    expires_ms: int | None = None
    """Relative to now; ``expiry`` names the limit."""
    expiry: Expiry | None = None
    start_events: Sequence[StartEvent] = ()
    """The first events of the new run's mailbox. An existing run that is used instead receives them too."""
    sender: str | None = None
    """The sender of the start events."""
    parent: str | None = None
    parent_run: int | None = None
    """With ``parent``: the id of the parent run. It watches the new run from the start, with the flags of ``watch``."""
    parent_close: ParentClose = ParentClose.TERMINATE
    watch: Watch = Watch.MONITOR
    eager: bool = True
    """Permission to create the run claimed. Only the engine reads it; a store reads ``owner``."""
    plan: Sequence[Fact] = ()
    """PLAN facts, written with the run."""
    units: Sequence[NewUnit] = ()
    """Units of the run. The run itself (unit 0) is due when all of them are done.

    With ``owner``, units are created claimed (``claim_limit``), and never the run itself.
    """
    claim_limit: int = 0
    """Maximum number of due units that ``owner`` claims, lowest unit numbers first."""
    version: str | None = None
    pinned: bool = False
    """With ``version``: only workers of that version claim the run."""
    fair_key: LimitKey | None = None
    """The fair limit of the run, and its key: keys are claimed in turn. The run is created without an owner."""
    policy: StartPolicy | None = None
    """The policy that decides whether the start makes a run. It has no owner, and is alone in its call."""

    @property
    def pin(self) -> str:
        """The version that a worker must have to claim the run; empty: any."""
        return self.version if self.pinned and self.version is not None else ""

    @property
    def status(self) -> Status:
        return Status.WAITING if self.delay_ms > 0 else Status.ACTIVE

    @property
    def run_owner(self) -> str | None:
        """First owner of unit 0; None for a run that is not due yet, has to wait for its turn, or has units."""
        return None if self.units or self.delay_ms > 0 or self.fair_key is not None else self.owner

    def claimed_units(self) -> list[NewUnit]:
        """The units that are created claimed."""
        if self.owner is None or self.delay_ms > 0 or not self.units:
            return []
        return sorted(unit for unit in self.units if not unit.missing)[: self.claim_limit]

    def record(self, run: int, number: int, instance: int, at: int) -> RunRecord:
        """The record of this run, created at ``at`` with these ids."""
        attributes = self.attributes or _NO_ATTRIBUTES
        return RunRecord(
            run=run,
            workflow=self.workflow,
            instance_id=self.instance_id,
            number=number,
            kind=self.kind,
            status=self.status,
            params=self.params,
            output=None,
            error=None,
            queue=self.queue,
            priority=self.priority,
            created_at=at,
            updated_at=at,
            started_at=None,
            completed_at=None,
            instance=instance,
            seed=self.seed,
            parent=self.parent,
            options=self.options,
            memo=attributes.memo,
            search=attributes.search,
            version=self.version,
            pinned=self.pin != "",
            run_at=None if self.units else at + self.delay_ms,
            owner=self.run_owner,
            expires_at=None if self.expires_ms is None else at + self.expires_ms,
            expiry=None if self.expires_ms is None else self.expiry,
        )


FIRST_EPOCH = 1
"""The epoch of a run that is created claimed, and of the first claim of any other run."""


class RequestResult(StrEnum):
    """The result of a request that one run or a client made on a run."""

    DONE = "done"
    EXISTING = "existing"
    """For a start: another run has the id, and is used."""
    EXISTS = "exists"
    """For a start: another run has the id, and the request's policy forbids that. Nothing was written."""
    ENDED = "ended"
    """The run has ended, so the request has no effect (for a start: the start events do not reach the existing run)."""
    MISSING = "missing"
    """The run does not exist."""
    LIMITED = "limited"
    """For a start: a limit has no room (``LimitedStart.reject``). Nothing was written; the run is the refused one."""

    @property
    def ok(self) -> bool:
        return self in (RequestResult.DONE, RequestResult.EXISTING)


@dataclass(slots=True)
class Created:
    """The result of a NewRun: the run that now has the id, and whether this call created it."""

    result: RequestResult
    """DONE, EXISTING, EXISTS, ENDED or LIMITED."""
    run: RunRecord
    epoch: int = 0
    events: Sequence[StoredEvent] = ()
    """The stored start events, if the run was created."""
    units: Sequence[int] = ()
    """Units that were created claimed, each with FIRST_EPOCH."""
    affected: AffectedRuns | None = None
    """Other runs that changed: an existing run that was terminated, or received the start events."""

    @property
    def created(self) -> bool:
        return self.result is RequestResult.DONE


@dataclass(slots=True)
class AffectedRuns:
    """Other runs that a write ended or woke, so that their owners in this process can be notified at once."""

    ended: list[int] = field(default_factory=list)
    woken: list[int] = field(default_factory=list)
    """Runs that received an event: they are due now, or their owner is signalled."""
    work: bool = False
    """True if a task became due."""


@dataclass(slots=True)
class Claimant:
    """The worker that claims what a write makes due, in the same transaction and without a separate claim."""

    owner: str
    lease_ms: int
    queues: Sequence[str]
    version: str | None = None
    """The release of the worker. A run that is pinned to another version is not claimed."""


@dataclass(slots=True)
class Prediction:
    """The turn that an event will cause, computed by the worker that caches the run's machine before the event is sent.

    The prediction holds if the run has not changed since. Its commit may then be written together with the event.
    """

    run: RunRecord
    """The suspended run from which the turn was computed."""
    n: int
    """The predicted number of the event."""
    at: int
    """The predicted time of the event; the store uses it if it is within ``MAX_CLOCK_SKEW_MS`` of its own clock."""
    commit: Commit
    """The first commit of the turn, under the fence that the claim will establish."""

    def event_time(self, now: int, run: RunRecord) -> int:
        """Creation time of the event: ``at`` if it is close to ``now`` and ``run`` is not due yet, else ``now``."""
        due = run.run_at is not None and run.run_at <= now
        return now if due or abs(self.at - now) > MAX_CLOCK_SKEW_MS else self.at

    def holds_for(self, claim: Claim) -> bool:
        """True if the claim is the predicted one: the same fence, no loss, and this event as the mailbox's last."""
        if (
            claim.task != self.commit.task
            or claim.lost
            or claim.mailbox_page.last != self.n
            or not claim.mailbox_page.events
        ):
            return False
        last = claim.mailbox_page.events[-1]
        return last.n == self.n and last.created_at == self.at


@dataclass(slots=True)
class NewEvent:
    workflow: str
    instance_id: str
    type: str
    payload: bytes | None = None
    dedup: str | None = None
    """Idempotency key: within one line of runs (``NextRun``), two events with the same key are one event."""
    sender: str | None = None
    ask: str | None = None
    """The key under which the sender waits for a reply."""
    claimant: Claimant | None = None
    """Claims the run if this event wakes it, its queue is one of the claimant's, it is not pinned to another version,
    and it is not a suspect."""
    prediction: Prediction | None = None
    """The claimant's turn after this event. A store may ignore it."""
    trace: str | None = None
    """The trace context of the sender, which the telemetry sets."""


@dataclass(slots=True)
class Sent:
    """The run that an event was sent to, as it was before (None: no such instance). Terminal runs accept no events."""

    run: RunRecord | None
    accepted: bool
    duplicate: bool = False
    woken: bool = False
    """The run's task became due, or its owner was signalled."""
    claim: Claim | None = None
    """The claim, if the claimant owns the run now."""
    committed: Committed | None = None
    """The result of the predicted commit if it was written with the event; ``claim`` is then None."""


class Reply(NamedTuple):
    """The reply to an event."""

    ok: bool
    """False if the event was rejected; ``value`` is then the reason."""
    value: bytes | None
