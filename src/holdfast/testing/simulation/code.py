"""The workflow of a simulation: it runs programs. Its steps reach the world outside, which counts what they do."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.app import Holdfast
from holdfast.core.retry import Retry
from holdfast.errors import StepError, StepTimeoutError, WaitForEventTimeoutError
from holdfast.kernel.attempt import StepTx
from holdfast.testing.simulation.programs import FAILED, LATE, Program
from holdfast.workflow.context import Context

WORKFLOW = "program"
_FOREVER = Retry(limit=math.inf, delay="40 ms", backoff="constant")
_TWICE = Retry(limit=1, delay="20 ms", backoff="constant")
_TIMEOUT = "100 ms"
_TOO_LONG_MS = 400
_ALWAYS = 1_000_000

Effect = tuple[str, int, str]
"""Instance, run number, key."""


class Outside:
    """The world that steps reach: how often each was called. ``befall`` is asked at each call, and may end it all."""

    def __init__(self, befall: Callable[[Effect, str], float]) -> None:
        self.effects: Counter[Effect] = Counter()
        self._befall = befall

    def call(self, effect: Effect, kind: str) -> float:
        """Count a call; for how many seconds it takes longer than it should."""
        self.effects[effect] += 1
        return self._befall(effect, kind)


def register(app: Holdfast, outside: Outside, version: int) -> None:
    """``version`` 2 has a step more at the end of each program."""

    async def work(effect: list[Any], value: Any, fails: int, ms: int, kind: str) -> Any:
        known = _effect(effect)
        await asyncio.sleep(outside.call(known, kind) + ms / 1000)
        if outside.effects[known] <= fails:
            raise ValueError(f"failure {outside.effects[known]} of {fails}")
        return value

    def plain(effect: list[Any], value: Any, fails: int) -> Any:
        known = _effect(effect)
        outside.call(known, "plain")
        if outside.effects[known] <= fails:
            raise ValueError(f"failure {outside.effects[known]} of {fails}")
        return value

    async def transact(tx: StepTx, effect: list[Any], value: Any) -> Any:
        await asyncio.sleep(outside.call(_effect(effect), "tx"))
        tx.execute("INSERT INTO effect VALUES (?, ?, ?)", *effect)
        return value

    async def one(ctx: Context, program: Program) -> Any:
        match program:
            case ["step", key, value, fails, ms]:
                return await ctx.do(key, work, at(ctx, key), value, fails, ms, "step", retry=_FOREVER)
            case ["plain", key, value, fails]:
                return await ctx.do(key, plain, at(ctx, key), value, fails, retry=_FOREVER)
            case ["tx", key, value]:
                return await ctx.do(key, transact, at(ctx, key), value, retry=_FOREVER)
            case ["poison", key, value]:
                return await ctx.do(key, work, at(ctx, key), value, 0, 0, "poison", retry=_FOREVER)
            case ["gives_up", key]:
                return await unless(ctx.do(key, work, at(ctx, key), 0, _ALWAYS, 0, "step", retry=_TWICE))
            case ["too_slow", key]:
                slow = ctx.do(key, work, at(ctx, key), 0, 0, _TOO_LONG_MS, "step", retry=_TWICE, timeout=_TIMEOUT)
                return await unless(slow)
            case ["sleep", key, ms]:
                return await ctx.sleep(key, ms / 1000)
            case ["event", key, type_, ms]:
                return await event(ctx, key, type_, ms)
            case ["messages", key, topic, n, ms]:
                got = [await event(ctx, f"{key}.{i}", topic, ms) for i in range(n)]
                return [number for number in got if number != LATE]
            case ["child", key, inner]:
                return (await ctx.run(WORKFLOW, [[inner], []], id=f"{ctx.info.instance_id}-{ctx.info.run_number}-{key}"))[0]
            case ["seq", inner]:
                return [await one(ctx, part) for part in inner]
            case ["par", inner]:
                return await asyncio.gather(*(one(ctx, part) for part in inner))
            case ["race", inner]:
                return await race(ctx, inner)
            case _:
                raise ValueError(f"no program: {program!r}")

    async def race(ctx: Context, inner: list[Program]) -> list[Any]:
        tasks = [asyncio.ensure_future(one(ctx, part)) for part in inner]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winner = next(n for n, task in enumerate(tasks) if task.done())
            return [winner, tasks[winner].result()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @app.workflow(name=WORKFLOW)
    async def program(ctx: Context, params: list[Any]) -> list[Any]:
        rounds, results = params
        results = [*results, await one(ctx, rounds[0])]
        if version > 1:
            await ctx.do("farewell", work, at(ctx, "farewell"), 0, 0, 0, "step", retry=_FOREVER)
        if len(rounds) > 1:
            raise ctx.continue_as_new([rounds[1:], results])
        return results


def at(ctx: Context, key: str) -> list[Any]:
    return [ctx.info.instance_id, ctx.info.run_number, key]


def _effect(given: list[Any]) -> Effect:
    instance, number, key = given
    return instance, number, key


async def event(ctx: Context, key: str, type_: str, ms: int) -> Any:
    try:
        return (await ctx.wait_for_event(key, type=type_, timeout=ms / 1000)).payload
    except WaitForEventTimeoutError:
        return LATE


async def unless(step: Any) -> Any:
    """Its result, or what became of it."""
    try:
        return await step
    except StepTimeoutError:
        return LATE
    except (StepError, ValueError):  # a builtin error comes back as itself
        return FAILED
