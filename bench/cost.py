"""Processor time per step, by part of the engine: `python -m bench cost [--postgres]`. Holdfast alone.

The processor time of the process (user and system) is divided by the number of steps. A timer interrupts the process
for each millisecond of it; the innermost frame of the engine, of asyncio or of a driver decides to which part the
millisecond belongs. Time during which the event loop waits is that of the store's thread (SQL and fsync). The
garbage collector's time is measured by its own callbacks, and is also contained in the parts.

On PostgreSQL the report has the processor time of the server per step, too, and the time in each function of the store
(`server_cost`).
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from bench.contract import database
from bench.server_cost import count_functions, function_table
from holdfast import Context, Holdfast, tune_collector

if TYPE_CHECKING:
    from bench.postgres import Server

WARM_UP_RUNS = 50
ROUNDS = 7
PARTS = (
    ("encoding", ("/holdfast/core/codec", "/holdfast/core/typed", "/json/", "/holdfast/core/lowering")),
    ("attempt", ("/holdfast/runner/attempts", "/holdfast/core/eager_tasks", "/holdfast/ports.py", "/holdfast/kernel/")),
    ("machine", ("/holdfast/workflow/", "/bench/")),
    ("turn", ("/holdfast/runner/",)),
    ("store", ("/holdfast/store/", "/asyncpg/")),
    ("start and result", ("/holdfast/client/", "/holdfast/app.py", "uuid.py")),
    ("store's thread, fsync", ("selectors.py",)),
    ("asyncio", ("/asyncio/", "weakrefset")),
)


class Workload(NamedTuple):
    title: str
    runs: int
    steps: int
    """Steps of each run."""


WORKLOADS = (
    Workload("W1: 1,000 runs of 5 steps", 1_000, 5),
    Workload("W3: 1,000 runs of 1 step", 1_000, 1),
    Workload("200 runs of 50 steps", 200, 50),
)


def run(where: Path, server: Server | None = None) -> str:
    def database_url(name: str) -> str:
        return f"sqlite:///{database(where, name)}" if server is None else server.database(name)

    lines = [""]
    for n, workload in enumerate(WORKLOADS):
        lines.append(asyncio.run(_measure(database_url(f"cost{n}"), workload, server)))
        with _tuned_collector():
            tuned = workload._replace(title=f"{workload.title}, after tune_collector()")
            lines.append(asyncio.run(_measure(database_url(f"tuned{n}"), tuned, server)))
        if server is not None:
            lines += asyncio.run(_functions(database_url(f"functions{n}"), workload))
    return "\n".join(lines)


@contextmanager
def _tuned_collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    tune_collector()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@dataclass
class _Samples:
    """The processor time by part of the engine."""

    parts: Counter[str]
    collector_seconds: float = 0.0

    def take(self, _signal: int, frame: FrameType | None) -> None:
        while frame is not None:
            filename = frame.f_code.co_filename
            for part, places in PARTS:
                if any(place in filename for place in places):
                    self.parts[part] += 1
                    return
            frame = frame.f_back
        self.parts["other"] += 1

    def table(self, microseconds: float) -> str:
        total = sum(self.parts.values()) or 1
        return ", ".join(f"{part} {count / total * microseconds:.1f}" for part, count in self.parts.most_common())


@contextmanager
def _sampling(samples: _Samples) -> Iterator[None]:
    began = 0.0

    def collecting(phase: str, _info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.process_time()
        else:
            samples.collector_seconds += time.process_time() - began

    signal.signal(signal.SIGPROF, samples.take)
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    gc.callbacks.append(collecting)
    try:
        yield
    finally:
        gc.callbacks.remove(collecting)
        signal.setitimer(signal.ITIMER_PROF, 0)


async def _measure(url: str, workload: Workload, server: Server | None) -> str:
    samples, costs, server_costs = _Samples(Counter()), list[float](), list[float]()
    all_steps = workload.runs * workload.steps
    async with _started(url, workload) as start_and_await:
        with _sampling(samples):
            for _ in range(ROUNDS):
                began, server_began = time.process_time(), _server_seconds(server)
                await start_and_await(workload.runs)
                costs.append((time.process_time() - began) / all_steps * 1_000_000)
                server_costs.append((_server_seconds(server) - server_began) / all_steps * 1_000_000)
    collector = samples.collector_seconds / (ROUNDS * all_steps) * 1_000_000
    microseconds = median(costs)
    of_server = "" if server is None else f"; server {median(server_costs):.1f}"
    return (
        f"{workload.title}: {microseconds:.1f} us of processor time per step (lowest {min(costs):.1f}), "
        f"of which the collector {collector:.1f}{of_server}\n  {samples.table(microseconds)}"
    )


def _server_seconds(server: Server | None) -> float:
    return 0.0 if server is None else server.processor_seconds()


async def _functions(url: str, workload: Workload) -> list[str]:
    """The time in each function of the store, in one round."""
    await count_functions(url)
    async with _started(url, workload) as start_and_await:
        await start_and_await(workload.runs)
    return await function_table(url, (WARM_UP_RUNS + workload.runs) * workload.steps)


@asynccontextmanager
async def _started(url: str, workload: Workload) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """An app after its warm-up. Yields a function that starts a number of runs and awaits their results."""
    app = Holdfast(url)

    @app.step
    async def add_one(value: int) -> int:
        return value + 1

    @app.workflow
    async def add(_ctx: Context, count: int) -> int:
        total = 0
        for _ in range(count):
            total = await add_one(total)
        return total

    async def start_and_await(number: int) -> None:
        started = await asyncio.gather(*(app.start(add, workload.steps) for _ in range(number)))
        await asyncio.gather(*(run.result() for run in started))

    async with app:
        await start_and_await(WARM_UP_RUNS)
        yield start_and_await
