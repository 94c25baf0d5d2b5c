"""A live transaction: open while its step runs, on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from holdfast.errors import InputError, StateError, UniqueConstraintError
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.errors import DRIVER_ERRORS, is_environment, is_unique_violation, translate
from holdfast.store.postgres.guard import STATEMENT_ERRORS, Guard, Refused, execute
from holdfast.store.postgres.tx import Connection, Tx
from holdfast.store.protocol import Commit, Committed, Statement, Verdict

R = TypeVar("R")
_NOTHING_WRITTEN = (Verdict.LOST, Verdict.REJECTED)


class Live:
    """Implements ``LiveTransaction``."""

    dialect = "postgresql"

    def __init__(self, database: Database, guard: Guard, connection: Connection) -> None:
        self.database = database
        self._guard = guard
        self._connection = connection
        self._lock = asyncio.Lock()
        self._ended: str | None = None
        """The way in which the transaction ended, for messages; None while it is open."""
        self._marker: str | None = None
        self._result: Committed | None = None
        """The result of a commit whose outcome is not known yet."""

    @classmethod
    async def begin(cls, database: Database, guard: Guard) -> Live:
        live = cls(database, guard, await database.begin())
        try:
            await guard.prepare(live._tx())
        except BaseException:
            await live.rollback()
            raise
        return live

    async def execute(self, sql: str, args: tuple[Any, ...]) -> int:
        _, status = await self._run(Statement(sql, args))
        last = status.rpartition(" ")[2]
        return int(last) if last.isdigit() and not status.startswith(("SELECT", "CREATE")) else 0

    async def fetch(self, sql: str, args: tuple[Any, ...]) -> list[Mapping[str, Any]]:
        rows, _ = await self._run(Statement(sql, args))
        return [dict(row) for row in rows]

    async def rollback(self) -> None:
        await self._end("was rolled back")

    async def commit(self, apply: Callable[[Tx, Commit], Awaitable[Committed]], commit: Commit) -> Committed:
        """Apply the commit and end. A lost or rejected commit rolls back the step's own statements too."""
        if self._marker is not None:
            return await self._outcome(self._marker)
        async with self._lock:
            if self._ended is not None:
                return _rejected(self._ended)
            try:
                return await self._commit(apply, commit)
            except DRIVER_ERRORS as error:
                if self._marker is None:
                    if is_environment(error, self._connection):
                        return _rejected(f"broke: {error}")
                    raise translate(error, self.database.where) from error
            finally:
                await self._end("has ended")
        return await self._outcome(self._marker)

    async def _commit(self, apply: Callable[[Tx, Commit], Awaitable[Committed]], commit: Commit) -> Committed:
        tx = self._tx()
        refusal = await self._guard.refusal(tx)
        if refusal is not None:
            return Committed(Verdict.REJECTED, message=refusal)
        result = await apply(tx, commit)
        if result.verdict not in _NOTHING_WRITTEN:
            self._result = result
            marker = self._marker = await self.database.markers.insert(self._connection)
            await self._connection.execute("COMMIT")
            self._marker = None
            self.database.markers.discard(marker)
        return result

    async def _outcome(self, marker: str) -> Committed:
        """The result of a commit whose connection broke before the reply to COMMIT."""
        committed = await self.database.was_committed(marker)
        self._marker = None
        if committed and self._result is not None:
            return self._result
        return _rejected("was rolled back because its connection broke")

    async def _run(self, statement: Statement) -> tuple[list[Any], str]:
        async with self._lock:
            if self._ended is not None:
                raise StateError(f"the step's transaction {self._ended}")
            try:
                return await execute(self._connection, statement)
            except Refused as error:
                raise InputError(str(error)) from None
            except STATEMENT_ERRORS as error:
                raise self._step_error(error) from error
            except DRIVER_ERRORS as error:
                raise translate(error, self.database.where) from error

    def _step_error(self, error: Exception) -> Exception:
        """The exception that a step gets for a failed statement."""
        if is_environment(error, self._connection):
            return translate(error, self.database.where)
        if is_unique_violation(error):
            name = UniqueConstraintError.__name__
            return UniqueConstraintError(str(error), step="", type=name, kind="UniqueConstraint", retryable=False)
        return error

    async def _end(self, reason: str) -> None:
        if self._ended is None:
            self._ended = reason
            await self.database.release(self._connection)

    def _tx(self) -> Tx:
        return self.database.tx(self._connection)


def _rejected(reason: str) -> Committed:
    return Committed(Verdict.REJECTED, message=f"the step's transaction {reason}")
