"""Workers that are killed while they take up the ticks of schedules, on both stores."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from datetime import datetime, timedelta
from typing import Any, NoReturn

from holdfast import Context, Holdfast, WorkerConfig
from holdfast.client.schedules import new_row
from holdfast.core.model import to_ms
from holdfast.kernel.schedule_options import declare
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import ScheduleChange
from holdfast.store.sqlite import SqliteStore

TICKS = {"allow": 5, "queue_all": 9}
"""The schedules, each named like its overlap policy, and the number of their overdue ticks."""
_IN_FLIGHT_SECONDS = 0.001


def make_scheduled_app(url: str, schema: str | None) -> Holdfast:
    app = Holdfast(url, schema=schema, worker=WorkerConfig(lease="400 ms", max_losses=1_000_000))

    @app.workflow(name="note")
    async def note(ctx: Context) -> str:
        return str(ctx.info.scheduled_for)

    return app


async def store_schedules(app: Holdfast, end: datetime) -> None:
    """Store the schedules as if they had been created before their first ticks, with no worker since."""
    changes = []
    for name, ticks in TICKS.items():
        options: dict[str, Any] = {"every": "1 second", "end": end, "overlap": name, "catch_up": "1 hour"}
        declared = declare(name, "note", None, paused=False, options=options, limits=app.limits)
        created = to_ms(end - timedelta(seconds=ticks - 1)) - 1
        changes.append(ScheduleChange(name, 0, new_row(declared, created, declaration=None)))
    await app._opened().store.change_schedules(changes)


def take_up(*, url: str, schema: str | None, when: str) -> None:
    """A worker that dies at its first change of schedules: before, during or after the transaction."""
    logging.basicConfig(level=logging.WARNING)
    for store in (SqliteStore, PostgresStore):
        store.change_schedules = _killed(store.change_schedules, when)  # type: ignore[method-assign]
    asyncio.run(_work(make_scheduled_app(url, schema)))


def _killed(method: Any, when: str) -> Any:
    async def change_schedules(*args: Any) -> None:
        if when != "before":
            call = asyncio.ensure_future(method(*args))
            await asyncio.wait([call], timeout=None if when == "after" else _IN_FLIGHT_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    return change_schedules


async def _work(app: Holdfast) -> NoReturn:
    async with app:
        await asyncio.Event().wait()
    raise AssertionError("unreachable")
