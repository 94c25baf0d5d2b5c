"""The ceiling: the speed of the disk and of plain Python when every step waits for its own durable row.

Coroutines insert one row per step into one table (apsw, WAL, synchronous=FULL) and continue when the row is
committed. All rows inserted in one iteration of the loop share a commit, on the loop's own thread, which is the
fastest arrangement we found. There is no engine: no run, lease, replay, history or start row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import apsw

from bench.contract import STEPS_PER_RUN, Contender, Job, Measurement, Pending

WARM_UP_COMMITS = 600
CONCURRENT_RUNS = 1000
BATCH = 1000  # larger commits are slower
PAYLOAD = b'{"value":1}'


class GroupCommit:
    """Inserts rows in shared commits. Each insert waits until its row is on the disk."""

    def __init__(self, path: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = apsw.Connection(path)
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "full")
        self._connection.execute("create table row (id integer primary key, run integer, step integer, value blob)")
        self._warm_up()
        self._rows: list[tuple[int, int, bytes]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._scheduled = False

    async def insert(self, run: int, step: int) -> None:
        committed = self._loop.create_future()
        self._rows.append((run, step, PAYLOAD))
        self._waiting.append(committed)
        self._schedule()
        await committed

    def close(self) -> None:
        self._connection.close()

    def _warm_up(self) -> None:
        """Let the WAL grow to its usual size once: overwriting it is cheaper than extending it."""
        for _ in range(WARM_UP_COMMITS):
            self._connection.execute("insert into row (value) values (zeroblob(4096))")
        self._connection.pragma("wal_checkpoint(restart)")

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        rows, self._rows = self._rows[:BATCH], self._rows[BATCH:]
        waiting, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        self._connection.execute("begin immediate")
        self._connection.executemany("insert into row (run, step, value) values (?, ?, ?)", rows)
        self._connection.execute("commit")
        for committed in waiting:
            committed.set_result(None)
        self._scheduled = False
        if self._rows:
            self._schedule()


@dataclass(slots=True)
class _Run:
    task: asyncio.Task[None]
    event: asyncio.Event
    rows: GroupCommit

    async def result(self) -> None:
        await self.task

    async def send(self) -> None:
        await self.rows.insert(0, 0)
        self.event.set()


class Ceiling:
    def __init__(self, path: str) -> None:
        self.rows = GroupCommit(path)
        self._runs = 0

    async def steps(self, count: int) -> Pending:
        return self._start(count, asyncio.Event(), waits=False)

    async def waiter(self) -> Pending:
        return self._start(1, asyncio.Event(), waits=True)

    async def naps(self, index: int) -> Pending:
        raise NotImplementedError("the ceiling of W6 is computed, not measured")

    async def all_naps_done(self, runs: int) -> None:
        raise NotImplementedError("the ceiling of W6 is computed, not measured")

    def _start(self, steps: int, event: asyncio.Event, *, waits: bool) -> _Run:
        self._runs += 1
        task = asyncio.create_task(self._run(self._runs, steps, event if waits else None))
        return _Run(task, event, self.rows)

    async def _run(self, run: int, steps: int, event: asyncio.Event | None) -> None:
        if event is not None:
            await event.wait()
        for step in range(steps):
            await self.rows.insert(run, step)


async def raw_steps(rows: GroupCommit, runs: int) -> float:
    """Seconds for `runs` runs of five steps, `CONCURRENT_RUNS` in flight, with nothing but the steps."""

    async def lane(first: int) -> None:
        for run in range(first, runs, CONCURRENT_RUNS):
            for step in range(STEPS_PER_RUN):
                await rows.insert(run, step)

    started = time.perf_counter()
    await asyncio.gather(*(lane(first) for first in range(CONCURRENT_RUNS)))
    return time.perf_counter() - started


async def many_runs(contender: Contender, job: Job) -> Measurement:
    """The ceiling of W1, measured without the start calls that the contenders make."""
    assert isinstance(contender, Ceiling)
    runs = job.count("runs")
    await raw_steps(contender.rows, CONCURRENT_RUNS)
    seconds = await raw_steps(contender.rows, runs)
    return {"value": runs * STEPS_PER_RUN / seconds, "seconds": seconds}


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[Contender]:
    ceiling = Ceiling(job.db)
    try:
        yield ceiling
    finally:
        ceiling.rows.close()
