"""The workflow that runs programs in a simulation, and the external system that its steps call."""

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
    DELIVERED,
    DOWN,
    FAILED,
    INVALID_PARCELS,
    LATE,
    NOT_FOUND,
    PARCEL,
    PEER_TOPIC,
    REFUSED,
    Program,
)
from holdfast.testing.simulation.step_infos import progress
from holdfast.workflow.context import Context
from holdfast.workflow.run_events import Exit, LinkDown, RunEvent

WORKFLOW = "program"
BUFFERED = "buffered_program"
"""The workflow that runs the same code with ``persist="task"``."""
PROGRAMS = (WORKFLOW, BUFFERED)
GRAPH = "diamond"
MAY_FAIL = "mortal"
_ANSWERER = "answerer"
_LINKED = "bound"
_QUESTION = "question"
_ANSWERER_SECONDS = 3
_ANSWER_SECONDS = 4
_LINK_SECONDS = 60
_UNLIMITED = Retry(limit=math.inf, delay="40 ms", backoff="constant")
_TWO_ATTEMPTS = Retry(limit=1, delay="20 ms", backoff="constant")
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


class ExternalSystem:
    """The system that step functions call. It counts the calls of each step.

    ``on_call`` is called at each call with the effect and the kind of the step. It returns a delay in seconds, or kills
    the calling process. ``result_seen`` is called when workflow code receives the result of a ``stamp`` step.
    """

    def __init__(self, on_call: Callable[[Effect, str], float], result_seen: Callable[[Effect, int], None]) -> None:
        self.effects: Counter[Effect] = Counter()
        """The number of calls of each step."""
        self.delivered: list[str] = []
        """The ids of outbound events in the order of their arrival, repetitions included."""
        self.undone: list[tuple[Effect, int]] = []
        """Undo calls of sagas in order, repetitions included: the saga, and the index of the step."""
        self.overtime: list[str] = []
        """Attempts that went on after their timeout."""
        self._on_call = on_call
        self._result_seen = result_seen

    async def work(self, effect: list[Any], value: Any, fails: int, ms: int, kind: str) -> Any:
        """Step function that raises in its first ``fails`` calls and takes ``ms`` milliseconds."""
        delay = self._call(effect, kind)
        number = self.effects[_as_effect(effect)]
        info = step_info()
        await info.heartbeat(progress(info))
        await asyncio.sleep(delay + ms / 1000)
        return _value_or_error(number, fails, value)

    def plain(self, effect: list[Any], value: Any, fails: int) -> Any:
        self._call(effect, "plain")
        info = step_info()
        info.heartbeat(progress(info))
        return _value_or_error(self.effects[_as_effect(effect)], fails, value)

    async def stamp(self, effect: list[Any], ms: int) -> int:
        """Step function whose result is the number of its calls, so each call has a different result."""
        delay, stamp = self._call(effect, "step"), self.effects[_as_effect(effect)]
        await asyncio.sleep(delay + ms / 1000)
        return stamp

    def result_seen(self, effect: list[Any], stamp: int) -> None:
        self._result_seen(_as_effect(effect), stamp)

    async def transact(self, tx: StepTx, effect: list[Any], value: Any, ms: int) -> Any:
        await asyncio.sleep(self._call(effect, "tx") + ms / 1000)
        tx.execute("INSERT INTO effect VALUES (?, ?, ?)", *effect)
        return value

    async def read_and_write(self, tx: Transaction, effect: list[Any], value: Any, ms: int) -> Any:
        delay = self._call(effect, "live")
        existing = await tx.fetch("SELECT key FROM effect WHERE instance = ? AND number = ? AND key = ?", *effect)
        if existing:
            raise NonRetryableError(f"the row {effect} exists already")
        await asyncio.sleep(delay + ms / 1000)
        await tx.execute("INSERT INTO effect VALUES (?, ?, ?)", *effect)
        return value

    async def undo(self, effect: list[Any], step: int) -> None:
        self.undone.append((_as_effect(effect), step))

    def deliver(self, event: str) -> None:
        if self._on_call((event, 0, "delivery"), "delivery"):
            raise ConnectionError("simulated: the receiver does not answer")
        self.delivered.append(event)

    def _call(self, effect_parts: list[Any], kind: str) -> float:
        """Count a call, and return its delay in seconds."""
        effect = _as_effect(effect_parts)
        self.effects[effect] += 1
        return self._on_call(effect, kind)


