"""Claiming: due tasks of the queues become turns of this worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from holdfast.kernel.definition import Registry
from holdfast.kernel.notify import Hub
from holdfast.kernel.options import overdue
from holdfast.runner import notifications
from holdfast.runner.claim_schedule import ClaimSchedule
from holdfast.runner.permits import Permits
from holdfast.runner.run_cache import RunCaches, with_units
from holdfast.runner.slots import Slots
from holdfast.runner.small_loops import Reaper
from holdfast.runner.turn_context import TurnContext
from holdfast.runner.turn_runner import TurnRunner
from holdfast.runner.turn_table import TurnTable
from holdfast.store.protocol import Claim, Claimant, ClaimRequest, Commit, Following, RunRecord, Store, Verdict


class Claimer:
    """Claims due tasks and begins their turns."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        hub: Hub,
        claimant: Claimant,
        table: TurnTable,
        slots: Slots,
        run_caches: RunCaches,
        runner: TurnRunner,
        reaper: Reaper,
        schedule: ClaimSchedule,
        permits: Permits | None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._hub = hub
        self._claimant = claimant
        self._table = table
        self._slots = slots
        self._run_caches = run_caches
        self._runner = runner
        self._reaper = reaper
        self._schedule = schedule
        self._permits = permits
        self._has_full_queue = False
        """A queue has no free slot of its share: the end of a turn wakes the claim loop."""
        slots.on_freed = self._turn_ended if slots.by_queue is not None else None

    def _turn_ended(self) -> None:
        if self._has_full_queue:
            self._schedule.wake()

    async def step(self) -> float:
        if self._slots.draining:
            return self._schedule.poll()
        limit = await self._slots.claim_limit()
        if limit <= 0:
            return 0.0
        claimed = await self.claim_due(limit)
        return 0.0 if claimed == limit else self._schedule.pause()

    async def claim_due(self, limit: int, context: TurnContext | None = None) -> int:
        """Claim due tasks and begin their turns; returns the number of claimed tasks."""
        if self._slots.by_queue is not None:
            return await self._claim_by_queue(self._slots.by_queue, limit, context)
        claimed, next_due = await self._claim(limit, self._claimant.queues, context)
        self._schedule.claimed(next_due)
        return claimed

    async def _claim_by_queue(self, shares: Mapping[str, int], limit: int, context: TurnContext | None) -> int:
        """Claim from each queue as many tasks as its share has room for."""
        total, times = 0, list[int]()
        self._has_full_queue = False
        for queue, slots in shares.items():
            room = min(limit - total, slots - self._table.count_of_queue(queue))
            claimed, next_due = await self._claim(room, [queue], context) if room > 0 else (0, None)
            total += claimed
            if claimed >= room:
                self._has_full_queue = True
            elif next_due is not None:
                times.append(next_due)
        self._schedule.claimed(min(times, default=None))
        return total

    async def _claim(self, limit: int, queues: Sequence[str], context: TurnContext | None) -> tuple[int, int | None]:
        """Claim from these queues; returns the number of claimed tasks, and when the next one is due."""
        request = ClaimRequest(
            owner=self._claimant.owner,
            lease_ms=self._claimant.lease_ms,
            limit=limit,
            queues=queues,
            workflows=self._registry.runnable(),
            suspects=not self._table.has_suspect,
            version=self._claimant.version,
            pinned=self._registry.pinned(),
        )
        if self._permits is not None:
            await self._permits.refresh()
        self._slots.begin_claim(limit)
        try:
            result = await self._store.claim(request)
        finally:
            self._slots.end_claim(limit)
        if request.owner != self._claimant.owner:  # the database has failed over meanwhile
            await self._store.release([claim.task for claim in (*result.claims, *result.overdue)])
            return 0, None
        for claim in result.claims:
            self._runner.begin(claim, context)
        for claim in result.overdue:
            await self._end_overdue(claim)
        return len(result.claims) + len(result.overdue), result.next_due

    async def _end_overdue(self, claim: Claim) -> None:
        """End a run whose timeout has expired, whether or not a worker owned it."""
        run, context = claim.run, self._runner.context
        try:
            model = self._registry.model(run.kind)
            finish = await with_units(overdue(run, context.ports.now_ms()), run, model, context)
            commit = Commit(claim.task, following=Following(next=finish))
            [committed] = await context.committer.commit([commit])
        finally:
            # Signal after the end is written: log lines of cancelled attempts can be added only to an ended run.
            self._runner.signal(run.run, None)
            if self._permits is not None:
                self._permits.wake()  # the end of the run may have returned permits
        context.committed(run, commit, committed)
        if committed.verdict is Verdict.APPLIED:
            notifications.run_ended(self._hub, run.run, finish, run.options)
            notifications.committed(self._hub, committed)

    async def start_units(self, run: RunRecord) -> list[str] | None:
        """Claim the due units of a run and begin their turns; returns the keys of the units.

        None: only unit 0 was due. Its turn has ended by now, and the run may have ended or have other due units.
        """
        owner, lease_ms, slots = self._claimant.owner, self._claimant.lease_ms, max(0, self._slots.free)
        request = ClaimRequest(
            owner, lease_ms, slots, [run.queue], frozenset({run.workflow}), run=run.run,
            version=self._claimant.version, pinned=self._registry.pinned(),
        )  # fmt: skip
        await self._reaper.reap()
        result = await self._store.claim(request)
        for claim in result.claims:
            self._runner.begin(claim)
        run_task = self._table.task((run.run, 0))
        units = [claim.task.unit for claim in result.claims if claim.task.unit]
        if run_task is not None:
            await asyncio.wait([run_task])
        if run_task is not None and not units:
            return None
        run_cache = self._run_caches.get(run.run)
        if run_cache is None:
            return []
        opened = await run_cache.units(self._runner.context)
        return [opened.key(unit) for unit in units]
