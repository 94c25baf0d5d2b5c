"""``Store``: the protocol with all intents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from holdfast.ports import Clock
from holdfast.store.protocol.blobs import BlobRequest
from holdfast.store.protocol.bulk import BulkJobRow, BulkRequest
from holdfast.store.protocol.commits import Commit, Committed, LateResults, LiveTransaction
from holdfast.store.protocol.control import Audit, ControlRequest, ControlResult
from holdfast.store.protocol.failovers import Failovers
from holdfast.store.protocol.permits import (
    LimitRecord,
    LimitRequest,
    PermitExchange,
    PermitReply,
)
from holdfast.store.protocol.queues import QueueReply, QueueRequest
from holdfast.store.protocol.reads import Migrated
from holdfast.store.protocol.requests import MaintenanceRequest, OutboxRequest, Query
from holdfast.store.protocol.runs import Claimant, Created, NewEvent, NewRun, Sent
from holdfast.store.protocol.schedules import (
    ScheduleChange,
    ScheduleChanged,
)
from holdfast.store.protocol.streams import (
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
    WorkerProfile,
)
from holdfast.store.protocol.units import Advance, Advanced, TaskRef

R = TypeVar("R")


class Store(Protocol):
    """One database. All intents may be called concurrently; a batch is one transaction.

    ``read`` takes every query; the type of a query states the type of its reply. A write is a separate intent if it has
    guarantees of its own: ``heartbeat`` renews leases and returns all owned tasks, while ``fetch_signals`` is polled
    and usually writes nothing. Writes that are variants of one operation are requests of one intent (``control``,
    ``queues``, ``maintain``). No intent returns the time, because ``clock`` does without a query.
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

    async def maintain(self, request: MaintenanceRequest[R]) -> R:
        """Do a part of the upkeep of the database: ``PruneRuns``, ``PruneStreams`` or ``Tally``."""
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

    async def queues(self, request: QueueRequest) -> QueueReply:
        """Declare, pause, resume, move or read queues. Workers are notified of every change."""
        ...

    # --- the outbox

    async def outbox(self, request: OutboxRequest[R]) -> R:
        """Claim outbound events (``ClaimOutbox``), or record the outcomes of their deliveries (``SettleOutbox``)."""
        ...

    # --- schedules

    async def change_schedules(self, changes: Sequence[ScheduleChange]) -> list[ScheduleChanged]:
        """Change schedules whose revision is the expected one, and create the runs of their ticks.

        All changes are one transaction, but each is applied or refused on its own. The ids of the runs identify their
        ticks: a run that exists already is used.
        """
        ...

    # --- reads

    async def read(self, query: Query[R]) -> R:
        """Return what a query describes; ``docs/architecture.md`` lists the queries."""
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
