"""Connections to the server, and what is done when one breaks.

A pool for what clients and workers ask; one connection is kept apart for heartbeats, so that they never wait behind
anything. A call that met a deadlock is made again; one whose connection broke is made again as soon as the server is
back, within the bound of its patience. Whether the first try was done nobody knows then: that it is not done twice is
up to the intents, which leave marks by which they know their own traces.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

import asyncpg

from holdfast.errors import AppClosedError
from holdfast.ports import Clock, Randomness
from holdfast.store.postgres.errors import DRIVER, Fault, fault, is_gone, translate
from holdfast.store.postgres.pool import Pool
from holdfast.store.postgres.settings import Settings
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Connection, Tx, Work

A = TypeVar("A")
R = TypeVar("R")

_DEADLOCKS = 20
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.5
_ANSWER_S = 60.0
"""After so long without an answer to a statement of the store's own, the connection counts as broken."""
_CLEAN_S = 5.0
_KEPT_FREE = 2
"""Connections of the pool that steps' transactions leave to others."""


@dataclass(slots=True)
class Attempt(Generic[R]):
    """A transaction that was about to be committed: its mark, and what to answer if it was."""

    mark: str | None = None
    answer: R | None = None


class Database:
    def __init__(
        self,
        settings: Settings,
        schema: str,
        by: str,
        now: Callable[[], int | None],
        local: Clock,
        random: Randomness,
    ) -> None:
        self.where = settings.where
        self._settings = settings
        self._schema = schema
        self._by = by
        self._now = now
        self._local = local
        self._random = random
        self._pool: Pool | None = None
        self._closing = False
        self._reserved: Connection | None = None
        self._reserving = asyncio.Lock()
        self._steps = asyncio.Semaphore(settings.pool_size - _KEPT_FREE)
        self._spent: list[str] = []
        self._lent: set[Connection] = set()
        """To steps, for their transactions."""
        self.is_alone: Callable[[], bool] = lambda: False

    # --- life

    async def open(self) -> None:
        self._closing = False
        self._pool = Pool(self._settings.pool_size, self._another, self._local.monotonic)

    async def close(self) -> None:
        self._closing = True
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            await _close(reserved)
        if self._pool is None:
            return
        while self._lent:
            lent = self._lent.pop()
            if not is_gone(lent):
                lent.terminate()
            self._pool.release(lent)
        await self._pool.close(self._settings.patience)
        self._pool = None  # not before: those that are lent have to find the way back

    async def connect(self) -> Any:
        """A connection of one's own."""
        return await self._another()

    def tx(self, connection: Connection, *, again: bool = False, theirs: bool = False) -> Tx:
        """``theirs``: the connection is the caller's, and nobody knows when the transaction is committed."""
        return Tx(connection, self._schema, self._now(), self._by, again, not theirs and self.is_alone())

    # --- calls

    async def call(self, work: Work[A, R], argument: A) -> R:
        """Do it on a connection of the pool."""
        again = False

        def use(connection: Connection) -> Awaitable[R]:
            nonlocal again
            tx = self.tx(connection, again=again)
            again = True
            return self._do(tx, work, argument)

        return await self._patiently(partial(self._borrowing, use))

    async def call_reserved(self, work: Work[A, R], argument: A) -> R:
        """Do it on the connection that is kept apart."""
        again = False

        async def once() -> R:
            nonlocal again
            async with self._reserving, self._kept() as connection:
                tx = self.tx(connection, again=again)
                again = True
                return await self._do(tx, work, argument)

        return await self._patiently(once)

    async def transact(
        self, work: Work[A, R], argument: A, keep: Callable[[R], bool], attempt: Attempt[R], *, users: bool = False
    ) -> R:
        """Do it in a transaction of its own, and commit if its answer says so.

        ``attempt`` is what is known of earlier tries; it is the caller's to give it again if this one is cut off.
        ``users``: it has users' statements, which may leave settings behind.
        """

        async def use(connection: Connection) -> R:
            if attempt.mark is not None and await self._was_committed(connection, attempt.mark):
                return cast("R", attempt.answer)
            attempt.mark = None
            await connection.execute("BEGIN")
            answer = await work(self.tx(connection), argument)
            if not keep(answer):
                await connection.execute("ROLLBACK")
                return answer
            attempt.answer = answer
            attempt.mark = await self.mark(connection)
            await connection.execute("COMMIT")
            self.forget(attempt.mark)
            return answer

        return await self._patiently(partial(self._borrowing, use, users=users))

    async def begin(self) -> Connection:
        """A connection in a transaction, to be given back with ``give_back``."""
        await self._steps.acquire()
        try:
            connection = await self._patiently(self._begin_once)
        except BaseException:
            self._steps.release()
            raise
        self._lent.add(connection)
        return connection

    async def give_back(self, connection: Connection) -> None:
        """The connection of ``begin``, in whatever state."""
        if connection not in self._lent:
            return  # the store was closed, and it with it
        self._lent.remove(connection)
        self._steps.release()
        await self._clean_up(connection)

    async def was_committed(self, mark: str) -> bool:
        """What became of a transaction whose connection broke."""

        async def use(connection: Connection) -> bool:
            return await self._was_committed(connection, mark)

        return await self._patiently(partial(self._borrowing, use))

    async def mark(self, connection: Connection) -> str:
        """Leave a mark by which it can be asked later whether this transaction was committed."""
        spent, self._spent = self._spent, []
        mark: str = await connection.fetchval(statements("commit", self._schema)["mark"], spent)
        return mark

    def forget(self, mark: str) -> None:
        """The transaction was committed: nobody will ask."""
        self._spent.append(mark)

    # --- inside

    async def _another(self) -> Any:
        return await asyncpg.connect(
            self._settings.dsn,
            timeout=math.ceil(max(self._settings.patience, 1.0)),
            command_timeout=_ANSWER_S,
            statement_cache_size=self._settings.statement_cache_size,
            server_settings={"application_name": "holdfast"},
        )

    def _do(self, tx: Tx, work: Work[A, R], argument: A) -> Awaitable[R]:
        pooled = not self._settings.statement_cache_size
        return self._do_in_one_go(tx, work, argument) if pooled else work(tx, argument)

    async def _do_in_one_go(self, tx: Tx, work: Work[A, R], argument: A) -> R:
        """Behind a transaction pooler: what belongs together, but is not in one transaction, may go to two servers."""
        await tx.connection.execute("BEGIN")
        answer = await work(tx, argument)
        await tx.connection.execute("COMMIT")
        return answer

    async def _begin_once(self) -> Connection:
        connection = await self._take()
        try:
            await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        except BaseException:
            await self._clean_up(connection)
            raise
        return connection

    async def _was_committed(self, connection: Connection, mark: str) -> bool:
        return await self._do(self.tx(connection), _outcome, mark)

    async def _borrowing(self, use: Callable[[Connection], Awaitable[R]], *, users: bool = False) -> R:
        connection = self._idle() or await self._take()
        try:
            answer = await use(connection)
        except BaseException as error:
            broken = _is_broken(error, connection)
            await self._clean_up(connection)
            if broken:
                raise ConnectionResetError("the connection is closed") from error
            raise
        if users:
            await self._clean_up(connection)
        else:
            self._release(connection)
        return answer

    async def _take(self) -> Connection:
        if self._pool is None:
            raise AppClosedError(f"the store on {self.where} was closed")
        return await self._pool.acquire()

    def _idle(self) -> Connection | None:
        return None if self._pool is None else self._pool.idle()

    def _release(self, connection: Connection) -> None:
        if self._pool is not None:
            self._pool.release(connection)

    async def _clean_up(self, connection: Connection) -> None:
        """Users had it, or what it was used for failed or was given up, and nobody knows how far it got."""
        # Also if whoever gave up does so a second time.
        await asyncio.shield(asyncio.ensure_future(self._clean(connection)))

    async def _clean(self, connection: Connection) -> None:
        try:
            if not is_gone(connection):
                async with asyncio.timeout(_CLEAN_S):
                    await connection.execute("ROLLBACK")
                    await connection.execute("RESET ALL")
                if _is_to_standby(connection):  # after a failover; a new one may lead to the primary
                    connection.terminate()
        except DRIVER:
            if not is_gone(connection):
                connection.terminate()
        self._release(connection)

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[Connection]:
        connection = self._reserved
        if connection is None or connection.is_closed():
            connection = self._reserved = await self.connect()
        try:
            yield connection
        except BaseException as error:
            self._reserved = None
            broken = _is_broken(error, connection)
            connection.terminate()
            if broken:
                raise ConnectionResetError("the connection is closed") from error
            raise

    async def _patiently(self, once: Callable[[], Awaitable[R]]) -> R:
        until = self._local.monotonic() + self._settings.patience
        failures = 0
        while True:
            try:
                return await once()
            except DRIVER as error:
                failures += 1
                kind = fault(error, None)
                if self._closing or kind is Fault.OTHER:
                    raise translate(error, self.where) from error
                if kind is Fault.TRANSIENT and failures > _DEADLOCKS:
                    raise translate(error, self.where) from error
                if kind is Fault.AWAY and self._local.monotonic() >= until:
                    raise translate(error, self.where) from error
            await asyncio.sleep(self._pause(failures))

    def _pause(self, failures: int) -> float:
        doubled: float = _FIRST_PAUSE_S * 2 ** min(failures - 1, 10)
        return min(_LONGEST_PAUSE_S, doubled) * (0.5 + self._random.random())


def _is_broken(error: BaseException, connection: Connection) -> bool:
    """Of one that was closed before it could be used, the driver says that it was used wrongly."""
    return isinstance(error, asyncpg.InterfaceError) and is_gone(connection)


async def _outcome(tx: Tx, mark: str) -> bool:
    found: bool = await tx.connection.fetchval(statements("commit", tx.schema)["outcome"], mark)
    return found


def _is_to_standby(connection: Connection) -> bool:
    return getattr(connection.get_settings(), "in_hot_standby", "off") == "on"


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=5)
    except DRIVER:
        connection.terminate()
