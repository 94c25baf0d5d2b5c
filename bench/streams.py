"""Streams on SQLite: the time from a write to the reader in one process, and the throughput of 100 runs."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import apsw

from bench.latency import quantile
from holdfast import Context, Holdfast, step_info

_PAUSE_S = 0.005
_RUNS = 100


def run(where: Path, *, quick: bool = False) -> str:
    samples, items = (200, 100) if quick else (2000, 500)
    delays = asyncio.run(_delays(f"sqlite:///{where}/latency.db", samples))
    seconds = asyncio.run(_throughput(f"sqlite:///{where}/throughput.db", items))
    chunks = apsw.Connection(f"{where}/throughput.db").execute("SELECT count(*) FROM holdfast_chunk").get
    total = _RUNS * items
    p50, p99 = statistics.median(delays), quantile(delays, 0.99)
    return f"""
one stream, an item every {_PAUSE_S * 1000:g} ms, {samples} items, attempts="all":
  from the call of write to the reader: p50 {p50:.2f} ms, p99 {p99:.2f} ms, most {max(delays):.2f} ms
{_RUNS} runs that write {items} items each as fast as they can:
  {total / seconds:,.0f} items/s until all are stored and the runs have ended; {total / chunks:.0f} items per row"""


async def _delays(url: str, samples: int) -> list[float]:
    """Milliseconds from the call of ``write`` to the reader, which reads the item from the database."""
    app = Holdfast(url)

    @app.step
    async def tokens() -> None:
        out = step_info().stream("out")
        for _ in range(samples):
            await asyncio.sleep(_PAUSE_S)
            await out.write(time.perf_counter())

    @app.workflow
    async def talk(_: Context) -> None:
        await tokens()

    async with app:
        started = await app.start(talk)
        return [(time.perf_counter() - item.value) * 1000 async for item in started.stream("out", attempts="all")]


async def _throughput(url: str, items: int) -> float:
    app = Holdfast(url)

    @app.step
    async def tokens() -> None:
        out = step_info().stream("out")
        for n in range(items):
            await out.write(f"token {n}")
            await asyncio.sleep(0)

    @app.workflow
    async def talk(_: Context) -> None:
        await tokens()

    async with app:
        began = time.perf_counter()
        runs = [await app.start(talk) for _ in range(_RUNS)]
        for one in runs:
            await one.result()
        seconds = time.perf_counter() - began
        for one in runs:
            if sum([1 async for _ in one.stream("out")]) != items:
                raise AssertionError("items are missing")
    return seconds
