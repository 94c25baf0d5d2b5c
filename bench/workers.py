"""More than one worker process: `python -m bench workers`.

On SQLite and on PostgreSQL: throughput of one and of two worker processes on a full queue, and the CPU time that the
workers and the whole machine use for it. On PostgreSQL also the latency from a start in one process to the run in
another: by notification and by polling alone.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import apsw
import asyncpg

from bench.contract import Job, database
from bench.holdfast_contender import build
from bench.postgres import Server, serving
from bench.processes import ROOT
from bench.report import table
from holdfast import Start

RUNS = 6_000
STEPS = 5
STARTS = 60
POLL = 1.0
_NOTIFYING = "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE prosrc LIKE '%pg_notify%' AND proname LIKE 'holdfast%'"


async def serve(url: str) -> None:
    """Run a worker until the process is killed. Prints a line when the worker is ready."""
    app, _ = build(Job("holdfast", "workers", url))
    async with app:
        print("ready", flush=True)
        await asyncio.sleep(3600)


@contextmanager
def workers(url: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "bench.workers", url]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


Counter = Callable[[], Awaitable[int]]
"""Returns the number of runs that are complete."""
_COUNT = "SELECT count(*) FROM {} WHERE status = 'complete'"


async def measure_throughput(url: str, count: int, completed: Counter) -> tuple[float, float, float]:
    """Runs per second after the first tenth of them, and the CPU cores used by the workers and in all."""
    app, flows = build(Job("holdfast", "workers", url))
    async with app.connect():
        for first in range(0, RUNS, 1000):
            await app.start_many(flows.steps, [Start(f"r-{n}", STEPS) for n in range(first, first + 1000)])
    with workers(url, count) as processes:
        done_before = await _wait_until(completed, RUNS // 10)
        used, all_used = sum(map(_cpu, processes)), _machine_cpu()
        started = time.perf_counter()
        await _wait_until(completed, RUNS)
        seconds = time.perf_counter() - started
        used, all_used = sum(map(_cpu, processes)) - used, _machine_cpu() - all_used
    return (RUNS - done_before) / seconds, used / seconds, all_used / seconds


async def _wait_until(completed: Counter, at_least: int) -> int:
    while True:
        ended = await completed()
        if ended >= at_least:
            return ended
        await asyncio.sleep(0.02)


@asynccontextmanager
async def _counting_on_postgres(url: str) -> AsyncIterator[Counter]:
    connection = await asyncpg.connect(url)
    yield lambda: connection.fetchval(_COUNT.format("holdfast.holdfast_run"))
    await connection.close()


@asynccontextmanager
async def _counting_on_sqlite(file: str) -> AsyncIterator[Counter]:
    """The file appears with the first start, so each count opens it."""

    async def completed() -> int:
        connection = apsw.Connection(file, apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(5000)
        try:
            count: int = connection.execute(_COUNT.format("holdfast_run")).get
        finally:
            connection.close()
        return count

    yield completed


def _cpu(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _machine_cpu() -> float:
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


async def wake_up(server: Server, name: str, *, notified: bool) -> list[float]:
    """Milliseconds from the start of a run in this process to its first fact, recorded by another process."""
    url = server.database(name)
    app, flows = build(Job("holdfast", "workers", url))
    samples: list[float] = []
    async with app.connect():
        connection = await asyncpg.connect(url)
        if not notified:  # without notifications, as behind a connection pooler
            for row in await connection.fetch(_NOTIFYING):
                await connection.execute(row[0].replace("PERFORM pg_notify(", "PERFORM concat("))
        with workers(url, 1):
            for n in range(STARTS if notified else 12):
                await asyncio.sleep(0.05 + 0.007 * (n % 10))
                started = time.perf_counter()
                await app.start(flows.steps, 1)
                while await connection.fetchval("SELECT count(*) FROM holdfast.holdfast_fact") <= n:
                    await asyncio.sleep(0.001)
                samples.append((time.perf_counter() - started) * 1000)
        await connection.close()
    return sorted(samples)


def run(where: Path) -> str:
    on_sqlite = asyncio.run(_measured_on_sqlite(where))
    with serving(where) as server:
        return "\n".join([on_sqlite, "", asyncio.run(_measured(server))])


_HEADER = ["worker processes", "runs/s", "steps/s", "cores used by workers", "cores used in all"]


def _row(count: int, rate: float, used: float, all_used: float) -> list[str]:
    return [str(count), f"{rate:,.0f}", f"{rate * STEPS:,.0f}", f"{used:.2f}", f"{all_used:.2f}"]


async def _measured_on_sqlite(where: Path) -> str:
    lines = [_HEADER]
    for count in (1, 2, 1, 2):
        file = database(where, f"drain{len(lines)}")
        async with _counting_on_sqlite(file) as completed:
            lines.append(_row(count, *await measure_throughput(f"sqlite:///{file}", count, completed)))
    title = f"SQLite, {RUNS:,} runs of {STEPS} steps in the queue, {os.cpu_count()} cores"
    return "\n".join(["", title, "", table(lines)])


async def _measured(server: Server) -> str:
    lines = [_HEADER]
    for count in (1, 2, 1, 2):
        url = server.database(f"drain{len(lines)}")
        async with _counting_on_postgres(url) as completed:
            lines.append(_row(count, *await measure_throughput(url, count, completed)))
    notified_ms = await wake_up(server, "notified", notified=True)
    polled = await wake_up(server, "polled", notified=False)
    return "\n".join(
        [
            f"PostgreSQL {server.version}, {RUNS:,} runs of {STEPS} steps in the queue, {os.cpu_count()} cores",
            "",
            table(lines),
            "",
            (
                "start in one process to step recorded by another, by notification:"
                f" p50 {statistics.median(notified_ms):.1f} ms, p99 {notified_ms[int(len(notified_ms) * 0.99)]:.1f} ms;"
                f" by polling alone (every {POLL:g} s): p50 {statistics.median(polled):.0f} ms,"
                f" at most {polled[-1]:.0f} ms."
            ),
        ]
    )


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
