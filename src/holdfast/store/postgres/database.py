"""Connections to the server, and calls of intents on them.

Calls of clients and workers use a pool. One more connection is reserved for heartbeats, so that they never wait for
other calls. A call that failed with a deadlock is repeated; a call whose connection broke is repeated as soon as the
server is available again, for at most ``connect_timeout`` (``store/retry.py`` has the rules for all calls). Whether the
first attempt was committed is not known then. The intents make sure that nothing is written twice: they recognise the
rows that an earlier attempt wrote.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar, cast

import asyncpg

from holdfast.errors import AppClosedError
from holdfast.ports import Clock, Randomness
from holdfast.store.postgres.errors import DRIVER_ERRORS, FAILED_OVER, Fault, classify, is_gone, sqlstate, translate
from holdfast.store.postgres.failovers import Timeline, enter_timeline
from holdfast.store.postgres.markers import MarkedTransaction, Markers, is_committed
from holdfast.store.postgres.pool import Pool
from holdfast.store.postgres.settings import Settings
from holdfast.store.postgres.tx import Connection, Tx, Work
from holdfast.store.protocol import Failovers
from holdfast.store.retry import backoff, call_with_retry

A = TypeVar("A")
R = TypeVar("R")

_MAX_DEADLOCKS = 20
_FIRST_BACKOFF_S = 0.005
_MAX_BACKOFF_S = 0.5
_STATEMENT_TIMEOUT_S = 60.0
"""A connection without a reply to a statement of the store for this long counts as broken."""
_CLEAN_UP_TIMEOUT_S = 5.0
_KEPT_FREE = 2
"""Connections of the pool that live transactions must leave for other calls."""


class Database:
    def __init__(
        self,
        settings: Settings,
        schema: str,
        store_id: str,
        now: Callable[[], int | None],
        local: Clock,
        random: Randomness,
        failovers: Failovers,
    ) -> None:
        self.where = settings.where
        self._settings = settings
        self._schema = schema
        self._store_id = store_id
        self.markers = Markers(schema)
        self._now = now
        self._local = local
        self._random = random
        self._timeline = Timeline(settings.where, failovers)
        self._to_standby: set[Connection] = set()
        """Connections that were opened to a standby. The timeline of a standby is known only after its promotion."""
        self._pooled = not settings.statement_cache_size
        """Connections lead to a transaction pooler, which may send each transaction to another session or server."""
        self._pool: Pool | None = None
        self._closing = False
        self._reserved: Connection | None = None
        self._reserved_lock = asyncio.Lock()
        self._step_slots = asyncio.Semaphore(settings.pool_size - _KEPT_FREE)
        self._step_connections: set[Connection] = set()
        """Connections of live transactions."""

    # --- lifecycle

    async def open(self) -> None:
        self._closing = False
        self._pool = Pool(self._settings.pool_size, self._connect, self._local.monotonic)

    async def follow_timeline(self) -> None:
        """Notice failovers from now on. The database must have the functions of this release."""
        timeline = await self.call(enter_timeline, None)
        self._timeline.found(0 if timeline is None else timeline)

    async def close(self) -> None:
        self._closing = True
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            await _close(reserved)
        if self._pool is None:
            return
        while self._step_connections:
            connection = self._step_connections.pop()
            if not is_gone(connection):
                connection.terminate()
            self._pool.release(connection)
        await self._pool.close(self._settings.connect_timeout)
        self._pool = None  # last, because connections in use are released to the pool

    async def connect(self) -> Any:
        """Open a connection outside the pool."""
        return await self._connect()

    def tx(self, connection: Connection, *, is_retry: bool = False, failed_over: bool = False) -> Tx:
        return Tx(connection, self._schema, self._now(), self._store_id, is_retry, failed_over)

    # --- calls

    def call(self, work: Work[A, R], argument: A) -> Awaitable[R]:
        """Run an intent on a connection of the pool."""
        is_retry = False
        timeline = self._timeline.known

        def use(connection: Connection) -> Awaitable[R]:
            nonlocal is_retry
            tx = self.tx(connection, is_retry=is_retry, failed_over=timeline != self._timeline.known)
            is_retry = True
            return self._run(tx, work, argument)

        return self._with_retry(partial(self._with_connection, use))

    async def call_reserved(self, work: Work[A, R], argument: A) -> R:
        """Run an intent on the reserved connection."""
        is_retry = False

        async def once() -> R:
            nonlocal is_retry
            async with self._reserved_lock, self._reserved_connection() as connection:
                await self._enter(connection)  # through a pooler, a failover may leave all connections open
                tx = self.tx(connection, is_retry=is_retry)
                is_retry = True
                return await self._run(tx, work, argument)

        return await self._with_retry(once)

    async def transact(
        self,
        work: Work[A, R],
        argument: A,
        should_commit: Callable[[R], bool],
        transaction: MarkedTransaction[R],
        *,
        user_statements: bool = False,
    ) -> R:
        """Run an intent in its own transaction, and commit if ``should_commit`` returns True.

        ``transaction`` holds what is known of earlier attempts; after a failure the caller passes it again.
        ``user_statements``: the intent runs users' statements, which may change settings of the session.
        """

        async def use(connection: Connection) -> R:
            if transaction.marker is not None and await self._run(
                self.tx(connection), is_committed, transaction.marker
            ):
                return cast("R", transaction.result)
            transaction.marker = None
            await self._begin(connection)
            result = await work(self.tx(connection), argument)
            if not should_commit(result):
                await connection.execute("ROLLBACK")
                return result
            transaction.result = result
            transaction.marker = await self.markers.insert(connection)
            await connection.execute("COMMIT")
            self.markers.discard(transaction.marker)
            return result

        return await self._with_retry(partial(self._with_connection, use, user_statements=user_statements))

    async def begin(self) -> Connection:
        """Open a live transaction; its connection must be returned with ``release``."""
        await self._step_slots.acquire()
        try:
            connection = await self._with_retry(self._begin_once)
        except BaseException:
            self._step_slots.release()
            raise
        self._step_connections.add(connection)
        return connection

    async def release(self, connection: Connection) -> None:
        """Return the connection of a live transaction, in whatever state."""
        if connection not in self._step_connections:
            return  # closed together with the store
        self._step_connections.remove(connection)
        self._step_slots.release()
        await self._clean_up(connection)

    async def was_committed(self, marker: str) -> bool:
        """True if the transaction with this marker was committed; for transactions whose connection broke."""

        async def use(connection: Connection) -> bool:
            return await self._run(self.tx(connection), is_committed, marker)

        return await self._with_retry(partial(self._with_connection, use))

    # --- internals

    async def _connect(self) -> Any:
        connection = await asyncpg.connect(
            self._settings.dsn,
            timeout=math.ceil(max(self._settings.connect_timeout, 1.0)),
            command_timeout=_STATEMENT_TIMEOUT_S,
            statement_cache_size=self._settings.statement_cache_size,
            server_settings={"application_name": "holdfast"},
        )
        try:
            await self._enter(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _enter(self, connection: Connection) -> None:
        """Ask for the timeline of the connection's server, before the first write there."""
        if self._timeline.known is None:
            return
        tx = self.tx(connection)
        if self._pooled:
            await connection.execute("BEGIN")
        timeline = await enter_timeline(tx, None)
        if self._pooled:
            await connection.execute("COMMIT")
        if timeline is None:
            self._to_standby.add(connection)
        else:
            self._timeline.found(timeline)

    async def _begin(self, connection: Connection, begin: str = "BEGIN") -> None:
        """Begin a transaction; through a pooler, check that it is on the server that the store knows."""
        if not self._pooled or self._timeline.known is None:
            await connection.execute(begin)
            return
        check = f'SELECT "{self._schema}".holdfast_check_timeline({self._timeline.known})'
        try:
            await connection.execute(f"{begin}; {check}")
        except asyncpg.PostgresError as error:
            if sqlstate(error) != FAILED_OVER:
                raise
            await connection.execute("ROLLBACK")
            await self._enter(connection)
            raise ConnectionResetError("the server has failed over") from error

    def _run(self, tx: Tx, work: Work[A, R], argument: A) -> Awaitable[R]:
        return self._run_in_transaction(tx, work, argument) if self._pooled else work(tx, argument)

    async def _run_in_transaction(self, tx: Tx, work: Work[A, R], argument: A) -> R:
        """Run the intent in a transaction: a transaction pooler may send separate statements to different sessions."""
        await self._begin(tx.connection)
        result = await work(tx, argument)
        await tx.connection.execute("COMMIT")
        return result

    async def _begin_once(self) -> Connection:
        connection = await self._take()
        try:
            await self._begin(connection, "BEGIN ISOLATION LEVEL READ COMMITTED")
        except BaseException:
            await self._clean_up(connection)
            raise
        return connection

    async def _with_connection(self, use: Callable[[Connection], Awaitable[R]], *, user_statements: bool = False) -> R:
        connection = (None if self._pool is None else self._pool.idle()) or await self._take()
        try:
            result = await use(connection)
        except BaseException as error:
            broken = _is_broken(error, connection)
            await self._clean_up(connection)
            if broken:
                raise ConnectionResetError("the connection is closed") from error
            raise
        if user_statements:
            await self._clean_up(connection)
        else:
            self._release(connection)
        return result

    async def _take(self) -> Connection:
        if self._pool is None:
            raise AppClosedError(f"the store on {self.where} was closed")
        return await self._pool.acquire()

    def _release(self, connection: Connection) -> None:
        if connection in self._to_standby:  # the standby may be promoted, and the next user would not notice
            self._to_standby.discard(connection)
            if not is_gone(connection):
                connection.terminate()
        if self._pool is not None:
            self._pool.release(connection)

    def _clean_up(self, connection: Connection) -> Awaitable[None]:
        """Reset and release a connection after users' statements or after a failed or cancelled call."""
        # Shielded, because the caller may be cancelled a second time.
        return asyncio.shield(asyncio.ensure_future(_clean(connection, self._release)))

    @asynccontextmanager
    async def _reserved_connection(self) -> AsyncIterator[Connection]:
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

    def _with_retry(self, once: Callable[[], Awaitable[R]]) -> Awaitable[R]:
        deadline = self._local.monotonic() + self._settings.connect_timeout
        return call_with_retry(once, DRIVER_ERRORS, self._pause_after, deadline)

    def _pause_after(self, error: Exception, failures: int, deadline: float) -> float:
        """Seconds until the next attempt of a failed call; raises the translated error if there is none."""
        fault = classify(error, None)
        retry = (fault is Fault.TRANSIENT and failures <= _MAX_DEADLOCKS) or (
            fault is Fault.UNAVAILABLE and self._local.monotonic() < deadline
        )
        if self._closing or not retry:
            raise translate(error, self.where) from error
        return backoff(failures, self._random, _FIRST_BACKOFF_S, _MAX_BACKOFF_S)


def _is_broken(error: BaseException, connection: Connection) -> bool:
    """True if the connection was closed before use, which the driver reports as a wrong use of its interface."""
    return isinstance(error, asyncpg.InterfaceError) and is_gone(connection)


def _is_to_standby(connection: Connection) -> bool:
    return getattr(connection.get_settings(), "in_hot_standby", "off") == "on"


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=5)
    except DRIVER_ERRORS:
        connection.terminate()


async def _clean(connection: Connection, release: Callable[[Connection], None]) -> None:
    try:
        if not is_gone(connection):
            async with asyncio.timeout(_CLEAN_UP_TIMEOUT_S):
                await connection.execute("ROLLBACK")
                await connection.execute("RESET ALL")
            if _is_to_standby(connection):  # after a failover; a new connection may reach the primary
                connection.terminate()
    except DRIVER_ERRORS:
        if not is_gone(connection):
            connection.terminate()
    release(connection)
