"""Live transactions: the transaction of a step, open while the step runs.

A live transaction uses the writer's connection exclusively. SQLite allows one writer at a time, so all other writes of
this store would have to wait in any case. They wait in the writer's queue, in their order, instead of polling for the
file's lock. The statements of the step have a queue of their own. They run on the writer's thread, or at the call in a
store without threads.

A live transaction without statements for as long as the busy timeout is rolled back. Otherwise a step that waits for a
write of this store inside its transaction would block all writes forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, TypeVar

import apsw

from holdfast.errors import InputError, StateError, UniqueConstraintError
from holdfast.store.protocol import Commit, Committed, Statement, Verdict
from holdfast.store.sqlite.commit import commit
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.errors import ENVIRONMENT, is_unique_violation
from holdfast.store.sqlite.guard import TransactionRolledBack
from holdfast.store.sqlite.jobs import Job, Mode, resolve_from_thread
from holdfast.store.sqlite.opening import BUSY_S
from holdfast.store.sqlite.tx import Tx

A = TypeVar("A")
R = TypeVar("R")

_IDLE_TIMEOUT_S: float = BUSY_S
_ABORT_CHECK_INTERVAL = 10_000
"""In instructions of SQLite's virtual machine: a few tenths of a millisecond."""
_ROLLED_BACK = (Verdict.LOST, Verdict.REJECTED)


