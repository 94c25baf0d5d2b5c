"""A process that repairs or deletes runs and is killed on the way, and the workflow that it repairs."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast import Context, Filter, Holdfast, Retry
from holdfast.client import bulk_jobs
from holdfast.core.model import Status
from holdfast.errors import InstanceExistsError, StateError
from holdfast.store.protocol import PrunePosition, PruneRuns

from .killer import Counter

IDS = [f"o-{n}" for n in range(6)]
CALLS = ("control", "bulk", "maintain", "read")
_ONCE = Retry(limit=0, delay="10 ms", backoff="constant")


def make_repaired_app(database: str) -> Holdfast:
    """``flow`` fails in its second step while a file named ``broken`` is beside the database."""
    app = Holdfast(f"sqlite:///{database}")
    folder = Path(database).parent

    async def call(name: str) -> str:
        with (folder / "calls").open("a") as calls:
            calls.write(f"{name}\n")
        if name.startswith("second") and (folder / "broken").exists():
            raise ValueError("broken")
        return f"{name} ok"

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> list[str]:
        name = ctx.info.instance_id
        first = await ctx.do("first", call, f"first {name}", retry=_ONCE)
        return [first, await ctx.do("second", call, f"second {name}", retry=_ONCE)]

    return app


def repair(*, database: str, action: str, kill_at: str) -> None:
    """Execute an action, and die at the kill point."""
    logging.basicConfig(level=logging.WARNING)
    Counter(kill_at).arm(CALLS)
    asyncio.run(act(make_repaired_app(database), action))


async def act(app: Holdfast, action: str) -> None:
    """Execute an action on all runs. It can be repeated."""
    async with app.connect():
        await {"retry": _retry, "fork": _fork, "prune": _prune, "bulk": _bulk}[action](app)


async def _retry(app: Holdfast) -> None:
    for name in IDS:
        with suppress(StateError):
            await (await app.get("flow", name)).retry()


async def _fork(app: Holdfast) -> None:
    for name in IDS:
        with suppress(InstanceExistsError):
            await (await app.get("flow", name)).fork(before="second", id=f"{name}-fork")


async def _prune(app: Holdfast) -> None:
    position: PrunePosition | None = PrunePosition()
    while position is not None:
        request = PruneRuns("flow", Status.ERRORED, 0, after=position, limit=2)
        position = (await app._opened().store.maintain(request)).next


async def _bulk(app: Holdfast) -> None:
    """Create the job unless it exists, and wait for its end, as a server does that is started again."""
    bulk_jobs._LEASE_MS = 50
    jobs, marker = app._opened().client.bulk_jobs, Path(app.url.removeprefix("sqlite:///")).parent / "job"
    if not marker.exists():
        job: Any = await jobs.create("retry", [Filter(workflow="flow", status="errored")], {})
        marker.write_text(job)
    while (job := await jobs.get(marker.read_text())) is not None and job.ended_at is None:
        await asyncio.sleep(0.02)
