"""Log lines of interrupted attempts: timed out, cancelled, terminated, or interrupted by a worker's stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from apps import MakeApp
from driving import until, until_status
from holdfast import ChainTask, Context, Handle, Holdfast, Limits, Retry, WorkerConfig
from holdfast.kernel.logger import StepLogger
from holdfast.testing import Harness

NO_RETRY = Retry(limit=0)
NO_DRAIN = WorkerConfig(drain=0)


async def messages(run: Handle[Any]) -> list[str]:
    return [line.message for line in await run.logs()]


def logging_step(ctx: Context, entered: asyncio.Event | None = None) -> Callable[[], Awaitable[None]]:
    async def write_lines() -> None:
        ctx.log.info("first")
        ctx.log.info("second")
        if entered is not None:
            entered.set()
        await asyncio.Event().wait()

    return write_lines


async def test_lines_of_an_attempt_that_timed_out_are_kept(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.do("speak", logging_step(ctx), timeout="1 second", retry=NO_RETRY)

    run = await h.start(shop)
    await h.run_until_idle()
    await h.advance("1 second")

    assert (await run.status()).status == "errored"
    assert await messages(run) == ["first", "second"]


async def test_lines_of_a_step_that_the_code_cancelled_are_kept(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            async with asyncio.timeout(60):
                await ctx.do("speak", logging_step(ctx))
        except TimeoutError:
            ctx.log.info("given up")
        await ctx.sleep("nap", 60)
        return "done"

    run = await h.start(shop)
    await h.run_until_idle()
    await h.advance(60)
    await h.restart()
    await h.advance(60)

    assert await run.result() == "done"
    lines = [line for line in await run.logs() if not line.is_replay]
    assert [line.message for line in lines] == ["first", "second", "given up"]
    assert [(line.step_key, line.attempt) for line in lines[:2]] == [("speak", 1)] * 2


@pytest.mark.above_the_store
async def test_lines_of_a_step_that_lost_a_race_are_kept(app: Holdfast, h: Harness) -> None:
    async def quick() -> None:
        pass

    @app.workflow(persist="task")
    async def shop(ctx: Context) -> None:
        slow = asyncio.ensure_future(ctx.do("speak", logging_step(ctx)))
        await ctx.do("quick", quick)
        slow.cancel()
        await asyncio.wait([slow])

    run = await h.start(shop)
    await h.run_until_idle()

    assert (await run.status()).status == "complete"
    assert await messages(run) == ["first", "second"]


@pytest.mark.above_the_store
async def test_lines_of_a_step_in_flight_at_the_end_of_its_run_are_kept(app: Holdfast, h: Harness) -> None:
    async def quick() -> None:
        pass

    left: list[asyncio.Future[None]] = []

    @app.workflow
    async def shop(ctx: Context) -> None:
        left.append(asyncio.ensure_future(ctx.do("speak", logging_step(ctx))))
        await ctx.do("quick", quick)

    run = await h.start(shop)
    await h.run_until_idle()

    assert (await run.status()).status == "complete"
    assert await messages(run) == ["first", "second"]


async def test_lines_of_a_cancelled_run_are_kept(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.do("speak", logging_step(ctx))

    run = await h.start(shop)
    await h.run_until_idle()
    await run.cancel("enough")
    await h.run_until_idle()

    assert (await run.status()).status == "cancelled"
    assert await messages(run) == ["first", "second"]


@pytest.mark.parametrize("how", ["terminate", "restart"])
async def test_lines_of_a_terminated_or_restarted_run_are_kept(app: Holdfast, h: Harness, how: str) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.do("speak", logging_step(ctx))

    run = await h.start(shop)
    await h.run_until_idle()
    await (run.terminate("enough") if how == "terminate" else run.restart())
    await h.run_until_idle()

    client = run._client
    row = await client.instances.find("shop", run.id, 0)
    assert row.status == "terminated"
    assert [line.message for line in await client.reads.logs(row)] == ["first", "second"]


async def test_lines_of_a_run_that_reached_its_run_timeout_are_kept(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.do("speak", logging_step(ctx), timeout="2 hours")

    run = await h.start(shop, run_timeout="1 hour")
    await h.run_until_idle()
    await h.advance("1 hour")

    assert (await run.status()).status == "errored"
    assert await messages(run) == ["first", "second"]


async def test_lines_of_a_chain_that_is_terminated_are_kept(app: Holdfast, h: Harness) -> None:
    orders = app.chain("orders")

    @orders.step("CHECK", lease="1 hour")
    async def check(task: ChainTask) -> None:
        task.log.info("first")
        await asyncio.Event().wait()

    run = await h.start(orders)
    await h.run_until_idle()
    await run.terminate()
    await h.run_until_idle()

    assert await messages(run) == ["first"]


@pytest.mark.parametrize("how", ["terminate", "cancel", "kill"])
async def test_lines_of_a_graph_that_is_ended_are_kept(app: Holdfast, h: Harness, how: str) -> None:
    etl = app.graph("etl")
    log = StepLogger(Limits(), h.now)

    @etl.node
    async def extract() -> None:
        log.info("first")
        await asyncio.Event().wait()

    run = await h.start(etl)
    await h.run_until_idle()
    await getattr(run, how)()
    await h.run_until_idle()

    assert (await run.status()).status in ("terminated", "cancelled")
    assert await messages(run) == ["first"]


@pytest.mark.parametrize("lease", ["1 second", "1 hour"])
async def test_lines_in_a_thread_are_kept_when_another_process_terminates_the_run(
    make_app: MakeApp, lease: str
) -> None:
    """A heartbeat, or with a long lease the record of the running step, shows that the run has ended."""
    app, other = make_app(worker=WorkerConfig(lease=lease)), make_app()
    go_on, entered = threading.Event(), threading.Event()

    @app.workflow
    async def shop(ctx: Context) -> None:
        def speak() -> None:
            ctx.log.info("first")
            entered.set()
            go_on.wait(60)

        await ctx.do("speak", speak)

    async with app, other.connect():
        run = await app.start(shop)
        await until(lambda: asyncio.sleep(0, entered.is_set()))
        other.remote("shop")
        await (await other.get("shop", run.id)).terminate()
        assert await until(lambda: messages(run)) == ["first"]
        go_on.set()


@pytest.mark.above_the_store
async def test_lines_of_attempts_that_a_worker_stop_interrupts_are_kept(make_app: MakeApp) -> None:
    app = make_app(worker=NO_DRAIN)
    entered = asyncio.Event()

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.do("speak", logging_step(ctx, entered))

    async with app:
        run = await app.start(shop)
        await entered.wait()
    async with app.connect():
        assert await messages(await app.get(shop, run.id)) == ["first", "second"]


@pytest.mark.above_the_store
async def test_lines_of_an_attempt_are_dropped_if_another_worker_takes_over_the_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.do("speak", logging_step(ctx))

    run = await h.start(shop)
    await h.run_until_idle()
    h._the_worker()._runner.signal((await run._client.instances.find("shop", run.id)).run, None)
    await h.run_until_idle()

    assert await until_status(run, "active", "waiting")
    assert await messages(run) == []
