"""SIGKILL while the ticks of schedules are taken up: each tick starts exactly one run."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Holdfast

from .fork_server import ForkServer
from .killer import WHEN
from .schedule_program import TICKS, make_scheduled_app, store_schedules
from .workspace import until


@pytest.mark.promise("durability")
async def test_each_tick_starts_one_run_while_workers_are_killed(
    address: tuple[str, str | None], fork_server: ForkServer
) -> None:
    url, schema = address
    app = make_scheduled_app(url, schema)
    end = datetime.now(UTC).replace(microsecond=0)
    async with app.connect():
        await store_schedules(app, end)
    for when in WHEN:
        # Two workers look at the same ticks.
        killed = [fork_server.fork("schedule_program:take_up", url=url, schema=schema, when=when) for _ in range(2)]
        await until(lambda killed=killed: not any(one.alive for one in killed), "a worker does not die")
        assert [one.code for one in killed] == [-signal.SIGKILL] * 2, killed[0].output()

    async with app:
        for name, ticks in TICKS.items():
            await _ends(app, name, [end - timedelta(seconds=n) for n in range(ticks)])
        runs = [run.id for run in (await app.list("note", limit=100)).items]
    expected = [f"{name}-{end - timedelta(seconds=n):%Y%m%dT%H%M%SZ}" for name in TICKS for n in range(TICKS[name])]
    assert sorted(runs) == sorted(expected)


async def _ends(app: Holdfast, name: str, ticks: list[datetime]) -> None:
    """Wait until the runs of all ticks are complete; each tick is recorded once."""
    while True:
        runs = (await app.schedules.get(name, runs=100)).last_runs
        if len(runs) >= len(ticks) and all(run.outcome == "complete" for run in runs):
            break
        await asyncio.sleep(0.02)
    assert [run.scheduled_for for run in runs] == ticks
