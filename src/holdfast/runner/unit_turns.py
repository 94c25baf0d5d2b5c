"""Turns of runs that consist of units: ``UnitTurn`` for a unit, ``GraphRunTurn`` for the run itself (unit 0)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.kernel.driver import Call, Outcome
from holdfast.kernel.unit_driver import Units
from holdfast.runner.attempts import RunningAttempt
from holdfast.runner.permits import Permits
from holdfast.runner.run_cache import RunCache
from holdfast.runner.running_records import record_heartbeats
from holdfast.runner.turn_context import TurnContext
from holdfast.store.protocol import (
    EXIT,
    SUSPECT_LOSSES,
    Advance,
    Claim,
    Commit,
    Committed,
    Created,
    Fact,
    FactsQuery,
    FactState,
    Finish,
    Following,
    Heartbeat,
    Log,
    MailboxPage,
    MailboxQuery,
    NewRun,
    Signal,
    StoredEvent,
    Verdict,
)
from holdfast.store.protocol.streams import settlement


class UnitTurn:
    """The turn of one claimed unit: call its function or start its run, then write the advance that follows."""

    finish: Finish | None = None
    suspended = None
    due_at: int | None = None
    idle = False
    """Always False: every turn of a unit writes the unit's result or its wait."""

    def __init__(self, context: TurnContext, claim: Claim, run_cache: RunCache) -> None:
        self.claim = claim
        self.task = claim.task
        self._context = context
        self._run_cache = run_cache
        self._running: RunningAttempt | None = None
        self._reported: Outcome | None = None
        """The outcome, once the call has ended."""
        self._outcome: asyncio.Future[Outcome | None] | None = None
        """Set while the turn waits for the outcome. Most calls end before they would wait."""
        self.lost = False
        """The task has another owner by now, or none."""
        self._stopping = False

    async def run(self) -> None:
        try:
            units = self._run_cache.opened or await self._run_cache.units(self._context)
            action = await self._begin(units)
            if isinstance(action, NewRun):
                action = await self._start(units, action)
            elif not isinstance(action, Advance):
                outcome = await self._call(action)
                if outcome is None:
                    return
                action = units.ended(self.task, outcome)
                if outcome.streamed:
                    now = self._context.ports.now_ms()
                    settled = settlement(self.task, outcome.key, outcome.attempt, now, succeeded=outcome.succeeded)
                    action.facts = [*action.facts, settled]
            await self._write(action)
        finally:
            self._drop()

    async def _begin(self, units: Units) -> Call | NewRun | Advance:
        context, run = self._context, self.claim.run
        needs = units.needs(self.task.unit)
        cached = self._run_cache.cached_results(needs.results)
        results = await self._run_cache.results(needs.results, context) if cached is None else cached
        items: Sequence[Fact] = ()
        if needs.items is not None:
            key = needs.items
            items = await context.call_store(
                run, lambda: context.store.read(FactsQuery(run.run, FactState.ITEM, [key]))
            )
        return units.begin(self.task, results, items, context.ports.now_ms())

    async def _call(self, call: Call) -> Outcome | None:
        """Call the unit's function; None: the call was not started, or the task was lost."""
        if self.lost or self._stopping:
            return None  # a stopping worker releases all its tasks
        permits = self._context.permits
        if permits is not None and not await self._enter(call, permits):
            return None  # the unit is due when its permit is granted
        if not self._context.budget.take():
            await self._context.call_store(self.claim.run, lambda: self._context.store.release([self.task]))
            return None
        if self.task.epoch > 1:
            beat = await self._last_heartbeat(call.key)
            if beat is not None and beat.n > call.attempt:
                return None  # a later attempt has begun, so another worker owns the unit
            call.progress = None if beat is None else beat.value
        self._running = RunningAttempt(call, self.claim.run, self.task, self._context.ports, self._report)
        self._running.start()
        outcome = self._reported
        if outcome is None and not self.lost:
            self._outcome = asyncio.get_running_loop().create_future()
            outcome = await self._outcome
        if outcome is not None and outcome.heartbeat is not None:
            await record_heartbeats(self._context.store, [Heartbeat(self.task, outcome.heartbeat)])
        return outcome

    async def _enter(self, call: Call, permits: Permits) -> bool:
        """Request the permit of a node with limits."""
        limits = [*call.limited_by, *permits.of_queue(self.claim.run)]
        if not limits:
            return True
        return await permits.enter(self.task, limits, priority=self.claim.run.priority)

    async def _last_heartbeat(self, key: str) -> Fact | None:
        """The last heartbeat of the latest attempt that had one."""
        store, run = self._context.store, self.claim.run
        facts = await self._context.call_store(run, lambda: store.read(FactsQuery(run.run, FactState.HEARTBEAT, [key])))
        return facts[-1] if facts else None

    def heartbeats(self) -> list[Heartbeat]:
        fact = None if self._running is None else self._running.new_heartbeat()
        return [] if fact is None else [Heartbeat(self.task, fact)]

    def _report(self, outcome: Outcome) -> None:
        self._running, self._reported = None, outcome
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)

    async def _start(self, units: Units, new: NewRun) -> Advance:
        """Start the run of a node. Its id is the same in every attempt, so a repeated start has no effect."""
        context = self._context
        slots = context.host.reserve_child(new)
        claimed_children: list[Created] = []
        try:
            [created] = await context.call_store(self.claim.run, lambda: context.store.create([new]))
            if slots and created.created:
                claimed_children = [created]
            else:
                context.host.notify(Committed(Verdict.APPLIED, started=[created]))
        finally:
            context.host.begin_children(slots, claimed_children)
        return units.started(self.task)

    async def _write(self, advance: Advance) -> None:
        if self.lost:
            self._add_late(advance.logs)
            return
        if not self._run_cache.started:
            self._run_cache.started, advance.started_at = True, self._context.ports.now_ms()
        if not await self._context.advancer.advance(advance):
            self._add_late(advance.logs)
            return
        self._context.host.streams_written(self.claim.run.run)
        if advance.release is not None:
            self.due_at = advance.release.run_at

    def _add_late(self, logs: Sequence[Log]) -> None:
        """Store the log lines of an attempt whose outcome cannot be written."""
        if logs:
            self._context.host.add_late(self.claim.run, (), logs)

    # --- called by the worker

    def signal(self, signal: Signal | None) -> None:
        """Handle the loss of the task (None). Other signals are for unit 0."""
        if signal is None:
            self.lost = True
            self._drop()

    def stop(self) -> None:
        self._stopping = True

    @property
    def suspect(self) -> bool:
        """True if the task was lost several times in a row."""
        return self.claim.lost and self.task.epoch > SUSPECT_LOSSES

    @property
    def waiting(self) -> bool:
        return self._outcome is not None and not self._outcome.done()

    def record_running(self) -> None:
        """Do nothing: the claim has written the START fact."""

    def _drop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._add_late(running.take_logs())
            running.cancel()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(None)


