"""`python -m bench flow [--postgres] [--rounds N] [--quick]`: the cost of limits, beside queues of DBOS.

Throughput of runs with five steps: without limits, with a global limit of 100 on the steps and on the runs, with 10,000
keys that share the limit fairly, and of DBOS with a queue of concurrency 100; the time from a returned permit to the
start of the next attempt; and the time of one exchange with few and with many waiting attempts.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench import machine, postgres
from holdfast import Context, Handle, Holdfast, Limit, Start, WorkerConfig, tune_collector
from holdfast.store.protocol import (
    DeclareLimits,
    LimitKey,
    LimitValues,
    NewRun,
    PermitExchange,
    PermitRequest,
    PermitReturn,
    Store,
    TaskRef,
)

Url = Callable[[str], str]
"""The URL of a new, empty database with this name."""

_STEPS = 5
_KEYS = 10_000
_DBOS_RUNS = 1_000
_DBOS = {"DBOS, queue of 100": 1.0, "DBOS, polling 20 ms": 0.02}
"""Polling intervals in seconds; one second is the default of DBOS."""
_TASKS = 1_000
_BATCH = 5_000
_STARTS = 200
_KINDS = ("no limit", "limit of 100 on steps", "limit of 100 on runs", "10,000 fair keys")


def run(where: Path, *, quick: bool, rounds: int, on_postgres: bool) -> str:
    if not on_postgres:
        files: Url = lambda name: f"sqlite:///{where}/{name}.db"  # noqa: E731  (a name for a short function)
        return _measure(files, time.process_time, quick=quick, rounds=rounds)
    with postgres.serving(where) as server:
        return _measure(
            server.database, lambda: time.process_time() + server.processor_seconds(), quick=quick, rounds=rounds
        )


def _measure(url: Url, processor: Callable[[], float], *, quick: bool, rounds: int) -> str:
    """``processor``: the processor time in seconds that this process and its server have used."""
    runs, waiting = (200, (200, 1_000)) if quick else (_KEYS, (1_000, 1_000_000))
    lines = _throughput(url, processor, runs, 1 if quick else rounds)
    lines.append(asyncio.run(_latency(url("latency"), 50 if quick else 300)))
    lines += [asyncio.run(_exchange(url(f"waiting-{count}"), count)) for count in waiting]
    return "\n".join(lines)


def _throughput(url: Url, processor: Callable[[], float], runs: int, rounds: int) -> list[str]:
    found: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    used: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for n in range(rounds):
        for at, kind in enumerate(_KINDS):
            before = processor()
            found[kind].append(asyncio.run(_steps_per_second(url(f"flow-{n}-{at}"), kind, runs)))
            used[kind].append((processor() - before) / runs / _STEPS * 1_000_000)
        if machine.version("dbos") is not None:
            for name, poll in _DBOS.items():
                dbos = _dbos(url(f"dbos-{n}-{poll}".replace(".", "")), min(runs, _DBOS_RUNS), poll)
                found.setdefault(name, []).append(dbos)
    base = median(found["no limit"])
    return [
        f"{name:22} {median(values):8,.0f} steps/s  {median(values) / base:7.1%}"
        + (f"  {median(used[name]):6.0f} us of processor time per step" if name in used else "")
        for name, values in found.items()
    ]


def _dbos(url: str, runs: int, poll: float) -> float:
    command = [sys.executable, "-m", "bench.dbos_queue", url, str(runs), str(poll)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


async def _steps_per_second(url: str, kind: str, runs: int) -> float:
    app = Holdfast(url, worker=WorkerConfig(concurrency=1000))
    of_steps, of_runs = list[Limit](), list[Limit]()
    if kind != "no limit":
        (of_runs if kind == "limit of 100 on runs" else of_steps).append(app.limit("all", concurrency=100))
    if kind == "10,000 fair keys":
        of_steps.append(app.limit("keys", key="key", fair=True))

    @app.step(limits=of_steps)
    async def step(key: int) -> int:
        return key

    @app.workflow(limits=of_runs)
    async def work(ctx: Context, key: int) -> int:  # noqa: ARG001  (the signature of a workflow)
        for _ in range(_STEPS):
            await step(key)
        return key

    started: list[Handle[int]] = []
    async with app:
        tune_collector()
        began = time.perf_counter()
        for first in range(0, runs, _STARTS):
            batch = [Start(f"r{n}", n % _KEYS) for n in range(first, min(first + _STARTS, runs))]
            started += await app.start_many(work, batch)
        for run in started:
            await run.result()
        return runs * _STEPS / (time.perf_counter() - began)


async def _latency(url: str, count: int) -> str:
    """The time from the return of one attempt's function to the call of the next one's."""
    app = Holdfast(url)
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


async def _exchange(url: str, count: int) -> str:
    """The time of a return that grants the next permit, with this many waiting attempts."""
    app = Holdfast(url)
    async with app.connect():
        store: Store = app._opened().store
        await store.limits(DeclareLimits({"one": LimitValues(concurrency=1)}))
        made = await store.create([NewRun("w", f"r{n}", owner="o", lease_ms=10**9) for n in range(_TASKS)])
        tasks = {one.run.run: TaskRef(one.run.run, 0, "o", one.epoch) for one in made}
        listed = list(tasks.values())
        asked = [PermitRequest(listed[n % _TASKS], f"s{n}", 1, [LimitKey("one")]) for n in range(count)]
        for first in range(0, count, _BATCH):
            await store.exchange_permits(PermitExchange("o", requests=asked[first : first + _BATCH]))
        current, times = PermitReturn(listed[0], "s0", 1), []
        for _ in range(100):
            began = time.perf_counter()
            reply = await store.exchange_permits(PermitExchange("o", returns=[current]))
            times.append(time.perf_counter() - began)
            [granted] = reply.granted
            current = PermitReturn(tasks[granted.run], granted.step, granted.attempt)
    return f"return and grant with {count:9,} waiting: {median(times) * 1000:.2f} ms"
