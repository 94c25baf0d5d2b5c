"""A connection, the thread that owns it, and the queue in front of it: group commit.

All jobs that are waiting run in one transaction; only when COMMIT has returned are they answered. If one of
them fails, the transaction is rolled back and each runs again in one of its own, so that only the guilty one
fails. What the jobs do is not known here. A guest has the connection for itself for a while; the queue waits for it.

Where they run. Two hand-overs between threads cost as much as the fsync of a fast disk. So the jobs of one turn of
the event loop run right there, in one transaction, when that is sure to be short: nothing else is under way, nobody
else has the file locked, and the last commits were quick. Otherwise, and from the first slow commit on for a
while, the thread takes them, so that a slow disk or a busy file never holds up the loop for long.
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
from holdfast.store.sqlite.guard import Guard, TransactionGone
from holdfast.store.sqlite.opening import BUSY_S
from holdfast.store.sqlite.tx import Connection, Tx, Work

A = TypeVar("A")
R = TypeVar("R")
_Any = Work[Any, Any]
Spawn = Callable[[Callable[[], None], str], object]
"""Starts a thread that runs the function, under that name."""

_JOBS_PER_TRANSACTION = 512
_CHECKPOINT_PAGES = 2_000
_RESTART_PAGES = 65_536
_RESTART_PATIENCE_MS = 200
_SLOW_SECONDS = 0.02
_RECOVERY_SECONDS = 1.0


class Mode(Enum):
    SINGLE = 1
    """One call for one job."""
    MERGED = 2
    """Takes a list and answers a list: neighbours in the queue become one call."""
    BARE = 3
    """Outside of any transaction."""
    GUEST = 4
    """As BARE, and then the connection belongs to the argument, a ``Guest``."""
    LAST = 5
    """As BARE, and then the thread ends."""


class Guest(Protocol):
    """Who has the connection, and the thread, for itself."""

    def stay(self) -> None:
        """Returns when it needs them no more. Without a thread: at once, and then calls ``Database.go_on``."""
        ...

    def leave(self) -> None:
        """Be asked, by any thread and perhaps before it came, to come to an end."""
        ...

    def let_look(self, job: Job) -> bool:
        """Have a read done meanwhile; False if it has come to its end."""
        ...


class Job:
    __slots__ = ("anywhere", "argument", "error", "future", "mode", "result", "work")

    def __init__(self, work: _Any, argument: Any, mode: Mode, future: asyncio.Future[Any], anywhere: bool) -> None:
        self.work = work
        self.anywhere = anywhere
        self.argument = argument
        self.mode = mode
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None


class Database:
    """One connection behind a queue.

    ``connect`` is called on the thread, and again after it broke; ``ensure`` in each transaction, which fails if it
    raises.
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
        ensure: Callable[[], None],
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
        self._monotonic = monotonic
        self._ensure = ensure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gathered: list[Job] = []
        self._handed_over = 0
        self._slow_until = float("-inf")
        self._using = Lock()
        """Held by whoever uses the connection."""
        self._queue: SimpleQueue[Job] = SimpleQueue()
        self._guest: Guest | None = None
        self._coming: deque[Guest] = deque()
        """Guests in the queue."""
        self._stopping = False
        self._threaded = True
        self._wal_pages = 0

    async def start(self, name: str, spawn: Spawn | None, check: Callable[[Connection], R]) -> R:
        """Start the thread, connect, and answer with what the check found. On failure the thread is gone again.

        Without ``spawn`` there is no thread: what would be its work is done on the event loop, in a turn of its own.
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
        """Close the connection, after everything that was asked for before. Guests are sent away."""
        self._stopping = True
        if (guest := self._guest) is not None:
            guest.leave()
        await self.submit(lambda _, __: self._disconnect(), None, Mode.LAST)

    def submit(
        self, work: Work[A, R], argument: A, mode: Mode = Mode.SINGLE, *, anywhere: bool = False, alone: bool = False
    ) -> asyncio.Future[R]:
        """``anywhere``: it is short, and may run on the event loop's own thread.

        ``alone``: nothing else is expected in this turn of the loop that it should wait for.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        job = Job(work, argument, mode, future, anywhere)
        if mode is Mode.GUEST:
            self._coming.append(job.argument)
        if loop is not self._loop:
            self._queue.put(job)
            return future
        self._gathered.append(job)
        if alone:
            self._flush()
        elif len(self._gathered) == 1:
            loop.call_soon(self._flush)
        return future

    def look(self, work: Work[A, R], argument: A, *, short: bool) -> asyncio.Future[R]:
        """As ``submit``, for what only reads the store's own tables: it need not wait until a guest has left.

        A guest cannot change those, and may itself have to wait for who reads.
        """

        def read(tx: Tx, given: A) -> R:
            self.stamp()
            return work(tx, given)

        guest = self._guest
        if guest is not None:
            future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
            if guest.let_look(Job(read, argument, Mode.BARE, future, anywhere=False)):
                return future
        submitted = self.submit(work, argument, anywhere=short, alone=short)
        if not submitted.done() and (self._coming or self._guest is not None):
            # The read may be in the queue behind a guest. Whoever comes first does it; a second read changes nothing.
            for coming in filter(None, [*self._coming, self._guest]):
                coming.let_look(Job(read, argument, Mode.BARE, submitted, anywhere=False))
        return submitted

    # --- for a guest, on the thread

    @property
    def in_transaction(self) -> bool:
        return self._connected and self.connection.in_transaction

    def begin(self) -> None:
        self.connection.execute(self._begin)
        try:
            self._ensure()
        except BaseException:
            self.undo()
            raise

    def stamp(self) -> None:
        """What every transaction does before it writes."""
        self._ensure()
        self.now = self._clock()

    def undo(self) -> None:
        try:
            if self.in_transaction:
                self.connection.execute("ROLLBACK")
        except apsw.Error:
            self._disconnect()  # which also undoes it

    @property
    def threaded(self) -> bool:
        return self._threaded

    def go_on(self) -> None:
        """Without a thread: the guest has left, and the queue moves again."""
        self._guest = None
        asyncio.get_running_loop().call_soon(self._serve_present)

    def fail(self, jobs: Iterable[Job], error: Exception) -> None:
        for job in jobs:
            job.error = translate(error, self._path, BUSY_S)  # one each: they are raised in different tasks
        if isinstance(error, BROKEN):
            self._disconnect()
        elif isinstance(error, apsw.FullError):
            self._wal_pages = _RESTART_PAGES  # a log that starts over needs no more room

    # --- on the event loop

    def _flush(self) -> None:
        """Run what was asked for in this turn of the loop, here or on the thread."""
        if not self._gathered:
            return
        jobs, self._gathered = self._gathered, []
        if self._can_run_here(jobs) and self._using.acquire(blocking=False):
            try:
                done = self._run_here(jobs)
            finally:
                self._using.release()
            if done:
                _resolve(jobs)
                if self._wal_pages >= _CHECKPOINT_PAGES:
                    self._hand_over([Job(_nothing, None, Mode.BARE, self._new_future(), anywhere=False)])
                return
        self._hand_over(jobs)

    def _can_run_here(self, jobs: list[Job]) -> bool:
        return (
            not self._handed_over
            and self._guest is None
            and self._connected
            and len(jobs) <= _JOBS_PER_TRANSACTION
            and all(job.anywhere for job in jobs)
            and len({_is_bare(job) for job in jobs}) == 1
            and self._monotonic() >= self._slow_until
        )

    def _run_here(self, jobs: list[Job]) -> bool:
        """Whether they are done. What would have to wait, or has to be tried again singly, is the thread's."""
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

    def _hand_over(self, jobs: list[Job]) -> None:
        self._handed_over += len(jobs)
        for job in jobs:
            self._queue.put(job)
        if not self._threaded:
            asyncio.get_running_loop().call_soon(self._serve_present)

    def _serve_present(self) -> None:
        while self._guest is None and not self._queue.empty():
            self._serve_next()

    def _new_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def _answered(self, jobs: list[Job]) -> None:
        self._handed_over -= len(jobs)
        _resolve(jobs)

    # --- on the thread

    def _serve(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Whether there will be more."""
        jobs, more = self._take()
        with self._using:
            self._run(jobs)
            if (guest := self._welcome(jobs[-1])) is not None:
                self._answer(jobs)
                jobs = []
                guest.stay()
                if self._threaded:
                    self._guest = None
                guest = None
        self._answer(jobs)
        with self._using:
            self._checkpoint()
        return more

    def _take(self) -> tuple[list[Job], bool]:
        """All jobs that wait, at least one and not too many; False when there will be no more."""
        jobs = [self._queue.get()]
        with suppress(Empty):
            while len(jobs) < _JOBS_PER_TRANSACTION and jobs[-1].mode not in _ENDS_A_BATCH:
                jobs.append(self._queue.get_nowait())
        return jobs, jobs[-1].mode is not Mode.LAST

    def _welcome(self, job: Job) -> Guest | None:
        """Who is to stay, if anybody. Sent away at once, before it knows that it is here, if this is closing time."""
        if job.mode is not Mode.GUEST:
            return None
        guest: Guest = job.argument
        if job.error is not None:
            self._coming.remove(guest)
            return None
        self._guest = guest
        self._coming.remove(guest)  # after it is the guest: ``look`` finds it as one or the other
        if self._stopping:
            guest.leave()
        return guest

    def _run(self, jobs: list[Job]) -> None:
        for bare, part in groupby(jobs, _is_bare):
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
            except TransactionGone:
                continue  # each time one more commit of this job is known to do that
            except Exception as error:  # noqa: BLE001, RUF100  (it is the caller's to handle)
                self.fail([job], error)
            return

    def _transaction(self, jobs: list[Job]) -> None:
        self._reconnect()
        self._transaction_on(self.connection, jobs)

    def _transaction_on(self, connection: Connection, jobs: list[Job]) -> None:
        connection.execute(self._begin)
        try:
            self.stamp()
            for work, part in _calls(jobs):
                _call(self, work, part)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _answer(self, jobs: list[Job]) -> None:
        """Resolve the futures with one wake-up per event loop."""
        loops = {job.future.get_loop() for job in jobs}
        for loop in loops:
            mine = jobs if len(loops) == 1 else [job for job in jobs if job.future.get_loop() is loop]
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._answered if loop is self._loop else _resolve, mine)

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


_BARE = (Mode.BARE, Mode.GUEST, Mode.LAST)
_ENDS_A_BATCH = (Mode.GUEST, Mode.LAST)


def _is_bare(job: Job) -> bool:
    return job.mode in _BARE


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


def _nothing(_tx: Tx, _: None) -> None:
    """For the thread's sake, which looks after the WAL after each job."""


def answer(job: Job) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        job.future.get_loop().call_soon_threadsafe(_resolve, [job])


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future.done():  # the caller was cancelled; what it asked for is stored all the same
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)
