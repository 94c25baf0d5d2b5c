"""``Store``: the protocol with all intents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.core.facts import Fact, Log, MailboxPage, StoredEvent, StoredLog
from holdfast.ports import Clock
from holdfast.store.protocol.commits import Commit, Committed, LiveTransaction
from holdfast.store.protocol.outbox import Delivered, DeliveryFailure, OutboxClaim, OutboxRow
from holdfast.store.protocol.reads import ControlResult, ListQuery, Migrated, PageQuery, Relations
from holdfast.store.protocol.runs import Claimant, Created, Expiry, NewEvent, NewRun, Reply, RunRecord, Sent
from holdfast.store.protocol.tasks import (
    ClaimRequest,
    ClaimResult,
    ExpiredTask,
    Heartbeat,
    HeldTask,
    Lease,
    Snapshot,
    WorkerProfile,
    WorkerRecord,
)
from holdfast.store.protocol.units import Advance, Advanced, NewUnit, TaskRef


class Store(Protocol):
    """One database. All intents may be called concurrently; a batch is one transaction."""

    # --- lifecycle

    async def open(self, *, migrate: bool = True) -> Migrated:
        """Connect, and migrate the schema to this version, or with ``migrate=False`` only check its version."""
        ...

    async def close(self) -> None: ...

    async def now(self) -> int: ...

    @property
    def clock(self) -> Clock:
        """A clock that follows the store's time without a query per reading."""
        ...

    # --- writes of a client

    async def create(self, runs: Sequence[NewRun], *, connection: Any = None) -> list[Created]:
        """Create runs.

        ``on_conflict`` and ``on_reuse`` apply to an id that exists, also earlier in the same batch. A run that replaces
        another run of its instance has the next number and takes over the watchers, and nothing else.
        ``connection``: a connection of the caller, of the database's driver. The runs are written in the transaction
        that is open on it, which is left open, or in a transaction of their own if none is open.
        """
        ...

    async def send(self, events: Sequence[NewEvent], *, connection: Any = None) -> list[Sent]:
        """Add events to the mailboxes of runs. ``connection``: as for ``create``."""
        ...

    async def pause(self, workflow: str, instance_id: str) -> RunRecord | None:
        """Pause at once if the task has no owner, else signal the owner.

        Returns the run as it was before. A terminal run is not changed.
        """
        ...

    async def resume(self, workflow: str, instance_id: str) -> RunRecord | None:
        """Make a paused run due (kind RESUME), or withdraw a pause that has not taken effect; else do nothing.

        Returns the run as it was before. The count of losses is reset, except for a loss that no claim has reported.
        """
        ...

    async def terminate(self, workflow: str, instance_id: str, reason: str | None = None) -> ControlResult:
        """End the run now.

        The row is terminal and the task is deleted, with all units, before this returns. Returns the run as it was
        before.
        """
        ...

    async def cancel(self, workflow: str, instance_id: str, payload: bytes, deadline_ms: int | None) -> ControlResult:
        """Send the run a CANCEL event; with a deadline, the run expires then at the latest. A graph ends at once.

        ``payload``: the payload of the CANCEL event. Returns the run as it was before.
        """
        ...

    async def restart(
        self,
        workflow: str,
        instance_id: str,
        expires_ms: int | None = None,
        expiry: Expiry | None = None,
        options: bytes | None = None,
        units: Sequence[NewUnit] = (),
    ) -> ControlResult:
        """Create a run with the next number that starts from the beginning.

        The old run is ended (TERMINATED) if it has not ended. It stays readable and keeps its events. The new run
        takes over the PLAN facts, params, options, parent, memo, search and watchers; its attempt is 1. ``options``
        replaces the options of the old run; None keeps them. Returns the new run.
        """
        ...

    # --- writes of a worker

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Claim due tasks: runs that continue before new runs, then by lower priority number, then the longest due."""
        ...

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        """Apply each commit under its own fence. A lost or rejected commit does not affect the others.

        A commit that holds a RESULT, or releases the task, resets the task's losses.
        """
        ...

    async def advance(self, advances: Sequence[Advance], claimant: Claimant, claim_limit: int) -> Advanced:
        """Apply each advance under its own fence; ``task.owner`` of all is the claimant.

        The claimant claims up to ``claim_limit`` of the units that become due by this, and every unit 0 that does.
        """
        ...

    async def heartbeat(self, owner: str, lease_ms: int) -> list[HeldTask]:
        """Extend every lease of ``owner``, and return the tasks that it owns.

        A task that is not in the result is lost. Returning the EVENTS signal clears it.
        """
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

    async def fetch_signals(self, owner: str) -> list[HeldTask]:
        """Return the tasks of ``owner`` that have a signal. Returning the EVENTS signal clears it."""
        ...

    async def reap(self, max_losses: int) -> list[ExpiredTask]:
        """Release tasks whose lease has expired and count a loss; pause a run at ``max_losses`` losses in a row."""
        ...

    async def register_worker(self, worker: WorkerProfile, lease_ms: int) -> None:
        """Insert the worker's row, which ``heartbeat`` renews. Rows of workers dead for a day are deleted."""
        ...

    async def unregister_worker(self, owner: str) -> None:
        """Delete the row of a worker that shuts down."""
        ...

    async def begin(self) -> LiveTransaction:
        """Open a live transaction for a step."""
        ...

    async def release(self, tasks: Sequence[TaskRef]) -> int:
        """Release tasks, due now, without a loss. Stale claims are ignored. Returns the number of tasks released."""
        ...

    async def add_late_results(self, run: int, facts: Sequence[Fact], logs: Sequence[Log]) -> bool:
        """Add what a worker had not yet written when its run was ended by another process.

        ``facts``: results of steps that had finished. They are added only to a terminated run; existing facts are not
        changed. ``logs``: log lines of cancelled attempts. Returns False, and adds nothing, if the run has not ended.
        No fence is needed, because an ended run has no owner.
        """
        ...

    # --- the outbox

    async def claim_outbox(self, owner: str, lease_ms: int, limit: int) -> OutboxClaim:
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

    async def retry_outbox(self, run: int) -> int:
        """Make the parked events of a run due again, with no attempts counted. Returns their number."""
        ...

    # --- reads

    async def load(self, run: int) -> Snapshot: ...

    async def undelivered(self, run: int, topics: frozenset[str] | None = None, after: int = 0) -> MailboxPage:
        """The oldest undelivered events with a number higher than ``after``, at most one page.

        ``topics``: only events of these types, and the engine's own. None: all types.
        """
        ...

    async def reply(self, run: int, dedup: str) -> Reply | None:
        """The reply to the event with this key, by any run of this run's line; None if there is none yet."""
        ...

    async def relations(self, run: int) -> Relations: ...

    async def find(self, workflow: str, instance_id: str, number: int | None = None) -> RunRecord | None:
        """The current run, or the one with that number."""
        ...

    async def get(self, runs: Sequence[int]) -> list[RunRecord]: ...

    async def facts(self, run: int, state: int | None = None, keys: Sequence[str] | None = None) -> list[Fact]:
        """All facts, or those of one state (one range scan), or of that state with these keys.

        Ordered by state, key and n.
        """
        ...

    async def events(self, query: PageQuery) -> list[StoredEvent]: ...

    async def logs(self, query: PageQuery) -> list[StoredLog]: ...

    async def workers(self) -> list[WorkerRecord]:
        """All registered workers, in the order of their registration."""
        ...

    async def wait_for_change(self, since: int | None) -> int:
        """Wait until another process has written something that may concern this one, and return a version number.

        ``since``: the last number that was returned; with None the call returns at once. The call returns after a
        short time in any case, possibly with the same number. A new number does not prove a change; an unchanged
        number proves that there was none.
        """
        ...

    async def list(self, query: ListQuery) -> list[RunRecord]:
        """Current runs, newest instance first. Every filter uses an index."""
        ...
