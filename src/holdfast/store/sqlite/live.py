"""A step's own transaction, open while the step runs.

It has the writer's connection for itself: SQLite lets one write at a time, so all others of this store would have to
wait for it anyway. Here they wait in the writer's queue, in their order, and not by asking for the file's lock again
and again. Its statements come by an inbox of its own and run on the writer's thread, or, in a store without threads,
where they are asked for.

A step that says nothing for as long as others would wait for a lock loses its transaction; or a step that waits for
one of those others would hold up everybody for ever.
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
from holdfast.store.sqlite.connection import Database, Job, Mode, answer
from holdfast.store.sqlite.errors import ENVIRONMENT, is_unique_violation
from holdfast.store.sqlite.guard import TransactionGone
from holdfast.store.sqlite.opening import BUSY_S
from holdfast.store.sqlite.tx import Tx

A = TypeVar("A")
R = TypeVar("R")

_SILENCE_S: float = BUSY_S
_LOOK_EVERY = 10_000
"""Instructions of SQLite: some tenths of a millisecond."""
_NOTHING_KEPT = (Verdict.LOST, Verdict.REJECTED)


class Live:
    """A ``LiveTransaction``: the upper half for the step, the lower half on the writer's thread."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = Lock()
        """Nothing is put into the inbox once it is over."""
        self._unwanted = False
        """A statement under way, which may take for ever, is to stop."""
        self._over: Committed | None = None
        """The answer to a commit that comes too late."""
        self._patience: asyncio.TimerHandle | None = None
        """Without a thread: ends it when it says nothing."""

    async def execute(self, sql: str, args: tuple[Any, ...]) -> int:
        return await self._statement(self._execute, sql, args)

    async def fetch(self, sql: str, args: tuple[Any, ...]) -> list[Mapping[str, Any]]:
        return await self._statement(self._fetch, sql, args)

    async def rollback(self) -> None:
        self._unwanted = True
        asked = self._ask(self._roll_back, "was rolled back")
        if asked is not None:
            await asked

    async def commit(self, one: Commit) -> Committed:
        """Apply it and end. Of one that is lost or rejected, and of the step's own statements then, nothing stays."""
        asked = self._ask(self._commit, one)
        return self._too_late() if asked is None else await asked

    def leave(self) -> None:
        """Have it undone soon. From any thread; nobody waits for it."""
        self._unwanted = True
        self._inbox.put(None)
        self._arrived()

    async def _statement(self, work: Callable[[Statement], R], sql: str, args: tuple[Any, ...]) -> R:
        asked = self._ask(work, Statement(sql, args))
        if asked is None:
            raise StateError(self._too_late().message)
        return await asked

    def _ask(self, work: Callable[[A], R], argument: A) -> asyncio.Future[R] | None:
        """None: it is over."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def call(_: Tx, given: A) -> R:
            return work(given)

        return future if self._put(Job(call, argument, Mode.BARE, future, anywhere=False)) else None

    def let_look(self, job: Job) -> bool:
        return self._put(job)

    def _put(self, job: Job) -> bool:
        with self._lock:
            if self._over is not None:
                return False
            self._inbox.put(job)
        self._arrived()
        return True

    def _too_late(self) -> Committed:
        if self._over is None:
            raise AssertionError("the transaction is not over")
        return self._over

    # --- without a thread

    def _arrived(self) -> None:
        """Something is in the inbox. Before it is open, and once it is over, nobody looks."""
        if self._patience is not None:
            self._patience.cancel()
            self._do_present()

    def _do_present(self) -> None:
        """What ``stay`` does, as far as it is asked for now."""
        while not self._inbox.empty():
            self._take(self._inbox.get())
        if self._over is None:
            self._patience = asyncio.get_running_loop().call_later(_SILENCE_S, self._was_silent)
        else:
            self._patience = None
            self.database.go_on()

    def _was_silent(self) -> None:
        self._take_silence()
        self._do_present()

    # --- on the thread

    def open(self) -> None:
        self.database.begin()

    def stay(self) -> None:
        """Do what is asked until it is over; then tell the rest so."""
        if not self.database.threaded:
            self._do_present()
            return
        while self._over is None or not self._inbox.empty():
            try:
                job = self._inbox.get(timeout=_SILENCE_S)
            except Empty:
                self._take_silence()
            else:
                self._take(job)

    def _take_silence(self) -> None:
        self._roll_back(f"said nothing for {_SILENCE_S:g} s, for which all others waited, and was rolled back")

    def _take(self, job: Job | None) -> None:
        if job is None:
            self._roll_back("was rolled back because the store was closed or nobody wanted it any more")
        else:
            self._do(job)

    def _do(self, job: Job) -> None:
        try:
            job.result = job.work(self.database, job.argument)
        except Exception as error:  # noqa: BLE001, RUF100  (it is the step's to handle)
            self.database.fail([job], error)
        if self._over is None and not self.database.in_transaction:
            self._end(_rejected(f"was rolled back by the database: {job.error}"))
        answer(job)

    def _execute(self, statement: Statement) -> int:
        connection = self.database.connection
        before = connection.total_changes()
        with self._watched() as run:
            for _ in run(statement):
                pass
        return connection.changes() if connection.total_changes() != before else 0

    def _fetch(self, statement: Statement) -> list[Mapping[str, Any]]:
        with self._watched() as run:
            cursor = run(statement)
            # Asked for each row: the text may hold several statements, and each has its own columns.
            return [
                {column[0]: value for column, value in zip(cursor.get_description(), row, strict=True)}
                for row in cursor
            ]

    @contextmanager
    def _watched(self) -> Iterator[Callable[[Statement], apsw.Cursor]]:
        """Users' statements: kept off what is not theirs, and their faults named."""
        if self._over is not None:
            raise StateError(self._over.message)
        database = self.database
        connection = database.connection
        connection.set_progress_handler(lambda: self._unwanted, _LOOK_EVERY)
        try:
            with database.guard.watching():
                yield lambda asked: connection.execute(asked.sql, asked.args, can_cache=False)
        except ENVIRONMENT:
            raise
        except apsw.Error as error:
            if not database.in_transaction:
                self._end(_rejected(f"was rolled back: {error}", unique=is_unique_violation(error)))
            raise _fault(error, database.guard.refusal) from error
        finally:
            connection.set_progress_handler(None)

    def _commit(self, one: Commit) -> Committed:
        if self._over is not None:
            return self._over
        database = self.database
        try:
            database.stamp()
            [committed] = commit(database, [one])
            if committed.verdict not in _NOTHING_KEPT:
                database.connection.execute("COMMIT")
        except TransactionGone:
            committed = database.refused.pop(id(one))
        finally:
            self._roll_back("is over")
        return committed

    def _roll_back(self, why: str) -> None:
        if self._over is None:
            self._end(_rejected(why))
            self.database.undo()

    def _end(self, over: Committed) -> None:
        with self._lock:
            self._over = over


def _rejected(why: str, *, unique: bool = False) -> Committed:
    return Committed(Verdict.REJECTED, unique=unique, message=f"the step's transaction {why}")


def _fault(error: apsw.Error, refusal: str | None) -> Exception:
    """What a step sees of a statement that failed by its own fault."""
    if refusal is not None:
        return InputError(refusal)
    if is_unique_violation(error):
        name = UniqueConstraintError.__name__
        return UniqueConstraintError(str(error), step="", type=name, kind="UniqueConstraint", retryable=False)
    return error
