"""Time of ``holdfast check``: 10,000 open runs of 20 facts, on one core.

``python bench/check.py [sqlite|postgresql://...] [--runs 10000]`` creates the runs in a new database and checks them.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from holdfast import Context, Holdfast, Start, WorkerConfig
from holdfast.checking import Checker, CheckOptions
from holdfast.client.replaying import Replayer
from holdfast.kernel.requests import Requests
from holdfast.ports import milliseconds

STEPS = 19


def program(url: str, schema: str | None) -> Holdfast:
    app = Holdfast(url, schema=schema, worker=WorkerConfig(concurrency=2000))

    @app.step
    async def work(n: int) -> dict[str, int]:
        return {"n": n}

    @app.workflow(persist="task")
    async def order(ctx: Context, number: int) -> int:
        total = number
        for n in range(STEPS):
            total += (await work(n))["n"]
        await ctx.wait_for_event("go", type="go", timeout="300 days")  # its START is the 20th fact
        return total

    return app


async def create(app: Holdfast, runs: int) -> None:
    async with app:
        for first in range(0, runs, 500):
            await app.start_many("order", [Start(f"o-{n}", n) for n in range(first, min(first + 500, runs))])
        while (await app.list("order", status="active", limit=1)).items:
            await asyncio.sleep(0.5)


async def check(app: Holdfast) -> tuple[float, float, int]:
    async with app.connect():
        opened = app._opened()
        requests = Requests(app.registry, app.limits, app.runtime, opened.store.clock)
        checker = Checker(opened.store, Replayer(app.registry, requests, milliseconds(opened.store.clock)))
        wall, cpu = time.perf_counter(), time.process_time()
        report = await checker.check(CheckOptions())
        assert report.ok
        return time.perf_counter() - wall, time.process_time() - cpu, report.checked


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="sqlite")
    parser.add_argument("--schema")
    parser.add_argument("--runs", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'check.db'}" if options.url == "sqlite" else options.url
        app = program(url, options.schema)
        await create(app, options.runs)
        wall, cpu, checked = await check(app)
    print(f"{checked:,} runs of {STEPS + 1} facts: {wall:.1f} s, {cpu:.1f} s of processor time")


if __name__ == "__main__":
    asyncio.run(main())