def register(app: Holdfast, external: ExternalSystem, version: int) -> None:
    """Register the workflows that run programs.

    Version 2 of the code has one more step at the end of each program, and its first step has another name.
    """
    greet = register_greeting(app, external.work, version)

    async def program(ctx: Context, params: list[Any]) -> list[Any]:
        rounds, results = params
        run = _ProgramRun(ctx, external, version)
        await greet()
        results = [*results, await run.run(rounds[0])]
        run.stop_listening()
        if version > 1:
            await run.step("farewell", 0, 0, 0)
        if len(rounds) > 1:
            raise ctx.continue_as_new([rounds[1:], results])
        return results

    app.workflow(name=WORKFLOW, trap_links=True, events={PARCEL: Parcel})(program)
    app.workflow(name=BUFFERED, trap_links=True, events={PARCEL: Parcel}, persist="task")(program)


def register_peers(app: Holdfast) -> None:
    """Register workflows that programs start: one that answers asks, one that may fail, one linked to a failing run."""

    @app.workflow(name=_ANSWERER)
    async def answerer(ctx: Context, refuse: bool) -> str:
        try:
            async with asyncio.timeout(_ANSWERER_SECONDS):
                message = await ctx.listen(_QUESTION, messages=True).receive()
        except TimeoutError:
            return LATE
        if refuse:
            await message.reject(REFUSED)
            return REFUSED
        await message.reply(message.payload + 1)
        return DELIVERED

    @app.workflow(name=MAY_FAIL)
    async def mortal(ctx: Context, params: list[Any]) -> Any:
        value, dies = params
        await ctx.sleep("live", 0.01)
        if dies:
            raise NonRetryableError("as it had to be")
        return value

    @app.workflow(name=_LINKED)
    async def linked(ctx: Context, partner: str) -> str:
        await ctx.spawn(MAY_FAIL, [0, True], id=partner, link=True)
        await asyncio.sleep(_LINK_SECONDS)
        return "the link did not end this run"


