"""The life of one unit of a run while a worker holds it, and of the run itself (unit 0) that keeps them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from holdfast.graph.shape import Shape
from holdfast.kernel.driver import Call, Machine, Outcome
from holdfast.kernel.units import GRAPH, PLAN_KEY, UnitDriver, Units
from holdfast.runner import report
from holdfast.runner.attempts import Running
from holdfast.runner.patience import patiently
from holdfast.runner.turn import Tools, record_heartbeats
from holdfast.store.protocol import (
    EXIT,
    SUSPECT_LOSSES,
    Advance,
    Claim,
    Commit,
    Committed,
    Created,
    Fact,
    FactState,
    Finish,
    Follows,
    Heartbeat,
    Log,
    Mail,
    Mailbag,
    NewRun,
    RunRecord,
    Signal,
    Verdict,
)

R = TypeVar("R")

_LARGEST_MEMORY = 16 * 1024 * 1024


class Memory:
    """What a worker knows of a run while it holds units of it: its plan, and results that others may need."""

    def __init__(self, run: RunRecord, driver: UnitDriver) -> None:
        self.run = run
        self.holders: set[int] = set()
        self.started = run.started_at is not None
        self._driver = driver
        self._units: asyncio.Future[Units] | None = None
        self._results: dict[str, Fact] = {}
        self._size = 0

    async def units(self, tools: Tools) -> Units:
        """Opened once, by whoever comes first."""
        if self._units is None:
            self._units = asyncio.get_running_loop().create_future()
            try:
                self.open(await self.plan(self.run, tools), tools)
            except BaseException as error:
                opened, self._units = self._units, None
                opened.set_exception(error if isinstance(error, Exception) else RuntimeError("it was cut off"))
                opened.exception()  # it is raised here, whether others wait for it or not
                raise
        return await asyncio.shield(self._units)  # or one that is cut off would take it from the others

    def open(self, plan: bytes, tools: Tools) -> None:
        if self._units is None:
            self._units = asyncio.get_running_loop().create_future()
        self._units.set_result(self._driver.open(self.run, plan, tools.ports.requests))

    @staticmethod
    async def plan(run: RunRecord, tools: Tools) -> bytes:
        facts = await _reading(tools, run, lambda: tools.store.facts(run.run, FactState.PLAN, [PLAN_KEY]))
        if not facts or facts[0].value is None:
            raise RuntimeError("there is no plan stored with this run")
        return facts[0].value

    async def results(self, keys: Sequence[str], tools: Tools) -> Mapping[str, Fact]:
        """From memory, or read."""
        found = {key: self._results[key] for key in keys if key in self._results}
        missing = [key for key in keys if key not in found]
        if missing:
            read = await _reading(tools, self.run, lambda: tools.store.facts(self.run.run, FactState.RESULT, missing))
            for fact in read:
                found[fact.key] = fact
                self.remember(fact)
        return found

    def remember(self, fact: Fact) -> None:
        """Those that came last are needed next."""
        if fact.key in self._results:
            return
        self._results[fact.key] = fact
        self._size += len(fact.value or b"")
        while self._size > _LARGEST_MEMORY:
            oldest = next(iter(self._results))
            self._size -= len(self._results.pop(oldest).value or b"")


class UnitTurn:
    """One claimed unit, from the claim to what follows from it."""

    machine: Machine | None = None
    finish: Finish | None = None
    rested = None
    due_at: int | None = None
    idle = False
    """Each of its turns writes something: what came of the node, or that it waits."""

    def __init__(self, tools: Tools, claim: Claim, memory: Memory) -> None:
        self.claim = claim
        self.task = claim.task
        self._tools = tools
        self._memory = memory
        self._running: Running | None = None
        self._outcome: asyncio.Future[Outcome | None] | None = None
        self._gone = False
        self._stopping = False

    async def run(self) -> None:
        try:
            units = await self._memory.units(self._tools)
            move = await self._begin(units)
            if isinstance(move, NewRun):
                move = await self._start(units, move)
            elif not isinstance(move, Advance):
                outcome = await self._call(move)
                if outcome is None:
                    return
                move = units.ended(self.task, outcome)
            await self._write(move)
        finally:
            self._drop()

    async def _begin(self, units: Units) -> Call | NewRun | Advance:
        tools, run = self._tools, self.claim.run
        needs = units.needs(self.task.unit)
        results = await self._memory.results(needs.results, tools)
        items: Sequence[Fact] = ()
        if needs.items is not None:
            key = needs.items
            items = await _reading(tools, run, lambda: tools.store.facts(run.run, FactState.ITEM, [key]))
        return units.begin(self.task, results, items, tools.ports.now_ms())

    async def _call(self, call: Call) -> Outcome | None:
        """What came of it; None: it was not run, or nobody wants to know any more."""
        if self._gone or self._stopping:
            return None  # a worker that stops gives back all it holds
        if not self._tools.budget.take():
            await _reading(self._tools, self.claim.run, lambda: self._tools.store.release([self.task]))
            return None
        if self.task.epoch > 1:
            call.progress = await self._progress(call.key)
        self._outcome = asyncio.get_running_loop().create_future()
        self._running = Running(call, self.claim.run, self._tools.ports, self._report)
        outcome = await self._outcome
        if outcome is not None and outcome.heartbeat is not None:
            await record_heartbeats(self._tools.store, [Heartbeat(self.task, outcome.heartbeat)])
        return outcome

    async def _progress(self, key: str) -> bytes | None:
        """What the last heartbeat of an earlier attempt reported."""
        store, run = self._tools.store, self.claim.run
        facts = await _reading(self._tools, run, lambda: store.facts(run.run, FactState.HEARTBEAT, [key]))
        return facts[-1].value if facts else None

    def heartbeats(self) -> list[Heartbeat]:
        fact = None if self._running is None else self._running.heartbeat()
        return [] if fact is None else [Heartbeat(self.task, fact)]

    def _report(self, outcome: Outcome) -> None:
        self._running = None
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)

    async def _start(self, units: Units, new: NewRun) -> Advance:
        """Start another run. Its id is always the same, so that doing it again changes nothing."""
        tools = self._tools
        adopted = tools.adopt(new)
        births: list[Created] = []
        try:
            [created] = await _reading(tools, self.claim.run, lambda: tools.store.create([new]))
            if adopted and created.created:
                births = [created]
            else:
                tools.tell(Committed(Verdict.APPLIED, started=[created]))
        finally:
            tools.begin(adopted, births)
        return units.started(self.task)

    async def _write(self, advance: Advance) -> None:
        if self._gone:
            self._keep(advance.logs)
            return
        if not self._memory.started:
            self._memory.started, advance.started_at = True, self._tools.ports.now_ms()
        if not await self._tools.advancer.advance(advance):
            self._keep(advance.logs)
        elif advance.then is not None:
            self.due_at = advance.then.run_at

    def _keep(self, lines: Sequence[Log]) -> None:
        """Keep the log lines of an attempt that does not count any more."""
        if lines:
            self._tools.keep_late(self.claim.run, (), lines)

    # --- told from outside

    def signal(self, signal: Signal | None) -> None:
        """None: it is not ours any more. All else concerns the run itself."""
        if signal is None:
            self._gone = True
            self._drop()

    def stop(self) -> None:
        self._stopping = True

    @property
    def suspect(self) -> bool:
        """Its last holders died with it."""
        return self.claim.lost and self.task.epoch > SUSPECT_LOSSES

    @property
    def waiting(self) -> bool:
        return self._outcome is not None and not self._outcome.done()

    def note(self) -> None:
        """That it runs was written with its claim."""

    def _drop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._keep(running.take_lines())
            running.cancel()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(None)


class KeeperTurn:
    """Unit 0: it reads which runs of nodes have ended, and ends the run when all other units are done."""

    machine: Machine | None = None
    rested = None
    due_at: int | None = None
    waiting = False

    def __init__(self, tools: Tools, claim: Claim, memory: Memory) -> None:
        self.claim = claim
        self.task = claim.task
        self.finish: Finish | None = None
        self.idle = False
        """It found nothing to do."""
        self._tools = tools
        self._memory = memory

    async def run(self) -> None:
        units = await self._memory.units(self._tools)
        bag = self.claim.mailbag
        if not _exits(bag):
            end = units.finish(await self._results(), self._now())
            if end is not None:
                await self._end(end)
                return
            bag = await self._look_for_exits()
        advance = units.exited(self.task, _exits(bag), self._now())
        advance.seen = bag.last if bag.complete else bag.mail[-1].n
        self.idle = await self._tools.advancer.advance(advance) and advance.idle

    async def _results(self) -> Sequence[Fact]:
        store, run = self._tools.store, self.claim.run
        return await _reading(self._tools, run, lambda: store.facts(run.run, FactState.RESULT))

    async def _look_for_exits(self) -> Mailbag:
        """Read the engine's own mail.

        A claim has it only as far as it is among the oldest events, and none if the unit was taken by an advance.
        """
        store, run = self._tools.store, self.claim.run
        return await _reading(self._tools, run, lambda: store.undelivered(run.run, frozenset()))

    async def _end(self, finish: Finish) -> None:
        committed = await self._tools.committer.commit(Commit(self.task, follows=Follows(next=finish)))
        if committed.verdict is Verdict.APPLIED:
            self.finish = finish
            report.ended(self.claim.run, finish)
            self._tools.tell(committed)

    def signal(self, signal: Signal | None) -> None:
        """It is over before anybody could want something."""

    def stop(self) -> None:
        """It is over soon."""

    @property
    def suspect(self) -> bool:
        return self.claim.run.losses >= SUSPECT_LOSSES

    def note(self) -> None:
        """It starts nothing that takes long."""

    def heartbeats(self) -> list[Heartbeat]:
        return []

    def _now(self) -> int:
        return self._tools.ports.now_ms()


def _exits(bag: Mailbag) -> list[Mail]:
    return [one for one in bag.mail if one.type == EXIT]


async def with_units(finish: Finish, run: RunRecord, tools: Tools) -> Finish:
    """The end of a run that nobody has opened; what comes after it has the same units."""
    if finish.next is None or run.kind != GRAPH:
        return finish
    plan = await Memory.plan(run, tools)
    return replace(finish, next=replace(finish.next, units=Shape.of_meta(plan).units))


async def _reading(tools: Tools, run: RunRecord, read: Callable[[], Awaitable[R]]) -> R:
    return await patiently(read, f"read run {run.pid}", tools.random)
