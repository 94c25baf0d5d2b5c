"""Four worker processes under one limit: killed, stalled past their lease, and stopped."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from flow.program import make_app
from holdfast import Holdfast
from postgres_server import CleanDatabases

_PROGRAM = Path(__file__).with_name("program.py")
_RUNS = 150
_databases = CleanDatabases(shared=True)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/flow.db"
    else:
        yield _databases.of(tmp_path)
        _databases.release(tmp_path)


async def _worker(url: str, journal: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(_PROGRAM), url, journal, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def _until_entered(journal: str, count: int) -> None:
    async with asyncio.timeout(60):
        while _count(journal) < count:
            await asyncio.sleep(0.02)


def _count(journal: str) -> int:
    return int(_query(journal, "SELECT count(*) FROM journal WHERE event = 'leave'")[0][0])


def _query(journal: str, sql: str) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(journal)
    connection.set_busy_timeout(30_000)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def _most_inside(journal: str, gone: dict[int, float]) -> int:
    """The most attempts inside at the same time; a process that is gone is outside from then on."""
    rows = _query(journal, "SELECT at, pid, n, event FROM journal ORDER BY at, event DESC")
    inside: set[tuple[int, int]] = set()
    most = 0
    for at, pid, n, event in rows:
        inside = {one for one in inside if gone.get(one[0], at + 1) > at}
        if event == "leave":
            inside.discard((pid, n))
        elif gone.get(pid, at + 1) > at:
            inside.add((pid, n))
        most = max(most, len(inside))
    return most


async def _kill(process: asyncio.subprocess.Process, gone: dict[int, float]) -> None:
    gone[process.pid] = time.time()
    process.kill()
    await process.wait()


async def _stop(process: asyncio.subprocess.Process, files: list[str]) -> None:
    """Stop a process while it holds no lock of these SQLite files: a stopped writer would stop all the others."""
    while True:
        process.send_signal(signal.SIGSTOP)
        if all(_is_unlocked(file) for file in files):
            return
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.01)


def _is_unlocked(file: str) -> bool:
    connection = apsw.Connection(file)
    connection.set_busy_timeout(500)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True


async def _all_ended(app: Holdfast) -> None:
    async with asyncio.timeout(60):
        while await _open(app):
            await asyncio.sleep(0.05)


async def _open(app: Holdfast) -> int:
    stats = await app.stats()
    return sum(n for by in stats.runs.values() for status, n in by.items() if status != "complete")


async def test_killed_and_stalled_workers_never_exceed_a_limit_and_leave_nothing(url: str, tmp_path: Path) -> None:
    journal, gone = f"{tmp_path}/journal.db", dict[int, float]()
    _query(journal, "PRAGMA journal_mode=WAL")
    _query(journal, "CREATE TABLE journal (at REAL, pid INTEGER, n INTEGER, event TEXT)")
    app = make_app(url, journal)
    async with app.connect():
        workers = [await _worker(url, journal) for _ in range(4)]
        try:
            for n in range(_RUNS):
                await app.start("tour", n)
            await _until_entered(journal, 15)
            await _kill(workers.pop(), gone)
            await _until_entered(journal, 45)
            stalled = workers[0]
            await _stop(stalled, [journal, *([url.removeprefix("sqlite:///")] if url.startswith("sqlite") else [])])
            gone[stalled.pid] = time.time()
            await _until_entered(journal, 90)
            stalled.send_signal(signal.SIGCONT)
            await _all_ended(app)
            async with asyncio.timeout(20):
                while (limit := (await app.list_limits())[0]).used or limit.waiting:
                    await asyncio.sleep(0.05)
        finally:
            for process in workers:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            await asyncio.gather(*(process.wait() for process in workers))

    assert _most_inside(journal, gone) == 5
    assert _query(journal, "SELECT count(DISTINCT n) FROM journal WHERE event = 'leave'") == [(_RUNS,)]
