"""What a run leaves behind in memory: nothing, and no work for the garbage collector either."""

from __future__ import annotations

import asyncio
import gc

import pytest

from holdfast import Context, Holdfast, WorkerConfig


@pytest.mark.parametrize("cache", [1000, 0])
async def test_a_run_leaves_no_circles_behind(cache: int) -> None:
    """Neither at its end, nor when it is put out of memory before that."""
    app = Holdfast("sqlite://", worker=WorkerConfig(cache=cache))

    @app.step
    async def add_one(n: int) -> int:
        return n + 1

    @app.workflow
    async def adding(_ctx: Context, steps: int) -> int:
        n = 0
        for _ in range(steps):
            n = await add_one(n)
        await asyncio.sleep(0.001)
        return n

    @app.workflow
    async def dealing(ctx: Context) -> int:
        child = await ctx.spawn(adding, 1)
        await ctx.listen("go").receive()
        await ctx.send(ctx.info.pid, "note")
        await ctx.inbox.receive()
        await ctx.events.receive()
        return await child.result()

    async def finish() -> None:
        run = await app.start(adding, 5)
        assert await run.result(timeout=5) == 5
        other = await app.start(dealing, messages=[("go", None)])
        assert await other.result(timeout=5) == 1

    async with app:
        await finish()  # what is made once may be a circle
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(10):
                await finish()
            gc.collect()
            # A circle of ours has something of ours in it; the rest may be what other tests left.
            left = [type(found).__qualname__ for found in gc.garbage if type(found).__module__.startswith("holdfast")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left == []
