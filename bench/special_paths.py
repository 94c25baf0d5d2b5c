"""Optimizations that can be switched off from outside: the engine with and without each, alternately.

The figures are medians over the rounds: milliseconds and processor time of this process per operation.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from bench import postgres
from holdfast import Context, Holdfast, WorkerConfig
from holdfast.store.postgres import batch
from holdfast.store.sqlite.database import Database

Off = Callable[[], AbstractContextManager[None]]


class Cost(NamedTuple):
    ms: float
    cpu_us: float


class Case(NamedTuple):
    path: str
    workload: str
    off: Off
    measure: Callable[[str], Awaitable[tuple[int, float, float]]]
    """Returns the number of operations, the seconds and the processor seconds that they took."""
    on_postgres: bool = False


def run(where: Path, *, quick: bool = False, rounds: int = 5) -> str:
    urls = count()
    lines = ["| optimization | workload | with | without |", "|---|---|---|---|"]
    with postgres.serving(where) as server:

        def url(case: Case) -> str:
            number = next(urls)
            return server.database(f"special{number}") if case.on_postgres else f"sqlite:///{where}/{number}.db"

        for case in _cases(quick=quick):
            costs: tuple[list[Cost], list[Cost]] = ([], [])
            for _ in range(1 if quick else rounds):
                costs[0].append(_cost(case, url(case)))
                with case.off():
                    costs[1].append(_cost(case, url(case)))
            lines.append(f"| {case.path} | {case.workload} | {_text(costs[0])} | {_text(costs[1])} |")
    return "\n".join(lines)


def _cases(*, quick: bool) -> list[Case]:
    runs, events, steps = (5, 3, 5) if quick else (100, 20, 50)

    async def waiting(url: str) -> tuple[int, float, float]:
        return await _events(url, runs, events)

    async def one_run(url: str) -> tuple[int, float, float]:
        return await _steps(url, 1 if quick else 10, steps)

    return [
        Case("cache of suspended machines", f"{runs} runs that wait for {events} events each", _no_cache, waiting),
        Case("short jobs on the thread of the event loop", "one run after the other, SQLite", _no_inline_jobs, one_run),
        Case("commits with one fact", "one run after the other, PostgreSQL", _no_commit_one, one_run, on_postgres=True),
    ]


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


_cache_sizes = [WorkerConfig().cache]


@contextmanager
def _no_cache() -> Iterator[None]:
    _cache_sizes.append(0)
    try:
        yield
    finally:
        _cache_sizes.pop()


def _no_inline_jobs() -> AbstractContextManager[None]:
    submit = Database.submit

    def queued(self: Database, *args: Any, inline: bool = False, **options: Any) -> Any:  # noqa: ARG001
        return submit(self, *args, inline=False, **options)

    return _replaced(Database, "submit", queued)


def _no_commit_one() -> AbstractContextManager[None]:
    return _replaced(batch, "has_one_fact", lambda *_: False)


def _cost(case: Case, url: str) -> Cost:
    operations, seconds, cpu = asyncio.run(case.measure(url))
    return Cost(seconds * 1000 / operations, cpu * 1e6 / operations)


def _text(costs: list[Cost]) -> str:
    ms, cpu = (statistics.median(values) for values in zip(*costs, strict=True))
    return f"{ms:.2f} ms, {cpu:.0f} µs CPU"


async def _events(url: str, runs: int, events: int) -> tuple[int, float, float]:
    """Send events to waiting runs, one event to each run at a time."""
    app = Holdfast(url, worker=WorkerConfig(cache=_cache_sizes[-1]))

    @app.workflow
    async def waiter(ctx: Context) -> int:
        for n in range(events):
            await ctx.wait_for_event(f"e{n}", type="go")
        return events

    async with app:
        started = [await app.start(waiter) for _ in range(runs)]
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(events):
            await asyncio.gather(*(run.send_event("go") for run in started))
            await asyncio.sleep(0.05)  # until the runs have suspended again
        await asyncio.gather(*(run.result() for run in started))
        seconds = time.perf_counter() - began - 0.05 * events
        return runs * events, seconds, time.process_time() - cpu


async def _steps(url: str, runs: int, steps: int) -> tuple[int, float, float]:
    app = Holdfast(url)

    @app.step
    async def step(n: int) -> int:
        return n

    @app.workflow
    async def flow(_: Context) -> int:
        return sum([await step(n) for n in range(steps)])

    async with app:
        await (await app.start(flow)).result()
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(runs):
            await (await app.start(flow)).result()
        return runs * steps, time.perf_counter() - began, time.process_time() - cpu
