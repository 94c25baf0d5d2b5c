"""The programs of the processes of a soak, a worker and the client. Both run until SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg

from holdfast import tune_collector

from .load import Load
from .workload import make_app

PLANTS = ("memory", "connections", "retention")
"""Leaks that can be planted. ``retention`` is not planted in a process: with it, no runs are deleted."""


def work(*, url: str, counts: str, plants: tuple[str, ...], **worker: Any) -> None:
    asyncio.run(_work(url, Path(counts), plants, worker))


def feed(*, url: str, counts: str, acknowledged: str, finished: str, rate: float, seed: int) -> None:
    asyncio.run(_feed(url, Path(counts), Path(acknowledged), Path(finished), rate, seed))


async def _work(url: str, counts: Path, plants: tuple[str, ...], worker: dict[str, Any]) -> None:
    stop = _told_to_stop()
    kept: list[str] = []
    keep = (lambda value: kept.append(value * 50)) if "memory" in plants else (lambda _value: None)  # 4 MB a minute
    app = make_app(url, keep, **worker)
    tune_collector()  # as `holdfast worker` does
    async with app, _counting(counts), _losing_connections(url if "connections" in plants else None):
        await stop.wait()


async def _feed(url: str, counts: Path, acknowledged: Path, finished: Path, rate: float, seed: int) -> None:
    stop = _told_to_stop()
    load = Load(make_app(url), acknowledged, finished, rate=rate, seed=seed)
    async with _counting(counts):
        await load.run(stop)


def _told_to_stop() -> asyncio.Event:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


@asynccontextmanager
async def _counting(file: Path) -> AsyncIterator[None]:
    """Write the number of objects of this process to a file, which is replaced as a whole.

    Reference cycles are collected first. The driver leaves some when the server restarts, and by itself the garbage
    collector runs only after 50,000 new objects (``tune_collector``), more than a short soak creates.
    """

    async def count() -> None:
        new = file.with_suffix(".new")
        while True:
            gc.collect()
            new.write_text(json.dumps({"objects": len(gc.get_objects())}))
            new.replace(file)
            await asyncio.sleep(2)

    task = asyncio.create_task(count())
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def _losing_connections(url: str | None) -> AsyncIterator[None]:
    """The planted leak of connections: opens another connection every ten seconds."""
    lost: list[Any] = []

    async def lose() -> None:
        while True:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                lost.append(await asyncpg.connect(url))
            await asyncio.sleep(10)

    task = asyncio.create_task(lose()) if url is not None else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
