"""An ended run leaves nothing in memory, not even reference cycles for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from holdfast import (
    ChildError,
    Context,
    Handle,
    Holdfast,
    HoldfastError,
    NonRetryableError,
    Retry,
    RunFailedError,
    WorkerConfig,
)

pytestmark = pytest.mark.promise("bounded-resources")

NO_RETRY = Retry(limit=0)


def make_app(**worker: Any) -> Holdfast:
    app = Holdfast("sqlite://", worker=WorkerConfig(**worker))

    @app.step
    async def add_one(n: int) -> int:
        return n + 1

    @app.step(retry=NO_RETRY, raises=(LookupError,))
    async def fail(how: type[Exception]) -> None:
        raise how("no")

    @app.workflow
    async def adding(_ctx: Context, steps: int) -> int:
        n = 0
        for _ in range(steps):
            n = await add_one(n)
        await asyncio.sleep(0.001)
        return n

    @app.workflow
    async def exchanging_messages(ctx: Context) -> int:
        child = await ctx.spawn(adding, 1)
        await ctx.listen("go").receive()
        await ctx.send(ctx.info.pid, "note")
        await ctx.inbox.receive()
        await ctx.events.receive()
        return await child.result()

    @app.workflow
    async def catching(ctx: Context) -> None:
        with suppress(HoldfastError):
            await ctx.do("broken", fail, NonRetryableError)
        with suppress(LookupError):
            await fail(LookupError)
        with suppress(ChildError):
            await ctx.run(failing)
        with suppress(TimeoutError):
            await asyncio.wait_for(ctx.inbox.receive(), 0.001)

    @app.workflow
    async def failing(_ctx: Context) -> None:
        await fail(LookupError)

    @app.workflow
    async def waiting(ctx: Context) -> None:
        go = ctx.wait_for_event("go", type="go")
        await asyncio.gather(go, ctx.inbox.receive(), ctx.sleep("a day", "1 day"))

    @app.workflow
    async def continuing(ctx: Context, times: int) -> None:
        await ctx.sleep("a moment", 0.001)
        if times:
            raise ctx.continue_as_new(times - 1)

    return app


async def uncollected_cycles(app: Holdfast, work: Callable[[], Awaitable[None]]) -> list[str]:
    """Return the types of Holdfast objects that only the garbage collector frees after ``work``."""
    async with app:
        await work()  # objects created once may be in a cycle
        gc.collect()
        gc.freeze()  # the next collections need not traverse the objects of ten thousand tests
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(10):
                await work()
            gc.collect()
            # A cycle of ours contains an object of ours; other garbage may come from other tests.
            return [
                type(garbage).__qualname__ for garbage in gc.garbage if type(garbage).__module__.startswith("holdfast")
            ]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()


async def until_waiting(run: Handle[Any]) -> None:
    async with asyncio.timeout(60):
        while (await run.status()).status != "waiting":
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("cache", [1000, 0])
async def test_an_ended_run_leaves_no_reference_cycles(cache: int) -> None:
    """With ``cache=0`` the run is also dropped from memory whenever it is suspended."""
    app = make_app(cache=cache)

    async def finish() -> None:
        run = await app.start("adding", 5)
        assert await run.result(timeout=60) == 5
        other = await app.start("exchanging_messages", messages=[("go", None)])
        assert await other.result(timeout=60) == 1
        continuing = await app.start("continuing", 2)
        await continuing.result(timeout=60)

    assert await uncollected_cycles(app, finish) == []


@pytest.mark.parametrize("cache", [1000, 0])
async def test_failures_leave_no_reference_cycles(cache: int) -> None:
    app = make_app(cache=cache)

    async def finish() -> None:
        run = await app.start("catching")
        await run.result(timeout=60)
        failed = await app.start("failing")
        with pytest.raises(RunFailedError):
            await failed.result(timeout=60)

    assert await uncollected_cycles(app, finish) == []


@pytest.mark.parametrize("cache", [1000, 0])
@pytest.mark.parametrize("how", ["terminate", "cancel", "restart", "pause"])
async def test_a_control_request_leaves_no_reference_cycles(how: str, cache: int) -> None:
    app = make_app(cache=cache)

    async def finish() -> None:
        run = await app.start("waiting")
        await until_waiting(run)
        await getattr(run, how)()
        if how == "restart":
            await until_waiting(run)
        if how in ("restart", "pause"):
            await run.terminate()
        async with asyncio.timeout(60):
            while (await run.status()).status not in ("terminated", "cancelled"):
                await asyncio.sleep(0.001)

    assert await uncollected_cycles(app, finish) == []


async def test_a_run_that_never_began_leaves_no_reference_cycles() -> None:
    app = make_app()

    async def finish() -> None:
        run = await app.start("waiting", start_delay="1 hour")
        await run.cancel()
        async with asyncio.timeout(60):
            while (await run.status()).status != "cancelled":
                await asyncio.sleep(0.001)

    assert await uncollected_cycles(app, finish) == []
