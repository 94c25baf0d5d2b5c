"""A connection, the thread that owns it, and its job queue, which implements group commit.

All waiting jobs run in one transaction, and their futures are resolved only after COMMIT has returned. If a job fails,
the transaction is rolled back and each job runs again in a transaction of its own, so that only the failing job fails.
This module does not know what the jobs do. An exclusive user has the connection to itself for a while; the queue waits.

Two hand-overs between threads cost as much as the fsync of a fast disk. The jobs of one iteration of the event loop
therefore run inline on the event loop's thread, in one transaction, if that is expected to be short: no other job is
queued, no other connection has the file locked, and the last commits were fast. Otherwise the jobs run on the
connection's thread, and after a slow commit all jobs do so for a while. A slow disk or a locked file therefore never
blocks the event loop for long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from itertools import groupby
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Protocol, TypeVar

import apsw

from holdfast.store.protocol import Committed
from holdfast.store.sqlite.errors import BROKEN, ENVIRONMENT, translate
from holdfast.store.sqlite.guard import Guard, TransactionRolledBack
from holdfast.store.sqlite.opening import BUSY_S
from holdfast.store.sqlite.tx import Connection, Tx, Work

A = TypeVar("A")
R = TypeVar("R")
_Any = Work[Any, Any]
Spawn = Callable[[Callable[[], None], str], object]
"""Starts a thread with the given name that runs the function."""

_JOBS_PER_TRANSACTION = 512
_CHECKPOINT_PAGES = 2_000
_RESTART_PAGES = 65_536
_RESTART_TIMEOUT_MS = 200
_SLOW_SECONDS = 0.02
_RECOVERY_SECONDS = 1.0


class Mode(Enum):
    SINGLE = 1
    """One call per job."""
    MERGED = 2
    """Takes a list and returns a list: adjacent jobs in the queue become one call."""
    BARE = 3
    """Runs outside of any transaction."""
    EXCLUSIVE = 4
    """As BARE; afterwards the argument, an ``ExclusiveUser``, has the connection to itself."""
    LAST = 5
    """As BARE; afterwards the thread ends."""


class ExclusiveUser(Protocol):
    """An object that has the connection, and the thread, to itself."""

    def serve(self) -> None:
        """Use the connection until it is no longer needed.

        Without a thread, return at once and call ``Database.resume_queue`` at the end.
        """
        ...

    def request_end(self) -> None:
        """Request the end of the exclusive use. May be called by any thread, and before ``serve``."""
        ...

    def submit_read(self, job: Job) -> bool:
        """Run a read during the exclusive use; False if that has ended."""
        ...


class Job:
    __slots__ = ("argument", "error", "future", "inline", "mode", "result", "work")

    def __init__(self, work: _Any, argument: Any, mode: Mode, future: asyncio.Future[Any], inline: bool) -> None:
        self.work = work
        self.inline = inline
        self.argument = argument
        self.mode = mode
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None


class Database:
    """One connection with a job queue.

    ``connect`` is called on the thread, and again after the connection broke. ``check_file`` is called in each
    transaction, which fails if it raises.
    """

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        *,
        path: str,
        begin: str,
        now: Callable[[], int],
        monotonic: Callable[[], float],
        guard: Guard,
        check_file: Callable[[], None],
    ) -> None:
        self.connection: apsw.Connection
        self.now = 0
        self.guard = guard
        self.rejections: dict[int, Committed] = {}
        self._connect = connect
        self._connected = False
        self._path = path
        self._begin = begin
        self._clock = now
        self._monotonic = monotonic
        self._check_file = check_file
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: list[Job] = []
        self._queued = 0
        self._slow_until = float("-inf")
        self._connection_lock = Lock()
        """Held while the connection is in use."""
        self._queue: SimpleQueue[Job] = SimpleQueue()
        self._exclusive_user: ExclusiveUser | None = None
        self._queued_users: deque[ExclusiveUser] = deque()
        """Exclusive users whose jobs are in the queue."""
        self._stopping = False
        self._threaded = True
        self._wal_pages = 0

    async def start(self, name: str, spawn: Spawn | None, check: Callable[[Connection], R]) -> R:
        """Start the thread, connect, and return the result of ``check``. On failure the thread is stopped again.

        Without ``spawn`` there is no thread: its work is done on the event loop, in a callback of its own.
        """
        self._loop = asyncio.get_running_loop()
        self._threaded = spawn is not None
        if spawn is not None:
            spawn(self._serve, name)
        try:
            return await self.submit(lambda tx, _: check(tx.connection), None, Mode.BARE)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the connection after all jobs submitted before. An exclusive user is ended."""
        self._stopping = True
        if (user := self._exclusive_user) is not None:
            user.request_end()
        await self.submit(lambda _, __: self._disconnect(), None, Mode.LAST)

    def submit(
        self, work: Work[A, R], argument: A, mode: Mode = Mode.SINGLE, *, inline: bool = False, immediate: bool = False
    ) -> asyncio.Future[R]:
        """Submit a job and return the future of its result.

        ``inline``: the job is short, and may run on the event loop's thread. ``immediate``: start the job now instead
        of collecting other jobs of this iteration of the event loop.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        job = Job(work, argument, mode, future, inline)
        if mode is Mode.EXCLUSIVE:
            self._queued_users.append(job.argument)
        if loop is not self._loop:
            self._queue.put(job)
            return future
        self._pending.append(job)
        if immediate:
            self._flush()
        elif len(self._pending) == 1:
            loop.call_soon(self._flush)
        return future

    def read(self, work: Work[A, R], argument: A, *, short: bool) -> asyncio.Future[R]:
        """As ``submit``, for jobs that only read the store's own tables: they do not wait for an exclusive user.

        An exclusive user cannot change these tables, and it may itself be waiting for a reader.
        """

        def read_work(tx: Tx, argument: A) -> R:
            self.prepare()
            return work(tx, argument)

        user = self._exclusive_user
        if user is not None:
            future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
            if user.submit_read(Job(read_work, argument, Mode.BARE, future, inline=False)):
                return future
        submitted = self.submit(work, argument, inline=short, immediate=short)
        if not submitted.done() and (self._queued_users or self._exclusive_user is not None):
            # The read may be queued behind an exclusive user. The first execution answers; a second one is harmless.
            for queued in filter(None, [*self._queued_users, self._exclusive_user]):
                queued.submit_read(Job(read_work, argument, Mode.BARE, submitted, inline=False))
        return submitted

    # --- for an exclusive user, on the thread

    @property
    def in_transaction(self) -> bool:
        return self._connected and self.connection.in_transaction

    def begin(self) -> None:
        self.connection.execute(self._begin)
        try:
            self._check_file()
        except BaseException:
            self.roll_back()
            raise

    def prepare(self) -> None:
        """Check the file and set ``now``; called in every transaction before it reads or writes."""
        self._check_file()
        self.now = self._clock()

    def roll_back(self) -> None:
        try:
            if self.in_transaction:
                self.connection.execute("ROLLBACK")
        except apsw.Error:
            self._disconnect()  # closing rolls back too

    @property
    def threaded(self) -> bool:
        return self._threaded

    def resume_queue(self) -> None:
        """End the exclusive use and continue with the queue; only without a thread."""
        self._exclusive_user = None
        asyncio.get_running_loop().call_soon(self._serve_pending)

    def fail(self, jobs: Iterable[Job], error: Exception) -> None:
        for job in jobs:
            job.error = translate(error, self._path, BUSY_S)  # one instance per job: they are raised in different tasks
        if isinstance(error, BROKEN):
            self._disconnect()
        elif isinstance(error, apsw.FullError):
            self._wal_pages = _RESTART_PAGES  # a restarted WAL reuses its file and needs no more disk space

    # --- on the event loop

    def _flush(self) -> None:
        """Run the jobs of this iteration of the event loop, inline or on the thread."""
        if not self._pending:
            return
        jobs, self._pending = self._pending, []
        if self._can_run_inline(jobs) and self._connection_lock.acquire(blocking=False):
            try:
                done = self._run_inline(jobs)
            finally:
                self._connection_lock.release()
            if done:
                _resolve(jobs)
                if self._wal_pages >= _CHECKPOINT_PAGES:
                    self._enqueue([Job(_nothing, None, Mode.BARE, self._new_future(), inline=False)])
                return
        self._enqueue(jobs)

    def _can_run_inline(self, jobs: list[Job]) -> bool:
        return (
            not self._queued
            and self._exclusive_user is None
            and self._connected
            and len(jobs) <= _JOBS_PER_TRANSACTION
            and all(job.inline for job in jobs)
            and len({_is_bare(job) for job in jobs}) == 1
            and self._monotonic() >= self._slow_until
        )

    def _run_inline(self, jobs: list[Job]) -> bool:
        """Run the jobs inline; False if the thread must run them, because they have to wait or to run one by one."""
        started = self._monotonic()
        connection = self.connection
        connection.set_busy_timeout(0)
        try:
            if _is_bare(jobs[0]):
                for job in jobs:
                    job.result = job.work(self, job.argument)
            else:
                self._transaction_on(connection, jobs)
        except apsw.BusyError:
            return False
        except ENVIRONMENT as error:
            self.fail(jobs, error)
        except Exception:
            return False
        finally:
            if self._connected:
                connection.set_busy_timeout(BUSY_S * 1000)
        finished = self._monotonic()
        if finished - started > _SLOW_SECONDS:
            self._slow_until = finished + _RECOVERY_SECONDS
        return True

    def _enqueue(self, jobs: list[Job]) -> None:
        self._queued += len(jobs)
        for job in jobs:
            self._queue.put(job)
        if not self._threaded:
            asyncio.get_running_loop().call_soon(self._serve_pending)

    def _serve_pending(self) -> None:
        while self._exclusive_user is None and not self._queue.empty():
            self._serve_next()

    def _new_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def _on_done(self, jobs: list[Job]) -> None:
        self._queued -= len(jobs)
        _resolve(jobs)

    # --- on the thread

    def _serve(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Run the next batch of the queue; False after the last one."""
        jobs, more = self._next_batch()
        with self._connection_lock:
            self._run(jobs)
            if (user := self._admit(jobs[-1])) is not None:
                self._deliver_results(jobs)
                jobs = []
                user.serve()
                if self._threaded:
                    self._exclusive_user = None
                user = None
        self._deliver_results(jobs)
        with self._connection_lock:
            self._checkpoint()
        return more

    def _next_batch(self) -> tuple[list[Job], bool]:
        """The waiting jobs, at least one and at most a transaction's maximum; False if the last job is among them."""
        jobs = [self._queue.get()]
        with suppress(Empty):
            while len(jobs) < _JOBS_PER_TRANSACTION and jobs[-1].mode not in _ENDS_A_BATCH:
                jobs.append(self._queue.get_nowait())
        return jobs, jobs[-1].mode is not Mode.LAST

    def _admit(self, job: Job) -> ExclusiveUser | None:
        """The exclusive user that the job brings, if any. Its end is requested at once if the database is stopping."""
        if job.mode is not Mode.EXCLUSIVE:
            return None
        user: ExclusiveUser = job.argument
        if job.error is not None:
            self._queued_users.remove(user)
            return None
        self._exclusive_user = user
        self._queued_users.remove(
            user
        )  # after the assignment, so that ``read`` finds the user in one place or the other
        if self._stopping:
            user.request_end()
        return user

    def _run(self, jobs: list[Job]) -> None:
        for bare, part in groupby(jobs, _is_bare):
            if bare:
                for job in part:
                    self._run_bare(job)
            else:
                self._run_together(list(part))
        self.rejections.clear()

    def _run_bare(self, job: Job) -> None:
        try:
            if job.mode is not Mode.LAST:
                self._reconnect()
            job.result = job.work(self, job.argument)
        except Exception as error:  # noqa: BLE001, RUF100  (it is the caller's to handle)
            self.fail([job], error)

    def _run_together(self, jobs: list[Job]) -> None:
        try:
            self._transaction(jobs)
        except ENVIRONMENT as error:
            self.fail(jobs, error)
        except Exception:
            for job in jobs:
                self._run_alone(job)

    def _run_alone(self, job: Job) -> None:
        while True:
            try:
                self._transaction([job])
            except TransactionRolledBack:
                continue  # each pass adds one more commit of this job to ``rejections``
            except Exception as error:  # noqa: BLE001, RUF100  (it is the caller's to handle)
                self.fail([job], error)
            return

    def _transaction(self, jobs: list[Job]) -> None:
        self._reconnect()
        self._transaction_on(self.connection, jobs)

    def _transaction_on(self, connection: Connection, jobs: list[Job]) -> None:
        connection.execute(self._begin)
        try:
            self.prepare()
            for work, part in _calls(jobs):
                _call(self, work, part)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _deliver_results(self, jobs: list[Job]) -> None:
        """Resolve the futures with one wake-up per event loop."""
        loops = {job.future.get_loop() for job in jobs}
        for loop in loops:
            mine = jobs if len(loops) == 1 else [job for job in jobs if job.future.get_loop() is loop]
            with suppress(RuntimeError):  # the loop is closed, and so are its waiters
                loop.call_soon_threadsafe(self._on_done if loop is self._loop else _resolve, mine)

    def _reconnect(self) -> None:
        if self._connected:
            return
        self.connection = self._connect()
        # Replaces SQLite's automatic checkpoint inside COMMIT, for which the callers would wait.
        self.connection.set_wal_hook(self._note_wal_pages)
        self._connected = True

    def _disconnect(self) -> None:
        if self._connected:
            self._connected = False
            with suppress(apsw.Error):  # the connection is discarded in any case
                self.connection.close(force=True)

    def _note_wal_pages(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Checkpoint the WAL when it is long; wait for readers only when it is very long."""
        if self._wal_pages < _CHECKPOINT_PAGES or not self._connected:
            return
        too_long = self._wal_pages >= _RESTART_PAGES
        self._wal_pages = 0
        try:
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if too_long:
                self.connection.set_busy_timeout(_RESTART_TIMEOUT_MS)
                self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except (apsw.BusyError, apsw.LockedError):
            pass  # another connection reads or checkpoints; the next commit tries again
        except apsw.Error:
            self._disconnect()
        finally:
            if too_long and self._connected:
                self.connection.set_busy_timeout(BUSY_S * 1000)


_BARE = (Mode.BARE, Mode.EXCLUSIVE, Mode.LAST)
_ENDS_A_BATCH = (Mode.EXCLUSIVE, Mode.LAST)


def _is_bare(job: Job) -> bool:
    return job.mode in _BARE


def _calls(jobs: list[Job]) -> Iterator[tuple[_Any, list[Job]]]:
    """The jobs in their order, with adjacent MERGED jobs of the same work combined."""
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


def _nothing(_tx: Tx, _: None) -> None:
    """Do nothing; a job with this work makes the thread check the WAL, as it does after each batch."""


def resolve_from_thread(job: Job) -> None:
    with suppress(RuntimeError):  # the loop is closed, and so are its waiters
        job.future.get_loop().call_soon_threadsafe(_resolve, [job])


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future.done():  # the caller was cancelled; the job's writes are committed all the same
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)
