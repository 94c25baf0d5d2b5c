"""The store itself: every intent there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.ports import Clock
from holdfast.store.protocol.commits import Commit, Committed, LiveTransaction
from holdfast.store.protocol.facts import Fact, Log, Mail, Mailbag, StoredLog
from holdfast.store.protocol.outbox import Delivered, OutboxClaim, OutboxRow, Undelivered
from holdfast.store.protocol.reads import ListQuery, Migrated, PageQuery, Relations, Steered
from holdfast.store.protocol.runs import Claimant, Created, Expiry, NewEvent, NewRun, Reply, RunRecord, Sent
from holdfast.store.protocol.tasks import (
    ClaimRequest,
    ClaimResult,
    Freed,
    Heartbeat,
    Held,
    Lease,
    Snapshot,
    WorkerCard,
    WorkerRecord,
)
from holdfast.store.protocol.units import Advance, Advanced, NewUnit, TaskRef


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
        """Make a paused run due (kind RESUME), or withdraw a pause not in effect. Else nothing.

        Losses are forgotten, but for one that no holder has heard of yet.
        """
        ...

    async def terminate(self, workflow: str, instance_id: str, reason: str | None = None) -> Steered:
        """End it now.

        The row is terminal and the task is gone (with all units) before this returns. Answers the run as it was before.
        """
        ...

    async def cancel(self, workflow: str, instance_id: str, payload: bytes, deadline_ms: int | None) -> Steered:
        """Send it a CANCEL event; with a deadline, it expires then at the latest. A graph is ended at once.

        ``payload``: as CANCEL has it. Answers the run as it was before.
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
    ) -> Steered:
        """Begin again with the next run number. ``options``: in place of those of the old run; None: the same.

        The old run, ended (TERMINATED) if it was not, stays readable, and its mail stays with it. The new one has its
        PLAN facts, params, options, parent, memo and search, and those who watched it; its attempt is 1. Answers the
        new run.
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

    async def advance(self, advances: Sequence[Advance], claimant: Claimant, room: int) -> Advanced:
        """Apply each under its own fence; ``task.owner`` of all is the claimant.

        It takes up to ``room`` of the units that become due by this, and any unit 0 that does.
        """
        ...

    async def heartbeat(self, owner: str, lease_ms: int) -> list[Held]:
        """Extend every lease of ``owner``.

        What is not in the answer is lost. MAIL signals are cleared by being read.
        """
        ...

    async def record_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None:
        """Write the HEARTBEAT facts of attempts, each under its own fence; those of lost claims are passed over.

        A later one of the same attempt replaces the time and the value of an earlier one.
        """
        ...

    async def set_leases(self, wanted: Sequence[Lease]) -> list[bool]:
        """Give held tasks (unit 0) leases of their own, from now on; each heartbeat of the owner renews them.

        The lease holds until the task is given back or claimed again: a claim has the lease of its claimant. Answers
        for each whether the task is still held under this epoch.
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

    async def add_late(self, run: int, facts: Sequence[Fact], lines: Sequence[Log]) -> bool:
        """Add what a worker had not written yet when the run that it held was ended from outside.

        ``facts``: results of steps that had finished, which are added to a terminated run; facts that exist stay as
        they are. ``lines``: log lines of cancelled attempts. False: the run has not ended, and nothing was added. No
        fence is needed, because an ended run has no holder.
        """
        ...

    # --- the outbox

    async def outbox_claim(self, owner: str, lease_ms: int, limit: int) -> OutboxClaim:
        """Take events that are due, of each run the first that is left, unless somebody has it and lives.

        One whose holder's lease ran out counts an attempt.
        """
        ...

    async def outbox_settle(self, owner: str, settled: Sequence[Delivered | Undelivered]) -> int:
        """Write down what came of them. What ``owner`` does not hold any more is passed over. Answers how many held."""
        ...

    async def outbox(self, run: int) -> list[OutboxRow]:
        """All of a run's, in their order."""
        ...

    async def outbox_retry(self, run: int) -> int:
        """Parked ones are due again, with no attempts counted. Answers how many."""
        ...

    # --- reads

    async def load(self, run: int) -> Snapshot: ...

    async def undelivered(self, run: int, topics: frozenset[str] | None = None, after: int = 0) -> Mailbag:
        """The oldest undelivered events with a number higher than ``after``, a bounded number of them.

        ``topics``: only of these types, and the engine's own. None: of all.
        """
        ...

    async def reply(self, run: int, dedup: str) -> Reply | None:
        """What was answered to the event with this key, by any run of the line of this one; None: nothing yet."""
        ...

    async def relations(self, run: int) -> Relations: ...

    async def find(self, workflow: str, instance_id: str, number: int | None = None) -> RunRecord | None:
        """The current run, or the one with that number."""
        ...

    async def get(self, runs: Sequence[int]) -> list[RunRecord]: ...

    async def facts(self, run: int, state: int | None = None, keys: Sequence[str] | None = None) -> list[Fact]:
        """All, or those of one state (one range scan), or of that state with these keys. Ordered by state, key, n."""
        ...

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