class GraphRunTurn:
    """The turn of unit 0: handle exit events of the runs that nodes started; end the run when all units are done."""

    suspended = None
    due_at: int | None = None
    waiting = False

    def __init__(self, context: TurnContext, claim: Claim, run_cache: RunCache) -> None:
        self.claim = claim
        self.task = claim.task
        self.finish: Finish | None = None
        self.idle = False
        """The turn wrote nothing."""
        self.lost = False
        self._context = context
        self._run_cache = run_cache

    async def run(self) -> None:
        units = self._run_cache.opened or await self._run_cache.units(self._context)
        page = self.claim.mailbox_page
        if not _exits(page):
            # Complete if this worker ran all nodes. A read per run would take a tenth of the time of its nodes.
            end = units.finish(self._run_cache.all_results(), self._now())
            end = end or units.finish(await self._results(), self._now())
            if end is not None:
                await self._end(end)
                return
            page = await self._read_exits()
        advance = units.exited(self.task, _exits(page), self._now())
        advance.seen = page.last if page.complete else page.events[-1].n
        self.idle = await self._context.advancer.advance(advance) and advance.idle

    async def _results(self) -> Sequence[Fact]:
        store, run = self._context.store, self.claim.run
        return await self._context.call_store(run, lambda: store.read(FactsQuery(run.run, FactState.RESULT)))

    async def _read_exits(self) -> MailboxPage:
        """Read the undelivered events of the engine's own types.

        The page of a claim may lack them: it holds only the oldest events, and a claim by an advance reads none.
        """
        store, run = self._context.store, self.claim.run
        return await self._context.call_store(run, lambda: store.read(MailboxQuery(run.run, frozenset())))

    async def _end(self, finish: Finish) -> None:
        commit = Commit(self.task, following=Following(next=finish))
        [committed] = await self._context.committer.commit([commit])
        self._context.committed(self.claim.run, commit, committed)
        if committed.verdict is Verdict.APPLIED:
            self.finish = finish
            self._context.host.notify(committed)

    def signal(self, signal: Signal | None) -> None:
        """Note that the task is lost (None). The turn does not wait for anything and ends by itself."""
        self.lost = self.lost or signal is None

    def stop(self) -> None:
        """Do nothing: the turn calls no steps and ends soon."""

    @property
    def suspect(self) -> bool:
        return self.claim.run.losses >= SUSPECT_LOSSES

    def record_running(self) -> None:
        """Do nothing: the turn has no attempts."""

    def heartbeats(self) -> list[Heartbeat]:
        return []

    def _now(self) -> int:
        return self._context.ports.now_ms()


def _exits(page: MailboxPage) -> list[StoredEvent]:
    return [event for event in page.events if event.type == EXIT]
