"""A connection, the thread that owns it, and its job queue, which implements group commit.

All waiting jobs run in one transaction (``job_runner.py``), and their futures are resolved only after COMMIT has
returned. This module does not depend on the content of jobs. An exclusive user has the connection to itself for a
while; the queue waits.

Two hand-overs between threads cost as much as the fsync of a fast disk. The jobs of one iteration of the event loop
therefore run inline on the event loop's thread, in one transaction, if that is expected to be short: no other job is
queued, no other connection has the file locked, and the last commits were fast. Otherwise the jobs run on the
connection's thread, and after a slow commit all jobs do so for a while. A slow disk or a locked file therefore never
blocks the event loop for long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, TypeVar

import apsw

from holdfast.store.sqlite.connection import StoreConnection
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.job_runner import JobRunner
from holdfast.store.sqlite.jobs import ExclusiveUser, Job, Mode, is_bare, resolve
from holdfast.store.sqlite.tx import Connection, Tx, Work

A = TypeVar("A")
R = TypeVar("R")
Spawn = Callable[[Callable[[], None], str], object]
"""Starts a thread with the given name that runs the function."""

_JOBS_PER_TRANSACTION = 512
_JOBS_PER_PART = 128
"""Maximum number of jobs in an entry of the queue."""
_SLOW_SECONDS = 0.02
_RECOVERY_SECONDS = 1.0
_ENDS_A_BATCH = (Mode.EXCLUSIVE, Mode.LAST)


class Database:
    """One connection with a job queue.

    ``connect``, ``recover``, ``begin`` and ``check_file`` are those of the connection. The thread opens the connection.
    """

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        *,
        path: str,
        recover: Callable[[Callable[[], None]], None],
        begin: str,
        now: Callable[[], int],
        monotonic: Callable[[], float],
        guard: Guard,
        check_file: Callable[[], None],
    ) -> None:
        self.tx = StoreConnection(connect, recover=recover, begin=begin, now=now, guard=guard, check_file=check_file)
        self.runner = JobRunner(self.tx, path)
        self._monotonic = monotonic
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: list[Job] = []
        self._queued = 0
        self._slow_until = float("-inf")
        self._connection_lock = Lock()
        """Held while the connection is in use."""
        self._queue: SimpleQueue[list[Job]] = SimpleQueue()
        self._exclusive_user: ExclusiveUser | None = None
        self._queued_users: deque[ExclusiveUser] = deque()
        """Exclusive users whose jobs are in the queue."""
        self._stopping = False
        self._threaded = True

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
        await self.submit(lambda _, __: self.tx.disconnect(), None, Mode.LAST)

    def close_connection(self) -> None:
        """Close the connection when it is not in use; the next job opens another one. May be called by any thread."""
        with self._connection_lock:
            self.tx.disconnect()

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
            self._queue.put([job])
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
            self.tx.prepare()
            return work(tx, argument)

        user = self._exclusive_user
        if user is not None:
            future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
            if user.submit_read(Job(read_work, argument, Mode.BARE, future, inline=False)):
                return future
        # While the thread is busy, the reads of an iteration share one hand-over to it, and one transaction.
        submitted = self.submit(work, argument, inline=short, immediate=short and not self._queued)
        if not submitted.done() and (self._queued_users or self._exclusive_user is not None):
            # The read may be queued behind an exclusive user. The first execution sets the future, a second nothing.
            for queued in filter(None, [*self._queued_users, self._exclusive_user]):
                queued.submit_read(Job(read_work, argument, Mode.BARE, submitted, inline=False))
        return submitted

    # --- for an exclusive user

    @property
    def threaded(self) -> bool:
        return self._threaded

    def resume_queue(self) -> None:
        """End the exclusive use and continue with the queue; only without a thread."""
        self._exclusive_user = None
        asyncio.get_running_loop().call_soon(self._serve_pending)

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
                resolve(jobs)
                if self.tx.checkpoint_due:
                    self._enqueue([Job(_nothing, None, Mode.BARE, self._new_future(), inline=False)])
                return
        self._enqueue(jobs)

    def _can_run_inline(self, jobs: list[Job]) -> bool:
        return (
            not self._queued
            and self._exclusive_user is None
            and self.tx.connected
            and len(jobs) <= _JOBS_PER_TRANSACTION
            and all(job.inline for job in jobs)
            and len({is_bare(job) for job in jobs}) == 1
            and self._monotonic() >= self._slow_until
        )

    def _run_inline(self, jobs: list[Job]) -> bool:
        """Run the jobs inline; False if the thread must run them, because they have to wait or to run one by one."""
        started = self._monotonic()
        if not self.runner.run_without_waiting(jobs):
            return False
        finished = self._monotonic()
        if finished - started > _SLOW_SECONDS:
            self._slow_until = finished + _RECOVERY_SECONDS
        return True

    def _enqueue(self, jobs: list[Job]) -> None:
        self._queued += len(jobs)
        for part in _parts(jobs):
            self._queue.put(part)  # one wake-up of the thread for all of them
        if not self._threaded:
            asyncio.get_running_loop().call_soon(self._serve_pending)

    def _serve_pending(self) -> None:
        while self._exclusive_user is None and not self._queue.empty():
            self._serve_next()

    def _new_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def _on_done(self, jobs: list[Job]) -> None:
        self._queued -= len(jobs)
        resolve(jobs)

    # --- on the thread

    def _serve(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Run the next batch of the queue; False after the last one."""
        jobs, more = self._next_batch()
        with self._connection_lock:
            self.runner.run(jobs)
            if (user := self._admit(jobs[-1])) is not None:
                self._deliver_results(jobs)
                jobs = []
                user.serve()
                if self._threaded:
                    self._exclusive_user = None
                user = None
        self._deliver_results(jobs)
        with self._connection_lock:
            self.tx.checkpoint()
        return more

    def _next_batch(self) -> tuple[list[Job], bool]:
        """The waiting jobs, 1 to ``_JOBS_PER_TRANSACTION``, and False if the job that ends the thread is among them."""
        jobs = [*self._queue.get()]
        with suppress(Empty):
            while len(jobs) + _JOBS_PER_PART <= _JOBS_PER_TRANSACTION and jobs[-1].mode not in _ENDS_A_BATCH:
                jobs += self._queue.get_nowait()
        return jobs, jobs[-1].mode is not Mode.LAST

    def _admit(self, job: Job) -> ExclusiveUser | None:
        """The exclusive user in the job's argument, if any. Its end is requested at once if the database stops."""
        if job.mode is not Mode.EXCLUSIVE:
            return None
        user: ExclusiveUser = job.argument
        if job.error is not None:
            self._queued_users.remove(user)
            return None
        self._exclusive_user = user
        self._queued_users.remove(user)  # after the assignment: ``read`` finds the user in one place or the other
        if self._stopping:
            user.request_end()
        return user

    def _deliver_results(self, jobs: list[Job]) -> None:
        """Resolve the futures with one wake-up per event loop."""
        loops = {job.future.get_loop() for job in jobs}
        for loop in loops:
            mine = jobs if len(loops) == 1 else [job for job in jobs if job.future.get_loop() is loop]
            with suppress(RuntimeError):  # the loop is closed, and so are its waiters
                loop.call_soon_threadsafe(self._on_done if loop is self._loop else resolve, mine)


def _parts(jobs: list[Job]) -> Iterator[list[Job]]:
    """The jobs in lists of limited length, each of which ends at a job that ends a batch."""
    part: list[Job] = []
    for job in jobs:
        part.append(job)
        if len(part) == _JOBS_PER_PART or job.mode in _ENDS_A_BATCH:
            yield part
            part = []
    if part:
        yield part


def _nothing(_tx: Tx, _: None) -> None:
    """Do nothing; a job with this work makes the thread check the WAL, as it does after each batch."""