class Live:
    """A ``LiveTransaction``. The step calls the first methods; the last section runs on the writer's thread."""

    dialect = "sqlite"

    def __init__(self, database: Database) -> None:
        self.database = database
        self._tx = database.tx
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = Lock()
        """Guards ``_end_result``: no job is queued after the end."""
        self._abort_requested = False
        """Interrupts a running statement, which could otherwise take forever."""
        self._end_result: Committed | None = None
        """Set at the end of the transaction: the result of commits and statements that come later."""
        self._idle_timer: asyncio.TimerHandle | None = None
        """Without a thread: rolls the transaction back when it has had no statement for too long."""

    async def execute(self, sql: str, args: tuple[Any, ...]) -> int:
        return await self._statement(self._execute, sql, args)

    async def fetch(self, sql: str, args: tuple[Any, ...]) -> list[Mapping[str, Any]]:
        return await self._statement(self._fetch, sql, args)

    async def rollback(self) -> None:
        self._abort_requested = True
        future = self._submit(self._roll_back, "was rolled back")
        if future is not None:
            await future

    async def commit(self, one: Commit) -> Committed:
        """Apply the commit and end. If it is lost or rejected, the step's own statements are rolled back too."""
        future = self._submit(self._commit, one)
        return self._late_result() if future is None else await future

    def request_end(self) -> None:
        """Request a rollback without waiting for it. May be called by any thread."""
        self._abort_requested = True
        self._jobs.put(None)
        self._serve_if_unthreaded()

    async def _statement(self, work: Callable[[Statement], R], sql: str, args: tuple[Any, ...]) -> R:
        future = self._submit(work, Statement(sql, args))
        if future is None:
            raise StateError(self._late_result().message)
        return await future

    def _submit(self, work: Callable[[A], R], argument: A) -> asyncio.Future[R] | None:
        """Queue a job; None if the transaction has ended."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def call(_: Tx, argument: A) -> R:
            return work(argument)

        return future if self._enqueue(Job(call, argument, Mode.BARE, future, inline=False)) else None

    def submit_read(self, job: Job) -> bool:
        return self._enqueue(job)

    def _enqueue(self, job: Job) -> bool:
        with self._lock:
            if self._end_result is not None:
                return False
            self._jobs.put(job)
        self._serve_if_unthreaded()
        return True

    def _late_result(self) -> Committed:
        if self._end_result is None:
            raise AssertionError("the transaction has not ended")
        return self._end_result

    # --- without a thread

    def _serve_if_unthreaded(self) -> None:
        """Without a thread, run the queued jobs now; does nothing before the transaction is open and after its end."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._serve_pending()

    def _serve_pending(self) -> None:
        """Run the jobs that are queued now; the counterpart of ``serve`` in a store without threads."""
        while not self._jobs.empty():
            self._handle(self._jobs.get())
        if self._end_result is None:
            self._idle_timer = asyncio.get_running_loop().call_later(_IDLE_TIMEOUT_S, self._on_idle)
        else:
            self._idle_timer = None
            self.database.resume_queue()

    def _on_idle(self) -> None:
        self._end_idle()
        self._serve_pending()

    # --- on the thread

    def open(self) -> None:
        self._tx.begin_checked()

    def serve(self) -> None:
        """Run jobs until the transaction has ended; then reject the remaining jobs."""
        if not self.database.threaded:
            self._serve_pending()
            return
        while self._end_result is None or not self._jobs.empty():
            try:
                job = self._jobs.get(timeout=_IDLE_TIMEOUT_S)
            except Empty:
                self._end_idle()
            else:
                self._handle(job)

    def _end_idle(self) -> None:
        self._roll_back(
            f"had no statement for {_IDLE_TIMEOUT_S:g} s while all other writes waited, and was rolled back"
        )

    def _handle(self, job: Job | None) -> None:
        if job is None:
            self._roll_back("was rolled back because the store was closed or its step was cancelled")
        else:
            self._run_job(job)

    def _run_job(self, job: Job) -> None:
        try:
            job.result = job.work(self._tx, job.argument)
        except Exception as error:  # the step handles it
            self.database.runner.fail([job], error)
        if self._end_result is None and not self._tx.in_transaction:
            self._end(_rejected(f"was rolled back by the database: {job.error}"))
        resolve_from_thread(job)

    def _execute(self, statement: Statement) -> int:
        connection = self._tx.connection
        before = connection.total_changes()
        with self._guarded() as run:
            for _ in run(statement):
                pass
        return connection.changes() if connection.total_changes() != before else 0

    def _fetch(self, statement: Statement) -> list[Mapping[str, Any]]:
        with self._guarded() as run:
            cursor = run(statement)
            # Read for each row: the text may hold several statements, and each has its own columns.
            return [
                {column[0]: value for column, value in zip(cursor.get_description(), row, strict=True)}
                for row in cursor
            ]

    @contextmanager
    def _guarded(self) -> Iterator[Callable[[Statement], apsw.Cursor]]:
        """Run a user's statements under the guard, and translate their errors."""
        if self._end_result is not None:
            raise StateError(self._end_result.message)
        tx = self._tx
        connection = tx.connection
        connection.set_progress_handler(lambda: self._abort_requested, _ABORT_CHECK_INTERVAL)
        try:
            with tx.guard.enforcing():
                yield lambda statement: connection.execute(statement.sql, statement.args, can_cache=False)
        except ENVIRONMENT:
            raise
        except apsw.Error as error:
            if not tx.in_transaction:
                self._end(_rejected(f"was rolled back: {error}", unique=is_unique_violation(error)))
            raise _statement_error(error, tx.guard.refusal) from error
        finally:
            connection.set_progress_handler(None)

    def _commit(self, one: Commit) -> Committed:
        if self._end_result is not None:
            return self._end_result
        tx = self._tx
        try:
            tx.prepare()
            [committed] = commit(tx, [one])
            if committed.verdict not in _ROLLED_BACK:
                tx.connection.execute("COMMIT")
        except TransactionRolledBack:
            committed = tx.rejections.pop(id(one))
        finally:
            self._roll_back("has ended")
        return committed

    def _roll_back(self, why: str) -> None:
        if self._end_result is None:
            self._end(_rejected(why))
            self._tx.roll_back()

    def _end(self, result: Committed) -> None:
        with self._lock:
            self._end_result = result


def _rejected(why: str, *, unique: bool = False) -> Committed:
    return Committed(Verdict.REJECTED, unique=unique, message=f"the step's transaction {why}")


def _statement_error(error: apsw.Error, refusal: str | None) -> Exception:
    """The exception that a step receives for a statement that failed because of the statement itself."""
    if refusal is not None:
        return InputError(refusal)
    if is_unique_violation(error):
        name = UniqueConstraintError.__name__
        return UniqueConstraintError(str(error), step="", type=name, kind="UniqueConstraint", retryable=False)
    return error


async def begin(database: Database) -> Live:
    """Open a live transaction. It ends with its commit, its rollback, or the cancellation of this call."""
    live = Live(database)
    try:
        await database.submit(_open, live, Mode.EXCLUSIVE)
    except asyncio.CancelledError:
        live.request_end()  # the transaction is open already, or will be opened
        raise
    return live


def _open(_: Tx, live: Live) -> None:
    live.open()
