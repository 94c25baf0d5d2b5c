"""Streams across killed workers: every item once and in order, for readers that follow and readers that reconnect."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Handle, StreamItem
from postgres_server import CleanDatabases
from streams.program import ITEMS, make_app

_PROGRAM = Path(__file__).with_name("program.py")
_databases = CleanDatabases(shared=True)
_OUTPUT = ["begin", *(["a", n] for n in range(ITEMS)), *(["b", n] for n in range(ITEMS)), "end"]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/streams.db"
    else:
        yield _databases.of(tmp_path)
        _databases.release(tmp_path)


async def worker(url: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(sys.executable, str(_PROGRAM), url, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def reconnecting(run: Handle[Any]) -> list[StreamItem]:
    """Read five items at a time, each time with a new reader after the last offset."""
    found: list[StreamItem] = []
    while True:
        before = len(found)
        async for item in run.stream("out", after=found[-1].offset if found else 0):
            found.append(item)
            if len(found) == before + 5:
                break
        if len(found) < before + 5:
            return found


async def test_readers_get_every_item_once_and_in_order_although_workers_are_killed(url: str) -> None:
    app = make_app(url)
    async with app.connect():
        run = await app.start("counting")
        reading = asyncio.create_task(reconnecting(run))
        seen: list[StreamItem] = []
        live = run.stream("out", attempts="all")
        for name in ("a", "b"):
            process = await worker(url)
            while not seen or seen[-1].value != [name, ITEMS // 2]:
                seen.append(await asyncio.wait_for(anext(live), 60))
            process.kill()
            await process.wait()
        process = await worker(url)
        try:
            seen += [item async for item in live]
            found = await asyncio.wait_for(reading, 60)
        finally:
            process.kill()
            await process.wait()

        assert [item.value for item in found] == _OUTPUT
        assert [item.offset for item in seen] == sorted({item.offset for item in seen})
        assert {item.offset for item in found} <= {item.offset for item in seen}
        tried = {(item.step_key, item.attempt) for item in seen if item.step_key}
        # A worker without processor time may lose its lease, which adds attempts.
        assert {number for _, number in tried} >= {1, 2}, tried
        assert len(tried) >= 4, tried
        assert [item.value async for item in run.stream("out")] == _OUTPUT
