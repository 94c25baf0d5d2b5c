"""Records of steps that are still running."""

from __future__ import annotations

import asyncio

from holdfast import Context, Holdfast
from holdfast.testing import Harness


async def test_a_running_step_is_recorded_once_and_then_costs_no_task(app: Holdfast, h: Harness) -> None:
    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("never", never)

    await h.start(flow)
    await h.run_until_idle()
    table = h._the_worker()._table

    writes = table.record_running(only_waiting=False)
    await asyncio.gather(*writes)

    assert len(writes) == 1
    assert table.record_running(only_waiting=False) == []
