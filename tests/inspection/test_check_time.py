"""The time of a check: 10,000 open runs of 20 facts take at most 60 seconds on one core."""

from __future__ import annotations

import asyncio
import time

import pytest

from apps import MakeApp
from holdfast import Context, Start, WorkerConfig
from holdfast.checking import Checker, CheckOptions
from holdfast.client.replaying import Replayer
from holdfast.kernel.requests import Requests
from holdfast.ports import milliseconds

RUNS = 10_000
STEPS = 19


@pytest.mark.timeout(600)
async def test_ten_thousand_runs_are_checked_in_a_minute(make_app: MakeApp, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("creates 10,000 runs")
    app = make_app(worker=WorkerConfig(concurrency=2000))

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

    async with app:
        for first in range(0, RUNS, 500):
            await app.start_many(order, [Start(f"o-{n}", n) for n in range(first, min(first + 500, RUNS))])
        while (await app.list(order, status="active", limit=1)).items:
            await asyncio.sleep(0.5)

    async with app.connect():
        store = app._opened().store
        requests = Requests(app.registry, app.limits, app.runtime, store.clock)
        checker = Checker(store, Replayer(app.registry, requests, milliseconds(store.clock)))
        began, used = time.perf_counter(), time.process_time()
        report = await checker.check(CheckOptions())
        wall, processor = time.perf_counter() - began, time.process_time() - used
    assert (report.ok, report.checked) == (True, RUNS)
    print(f"{RUNS:,} runs: {wall:.1f} s, {processor:.1f} s of processor time")
    assert processor < 60
