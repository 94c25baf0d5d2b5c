"""`python -m bench flow`: the cost of limits, on SQLite.

Throughput of runs with five steps: without limits, with a global limit of 100 on the steps, and with 10,000 keys that
share the limit fairly; the time from a returned permit to the start of the next attempt; and the time of one exchange
with few and with many waiting permits.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median

from holdfast import Context, Holdfast, Limit, WorkerConfig
from holdfast.ports import SystemClock
from holdfast.store.protocol import (
    DeclareLimits,
    LimitKey,
    LimitValues,
    NewRun,
    PermitExchange,
    PermitRequest,
    PermitReturn,
    TaskRef,
)
from holdfast.store.sqlite import SqliteStore

_STEPS = 5


def run(where: Path, *, quick: bool, rounds: int) -> str:
    runs, waiting = (200, (100, 1_000)) if quick else (2_000, (1_000, 100_000))
    lines = asyncio.run(_throughput(where, runs, 1 if quick else rounds))
    lines.append(asyncio.run(_latency(where, 50 if quick else 300)))
    lines += [asyncio.run(_exchange(where, count)) for count in waiting]
    return "\n".join(lines)


async def _throughput(folder: Path, runs: int, rounds: int) -> list[str]:
    found: dict[str, list[float]] = {"no limit": [], "limit of 100": [], "10,000 fair keys": []}
    for n in range(rounds):
        for name, steps_per_second in found.items():
            steps_per_second.append(await _steps_per_second(folder / f"{n}-{name}.db", name, runs))
    base = median(found["no limit"])
    return [f"{name:20} {median(values):8,.0f} steps/s  {median(values) / base:6.0%}" for name, values in found.items()]


async def _steps_per_second(path: Path, kind: str, runs: int) -> float:
    app = Holdfast(f"sqlite:///{path}", worker=WorkerConfig(concurrency=1000))
    limits: list[Limit] = []
    if kind != "no limit":
        limits.append(app.limit("all", concurrency=100))
    if kind == "10,000 fair keys":
        limits.append(app.limit("keys", key="key", fair=True))

    @app.step(limits=limits)
    async def step(key: int) -> int:
        return key

    @app.workflow
    async def work(ctx: Context, key: int) -> int:  # noqa: ARG001  (the signature of a workflow)
        for _ in range(_STEPS):
            await step(key)
        return key

    async with app:
        began = time.perf_counter()
        started = [await app.start(work, n % 10_000) for n in range(runs)]
        for run in started:
            await run.result()
        return runs * _STEPS / (time.perf_counter() - began)


async def _latency(folder: Path, count: int) -> str:
    """The time from the return of one attempt's function to the call of the next one's."""
    app = Holdfast(f"sqlite:///{folder}/latency.db")
    one = app.limit("one", concurrency=1)
    left, waits = 0.0, []

    @app.step(limits=[one])
    async def step(n: int) -> int:
        nonlocal left
        if left:
            waits.append(time.perf_counter() - left)
        await asyncio.sleep(0.002)
        left = time.perf_counter()
        return n

    @app.workflow
    async def work(ctx: Context, n: int) -> int:  # noqa: ARG001  (the signature of a workflow)
        return await step(n)

    async with app:
        for run in [await app.start(work, n) for n in range(count)]:
            await run.result()
    waits.sort()
    p50, p99 = waits[len(waits) // 2] * 1000, waits[len(waits) * 99 // 100] * 1000
    return f"returned permit to next start: p50 {p50:.2f} ms, p99 {p99:.2f} ms ({count} attempts)"


async def _exchange(folder: Path, count: int) -> str:
    """The time of a return that grants the next permit, with this many waiting permits."""
    store = SqliteStore(f"{folder}/waiting-{count}.db", clock=SystemClock())
    await store.open()
    await store.limits(DeclareLimits({"one": LimitValues(concurrency=1)}))
    tasks = []
    for first in range(0, count + 200, 1000):
        new = [NewRun("w", f"r{n}", owner="o", lease_ms=10**9) for n in range(first, min(first + 1000, count + 200))]
        tasks += [TaskRef(made.run.run, 0, "o", made.epoch) for made in await store.create(new)]
        asked = [PermitRequest(task, "s", 1, [LimitKey("one")]) for task in tasks[first:]]
        await store.exchange_permits(PermitExchange("o", requests=asked))
    current, times = tasks[0], []
    for _ in range(100):
        began = time.perf_counter()
        reply = await store.exchange_permits(PermitExchange("o", returns=[PermitReturn(current, "s", 1)]))
        times.append(time.perf_counter() - began)
        current = TaskRef(reply.granted[0].run, 0, "o", reply.granted[0].epoch)
    await store.close()
    return f"return and grant with {count:9,} waiting: {median(times) * 1000:.2f} ms"
