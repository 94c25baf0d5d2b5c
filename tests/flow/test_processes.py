"""Four worker processes under one limit: killed, stalled past their lease, and stopped; restarts of the server."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from flow.program import make_app
from holdfast import Holdfast
from postgres_server import CleanDatabases, Server

_PROGRAM = Path(__file__).with_name("program.py")
_RUNS = 150
_LONG_LEASE = "8 seconds"
"""Longer than a restart of the server, so that workers rarely lose their leases to it."""
_SURE = 300.0
"""Seconds within which everything must happen, on a machine with other work, too."""
_LOG_ON_SQLITE = """
CREATE TABLE ownership (at REAL, owner TEXT, run INTEGER, event TEXT);
CREATE TRIGGER log_claim AFTER UPDATE OF owner ON holdfast_task WHEN new.owner IS NOT NULL BEGIN
    INSERT INTO ownership VALUES ((julianday('now') - 2440587.5) * 86400.0, new.owner, new.run, 'claimed');
END;
CREATE TRIGGER log_loss AFTER UPDATE OF losses ON holdfast_task WHEN new.losses > old.losses BEGIN
    INSERT INTO ownership VALUES ((julianday('now') - 2440587.5) * 86400.0, old.owner, old.run, 'lost');
END;
"""
_LOG_ON_POSTGRES = """
CREATE TABLE public.ownership (at DOUBLE PRECISION, owner TEXT, run BIGINT, event TEXT);
CREATE FUNCTION public.log_ownership() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.ownership
    VALUES (extract(epoch FROM clock_timestamp()), coalesce(new.owner, old.owner), new.run, TG_ARGV[0]);
    RETURN NULL;
END $$;
CREATE TRIGGER log_claim AFTER UPDATE OF owner ON holdfast.holdfast_task
    FOR EACH ROW WHEN (new.owner IS NOT NULL) EXECUTE FUNCTION public.log_ownership('claimed');
CREATE TRIGGER log_loss AFTER UPDATE OF losses ON holdfast.holdfast_task
    FOR EACH ROW WHEN (new.losses > old.losses) EXECUTE FUNCTION public.log_ownership('lost');