class _ProgramRun:
    """Interpreter of a program, with one method for each kind of part."""

    def __init__(self, ctx: Context, external: ExternalSystem, version: int) -> None:
        self._ctx = ctx
        self._external = external
        self._version_of_code = version
        self._exits: dict[str, list[RunEvent]] = {}
        """Received exit and link-down events, by the pid of the run that ended."""
        self._exit_received = asyncio.Condition()
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
        return await self._work(key, value, fails, ms, "step", _UNLIMITED)

    async def _plain(self, key: str, value: Any, fails: int) -> Any:
        return await self._ctx.do(key, self._external.plain, self._effect_of(key), value, fails, retry=_UNLIMITED)

    async def _tx(self, key: str, value: Any, ms: int) -> Any:
        return await self._ctx.do(key, self._external.transact, self._effect_of(key), value, ms, retry=_UNLIMITED)

    async def _live(self, key: str, value: Any, ms: int) -> Any:
        return await self._ctx.do(key, self._external.read_and_write, self._effect_of(key), value, ms, retry=_UNLIMITED)

    async def _poison(self, key: str, value: Any) -> Any:
        return await self._work(key, value, 0, 0, "poison", _UNLIMITED)

    async def _gives_up(self, key: str) -> Any:
        return await _result_or_failure(self._work(key, 0, _ALWAYS, 0, "step", _TWO_ATTEMPTS))

    async def _too_slow(self, key: str) -> Any:
        return await _result_or_failure(self._work(key, 0, 0, _TOO_LONG_MS, "step", _TWO_ATTEMPTS, timeout=_TIMEOUT))

    async def _sleep(self, key: str, ms: int) -> None:
        await self._ctx.sleep(key, ms / 1000)

    async def _event(self, key: str, type_: str, ms: int) -> Any:
        try:
            return (await self._ctx.wait_for_event(key, type=type_, timeout=ms / 1000)).payload
        except WaitForEventTimeoutError:
            return LATE

    async def _messages(self, key: str, topic: str, n: int, ms: int) -> list[Any]:
        payloads = [await self._event(f"{key}.{i}", topic, ms) for i in range(n)]
        return [number for number in payloads if number != LATE]

    async def _parcels(self, key: str, n: int, ms: int) -> list[int]:
        payloads = [await self._event(f"{key}.{i}", PARCEL, ms) for i in range(n)]
        return [parcel.number for parcel in payloads if parcel != LATE]

    async def _misfit(self, _key: str, instance: str) -> str:
        for payload in INVALID_PARCELS:
            try:
                await self._ctx.send(f"{WORKFLOW}/{instance}", PARCEL, payload)
            except EventInvalidError:
                continue
            return DELIVERED
        return REFUSED

    async def _child(self, key: str, program: Program) -> Any:
        return (await self._ctx.run(self._ctx.info.workflow, [[program], []], id=self._unique_id(key)))[0]

    async def _abandon(self, key: str, program: Program) -> None:
        workflow = self._ctx.info.workflow
        await self._ctx.spawn(workflow, [[program], []], id=self._unique_id(key), parent_close="abandon")

    async def _tell(self, key: str, instance: str) -> str:
        try:
            await self._ctx.send(f"{WORKFLOW}/{instance}", PEER_TOPIC, self._unique_id(key))
        except InstanceNotFoundError:
            return NOT_FOUND
        return DELIVERED

    async def _ask(self, key: str, value: int, refuse: bool) -> Any:
        child = await self._ctx.spawn(_ANSWERER, refuse, id=self._unique_id(key))
        try:
            return await self._ctx.ask(child.pid, _QUESTION, value, timeout=_ANSWER_SECONDS)
        except Rejected:
            return REFUSED
        except TimeoutError:
            return LATE
        except InstanceNotFoundError:
            return NOT_FOUND

    async def _link(self, key: str, value: Any, dies: bool) -> Any:
        if self._listening is None:
            self._listening = asyncio.ensure_future(self._listen())
        child = await self._ctx.spawn(MAY_FAIL, [value, dies], id=self._unique_id(key), link=True)
        async with self._exit_received:
            await self._exit_received.wait_for(lambda: len(self._exits.get(child.pid, ())) == 1 + dies)
        exits = self._exits[child.pid]
        if any(isinstance(event, LinkDown) for event in exits):
            return DOWN
        return next(event.result for event in exits if isinstance(event, Exit))

    async def _listen(self) -> None:
        async for event in self._ctx.events:
            if isinstance(event, Exit | LinkDown):
                async with self._exit_received:
                    self._exits.setdefault(event.pid, []).append(event)
                    self._exit_received.notify_all()

    async def _bound(self, key: str) -> Any:
        name = self._unique_id(key)
        try:
            return await self._ctx.run(_LINKED, f"{name}-partner", id=name)
        except ChildError:
            return FAILED

    async def _saga(self, key: str, n: int, fails: bool) -> Any:
        values = []
        try:
            async with self._ctx.saga() as saga:
                for step in range(n):
                    saga.add(self._external.undo, self._effect_of(key), step)
                    values.append(await self.step(f"{key}.{step}", step, 0, 0))
                if fails:
                    await self._work(f"{key}.x", 0, _ALWAYS, 0, "step", _TWO_ATTEMPTS)
        except (StepError, ValueError):
            return FAILED
        return values

    async def _graph(self, key: str, n: int, fails: int) -> Any:
        name = self._unique_id(key)
        return await self._ctx.run(GRAPH, [name, n, fails], id=name)

    async def _version(self, key: str, value: Any) -> Any:
        version = self._ctx.version(key, 1, self._version_of_code)
        return await self.step(f"{key}.{version}", [version, value], 0, 0)

    async def _stamp(self, key: str, ms: int) -> int:
        stamp: int = await self._ctx.do(key, self._external.stamp, self._effect_of(key), ms, retry=_UNLIMITED)
        self._external.result_seen(self._effect_of(key), stamp)
        return stamp

    async def _seq(self, programs: list[Program]) -> list[Any]:
        return [await self.run(program) for program in programs]

    async def _par(self, programs: list[Program]) -> list[Any]:
        async with asyncio.TaskGroup() as group:  # when cancelled, the group waits until all sagas are undone
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
        args = (self._effect_of(key), value, fails, ms, kind)
        return self._ctx.do(key, self._external.work, *args, retry=retry, **options)

    def _unique_id(self, key: str) -> str:
        return f"{self._ctx.info.instance_id}-{self._ctx.info.run_number}-{key}"

    def _effect_of(self, key: str) -> list[Any]:
        return [self._ctx.info.instance_id, self._ctx.info.run_number, key]


def _as_effect(parts: list[Any]) -> Effect:
    instance, number, key = parts
    return instance, number, key


def _value_or_error(number: int, fails: int, value: Any) -> Any:
    if number <= fails:
        raise ValueError(f"failure {number} of {fails}")
    return value


async def _result_or_failure(step: Any) -> Any:
    """Return the result of a step, or ``LATE`` or ``FAILED``."""
    try:
        return await step
    except StepTimeoutError:
        return LATE
    except (StepError, ValueError):  # a builtin error is raised with its own type
        return FAILED
