"""Schedules: `python -m bench schedules [--postgres] [--quick]`. Holdfast alone, one worker.

Many schedules of one workflow, with ticks that are spread evenly over the interval. The lateness of a tick is the time
from its tick to the moment at which the code of its run begins. The processor time of an idle worker is measured with
and without the schedules, while none of them is due.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles

from bench import postgres
from holdfast import Context, Holdfast
from holdfast.client.schedules import new_row
from holdfast.kernel.schedule_content import Declaration, read_content
from holdfast.store.protocol import ScheduleChange

SCHEDULES, INTERVAL_S, WINDOW_S, SETTLE_S, IDLE_S, BATCH = 100_000, 600, 20, 3, 5, 2_000


def run(where: Path, *, quick: bool, on_postgres: bool) -> str:
    count = SCHEDULES // 50 if quick else SCHEDULES
    if not on_postgres:
        return asyncio.run(_measure(f"sqlite:///{where}/schedules.db", count))
    with postgres.serving(where) as server:
        return asyncio.run(_measure(server.database("schedules"), count))


async def _measure(url: str, count: int) -> str:
    app = Holdfast(url)
    late: list[float] = []

    @app.workflow
    async def tick(ctx: Context) -> None:
        assert ctx.info.scheduled_for is not None
        late.append((datetime.now(UTC) - ctx.info.scheduled_for).total_seconds() * 1000)

    async with app:
        before = await _idle()
        await _fill(app, count, start=3600)
        idle = await _idle()
        await _clear(app, count)
        await _fill(app, count, start=0)
        await asyncio.sleep(SETTLE_S)  # ticks that were due while 2,000 schedules at a time were inserted
        late.clear()
        await asyncio.sleep(WINDOW_S)
    late.sort()
    cuts = quantiles(late, n=100)
    return (
        f"{count:,} schedules, one tick each in {INTERVAL_S} s: {len(late)} ticks in {WINDOW_S} s. "
        f"Lateness p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, max {late[-1]:.1f} ms. "
        f"Idle processor time per second: {before:.2f} ms without schedules, {idle:.2f} ms with them"
    )


async def _idle() -> float:
    """Milliseconds of processor time per second of an idle worker."""
    await asyncio.sleep(1)
    started = time.process_time()
    await asyncio.sleep(IDLE_S)
    return (time.process_time() - started) / IDLE_S * 1000


async def _fill(app: Holdfast, count: int, *, start: float) -> None:
    """Create schedules whose first ticks are at least ``start`` seconds from now."""
    store, step = app._opened().store, INTERVAL_S / count
    for first in range(0, count, BATCH):
        now = int(time.time() * 1000)
        rows = []
        for n in range(first, min(first + BATCH, count)):
            begin = datetime.fromtimestamp(now / 1000 + start, UTC)
            content = read_content(every=INTERVAL_S, offset=n * step, start=begin)
            rows.append(new_row(Declaration(f"s{n}", "tick", content, None), now, declaration=None))
        await store.change_schedules([ScheduleChange(row.name, 0, row) for row in rows])
    app._opened().hub.schedules_changed()


async def _clear(app: Holdfast, count: int) -> None:
    store = app._opened().store
    for first in range(0, count, BATCH):
        await store.change_schedules(
            [ScheduleChange(f"s{n}", 1, None) for n in range(first, min(first + BATCH, count))]
        )
