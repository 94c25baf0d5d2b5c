"""Unchanged code fits at every point: with races, cancellations, sagas, children, messages and successors."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Channel, Context, Handle, Holdfast, Retry, select
from holdfast.testing import Harness

from .releases import check


async def _name(name: str) -> str:
    return name


async def _fail(name: str) -> None:
    raise OSError(name)


def _program(app: Holdfast, persist: Any) -> Any:
    @app.workflow(persist=persist)
    async def child(ctx: Context, name: str) -> str:
        if name == "asked":
            question = await ctx.listen("question", messages=True).receive()
            await question.reply("yes")
        await ctx.sleep("nap", "1 minute")
        return name

    async def races(ctx: Context) -> None:
        slow = asyncio.create_task(ctx.wait_for_event("never", type="never", timeout="30 days"))
        fast = asyncio.create_task(ctx.do("fast", _name, "fast"))
        await asyncio.wait([slow, fast], return_when=asyncio.FIRST_COMPLETED)
        slow.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                await ctx.wait_for_event("late", type="late", timeout="30 days")
        with suppress(OSError):
            await ctx.do("failing", _fail, "no", retry=Retry(limit=1, delay="10 s"))

    async def messages(ctx: Context) -> None:
        child_run = await ctx.spawn("child", "asked", id=f"asked-{ctx.info.instance_id}-{ctx.info.run_number}")
        assert await ctx.ask(child_run.pid, "question", timeout="1 hour") == "yes"
        local: Channel[int] = Channel(1)
        await local.send(1)
        chosen = await select(ctx.listen("topic"), local)
        assert chosen.value == 1
        await select(ctx.listen("topic"), default=True)
        await child_run.result()

    async def undo(ctx: Context) -> None:
        with suppress(ValueError):
            async with ctx.saga() as saga:
                await ctx.do("reserve", _name, "seat")
                saga.add(_name, "undone")
                raise ValueError("sold out")

    @app.workflow(persist=persist)
    async def everything(ctx: Context, rounds: int) -> str:
        ctx.set_search(rounds=rounds)
        assert ctx.version("everything", 1, 2) == 2
        await races(ctx)
        async with asyncio.TaskGroup() as group:
            group.create_task(messages(ctx))
            group.create_task(undo(ctx))
            group.create_task(ctx.run("child", "plain"))
        await ctx.wait_for_event("go", type="go", timeout="30 days")
        if rounds:
            raise ctx.continue_as_new(rounds - 1)
        return "done"

    return everything


@pytest.mark.above_the_store
@pytest.mark.parametrize("persist", ["step", "task"])
async def test_unchanged_code_fits_at_every_point(h: Harness, app: Holdfast, persist: str) -> None:
    flow = _program(app, persist)
    run = await h.start(flow, 1, id="one")
    fits = 0
    for _ in range(60):
        await h.run_until_idle()
        report = await check(h, app)
        assert report.ok, report.text()
        fits += report.checked
        status = (await run.status()).status
        if status == "complete":
            break
        await _continue(h, run)
    assert status == "complete"
    assert fits > 20


async def _continue(h: Harness, run: Handle[Any]) -> None:
    """Send the event if the run waits for it, else let time pass until the next wait or attempt ends."""
    view = await run.replay()
    assert view.difference is None
    if "go" in [request.step_key for request in view.pending]:
        await run.pause()
        await h.run_until_idle()
        assert (await check(h, h.app)).ok
        await run.resume()
        await run.send_event("go")
    else:
        await h.advance("5 seconds")


async def test_a_run_that_was_lost_by_its_worker_fits(h: Harness, app: Holdfast) -> None:
    @app.workflow
    async def pay(ctx: Context) -> None:
        await ctx.do("first", _name, "first")
        await ctx.do("flaky", _fail, "busy", retry=Retry(limit=9, delay="1 minute", backoff="constant"))

    await h.start(pay)
    for _ in range(3):
        await h.run_until_idle()
        await h.restart()
        await h.advance("2 minutes", run=False)
        assert (await check(h, app)).ok


async def test_a_retried_run_fits_although_its_compensation_is_not_requested_again(h: Harness, app: Holdfast) -> None:
    failing = [True]

    async def pay() -> None:
        if failing:
            raise OSError("busy")

    @app.workflow
    async def order(ctx: Context) -> None:
        async with ctx.saga() as saga:
            await ctx.do("reserve", _name, "seat")
            saga.add(_name, "undone")
            await ctx.do("pay", pay, retry=Retry(limit=0))
        await ctx.wait_for_event("go", type="go")

    run = await h.start(order)
    await h.run_until_idle()
    assert (await run.status()).status == "errored"
    assert len((await run.history()).steps) == 3
    failing.clear()
    await run.retry()
    await h.run_until_idle()
    assert (await run.status()).status == "waiting"

    report = await check(h, app)

    assert report.ok, report.text()
