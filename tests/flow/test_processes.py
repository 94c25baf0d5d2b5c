"""Four worker processes under one limit: killed, stalled past their lease, and stopped; restarts of the server."""

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
from postgres_server import CleanDatabases, Server

_PROGRAM = Path(__file__).with_name("program.py")
_RUNS = 150
_LONG_LEASE = "8 seconds"
"""Longer than a restart of the server. After the loss of a shorter lease, the code of the lost attempt could still be
executed while the next attempt is."""
_databases = CleanDatabases(shared=True)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/flow.db"
    else:
        yield _databases.of(tmp_path)
        _databases.release(tmp_path)


async def _worker(url: str, journal: str, lease: str = "2 seconds") -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(_PROGRAM), url, journal, lease, stdout=asyncio.subprocess.PIPE
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
    """The maximum number of attempts in progress at the same time. Attempts of a killed process end with it."""
    rows = _query(journal, "SELECT at, pid, n, event FROM journal ORDER BY at, event DESC")
    inside: set[tuple[int, int]] = set()
    most = 0
    for at, pid, n, event in rows:
        inside = {one for one in inside if gone.get(one[0], at + 1) > at}
        if event != "enter":
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


def _new_journal(folder: Path) -> str:
    journal = f"{folder}/journal.db"
    _query(journal, "PRAGMA journal_mode=WAL")
    _query(journal, "CREATE TABLE journal (at REAL, pid INTEGER, n INTEGER, event TEXT)")
    return journal


async def _no_permits_left(app: Holdfast) -> None:
    async with asyncio.timeout(20):
        while any(limit.used or limit.waiting for limit in await app.list_limits()):
            await asyncio.sleep(0.05)


async def _end(workers: list[asyncio.subprocess.Process]) -> None:
    for process in workers:
        process.send_signal(signal.SIGCONT)
        process.terminate()
    await asyncio.gather(*(process.wait() for process in workers))


async def _all_ended(app: Holdfast, seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while await _open(app):
            await asyncio.sleep(0.05)


async def _open(app: Holdfast) -> int:
    stats = await app.stats()
    return sum(n for by in stats.runs.values() for status, n in by.items() if status != "complete")


@pytest.mark.timeout(600)
async def test_killed_and_stalled_workers_never_exceed_a_limit_and_leave_no_permits(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds = 3 if request.config.getoption("--long") else 1
    journal, gone = _new_journal(tmp_path), dict[int, float]()
    files = [journal, *([url.removeprefix("sqlite:///")] if url.startswith("sqlite") else [])]
    app = make_app(url, journal)
    async with app.connect():
        workers = [await _worker(url, journal) for _ in range(4)]
        started = [*workers]
        try:
            for n in range(_RUNS * rounds):
                await app.start("tour", n)
            for n in range(rounds):
                left = _RUNS * n
                await _until_entered(journal, left + 15)
                await _kill(workers.pop(), gone)
                await _until_entered(journal, left + 45)
                stalled = workers.pop(0)
                await _stop(stalled, files)
                gone[stalled.pid] = time.time()
                if n < rounds - 1:
                    workers += [await _worker(url, journal) for _ in range(2)]
                    started += workers[-2:]
                await _until_entered(journal, left + 90)
                stalled.send_signal(signal.SIGCONT)
            await _all_ended(app, 60 * rounds)
            await _no_permits_left(app)
        finally:
            await _end([process for process in started if process.returncode is None])

    assert _most_inside(journal, gone) == 5
    assert _query(journal, "SELECT count(DISTINCT n) FROM journal WHERE event = 'leave'") == [(_RUNS * rounds,)]


async def test_restarts_of_the_server_never_exceed_a_limit_and_leave_no_permits(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stops = ("immediate", "fast") if request.config.getoption("--long") else ("immediate",)
    journal, server = _new_journal(tmp_path), Server()
    runs = 50 * (1 + len(stops))
    try:
        app = make_app(server.url(), journal)
        async with app.connect():
            workers = [await _worker(server.url(), journal, _LONG_LEASE) for _ in range(4)]
            try:
                for n in range(runs):
                    await app.start("tour", n)
                for n, how in enumerate(stops, 1):
                    await _until_entered(journal, 20 * n)
                    server.stop(how)
                    server.start()
                await _all_ended(app)
                await _no_permits_left(app)
            finally:
                await _end(workers)
    finally:
        server.remove()

    assert _most_inside(journal, {}) == 5
    assert _query(journal, "SELECT count(DISTINCT n) FROM journal WHERE event = 'leave'") == [(runs,)]
