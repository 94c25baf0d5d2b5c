"""Channels, select and timers in workflow code: durable, and the same on each replay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from driving import finish, warm_and_cold
from holdfast import Channel, Context, Holdfast, InvalidDurationError, select
from holdfast.testing import Harness

pytestmark = pytest.mark.above_the_store


async def test_tasks_of_a_run_share_work_over_channels(app: Holdfast, h: Harness) -> None:
    @app.step
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow
    async def pool(_ctx: Context, workers: int) -> list[int]:
        work: Channel[int] = Channel(10)
        results: Channel[int] = Channel(10)

        async def worker() -> None:
            async for job in work:
                await results.send(await double(job))

        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(worker())
            for job in range(6):
                await work.send(job)
            work.close()
            return sorted([await results.receive() for _ in range(6)])

    warm, cold = await warm_and_cold(h, pool, 3)
    assert warm == cold == [0, 2, 4, 6, 8, 10]


async def test_select_returns_a_timeout_before_a_later_value(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def patient(ctx: Context) -> list[str]:
        events: Channel[str] = Channel()

        async def later() -> None:
            await asyncio.sleep(90)
            await events.send("came")

        task = asyncio.create_task(later())
        seen = []
        timeout = ctx.after("1 minute")
        while "came" not in seen:
            chosen = await select(events, timeout, *([] if seen else [ctx.after("2 minutes")]))
            seen.append("late" if chosen.channel is timeout else chosen.value)
        await task
        return seen

    warm, cold = await warm_and_cold(h, patient)
    assert warm == cold == ["late", "came"]


async def test_a_stopped_timer_does_not_fire(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def stopping(ctx: Context) -> list[Any]:
        timer = ctx.timer("1 minute")
        stopped = timer.stop()
        again = timer.stop()
        await asyncio.sleep(120)
        fired = (await select(timer, default=True)).ok
        return [stopped, again, fired]

    warm, cold = await warm_and_cold(h, stopping)
    assert warm == cold == [True, False, False]


async def test_a_timer_can_be_reset(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def resetting(ctx: Context) -> list[float]:
        began = ctx.now()
        timer = ctx.timer("1 minute")
        await asyncio.sleep(30)
        timer.reset("1 minute")
        first = await timer.receive()
        timer.reset("10 seconds")
        second = await timer.receive()
        return [(first - began).total_seconds(), (second - began).total_seconds()]

    warm, cold = await warm_and_cold(h, resetting)
    assert warm == cold == [90, 100]


async def test_stop_discards_an_unread_time_of_a_fired_timer(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def fired(ctx: Context) -> list[bool]:
        timer = ctx.timer("1 second")
        await asyncio.sleep(2)
        return [timer.stop(), (await select(timer, default=True)).ok]

    assert await _after(h, fired, "1 minute") == [True, False]


async def test_every_skips_ticks_that_were_missed(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def ticking(ctx: Context) -> list[float]:
        began, seen = ctx.now(), list[float]()
        async for now in ctx.every("10 seconds"):
            seen.append((now - began).total_seconds())
            if len(seen) == 2:
                await asyncio.sleep(35)  # misses three ticks
            if len(seen) == 5:
                break
        return seen

    warm, cold = await warm_and_cold(h, ticking)
    assert warm == cold == [10, 20, 55, 65, 75]


@pytest.mark.parametrize("bad", [-1, "soon", "366 days"])
@pytest.mark.parametrize("call", ["after", "timer", "every"])
async def test_a_bad_duration_is_refused(app: Holdfast, h: Harness, call: str, bad: Any) -> None:
    @app.workflow
    async def wrong(ctx: Context) -> str:
        try:
            getattr(ctx, call)(bad)
        except InvalidDurationError as error:
            return error.code
        return "taken"

    assert await finish(h, wrong) == "INVALID_DURATION"


async def test_every_refuses_an_interval_of_zero(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def wrong(ctx: Context) -> str:
        try:
            ctx.every(0)
        except InvalidDurationError as error:
            return error.message
        return "taken"

    assert "greater than 0" in await finish(h, wrong)


async def _after(h: Harness, workflow: Any, duration: str) -> Any:
    run = await h.start(workflow)
    await h.run_until_idle()
    await h.advance(duration)
    return await run.result(timeout=60)
