"""A step's own transaction, open while the step runs, on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from holdfast.errors import InputError, StateError, UniqueConstraintError
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.errors import DRIVER, is_environment, is_unique_violation, translate
from holdfast.store.postgres.guard import FAULTS, Guard, Refused, execute
from holdfast.store.postgres.tx import Connection, Tx
from holdfast.store.protocol import Commit, Committed, Statement, Verdict

R = TypeVar("R")
_NOTHING_KEPT = (Verdict.LOST, Verdict.REJECTED)


class Live:
    """A ``LiveTransaction``."""

    def __init__(self, database: Database, guard: Guard, connection: Connection) -> None:
        self.database = database
        self._guard = guard
        self._connection = connection
        self._one_at_a_time = asyncio.Lock()
        self._over: str | None = None
        """Why nothing more can be done with it."""
        self._mark: str | None = None
        self._answer: Committed | None = None
        """To a commit whose outcome is not known yet."""

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
        _, done = await self._run(Statement(sql, args))
        last = done.rpartition(" ")[2]
        return int(last) if last.isdigit() and not done.startswith(("SELECT", "CREATE")) else 0

    async def fetch(self, sql: str, args: tuple[Any, ...]) -> list[Mapping[str, Any]]:
        rows, _ = await self._run(Statement(sql, args))
        return [dict(row) for row in rows]

    async def rollback(self) -> None:
        await self._end("was rolled back")

    async def commit(self, apply: Callable[[Tx, Commit], Awaitable[Committed]], one: Commit) -> Committed:
        """Apply it and end. Of one that is lost or rejected, and of the step's own statements then, nothing stays."""
        if self._mark is not None:
            return await self._settled(self._mark)
        async with self._one_at_a_time:
            if self._over is not None:
                return _rejected(self._over)
            try:
                return await self._commit(apply, one)
            except DRIVER as error:
                if self._mark is None:
                    if is_environment(error, self._connection):
                        return _rejected(f"broke: {error}")
                    raise translate(error, self.database.where) from error
            finally:
                await self._end("is over")
        return await self._settled(self._mark)

    async def _commit(self, apply: Callable[[Tx, Commit], Awaitable[Committed]], one: Commit) -> Committed:
        tx = self._tx()
        refusal = await self._guard.refusal(tx)
        if refusal is not None:
            return Committed(Verdict.REJECTED, message=refusal)
        answer = await apply(tx, one)
        if answer.verdict not in _NOTHING_KEPT:
            self._answer = answer
            mark = self._mark = await self.database.mark(self._connection)
            await self._connection.execute("COMMIT")
            self._mark = None
            self.database.forget(mark)
        return answer

    async def _settled(self, mark: str) -> Committed:
        """The connection broke before the answer to COMMIT."""
        committed = await self.database.was_committed(mark)
        self._mark = None
        if committed and self._answer is not None:
            return self._answer
        return _rejected("was rolled back because its connection broke")

    async def _run(self, statement: Statement) -> tuple[list[Any], str]:
        async with self._one_at_a_time:
            if self._over is not None:
                raise StateError(f"the step's transaction {self._over}")
            try:
                return await execute(self._connection, statement)
            except Refused as error:
                raise InputError(str(error)) from None
            except FAULTS as error:
                raise self._fault(error) from error
            except DRIVER as error:
                raise translate(error, self.database.where) from error

    def _fault(self, error: Exception) -> Exception:
        """What a step sees of a statement that failed."""
        if is_environment(error, self._connection):
            return translate(error, self.database.where)
        if is_unique_violation(error):
            name = UniqueConstraintError.__name__
            return UniqueConstraintError(str(error), step="", type=name, kind="UniqueConstraint", retryable=False)
        return error

    async def _end(self, why: str) -> None:
        if self._over is None:
            self._over = why
            await self.database.give_back(self._connection)

    def _tx(self) -> Tx:
        return self.database.tx(self._connection)


def _rejected(why: str) -> Committed:
    return Committed(Verdict.REJECTED, message=f"the step's transaction {why}")
