"""The measurements of the curves, each of one size, in a child process with its own Holdfast app.

CPU time is that of the whole process, user and system, all threads: it depends less on other load than the wall clock.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from bench.contract import STEPS_PER_RUN, Job, Measurement
from holdfast import Context, Handle, Holdfast, Limits, Start, WorkerConfig, tune_collector

BATCH = 1000
SENDERS = 200
SAMPLE = 5000
IDLE_SECONDS = 5.0
W1_RUNS = 1000


class Clock:
    """Seconds of wall clock and of CPU since the last reading."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu()

    def read(self) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), _cpu()
        elapsed = wall - self._wall, cpu - self._cpu
        self._wall, self._cpu = wall, cpu
        return elapsed


async def concurrent_runs(job: Job) -> Measurement:
    """``n`` runs of five steps, all of them in their first step at the same time."""
    n = job.count("n")
    app = _app(job, concurrency=max(1000, n + 100))
    inside, all_inside, go = 0, asyncio.Event(), asyncio.Event()

    async def first() -> int:
        nonlocal inside
        inside += 1
        if inside == n:
            all_inside.set()
        await go.wait()
        return 1

    async def add_one(value: int) -> int:
        return value + 1

    @app.workflow
    async def steps(ctx: Context) -> int:
        value = await ctx.do("first", first)
        for number in range(1, STEPS_PER_RUN):
            value = await ctx.do(f"step {number}", add_one, value)
        return value

    async with app:
        before, clock = _rss(), Clock()
        runs = [run for batch in _batches(n) for run in await app.start_many(steps, batch)]
        await all_inside.wait()
        gc.collect()
        memory = _rss() - before
        go.set()
        await _results(runs)
        wall, cpu = clock.read()
    steps_done = n * STEPS_PER_RUN
    return {
        "n": n,
        "per_second": steps_done / wall,
        "cpu_us": cpu / steps_done * 1e6,
        "bytes_per_run": memory / n,
    }


async def history(job: Job) -> Measurement:
    """A run of ``n`` steps; then a second process' view of it: load, replay and one more step."""
    n = job.count("n")
    reached = asyncio.Event()
    app = _history_app(job, reached)
    async with app:
        clock = Clock()
        run = await app.start("long", n, id="a")
        await reached.wait()
        wall, cpu = clock.read()
    app = _history_app(job, reached)
    async with app:
        run = await app.get("long", "a")
        clock.read()
        await run.send_event("go", None)
        await run.result()
        replay_wall, replay_cpu = clock.read()
    return {
        "n": n,
        "per_second": n / wall,
        "cpu_us": cpu / n * 1e6,
        "replay_ms": replay_wall * 1000,
        "replay_cpu_us": replay_cpu / n * 1e6,
    }


def _history_app(job: Job, reached: asyncio.Event) -> Holdfast:
    app = _app(job, limits=Limits(steps=job.count("n") + 100))

    async def add_one(value: int) -> int:
        return value + 1

    async def set_reached() -> None:
        reached.set()

    @app.workflow(name="long")
    async def long_run(ctx: Context, n: int) -> int:
        value = 0
        for number in range(n):
            value = await ctx.do(f"step {number}", add_one, value)
        await ctx.do("reached", set_reached)
        await ctx.wait_for_event("go", type="go")
        return await ctx.do("last", add_one, value)

    return app


async def graph(job: Job) -> Measurement:
    """A graph of ``n`` nodes: layers of ten, each node after two of the layer before."""
    n = job.count("n")
    app = _app(job, limits=Limits(steps=n + 100, output=2**30))
    etl = app.graph("etl")

    async def node() -> int:
        return 1

    layer: list[object] = []
    for start in range(0, n, 10):
        width = range(min(10, n - start))
        layer = [
            etl.node(name=f"n{start + column}", after=[layer[column], layer[(column + 1) % 10]] if layer else [])(node)
            for column in width
        ]
    async with app:
        clock = Clock()
        await (await app.start(etl)).result()
        wall, cpu = clock.read()
        memory = _rss()
    return {"n": n, "per_second": n / wall, "cpu_us": cpu / n * 1e6, "rss_megabytes": memory / 1e6}


async def sleeping(job: Job) -> Measurement:
    """``n`` runs that wait for an event: putting them to sleep, idling, and waking a part of them by another app."""
    n = job.count("n")
    clock = Clock()
    app = _waiting_app(job)
    async with app:
        for batch in _batches(n):
            await app.start_many("waiter", batch)
        await _until_waiting(app, n)
        wall, cpu = clock.read()
    app = _waiting_app(job)
    async with app:
        await asyncio.sleep(2)
        clock.read()
        await asyncio.sleep(IDLE_SECONDS)
        idle_wall, idle_cpu = clock.read()
        memory, woken = _rss(), min(n, SAMPLE)
        wake_wall, wake_cpu = await _wake(app, woken, clock)
    return {
        "n": n,
        "per_second": n / wall,
        "cpu_us": cpu / n * 1e6,
        "idle_percent": idle_cpu / idle_wall * 100,
        "rss_megabytes": memory / 1e6,
        "woken_per_second": woken / wake_wall,
        "wake_cpu_us": wake_cpu / woken * 1e6,
        "megabytes": _megabytes(job.db),
    }


