"""Workflows with steps that are in flight when their process receives a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, StepTx

from .program import stop_on_signals
from .workload import SideFile, make_app


def make_slow_app(database: str, side: str, **worker: Any) -> Holdfast:
    app = make_app(database, side, **worker)
    marks = SideFile(Path(side))

    async def wait(seconds: float, *needs: str) -> str:
        marks.ran(needs)
        await asyncio.sleep(seconds)
        return "waited"

    def block(seconds: float, *needs: str) -> str:
        marks.ran(needs)
        time.sleep(seconds)
        return "blocked"

    async def who(tx: StepTx) -> int:
        marks.ran(())
        tx.execute("INSERT INTO ledger VALUES ('who', ?)", str(os.getpid()))
        return os.getpid()

    @app.workflow
    async def held(ctx: Context, n: int) -> list[int]:
        first = await ctx.do("who", who)
        event = await ctx.wait_for_event("go", type="go", timeout="1 hour", payload=int)
        return [n, first, event.payload]

    @app.workflow
    async def slow_async(ctx: Context, seconds: float) -> list[str]:
        first = await ctx.do("first", wait, seconds)
        return [first, await ctx.do("second", wait, 0, "first")]

    @app.workflow
    async def slow_thread(ctx: Context, seconds: float) -> list[str]:
        first = await ctx.do("first", block, seconds)
        return [first, await ctx.do("second", block, 0, "first")]

    return app


def main(database: str, side: str, drain: str) -> None:
    """A complete program, for tests of the end of the interpreter."""
    logging.basicConfig(level=logging.WARNING)
    app = make_slow_app(database, side, lease="30 seconds", drain=drain)

    async def run() -> None:
        stop = stop_on_signals()
        async with app:
            await stop.wait()

    asyncio.run(run())
