"""A connection, the thread that owns it, and the queue in front of it: group commit.

The thread takes all jobs that are waiting and runs them in one transaction; only when COMMIT has returned are
they answered. If one of them fails, the transaction is rolled back and each runs again in one of its own, so
that only the guilty one fails. What the jobs do is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import apsw

from holdfast.store.protocol import Committed
from holdfast.store.sqlite.errors import BROKEN, ENVIRONMENT, translate
from holdfast.store.sqlite.guard import Guard, TransactionGone
from holdfast.store.sqlite.opening import BUSY_S
from holdfast.store.sqlite.tx import Connection, Work

A = TypeVar("A")
R = TypeVar("R")
_Any = Work[Any, Any]
Spawn = Callable[[Callable[[], None], str], object]
"""Starts a thread that runs the function, under that name."""

_JOBS_PER_TRANSACTION = 512
_CHECKPOINT_PAGES = 4_000
_RESTART_PAGES = 65_536
_RESTART_PATIENCE_MS = 200


class Mode(Enum):
    SINGLE = 1
    """One call for one job."""
    MERGED = 2
    """Takes a list and answers a list: neighbours in the queue become one call."""
    BARE = 3
    """Outside of any transaction."""
    LAST = 4
    """As BARE, and then the thread ends."""


class Job:
    __slots__ = ("argument", "error", "future", "mode", "result", "work")

    def __init__(self, work: _Any, argument: Any, mode: Mode, future: asyncio.Future[Any]) -> None:
        self.work = work
        self.argument = argument
        self.mode = mode
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None


class Database:
    """One connection behind a queue. ``connect`` is called on the thread, and again after it broke."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        *,
        path: str,
        begin: str,
        now: Callable[[], int],
        guard: Guard,
    ) -> None:
        self.connection: apsw.Connection
        self.now = 0
        self.guard = guard
        self.refused: dict[int, Committed] = {}
        self._connect = connect
        self._connected = False
        self._path = path
        self._begin = begin
        self._clock = now
        self._queue: SimpleQueue[Job] = SimpleQueue()
        self._wal_pages = 0

    async def start(self, name: str, spawn: Spawn, check: Callable[[Connection], None]) -> None:
        """Start the thread and connect. On failure the thread is gone again."""
        spawn(self._serve, name)
        try:
            await self.submit(lambda tx, _: check(tx.connection), None, Mode.BARE)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the connection, after everything that was asked for before."""
        await self.submit(lambda _, __: self._disconnect(), None, Mode.LAST)

    def submit(self, work: Work[A, R], argument: A, mode: Mode = Mode.SINGLE) -> asyncio.Future[R]:
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.put(Job(work, argument, mode, future))
        return future

    # --- on the thread

    def _serve(self) -> None:
        more = True
        while more:
            jobs, more = self._take()
            self._run(jobs)
            _answer(jobs)
            self._checkpoint()
            del jobs  # or the last batch would live until the next one comes

    def _take(self) -> tuple[list[Job], bool]:
        """All jobs that wait, at least one and not too many; False when there will be no more."""
        jobs = [self._queue.get()]
        with suppress(Empty):
            while len(jobs) < _JOBS_PER_TRANSACTION and jobs[-1].mode is not Mode.LAST:
                jobs.append(self._queue.get_nowait())
        return jobs, jobs[-1].mode is not Mode.LAST

    def _run(self, jobs: list[Job]) -> None:
        for bare, part in groupby(jobs, lambda job: job.mode in {Mode.BARE, Mode.LAST}):
            if bare:
                for job in part:
                    self._run_bare(job)
            else:
                self._run_together(list(part))
        self.refused.clear()

    def _run_bare(self, job: Job) -> None:
        try:
            if job.mode is not Mode.LAST:
                self._reconnect()
            job.result = job.work(self, job.argument)
        except Exception as error:  # noqa: BLE001, RUF100  (it is the caller's to handle)
            self._fail([job], error)

    def _run_together(self, jobs: list[Job]) -> None:
        try:
            self._transaction(jobs)
        except ENVIRONMENT as error:
            self._fail(jobs, error)
        except Exception:
            for job in jobs:
                self._run_alone(job)

    def _run_alone(self, job: Job) -> None:
        while True:
            try:
                self._transaction([job])
            except TransactionGone:
                continue  # each time one more commit of this job is known to do that
            except Exception as error:  # noqa: BLE001, RUF100  (it is the caller's to handle)
                self._fail([job], error)
            return

    def _transaction(self, jobs: list[Job]) -> None:
        self._reconnect()
        self._transaction_on(self.connection, jobs)

    def _transaction_on(self, connection: Connection, jobs: list[Job]) -> None:
        connection.execute(self._begin)
        try:
            self.now = self._clock()
            for work, part in _calls(jobs):
                _call(self, work, part)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _fail(self, jobs: Iterable[Job], error: Exception) -> None:
        for job in jobs:
            job.error = translate(error, self._path, BUSY_S)  # one each: they are raised in different tasks
        if isinstance(error, BROKEN):
            self._disconnect()

    def _reconnect(self) -> None:
        if self._connected:
            return
        self.connection = self._connect()
        # In place of SQLite's own checkpoint inside COMMIT: nobody should wait for it.
        self.connection.set_wal_hook(self._note_wal_pages)
        self._connected = True

    def _disconnect(self) -> None:
        if self._connected:
            self._connected = False
            with suppress(apsw.Error):  # it is given up in any case
                self.connection.close(force=True)

    def _note_wal_pages(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Move the WAL into the file when it is long; wait for readers only when it is very long."""
        if self._wal_pages < _CHECKPOINT_PAGES or not self._connected:
            return
        too_long = self._wal_pages >= _RESTART_PAGES
        self._wal_pages = 0
        try:
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if too_long:
                self.connection.set_busy_timeout(_RESTART_PATIENCE_MS)
                self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except (apsw.BusyError, apsw.LockedError):
            pass  # somebody reads or checkpoints: the next commit comes here again
        except apsw.Error:
            self._disconnect()
        finally:
            if too_long and self._connected:
                self.connection.set_busy_timeout(BUSY_S * 1000)


def _calls(jobs: list[Job]) -> Iterator[tuple[_Any, list[Job]]]:
    """The jobs in their order, neighbours of the same merged kind together."""
    for (work, mode), part in groupby(jobs, lambda job: (job.work, job.mode)):
        if mode is Mode.MERGED:
            yield work, list(part)
        else:
            for job in part:
                yield work, [job]


def _call(tx: Database, work: _Any, jobs: list[Job]) -> None:
    first = jobs[0]
    if len(jobs) == 1:
        first.result = work(tx, first.argument)
        return
    results = work(tx, [item for job in jobs for item in job.argument])
    start = 0
    for job in jobs:
        end = start + len(job.argument)
        job.result = results[start:end]
        start = end


def _answer(jobs: list[Job]) -> None:
    """Resolve the futures with one wake-up per event loop."""
    loops = {job.future.get_loop() for job in jobs}
    for loop in loops:
        mine = jobs if len(loops) == 1 else [job for job in jobs if job.future.get_loop() is loop]
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future.done():  # the caller was cancelled; what it asked for is stored all the same
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)
