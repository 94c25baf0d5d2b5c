"""Workflows whose steps kill their own process."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, Retry, StepMaxAttemptsExceeded

from .workload import SideFile, make_app

ONCE = Retry(limit=0, delay="10 ms", backoff="constant")
TWICE = Retry(limit=2, delay="10 ms", backoff="constant")
FOREVER = Retry(limit=math.inf, delay="10 ms", backoff="constant")


def make_dying_app(database: str, side: str, **worker: Any) -> Holdfast:
    app = make_app(database, side, **worker)
    marks = SideFile(Path(side))

    async def die(*needs: str) -> None:
        marks.ran(needs)
        os._exit(9)

    async def die_soon() -> None:
        marks.ran(())
        await asyncio.sleep(0.15)  # meanwhile other runs make progress
        os._exit(9)

    async def die_at_first(*needs: str) -> str:
        if marks.ran(needs) == 1:
            os._exit(9)
        return "alive"

    @app.workflow
    async def dies_once(ctx: Context) -> str:
        return await ctx.do("die", die_at_first, retry=TWICE)

    @app.workflow
    async def dies_always(ctx: Context) -> list[Any]:
        try:
            await ctx.do("die", die, retry=TWICE)
        except StepMaxAttemptsExceeded as error:
            return [error.type, error.attempts]
        return ["alive"]

    @app.workflow(persist="task")
    async def dies_buffered(ctx: Context) -> str:
        await ctx.do("die", die, retry=TWICE)
        return "alive"

    @app.workflow
    async def dies_without_retry(ctx: Context) -> str:
        await ctx.do("die", die, retry=ONCE)
        return "alive"

    @app.workflow
    async def dies_forever(ctx: Context) -> str:
        await ctx.do("die", die_soon, retry=FOREVER)
        return "alive"

    return app
