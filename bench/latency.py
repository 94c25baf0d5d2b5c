"""W2a, W2b and W4: the latency of single operations on an otherwise idle system."""

from __future__ import annotations

import asyncio
import random
import statistics
import time

from bench.contract import Contender, Job, Measurement

WARM_UP_RUNS = 5
SETTLE_SECONDS = 0.03  # long enough for a new run to reach its wait before the event is sent


async def sequential_steps(contender: Contender, job: Job) -> Measurement:
    """W2a: milliseconds per step of one run, each step durable before the next."""
    steps = job.count("steps")
    await (await contender.steps(steps)).result()
    started = time.perf_counter()
    await (await contender.steps(steps)).result()
    return {"value": (time.perf_counter() - started) * 1000 / steps}


async def start_to_result(contender: Contender, job: Job) -> Measurement:
    """W2b: milliseconds from the call that starts a one-step run to its result."""
    await _warm_up(contender)
    samples: list[float] = []
    for _ in range(job.count("samples")):
        started = time.perf_counter()
        await (await contender.steps(1)).result()
        samples.append((time.perf_counter() - started) * 1000)
    return {"value": statistics.median(samples), "p99": quantile(samples, 0.99)}


async def event_to_result(contender: Contender, job: Job) -> Measurement:
    """W4: milliseconds from the call that sends an event to the result of the run that waited for it."""
    random_delay, spread = random.Random(4), job.args["spread"]
    await _event_sample(contender, 0.0)
    samples = [await _event_sample(contender, random_delay.uniform(0, spread)) for _ in range(job.count("samples"))]
    return {"value": statistics.median(samples), "p99": quantile(samples, 0.99)}


async def _event_sample(contender: Contender, delay: float) -> float:
    """One sample of W4. The random delay keeps samples from being in phase with a contender's polling."""
    run = await contender.waiter()
    await asyncio.sleep(SETTLE_SECONDS + delay)
    started = time.perf_counter()
    await run.send()
    await run.result()
    return (time.perf_counter() - started) * 1000


async def _warm_up(contender: Contender) -> None:
    for _ in range(WARM_UP_RUNS):
        await (await contender.steps(1)).result()


def quantile(samples: list[float], share: float) -> float:
    """The sample that `share` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