async def events(job: Job) -> Measurement:
    """``n`` waiting runs, and one event to each of them."""
    n = job.count("n")
    app = _waiting_app(job)
    async with app:
        for batch in _batches(n):
            await app.start_many("waiter", batch)
        await _until_waiting(app, n)
        wall, cpu = await _wake(app, n, Clock())
    return {"n": n, "per_second": n / wall, "cpu_us": cpu / n * 1e6}


async def finished(job: Job) -> Measurement:
    """``n`` finished runs in the file: making them, then W1, a page of the list and idling beside them."""
    n = job.count("n")
    app = _app(job)

    async def add_one(value: int) -> int:
        return value + 1

    @app.workflow
    async def steps(ctx: Context, count: int) -> int:
        value = 0
        for number in range(count):
            value = await ctx.do(f"step {number}", add_one, value)
        return value

    async with app:
        clock = Clock()
        for batch in _batches(n, 1):
            await _results(await app.start_many(steps, batch))
        wall, cpu = clock.read()
        await _results(
            [run for batch in _batches(W1_RUNS, STEPS_PER_RUN, "w") for run in await app.start_many(steps, batch)]
        )
        w1_wall, w1_cpu = clock.read()
        list_cpu_ms = await _median_cpu_ms(lambda: app.list(steps, limit=50))
    steps_done = W1_RUNS * STEPS_PER_RUN
    return {
        "n": n,
        "per_second": n / wall,
        "cpu_us": cpu / n * 1e6,
        "w1_per_second": steps_done / w1_wall,
        "w1_cpu_us": w1_cpu / steps_done * 1e6,
        "list_cpu_ms": list_cpu_ms,
        "megabytes": _megabytes(job.db),
    }


# --- helpers


def _app(job: Job, concurrency: int = 1000, limits: Limits | None = None) -> Holdfast:
    tune_collector()
    return Holdfast(job.url, worker=WorkerConfig(concurrency=concurrency), limits=limits or Limits())


def _waiting_app(job: Job) -> Holdfast:
    app = _app(job)

    async def step() -> int:
        return 1

    @app.workflow
    async def waiter(ctx: Context) -> int:
        await ctx.wait_for_event("go", type="go", timeout="30 days")
        return await ctx.do("step", step)

    return app


def _batches(n: int, params: object = None, prefix: str = "r") -> Iterator[list[Start[object]]]:
    for start in range(0, n, BATCH):
        yield [Start(f"{prefix}{number}", params) for number in range(start, min(n, start + BATCH))]


async def _results(runs: list[Handle[int]]) -> None:
    await asyncio.gather(*(run.result() for run in runs))


async def _until_waiting(app: Holdfast, n: int) -> None:
    """Wait until all runs sleep; counting them costs time, so it is done at intervals."""
    while True:
        await asyncio.sleep(min(1.0, 0.02 + n / 1e5))
        if (await app.stats()).runs.get("waiter", {}).get("waiting", 0) >= n:
            return


async def _wake(app: Holdfast, n: int, clock: Clock) -> tuple[float, float]:
    """Send an event to each of the first ``n`` runs and wait for their results; returns wall and CPU seconds."""
    numbers = iter(range(n))
    clock.read()

    async def sender() -> None:
        for number in numbers:
            run = await app.get("waiter", f"r{number}")
            await run.send_event("go", None)
            await run.result()

    await asyncio.gather(*(sender() for _ in range(min(n, SENDERS))))
    return clock.read()


async def _median_cpu_ms(call: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of CPU of a call, the median of twenty; the first call, which imports modules, does not count."""
    samples: list[float] = []
    for _ in range(21):
        started = time.process_time()
        await call()
        samples.append((time.process_time() - started) * 1000)
    return statistics.median(samples[1:])


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _rss() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def _megabytes(db: str) -> float:
    return sum(path.stat().st_size for path in (Path(db), Path(f"{db}-wal")) if path.exists()) / 1e6


MEASURES: dict[str, Callable[[Job], Awaitable[Measurement]]] = {
    "curve_concurrent": concurrent_runs,
    "curve_history": history,
    "curve_graph": graph,
    "curve_sleeping": sleeping,
    "curve_events": events,
    "curve_finished": finished,
}
