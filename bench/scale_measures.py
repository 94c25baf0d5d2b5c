"""The measurements of S. Each is made in a child process with its own Holdfast app."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import throughput
from bench.contract import Job, Measurement
from bench.holdfast_contender import HoldfastContender, build
from bench.latency import quantile
from bench.processes import MeasurementError
from holdfast import Context, Holdfast, Start, Workflow

BATCH = 1000
SETTLE_SECONDS = 2.0


async def populate(job: Job) -> Measurement:
    """Fill the file with finished and sleeping runs, a batch at a time."""
    app, workflows = build(job)
    sleeper = _sleeper(app)
    started = time.perf_counter()
    async with app:
        for batch in _batches("done", job.count("finished")):
            runs = await app.start_many(workflows.steps, [Start(name, 1) for name in batch])
            await asyncio.gather(*(run.result() for run in runs))
        for batch in _batches("asleep", job.count("sleeping")):
            await app.start_many(sleeper, [Start(name, None) for name in batch])
        await _until_asleep(app, sleeper, job.count("sleeping"))
    return {"seconds": time.perf_counter() - started, "megabytes": _megabytes(job.db)}


async def busy(job: Job) -> Measurement:
    """W1, in the job's file, new or full."""
    app, workflows = build(job)
    _sleeper(app)
    async with app:
        return await throughput.many_runs(HoldfastContender(app, workflows), job)


async def claims(job: Job) -> Measurement:
    """Milliseconds from the start call to the first line of the step, by the worker's own app and by a client."""
    app, _ = build(job)
    _sleeper(app)
    reached: dict[int, float] = {}
    probe = _probe(app, reached)
    client, _ = build(job)
    foreign = _probe(client, {})
    async with app, client.connect():
        own = [await _claim(app, probe, reached, n) for n in range(job.count("samples"))]
        other = [await _claim(client, foreign, reached, -1 - n) for n in range(20)]
    return {
        "claim_p50": quantile(own, 0.5),
        "claim_p99": quantile(own, 0.99),
        "poll_p50": quantile(other, 0.5),
    }


async def idle(job: Job) -> Measurement:
    """CPU time and memory of a worker while nothing is due."""
    app, _ = build(job)
    _sleeper(app)
    async with app:
        await asyncio.sleep(SETTLE_SECONDS)
        started, used = time.perf_counter(), time.process_time()
        await asyncio.sleep(job.args["seconds"])
        percent = (time.process_time() - used) / (time.perf_counter() - started) * 100
        return {"cpu_percent": percent, "rss_megabytes": _rss_megabytes()}


async def timers(job: Job) -> Measurement:
    """Lateness of runs whose due times are spread evenly over a window."""
    app, _ = build(job)
    _sleeper(app)
    late: list[float] = []
    timer = _timer(app, late)
    count, base = job.count("timers"), time.time() + job.args["lead"]
    due = [base + number * job.args["window"] / count for number in range(count)]
    async with app:
        for first in range(0, count, BATCH):
            starts = [Start(f"timer-{first + n}", at) for n, at in enumerate(due[first : first + BATCH])]
            await app.start_many(timer, starts)
        ready = time.time() - base
        while len(late) < count:  # a poll: the cost of ten thousand tasks that await results would be measured too
            await asyncio.sleep(0.1)
    if ready > 0:
        raise MeasurementError(f"the starts took {ready:.1f} s longer than the lead, so all timers began late")
    return {"p50": quantile(late, 0.5), "p99": quantile(late, 0.99), "max": max(late)}


MEASURES: dict[str, Callable[[Job], Awaitable[Measurement]]] = {
    "scale_populate": populate,
    "scale_throughput": busy,
    "scale_claims": claims,
    "scale_idle": idle,
    "scale_timers": timers,
}


def _sleeper(app: Holdfast) -> Workflow[None]:
    @app.workflow
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep("long", "7 days")

    return sleeper


def _probe(app: Holdfast, reached: dict[int, float]) -> Workflow[int]:
    @app.step
    async def reach(number: int) -> int:
        reached[number] = time.perf_counter()
        return number

    @app.workflow
    async def probe(_ctx: Context, number: int) -> int:
        return await reach(number)

    return probe


def _timer(app: Holdfast, late: list[float]) -> Workflow[None]:
    @app.step
    async def note(due: float) -> None:
        late.append((time.time() - due) * 1000)

    @app.workflow
    async def timer(ctx: Context, due: float) -> None:
        await ctx.sleep_until("due", datetime.fromtimestamp(0, UTC) + timedelta(seconds=due))
        await note(due)

    return timer


async def _claim(app: Holdfast, probe: Workflow[int], reached: dict[int, float], number: int) -> float:
    started = time.perf_counter()
    await (await app.start(probe, number)).result()
    return (reached[number] - started) * 1000


async def _until_asleep(app: Holdfast, sleeper: Workflow[None], count: int) -> None:
    """Wait until the last batch of runs sleeps: the runs that were started last are the last to reach their sleep."""
    for number in range(max(0, count - BATCH), count):
        run = await app.get(sleeper, f"asleep-{number}")
        while (status := (await run.status()).status) != "waiting":
            if status != "active":
                raise MeasurementError(f"asleep-{number} should sleep, but it is {status}")
            await asyncio.sleep(0.05)


def _batches(prefix: str, count: int) -> list[list[str]]:
    ids = [f"{prefix}-{number}" for number in range(count)]
    return [ids[first : first + BATCH] for first in range(0, count, BATCH)]


def _megabytes(db: str) -> float:
    """Size of the database file with its WAL."""
    path = Path(db)
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) / 1e6


def _rss_megabytes() -> float:
    """Resident memory now; on systems without `/proc`, its maximum so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
