"""The order in which runs are claimed, and ``app.tick``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from holdfast import Context, Holdfast, Retry
from holdfast.errors import InvalidOptionError
from holdfast.testing import Harness


def _define_note(app: Holdfast, order: list[str]) -> Any:
    @app.workflow
    async def note(ctx: Context, text: str) -> None:
        order.append(text)

    return note


async def test_runs_that_continue_are_claimed_before_new_runs(app: Holdfast, h: Harness) -> None:
    order: list[str] = []

    @app.workflow
    async def woken(ctx: Context) -> None:
        await ctx.sleep("nap", 60)
        order.append("woken")

    @app.workflow
    async def retried(ctx: Context) -> None:
        await ctx.do("flaky", flaky, retry=Retry(1, 60))
        order.append("retried")

    @app.workflow
    async def resumed(ctx: Context) -> None:
        order.append("resumed")

    async def flaky() -> None:
        if not order and h.now().minute == 0:
            raise OSError("first")

    note = _define_note(app, order)
    paused = await h.start(resumed)
    await paused.pause()
    await h.start(woken)
    await h.start(retried)
    await h.run_until_idle()
    for n in range(3):
        await h.start(note, f"new {n}")
    await h.advance(61, run=False)
    await paused.resume()
    for _ in range(6):
        await h.app.tick(max_instances=1)
    assert order == ["woken", "retried", "resumed", "new 0", "new 1", "new 2"]


async def test_runs_are_claimed_by_priority_number_and_then_by_age(app: Holdfast, h: Harness) -> None:
    order: list[str] = []
    note = _define_note(app, order)
    for n, priority in enumerate((0, 5, -5, 0)):
        await h.start(note, f"{priority}/{n}", priority=priority)
        await h.advance(0.001, run=False)
    for _ in range(4):
        await h.app.tick(max_instances=1)
    assert order == ["-5/2", "0/0", "0/3", "5/1"]


async def test_a_tick_returns_the_number_of_claimed_runs(app: Holdfast, h: Harness) -> None:
    order: list[str] = []
    note = _define_note(app, order)
    for n in range(5):
        await h.start(note, f"{n}")
    assert await h.app.tick(max_instances=2) == 2
    assert await h.app.tick(max_instances=0) == 0
    assert await h.app.tick() == 3
    assert await h.app.tick() == 0
    assert order == ["0", "1", "2", "3", "4"]


async def test_a_tick_starts_at_most_max_steps_steps(app: Holdfast, h: Harness) -> None:
    calls: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> int:
        for n in range(5):
            await ctx.do(f"s{n}", calls.append, n)
        return len(calls)

    run = await h.start(flow)
    counts = []
    for _ in range(3):
        await h.app.tick(max_steps=2)
        counts.append(len(calls))
    assert counts == [2, 4, 5]
    assert await run.result(timeout=60) == 5
    assert calls == [0, 1, 2, 3, 4]


async def test_steps_that_exceed_max_steps_run_in_the_next_tick(app: Holdfast, h: Harness) -> None:
    calls: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        await asyncio.gather(*(ctx.do(f"s{n}", calls.append, n) for n in range(4)))
        return sorted(calls)

    run = await h.start(flow)
    assert await h.app.tick(max_steps=0) == 1
    assert calls == []
    assert (await run.status()).status == "active"
    await h.app.tick(max_steps=3)
    assert len(calls) == 3
    await h.app.tick(max_steps=3)
    assert await run.result(timeout=60) == [0, 1, 2, 3]


async def test_concurrent_ticks_claim_each_run_once(make_app: MakeApp) -> None:
    app = make_app()
    calls: list[int] = []

    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        await ctx.do("note", calls.append, n)
        return n

    async with app.connect():
        runs = [await app.start(flow, n) for n in range(40)]
        claimed = await asyncio.gather(*(app.tick(max_instances=10) for _ in range(8)))
        assert sum(claimed) == 40
        assert [await run.result(timeout=60) for run in runs] == list(range(40))
        assert sorted(calls) == list(range(40))


@pytest.mark.above_the_store
@pytest.mark.parametrize("option", ["max_instances", "max_steps"])
@pytest.mark.parametrize("bad", [-1, "5", 1.5, True])
async def test_a_bad_limit_of_a_tick_is_refused_by_name(app: Holdfast, h: Harness, option: str, bad: Any) -> None:
    with pytest.raises(InvalidOptionError, match=option):
        await h.app.tick(**{option: bad})


async def test_a_tick_runs_only_due_runs(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.sleep("nap", 60)
        return "awake"

    run = await h.start(flow)
    await h.app.tick()
    assert await h.app.tick() == 0
    await h.advance(60, run=False)
    assert await h.app.tick() == 1
    assert await run.result(timeout=60) == "awake"
