"""``Store``: the protocol with all intents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.core.facts import Fact, MailboxPage, StoredEvent, StoredLog
from holdfast.ports import Clock
from holdfast.store.protocol.blobs import BlobRequest
from holdfast.store.protocol.bulk import BulkJobRow, BulkRequest
from holdfast.store.protocol.commits import Commit, Committed, LateResults, LiveTransaction
from holdfast.store.protocol.control import Audit, AuditQuery, AuditRow, ControlRequest, ControlResult
from holdfast.store.protocol.failovers import Failovers
from holdfast.store.protocol.outbox import Delivered, DeliveryFailure, OutboxClaim, OutboxClaimRequest, OutboxRow
from holdfast.store.protocol.permits import (
    LimitRecord,
    LimitRequest,
    PermitExchange,
    PermitPosition,
    PermitReply,
)
from holdfast.store.protocol.prune import Pruned, PruneRequest
from holdfast.store.protocol.queues import QueueReply, QueueRequest
from holdfast.store.protocol.reads import FactsQuery, MailboxQuery, Migrated, PageQuery, Relations, RunQuery
from holdfast.store.protocol.runs import Claimant, Created, NewEvent, NewRun, Reply, RunRecord, Sent
from holdfast.store.protocol.schedules import (
    DueRequest,
    DueSchedules,
    ScheduleChange,
    ScheduleChanged,
    ScheduleQuery,
    ScheduleRow,
)
from holdfast.store.protocol.stats import StatsQuery, StoreStats
from holdfast.store.protocol.streams import (
    PruneStreams,
    StreamHead,
    StreamPage,
    StreamQuery,
    StreamWrite,
    StreamWritten,
)
from holdfast.store.protocol.tasks import (
    ClaimRequest,
    ClaimResult,
    ExpiredTask,
    Heartbeat,
    HeldTask,
    Lease,
    Snapshot,
    VersionCount,
    WorkerProfile,
    WorkerRecord,
)
from holdfast.store.protocol.units import Advance, Advanced, TaskRef


class Store(Protocol):
    """One database. All intents may be called concurrently; a batch is one transaction.

    Requests with the same kind of result are one intent (``control``, ``runs``), and the type of the request says what
    is requested. Intents with different results or guarantees are separate: ``heartbeat`` renews leases and returns all
    owned tasks, while ``fetch_signals`` is polled and usually writes nothing; ``events`` and ``logs`` return different
    rows. No intent returns the time, because ``clock`` does without a query.
    """

    # --- lifecycle

    async def open(self, *, migrate: bool = True) -> Migrated:
        """Connect, and migrate the schema to this code's version, or with ``migrate=False`` only check its version."""
        ...

    async def close(self) -> None:
        """Disconnect. A closed store can be opened again."""
        ...

    @property
    def clock(self) -> Clock:
        """The store's time, without a query per reading."""
        ...

    @property
    def failovers(self) -> Failovers:
        """Notifications of failovers of the database."""
        ...

    @property
    def writers(self) -> int:
        """Number of batches of commits that a worker writes at the same time. 1 if the database has one writer."""
        ...

    # --- writes of clients

    async def create(self, runs: Sequence[NewRun], *, connection: Any = None) -> list[Created]:
        """Create runs.

        ``on_conflict`` and ``on_reuse`` apply to an id that exists or is earlier in the same batch. A run that replaces
        another run of its instance has the next number and inherits the watchers, and nothing else.
        ``connection``: a connection of the caller, of the database's driver. The runs are written in the transaction
        that is open on it, which is left open, or in a transaction of their own if none is open.
        """
        ...

    async def send(self, events: Sequence[NewEvent], *, connection: Any = None) -> list[Sent]:
        """Add events to the mailboxes of runs. ``connection``: as for ``create``."""
        ...

    async def control(self, request: ControlRequest, audit: Audit | None = None) -> ControlResult:
        """Apply a request of an operator or a client; the type of the request describes the effect.

        A run that has ended is not changed, and a run that does not exist is not audited. ``audit``: the record that
        is written in the same transaction, also if the request is refused.
        """
        ...

    async def bulk(self, request: BulkRequest) -> list[BulkJobRow]:
        """Create, take, save or read stored bulk jobs; returns the jobs concerned."""
        ...

    # --- writes of turns

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Claim due tasks: runs that continue before new runs, then by lower priority number, then the longest due."""
        ...

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        """Apply each commit under its own fence. A lost or rejected commit does not affect the others.

        A commit that holds a RESULT, or releases the task, resets the task's losses.
        """
        ...

    async def advance(self, advances: Sequence[Advance], claimant: Claimant, claim_limit: int) -> Advanced:
        """Apply each advance under its own fence; ``task.owner`` of every advance is the claimant.

        The claimant claims up to ``claim_limit`` of the units that the batch makes due, and every such unit 0.
        """
        ...

    async def begin(self) -> LiveTransaction:
        """Open a live transaction for a step."""
        ...

    async def release(self, tasks: Sequence[TaskRef]) -> int:
        """Release tasks without a loss; they are due now. Stale claims are ignored.

        Returns the number of tasks released.
        """
        ...

    async def add_late_results(self, results: LateResults) -> bool:
        """Add late results to an ended run. Returns False, and adds nothing, if the run has not ended.

        No fence is needed, because an ended run has no owner.
        """
        ...

    # --- streams

    async def write_streams(self, writes: Sequence[StreamWrite]) -> list[StreamWritten]:
        """Append items of running attempts to streams, each write under its own fence. A repeated call has no effect.

        A stream may be written by several attempts at the same time; the items of one write are adjacent.
        """
        ...

    async def read_stream(self, query: StreamQuery) -> StreamPage: ...

    async def streams(self, run: int) -> list[StreamHead]:
        """The streams of a run, in the order of their names."""
        ...

    async def prune_streams(self, request: PruneStreams) -> int:
        """Delete streams of finished runs in one transaction; returns their number."""
        ...

    # --- workers and leases

    async def register_worker(self, worker: WorkerProfile, lease_ms: int) -> None:
        """Insert the worker's row, which ``heartbeat`` renews. Rows of workers dead for a day are deleted."""
        ...

    async def unregister_worker(self, owner: str) -> None:
        """Delete the row of a worker that shuts down."""
        ...

    async def heartbeat(self, owner: str, lease_ms: int) -> list[HeldTask]:
        """Extend every lease of ``owner``, and return the tasks that it owns.

        A task that is not in the result is lost. Returning the EVENTS signal clears it.
        """
        ...

    async def fetch_signals(self, owner: str) -> list[HeldTask]:
        """Return the tasks of ``owner`` that have a signal. Returning the EVENTS signal clears it."""
        ...

    async def record_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None:
        """Write the HEARTBEAT facts of attempts, each under its own fence; those of lost claims are ignored.

        A later heartbeat of the same attempt replaces the time and the value of an earlier one.
        """
        ...

    async def set_leases(self, requested: Sequence[Lease]) -> list[bool]:
        """Set the lease duration of individual owned tasks (unit 0) from now on; heartbeats of the owner renew them.

        The duration applies until the task is released or claimed again: a claim uses the claimant's lease. Returns
        for each task whether it is still owned under this epoch.
        """
        ...

    async def reap(self, max_losses: int) -> list[ExpiredTask]:
        """Release tasks whose lease has expired and count a loss; pause a run at ``max_losses`` losses in a row."""
        ...

    async def prune(self, request: PruneRequest) -> Pruned:
        """Delete finished runs, in a transaction that is short enough not to delay others noticeably.

        The rows of a large run are deleted in several transactions: such a request examines no runs, and returns its
        own position.
        """
        ...

    # --- blobs

    async def blobs(self, request: BlobRequest) -> list[Any]:
        """Count references to blobs, write and read the chunks of blobs, and find blobs without references."""
        ...

    # --- flow control

    async def limits(self, request: LimitRequest) -> list[LimitRecord]:
        """Declare, change or read limits. Permits that a higher limit has room for are granted by the next exchange."""
        ...

    async def exchange_permits(self, exchange: PermitExchange) -> PermitReply:
        """Return, request and park permits of a worker; then grant everything that has room.

        The reply has the permits of the worker's tasks that were granted since its last exchange. A repeated exchange
        has the same effect as one.
        """
        ...

    async def permit_positions(self, run: int) -> list[PermitPosition]:
        """The waiting permits of a run, with the limits that have no room."""
        ...

    async def queues(self, request: QueueRequest) -> QueueReply:
        """Declare, pause, resume, move or read queues. Workers are notified of every change."""
        ...

    # --- the outbox

    async def claim_outbox(self, request: OutboxClaimRequest) -> OutboxClaim:
        """Claim due outbound events: of each run the first pending event, unless it has an owner with a valid lease.

        Claiming an event whose owner's lease has expired counts an attempt.
        """
        ...

    async def settle_outbox(self, owner: str, outcomes: Sequence[Delivered | DeliveryFailure]) -> int:
        """Record the outcomes of deliveries. Events that ``owner`` no longer owns are ignored.

        Returns the number of outcomes recorded.
        """
        ...

    async def outbox(self, run: int) -> list[OutboxRow]:
        """All outbound events of a run, in their order."""
        ...

    # --- schedules

    async def due_schedules(self, request: DueRequest) -> DueSchedules:
        """Schedules whose time has come, the longest overdue first, with their open and queued ticks."""
        ...

    async def schedules(self, query: ScheduleQuery) -> list[ScheduleRow]: ...

    async def change_schedules(self, changes: Sequence[ScheduleChange]) -> list[ScheduleChanged]:
        """Change schedules whose revision is the expected one, and create the runs of their ticks.

        All changes are one transaction, but each is applied or refused on its own. The ids of the runs identify their
        ticks: a run that exists already is used.
        """
        ...

    # --- reads

    async def runs(self, query: RunQuery) -> list[RunRecord]:
        """Runs by their ids, by the name of their instance, or by filters."""
        ...

    async def facts(self, query: FactsQuery) -> list[Fact]:
        """Facts of a run, ordered by state, key and n."""
        ...

    async def events(self, query: PageQuery) -> list[StoredEvent]: ...

    async def logs(self, query: PageQuery) -> list[StoredLog]: ...

    async def load(self, run: int) -> Snapshot:
        """The data that a replay needs besides the claim."""
        ...

    async def undelivered(self, query: MailboxQuery) -> MailboxPage:
        """A page of the mailbox: the oldest undelivered events."""
        ...

    async def reply(self, run: int, dedup: str) -> Reply | None:
        """The reply of any run of this run's line (see ``NextRun``) to the event with this key; None: none yet."""
        ...

    async def audit(self, query: AuditQuery) -> list[AuditRow]:
        """Records of control requests, the newest first."""
        ...

    async def relations(self, run: int) -> Relations: ...

    async def workers(self) -> list[WorkerRecord]:
        """All registered workers, in the order of their registration."""
        ...

    async def versions(self) -> list[VersionCount]:
        """The number of unfinished runs by version, runs without a version last."""
        ...

    async def stats(self, query: StatsQuery) -> StoreStats:
        """Statistics of the database; the cost does not depend on the number of finished runs."""
        ...

    async def tally(self, limit: int) -> bool:
        """Move the watermark of the tallies, by at most about ``limit`` runs of each workflow and status.

        True if there is more to count. A repeated call has no effect for ``TALLY_PAUSE_MS``.
        """
        ...

    async def wait_for_change(self, since: int | None, *, streams: bool = False) -> int:
        """Wait until another process has written something that may concern this one, and return a version number.

        ``streams``: wait also for items of streams, which would wake a worker many times in a second for nothing.
        Numbers with and without ``streams`` are not comparable.

        ``since``: the last number that was returned; with None the call returns at once. The call returns after a
        short time in any case, possibly with the same number. A new number does not prove a change; an unchanged
        number proves that there was none.
        """
        ...
