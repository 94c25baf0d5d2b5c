"""W1, W3 and W3c: many runs at once."""

from __future__ import annotations

import asyncio
import time

from bench.contract import STEPS_PER_RUN, Contender, Job, Measurement

WARM_UP_RUNS = 20


async def start_and_await(contender: Contender, runs: int, steps: int) -> float:
    """Start all runs together and await all results. Returns the seconds from the first start to the last result."""
    started = time.perf_counter()
    pending = await asyncio.gather(*(contender.steps(steps) for _ in range(runs)))
    await asyncio.gather(*(run.result() for run in pending))
    return time.perf_counter() - started


async def many_runs(contender: Contender, job: Job) -> Measurement:
    """W1: steps per second over runs of five trivial steps."""
    runs = job.count("runs")
    await start_and_await(contender, WARM_UP_RUNS, STEPS_PER_RUN)
    seconds = await start_and_await(contender, runs, STEPS_PER_RUN)
    return {"value": runs * STEPS_PER_RUN / seconds, "seconds": seconds}


async def fan_out(contender: Contender, job: Job) -> Measurement:
    """W3: seconds for one client to start one-step runs and to await them all."""
    await start_and_await(contender, WARM_UP_RUNS, 1)
    return {"value": await start_and_await(contender, job.count("runs"), 1)}


async def children(contender: Contender, job: Job) -> Measurement:
    """W3c: seconds for one run to start one-step children and to await them all."""
    await (await contender.parent(WARM_UP_RUNS)).result()
    started = time.perf_counter()
    await (await contender.parent(job.count("runs"))).result()
    return {"value": time.perf_counter() - started}