"""
_OWNERSHIP = (
    "SELECT o.at, o.owner, r.instance_id, o.event FROM {0}ownership AS o JOIN {1}holdfast_run AS r ON r.id = o.run"
)
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
    async with asyncio.timeout(_SURE):
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


async def _log_ownership(url: str) -> None:
    """Let the database record the time of each claim and of each lease that expires."""
    if url.startswith("sqlite"):
        _query(_file_of(url), _LOG_ON_SQLITE)
    else:
        connection = await asyncpg.connect(url)
        await connection.execute(_LOG_ON_POSTGRES)
        await connection.close()


async def _ownership(url: str) -> list[tuple[float, int, int, str]]:
    """The claims and losses: time, process, number of the run, event."""
    if url.startswith("sqlite"):
        rows = _query(_file_of(url), _OWNERSHIP.format("", ""))
    else:
        connection = await asyncpg.connect(url)
        rows = [tuple(row) for row in await connection.fetch(_OWNERSHIP.format("public.", "holdfast."))]
        await connection.close()
    return [(at, int(owner.split(":")[-2]), int(run), event) for at, owner, run, event in rows]


def _file_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


async def _most_inside(url: str, journal: str, gone: dict[int, float]) -> int:
    """The maximum number of attempts in progress at the same time, of workers that own the task of the attempt.

    Attempts of a killed process end with it. A worker that had no processor time for longer than its lease may still
    execute the code of an attempt, or begin to, when the task and its permit are no longer the worker's.
    """
    visits = _query(journal, "SELECT at, pid, n, event FROM journal")
    order = ("leave", "cancelled", "lost", "claimed", "enter")
    inside, lost, most = set[tuple[int, int]](), set[tuple[int, int]](), 0
    for at, pid, n, event in sorted([*visits, *await _ownership(url)], key=lambda row: (row[0], order.index(row[3]))):
        inside = {one for one in inside if gone.get(one[0], at + 1) > at}
        if event == "lost":
            lost.add((pid, n))
        if event == "claimed":
            lost.discard((pid, n))
        elif event != "enter":
            inside.discard((pid, n))
        elif gone.get(pid, at + 1) > at and (pid, n) not in lost:
            inside.add((pid, n))
        most = max(most, len(inside))
    return most


async def _kill(process: asyncio.subprocess.Process, gone: dict[int, float]) -> None:
    gone[process.pid] = time.time()
    process.kill()
    await process.wait()


async def _stop_one(
    workers: list[asyncio.subprocess.Process], journal: str, files: list[str]
) -> asyncio.subprocess.Process:
    """Stop a process during an attempt, while it holds no lock of these SQLite files: it would stop all the others."""
    async with asyncio.timeout(_SURE):
        for process in itertools.cycle(workers):
            process.send_signal(signal.SIGSTOP)
            if all(_is_unlocked(file) for file in files) and _is_inside(journal, process.pid):
                return process
            process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.01)
    raise AssertionError("unreachable")


def _is_inside(journal: str, pid: int) -> bool:
    [(entered, ended)] = _query(
        journal, f"SELECT sum(event = 'enter'), sum(event <> 'enter') FROM journal WHERE pid = {pid}"
    )
    return (entered or 0) > (ended or 0)


def _is_unlocked(file: str) -> bool:
    connection = apsw.Connection(file)
    connection.set_busy_timeout(500)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except (apsw.BusyError, apsw.ProtocolError):  # the second: a suspended process holds a lock of the wal-index
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
    async with asyncio.timeout(_SURE):
        while any(limit.used or limit.waiting for limit in await app.list_limits()):
            await asyncio.sleep(0.05)


async def _end(workers: list[asyncio.subprocess.Process]) -> None:
    for process in workers:
        process.send_signal(signal.SIGCONT)
        process.terminate()
    await asyncio.gather(*(process.wait() for process in workers))


async def _all_ended(app: Holdfast, seconds: float = _SURE) -> None:
    async with asyncio.timeout(seconds):
        while await _open(app):
            await asyncio.sleep(0.05)


async def _open(app: Holdfast) -> int:
    stats = await app.stats()
    return sum(n for by in stats.runs.values() for status, n in by.items() if status != "complete")


@pytest.mark.timeout(1800)
async def test_killed_and_stalled_workers_never_exceed_a_limit_and_leave_no_permits(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds = 3 if request.config.getoption("--long") else 1
    journal, gone = _new_journal(tmp_path), dict[int, float]()
    files = [journal, *([_file_of(url)] if url.startswith("sqlite") else [])]
    app = make_app(url, journal)
    async with app.connect():
        await _log_ownership(url)
        workers = [await _worker(url, journal) for _ in range(4)]
        started = [*workers]
        try:
            for n in range(_RUNS * rounds):
                await app.start("tour", n, id=f"{n}")
            for n in range(rounds):
                left = _RUNS * n
                await _until_entered(journal, left + 15)
                await _kill(workers.pop(), gone)
                await _until_entered(journal, left + 45)
                stalled = await _stop_one(workers, journal, files)
                workers.remove(stalled)
                if n < rounds - 1:
                    workers += [await _worker(url, journal) for _ in range(2)]
                    started += workers[-2:]
                await _until_entered(journal, left + 90)
                stalled.send_signal(signal.SIGCONT)
            await _all_ended(app, _SURE * rounds)
            await _no_permits_left(app)
        finally:
            await _end([process for process in started if process.returncode is None])

    assert await _most_inside(url, journal, gone) == 5
    assert _query(journal, "SELECT count(DISTINCT n) FROM journal WHERE event = 'leave'") == [(_RUNS * rounds,)]


@pytest.mark.timeout(1800)
async def test_restarts_of_the_server_never_exceed_a_limit_and_leave_no_permits(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stops = ("immediate", "fast") if request.config.getoption("--long") else ("immediate",)
    journal, server = _new_journal(tmp_path), Server()
    runs = 50 * (1 + len(stops))
    try:
        app = make_app(server.url(), journal)
        async with app.connect():
            await _log_ownership(server.url())
            workers = [await _worker(server.url(), journal, _LONG_LEASE) for _ in range(4)]
            try:
                for n in range(runs):
                    await app.start("tour", n, id=f"{n}")
                for n, how in enumerate(stops, 1):
                    await _until_entered(journal, 20 * n)
                    server.stop(how)
                    server.start()
                await _all_ended(app)
                await _no_permits_left(app)
            finally:
                await _end(workers)
        assert await _most_inside(server.url(), journal, {}) == 5
    finally:
        server.remove()

    assert _query(journal, "SELECT count(DISTINCT n) FROM journal WHERE event = 'leave'") == [(runs,)]
