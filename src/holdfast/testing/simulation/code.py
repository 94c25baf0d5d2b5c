"""The workflow of a simulation: it runs programs. Its steps reach the world outside, which counts what they do."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from holdfast.app import Holdfast
from holdfast.core.retry import Retry
from holdfast.errors import (
    ChildError,
    EventInvalidError,
    InstanceNotFoundError,
    NonRetryableError,
    Rejected,
    StepError,
    StepTimeoutError,
    WaitForEventTimeoutError,
)
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.kernel.step_info import step_info
from holdfast.testing.simulation.greeting import register_greeting
from holdfast.testing.simulation.programs import (
    DOWN,
    FAILED,
    GOSSIP,
    LATE,
    MISFITS,
    NOBODY,
    PARCEL,
    REFUSED,
    TOLD,
    Program,
)
from holdfast.testing.simulation.step_infos import progress
from holdfast.workflow.context import Context
from holdfast.workflow.run_events import Exit, LinkDown, RunEvent

WORKFLOW = "program"
BUFFERED = "buffered_program"
"""The same code with ``persist="task"``."""
PROGRAMS = (WORKFLOW, BUFFERED)
GRAPH = "diamond"
MORTAL = "mortal"
_ANSWERER = "answerer"
_BOUND = "bound"
_QUESTION = "question"
_LIFE_SECONDS = 3
_ANSWER_SECONDS = 4
_FOR_EVER_SECONDS = 60
_FOREVER = Retry(limit=math.inf, delay="40 ms", backoff="constant")
_TWICE = Retry(limit=1, delay="20 ms", backoff="constant")
_TIMEOUT = "100 ms"
_TOO_LONG_MS = 400
_ALWAYS = 1_000_000


@dataclass(frozen=True, slots=True)
class Parcel:
    """The payload of the event type that the workflow declares."""

    number: int
    label: str


Effect = tuple[str, int, str]
"""Instance, run number, key."""


class Outside:
    """The world that steps reach: how often each was called. ``befall`` is asked at each call, and may end it all.

    ``saw`` is called with the result of a step when the code of a workflow has it.
    """

    def __init__(self, befall: Callable[[Effect, str], float], saw: Callable[[Effect, int], None]) -> None:
        self.effects: Counter[Effect] = Counter()
        self.delivered: list[str] = []
        """The ids of outbound events that arrived, in order, each time they did."""
        self.undone: list[tuple[Effect, int]] = []
        """What sagas undid, in order, each time: of which, and which of its steps."""
        self.overtime: list[str] = []
        """Attempts that went on after their timeout."""
        self._befall = befall
        self._saw = saw

    async def work(self, effect: list[Any], value: Any, fails: int, ms: int, kind: str) -> Any:
        """A step that fails so many times first, and takes so long."""
        late = self._call(effect, kind)
        number = self.effects[_effect(effect)]
        info = step_info()
        await info.heartbeat(progress(info))
        await asyncio.sleep(late + ms / 1000)
        return _unless_it_fails(number, fails, value)

    def plain(self, effect: list[Any], value: Any, fails: int) -> Any:
        self._call(effect, "plain")
        info = step_info()
        info.heartbeat(progress(info))
        return _unless_it_fails(self.effects[_effect(effect)], fails, value)

    async def stamp(self, effect: list[Any], ms: int) -> int:
        """A step whose result differs from call to call."""
        late, stamp = self._call(effect, "step"), self.effects[_effect(effect)]
        await asyncio.sleep(late + ms / 1000)
        return stamp

    def saw(self, effect: list[Any], stamp: int) -> None:
        self._saw(_effect(effect), stamp)

    async def transact(self, tx: StepTx, effect: list[Any], value: Any, ms: int) -> Any:
        await asyncio.sleep(self._call(effect, "tx") + ms / 1000)
        tx.execute("INSERT INTO effect VALUES (?, ?, ?)", *effect)
        return value

    async def read_and_write(self, tx: Transaction, effect: list[Any], value: Any, ms: int) -> Any:
        late = self._call(effect, "live")
        there = await tx.fetch("SELECT key FROM effect WHERE instance = ? AND number = ? AND key = ?", *effect)
        if there:
            raise NonRetryableError(f"{effect} is there already")
        await asyncio.sleep(late + ms / 1000)
        await tx.execute("INSERT INTO effect VALUES (?, ?, ?)", *effect)
        return value

    async def undo(self, effect: list[Any], step: int) -> None:
        self.undone.append((_effect(effect), step))

    def deliver(self, event: str) -> None:
        if self._befall((event, 0, "delivery"), "delivery"):
            raise ConnectionError("simulated: nobody is there")
        self.delivered.append(event)

    def _call(self, given: list[Any], kind: str) -> float:
        """Count a call; for how many seconds it takes longer than it should."""
        effect = _effect(given)
        self.effects[effect] += 1
        return self._befall(effect, kind)


def register(app: Holdfast, outside: Outside, version: int) -> None:
    """``version`` 2 has a step more at the end of each program, and another name for the first one."""
    greet = register_greeting(app, outside.work, version)

    async def program(ctx: Context, params: list[Any]) -> list[Any]:
        rounds, results = params
        running = _Running(ctx, outside, version)
        await greet()
        results = [*results, await running.run(rounds[0])]
        running.stop_listening()
        if version > 1:
            await running.step("farewell", 0, 0, 0)
        if len(rounds) > 1:
            raise ctx.continue_as_new([rounds[1:], results])
        return results

    app.workflow(name=WORKFLOW, trap_links=True, events={PARCEL: Parcel})(program)
    app.workflow(name=BUFFERED, trap_links=True, events={PARCEL: Parcel}, persist="task")(program)


def register_company(app: Holdfast) -> None:
    """Those that programs have to do with: one that answers, one that may die, one that is linked to such a one."""

    @app.workflow(name=_ANSWERER)
    async def answerer(ctx: Context, refuse: bool) -> str:
        try:
            async with asyncio.timeout(_LIFE_SECONDS):
                message = await ctx.listen(_QUESTION, messages=True).receive()
        except TimeoutError:
            return LATE
        if refuse:
            await message.reject(REFUSED)
            return REFUSED
        await message.reply(message.payload + 1)
        return TOLD

    @app.workflow(name=MORTAL)
    async def mortal(ctx: Context, params: list[Any]) -> Any:
        value, dies = params
        await ctx.sleep("live", 0.01)
        if dies:
            raise NonRetryableError("as it had to be")
        return value

    @app.workflow(name=_BOUND)
    async def bound(ctx: Context, partner: str) -> str:
        await ctx.spawn(MORTAL, [0, True], id=partner, link=True)
        await asyncio.sleep(_FOR_EVER_SECONDS)
        return "it did not hear"


class _Running:
    """A program under way: a method for each kind."""

    def __init__(self, ctx: Context, outside: Outside, version: int) -> None:
        self._ctx = ctx
        self._outside = outside
        self._version_of_code = version
        self._heard: dict[str, list[RunEvent]] = {}
        """Of other runs, what became of them."""
        self._news = asyncio.Condition()
        self._listening: asyncio.Task[None] | None = None
        self._kinds: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            "step": self.step,
            "plain": self._plain,
            "tx": self._tx,
            "live": self._live,
            "poison": self._poison,
            "gives_up": self._gives_up,
            "too_slow": self._too_slow,
            "sleep": self._sleep,
            "event": self._event,
            "messages": self._messages,
            "parcels": self._parcels,
            "misfit": self._misfit,
            "child": self._child,
            "abandon": self._abandon,
            "tell": self._tell,
            "ask": self._ask,
            "link": self._link,
            "bound": self._bound,
            "saga": self._saga,
            "graph": self._graph,
            "version": self._version,
            "stamp": self._stamp,
            "seq": self._seq,
            "par": self._par,
            "race": self._race,
        }

    def stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.cancel()

    async def run(self, program: Program) -> Any:
        kind, *parts = program
        return await self._kinds[kind](*parts)

    async def step(self, key: str, value: Any, fails: int, ms: int) -> Any:
        return await self._work(key, value, fails, ms, "step", _FOREVER)

    async def _plain(self, key: str, value: Any, fails: int) -> Any:
        return await self._ctx.do(key, self._outside.plain, self._at(key), value, fails, retry=_FOREVER)

    async def _tx(self, key: str, value: Any, ms: int) -> Any:
        return await self._ctx.do(key, self._outside.transact, self._at(key), value, ms, retry=_FOREVER)

    async def _live(self, key: str, value: Any, ms: int) -> Any:
        return await self._ctx.do(key, self._outside.read_and_write, self._at(key), value, ms, retry=_FOREVER)

    async def _poison(self, key: str, value: Any) -> Any:
        return await self._work(key, value, 0, 0, "poison", _FOREVER)

    async def _gives_up(self, key: str) -> Any:
        return await _or_why_not(self._work(key, 0, _ALWAYS, 0, "step", _TWICE))

    async def _too_slow(self, key: str) -> Any:
        return await _or_why_not(self._work(key, 0, 0, _TOO_LONG_MS, "step", _TWICE, timeout=_TIMEOUT))

    async def _sleep(self, key: str, ms: int) -> None:
        await self._ctx.sleep(key, ms / 1000)

    async def _event(self, key: str, type_: str, ms: int) -> Any:
        try:
            return (await self._ctx.wait_for_event(key, type=type_, timeout=ms / 1000)).payload
        except WaitForEventTimeoutError:
            return LATE

    async def _messages(self, key: str, topic: str, n: int, ms: int) -> list[Any]:
        got = [await self._event(f"{key}.{i}", topic, ms) for i in range(n)]
        return [number for number in got if number != LATE]

    async def _parcels(self, key: str, n: int, ms: int) -> list[int]:
        got = [await self._event(f"{key}.{i}", PARCEL, ms) for i in range(n)]
        return [parcel.number for parcel in got if parcel != LATE]

    async def _misfit(self, _key: str, instance: str) -> str:
        for misfit in MISFITS:
            try:
                await self._ctx.send(f"{WORKFLOW}/{instance}", PARCEL, misfit)
            except EventInvalidError:
                continue
            return TOLD
        return REFUSED

    async def _child(self, key: str, program: Program) -> Any:
        return (await self._ctx.run(self._ctx.info.workflow, [[program], []], id=self._own_name(key)))[0]

    async def _abandon(self, key: str, program: Program) -> None:
        workflow = self._ctx.info.workflow
        await self._ctx.spawn(workflow, [[program], []], id=self._own_name(key), parent_close="abandon")

    async def _tell(self, key: str, instance: str) -> str:
        try:
            await self._ctx.send(f"{WORKFLOW}/{instance}", GOSSIP, self._own_name(key))
        except InstanceNotFoundError:
            return NOBODY
        return TOLD

    async def _ask(self, key: str, value: int, refuse: bool) -> Any:
        child = await self._ctx.spawn(_ANSWERER, refuse, id=self._own_name(key))
        try:
            return await self._ctx.ask(child.pid, _QUESTION, value, timeout=_ANSWER_SECONDS)
        except Rejected:
            return REFUSED
        except TimeoutError:
            return LATE
        except InstanceNotFoundError:
            return NOBODY

    async def _link(self, key: str, value: Any, dies: bool) -> Any:
        if self._listening is None:
            self._listening = asyncio.ensure_future(self._listen())
        child = await self._ctx.spawn(MORTAL, [value, dies], id=self._own_name(key), link=True)
        async with self._news:
            await self._news.wait_for(lambda: len(self._heard.get(child.pid, ())) == 1 + dies)
        heard = self._heard[child.pid]
        if any(isinstance(event, LinkDown) for event in heard):
            return DOWN
        return next(event.result for event in heard if isinstance(event, Exit))

    async def _listen(self) -> None:
        async for event in self._ctx.events:
            if isinstance(event, Exit | LinkDown):
                async with self._news:
                    self._heard.setdefault(event.pid, []).append(event)
                    self._news.notify_all()

    async def _bound(self, key: str) -> Any:
        name = self._own_name(key)
        try:
            return await self._ctx.run(_BOUND, f"{name}-partner", id=name)
        except ChildError:
            return FAILED

    async def _saga(self, key: str, n: int, fails: bool) -> Any:
        values = []
        try:
            async with self._ctx.saga() as saga:
                for step in range(n):
                    saga.add(self._outside.undo, self._at(key), step)
                    values.append(await self.step(f"{key}.{step}", step, 0, 0))
                if fails:
                    await self._work(f"{key}.x", 0, _ALWAYS, 0, "step", _TWICE)
        except (StepError, ValueError):
            return FAILED
        return values

    async def _graph(self, key: str, n: int, fails: int) -> Any:
        name = self._own_name(key)
        return await self._ctx.run(GRAPH, [name, n, fails], id=name)

    async def _version(self, key: str, value: Any) -> Any:
        version = self._ctx.version(key, 1, self._version_of_code)
        return await self.step(f"{key}.{version}", [version, value], 0, 0)

    async def _stamp(self, key: str, ms: int) -> int:
        stamp: int = await self._ctx.do(key, self._outside.stamp, self._at(key), ms, retry=_FOREVER)
        self._outside.saw(self._at(key), stamp)
        return stamp

    async def _seq(self, programs: list[Program]) -> list[Any]:
        return [await self.run(program) for program in programs]

    async def _par(self, programs: list[Program]) -> list[Any]:
        async with asyncio.TaskGroup() as group:  # when it is cancelled, it waits for all to be undone
            tasks = [group.create_task(self.run(program)) for program in programs]
        return [task.result() for task in tasks]

    async def _race(self, programs: list[Program]) -> list[Any]:
        tasks = [asyncio.ensure_future(self.run(program)) for program in programs]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winner = next(n for n, task in enumerate(tasks) if task.done())
            return [winner, tasks[winner].result()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _work(self, key: str, value: Any, fails: int, ms: int, kind: str, retry: Retry, **options: Any) -> Any:
        given = (self._at(key), value, fails, ms, kind)
        return self._ctx.do(key, self._outside.work, *given, retry=retry, **options)

    def _own_name(self, key: str) -> str:
        return f"{self._ctx.info.instance_id}-{self._ctx.info.run_number}-{key}"

    def _at(self, key: str) -> list[Any]:
        return [self._ctx.info.instance_id, self._ctx.info.run_number, key]


def _effect(given: list[Any]) -> Effect:
    instance, number, key = given
    return instance, number, key


def _unless_it_fails(number: int, fails: int, value: Any) -> Any:
    if number <= fails:
        raise ValueError(f"failure {number} of {fails}")
    return value


async def _or_why_not(step: Any) -> Any:
    """Its result, or what became of it."""
    try:
        return await step
    except StepTimeoutError:
        return LATE
    except (StepError, ValueError):  # a builtin error comes back as itself
        return FAILED
