"""A restart that the store refuses does not touch the run that took the place of the one that was found."""

from __future__ import annotations

import asyncio

import pytest

from apps import MakeApp
from holdfast import Context
from holdfast.errors import StateError


async def test_a_refused_restart_leaves_the_turn_of_the_current_run_alone(make_app: MakeApp) -> None:
    app = make_app()
    calls, entered, leave = 0, asyncio.Event(), asyncio.Event()

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await ctx.do("work", work)

    async def work() -> str:
        nonlocal calls
        calls += 1
        entered.set()
        await leave.wait()
        return "done"

    async with app:
        run = await app.start(flow, id="a")
        client = app._opened().client
        first = await client.instances.find("flow", "a")
        await entered.wait()
        entered.clear()
        await run.restart()  # another line: the run that was found has been replaced
        await entered.wait()

        with pytest.raises(StateError, match="run 1 has taken the place"):
            await client.repair.restart_run(first)
        current = await client.instances.find("flow", "a")
        executes = client.local.executes(current.run)
        leave.set()
        result = await run.result(timeout=60)

    assert (executes, result, calls, current.number) == (True, "done", 2, 1)
