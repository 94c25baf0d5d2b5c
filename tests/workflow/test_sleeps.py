"""Durable sleeps end at their exact time and are limited to a year."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from apps import MakeApp
from driving import finish
from holdfast import Context, Holdfast, RunFailedError, WorkerConfig
from holdfast.testing import Harness


def _define_sleeps(app: Holdfast, **sleeps: Any) -> Any:
    @app.workflow
    async def flow(ctx: Context) -> float:
        before = ctx.now()
        for name, duration in sleeps.items():
            await ctx.sleep(name, duration)
        return (ctx.now() - before).total_seconds()

    return flow


async def test_a_sleep_ends_exactly_at_its_time(app: Holdfast, h: Harness) -> None:
    run = await h.start(_define_sleeps(app, nap="1 hour"))
    await h.advance(timedelta(hours=1) - timedelta(milliseconds=1))
    assert (await run.status()).status == "waiting"
    [step] = (await run.history()).steps
    assert (step.type, step.status) == ("sleep", "waiting")
    assert step.wake_at == h.now() + timedelta(milliseconds=1)

    await h.advance(0.001)
    assert await run.result() == 3600
    [step] = (await run.history()).steps
    assert (step.status, step.result) == ("completed", None)


async def test_a_sleep_of_a_year_is_allowed_and_takes_little_real_time(app: Holdfast, h: Harness) -> None:
    began = time.process_time()
    run = await h.start(_define_sleeps(app, year="365 days"))
    await h.advance("365 days")
    assert await run.result() == 365 * 86_400
    assert time.process_time() - began < 1


@pytest.mark.above_the_store
@pytest.mark.parametrize("too_long", [timedelta(days=365, milliseconds=1), "366 days", 365 * 86_400 + 1])
async def test_a_sleep_longer_than_a_year_is_refused(app: Holdfast, h: Harness, too_long: Any) -> None:
    with pytest.raises(RunFailedError) as caught:
        await finish(h, _define_sleeps(app, nap=too_long))
    assert caught.value.error.name == "InvalidDurationError"
    assert "365 days" in caught.value.error.message


@pytest.mark.above_the_store
@pytest.mark.parametrize("bad", [-1, "-1s", "soon", "", None, float("nan"), True])
async def test_a_bad_duration_of_a_sleep_is_refused(app: Holdfast, h: Harness, bad: Any) -> None:
    with pytest.raises(RunFailedError) as caught:
        await finish(h, _define_sleeps(app, nap=bad))
    assert caught.value.error.name == "InvalidDurationError"
    assert "nap" in caught.value.error.message


async def test_a_sleep_of_zero_ends_at_once(app: Holdfast, h: Harness) -> None:
    assert await finish(h, _define_sleeps(app, nap=0)) == 0


@pytest.mark.promise("committed-results-never-change")
async def test_a_recorded_wake_up_time_stays_when_the_code_changes(app: Holdfast, h: Harness) -> None:
    length = ["1 hour"]

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.sleep("nap", length[0])
        return "awake"

    run = await h.start(flow)
    await h.run_until_idle()
    length[0] = "1 day"
    await h.restart()
    await h.advance("1 hour")
    assert await run.result() == "awake"


@pytest.mark.above_the_store
async def test_sleep_until_takes_an_aware_time_in_any_zone(app: Holdfast, h: Harness) -> None:
    when = (h.now() + timedelta(hours=2)).astimezone(timezone(timedelta(hours=-7)))

    @app.workflow
    async def flow(ctx: Context) -> bool:
        await ctx.sleep_until("then", when)
        return ctx.now() == when

    run = await h.start(flow)
    await h.advance("119 minutes")
    assert (await run.status()).status == "waiting"
    await h.advance("1 minute")
    assert await run.result() is True


async def test_sleep_until_a_past_time_ends_at_once(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.sleep_until("then", datetime(2000, 1, 1, tzinfo=UTC))
        return "at once"

    assert await finish(h, flow) == "at once"


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("when", "message"),
    [
        (datetime(2030, 1, 2), "aware"),  # noqa: DTZ001
        ("2030-01-02", "aware"),
        (datetime(2031, 6, 1, tzinfo=UTC), "365 days"),
    ],
    ids=["naive", "text", "too far"],
)
async def test_sleep_until_refuses_naive_and_distant_times(app: Holdfast, h: Harness, when: Any, message: str) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.sleep_until("then", when)

    with pytest.raises(RunFailedError) as caught:
        await finish(h, flow)
    assert caught.value.error.name == "InvalidDurationError"
    assert message in caught.value.error.message


async def test_a_replay_does_not_check_a_recorded_sleep_against_the_limit(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        start = ctx.now()
        await ctx.sleep_until("first", start + timedelta(days=300))
        await ctx.sleep_until("second", start + timedelta(days=600))
        return "awake"

    run = await h.start(flow)
    await h.advance("300 days")
    await h.restart()
    await h.advance("300 days")
    assert await run.result() == "awake"


async def test_sleeps_of_asyncio_are_durable_and_not_shown_as_steps(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        await asyncio.sleep(60)
        return "awake"

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    await h.advance(60)
    assert await run.result() == "awake"
    assert (await run.history()).steps == []


async def test_sleeps_end_on_time_in_a_real_app(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(poll="1 hour"))
    flow = _define_sleeps(app, nap="30 ms")
    async with app:
        runs = [await app.start(flow) for _ in range(20)]
        for run in runs:
            assert 0.03 <= await run.result(timeout=60) < 60


@pytest.mark.parametrize("seconds", [sys.maxsize, 10**12, float("inf")])
async def test_a_sleep_that_is_longer_than_any_date_never_ends(app: Holdfast, h: Harness, seconds: float) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        forever = asyncio.create_task(asyncio.sleep(seconds))
        async with asyncio.timeout(seconds):
            answer = await ctx.listen("answer").receive()
        return [answer, forever.done()]

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    assert "waiting for message 'answer'" in (await run.describe()).why
    await run.send_event("answer", 1)
    await h.run_until_idle()

    assert await run.result(timeout=60) == [1, False]
