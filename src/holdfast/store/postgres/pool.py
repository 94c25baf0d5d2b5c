"""A pool of connections, each lent to one caller at a time.

The driver's own pool needs several iterations of the event loop to release a connection, which cost as much as a
short statement. A caller of this pool resets or closes a connection before it releases the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from holdfast.errors import AppClosedError
from holdfast.store.postgres.errors import DRIVER_ERRORS, is_gone
from holdfast.store.postgres.tx import Connection

_MAX_IDLE_S = 300.0
_CLOSE_TIMEOUT_S = 5.0


class Pool:
    def __init__(self, size: int, connect: Callable[[], Awaitable[Any]], monotonic: Callable[[], float]) -> None:
        self._size = size
        self._connect = connect
        self._monotonic = monotonic
        self._idle: deque[tuple[Connection, float]] = deque()
        """Idle connections, each with the time of its release. The newest is lent first, so the oldest can expire."""
        self._lent: set[Connection] = set()
        self._connecting = 0
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()
        """Each gets a connection, or None if the caller may open one."""
        self._closing: asyncio.Event | None = None
        """None while the pool is open; set whenever a connection is released during ``close``."""

    def idle(self) -> Connection | None:
        """An idle connection, without waiting; None if there is none."""
        self._refuse_if_closed()
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():
                self._lent.add(connection)
                return connection
        return None

    async def acquire(self) -> Connection:
        while True:
            connection = self.idle()
            if connection is not None:
                return connection
            if len(self._lent) + self._connecting < self._size:
                return await self._open()
            connection = await self._wait_for_release()
            if connection is not None:
                return connection

    def release(self, connection: Connection) -> None:
        if connection not in self._lent:
            return
        gone = is_gone(connection)
        if not gone and self._closing is None and self._wake_next(connection):
            return
        self._lent.remove(connection)
        if gone:
            self._wake_next(None)
        else:
            self._idle.append((connection, self._monotonic()))
        if self._closing is not None:
            self._closing.set()
        elif self._idle and self._monotonic() - self._idle[0][1] > _MAX_IDLE_S:
            self._idle.popleft()[0].terminate()

    async def close(self, grace_s: float) -> None:
        """Wait for lent connections; terminate those that are not released within ``grace_s`` seconds."""
        self._closing = asyncio.Event()
        while self._wake_next(None):
            pass
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._lent:
                    self._closing.clear()
                    await self._closing.wait()
        for connection in self._lent:
            connection.terminate()
        while self._idle:
            await _close(self._idle.popleft()[0])

    async def _open(self) -> Connection:
        self._connecting += 1
        try:
            connection: Connection = await self._connect()
        except BaseException:
            self._wake_next(None)
            raise
        finally:
            self._connecting -= 1
        if self._closing is not None:
            await _close(connection)
        self._refuse_if_closed()
        self._lent.add(connection)
        return connection

    async def _wait_for_release(self) -> Connection | None:
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # the connection arrived together with the cancellation
                connection = waiter.result()
                if connection is None:
                    self._wake_next(None)
                else:
                    self.release(connection)
            raise

    def _wake_next(self, connection: Connection | None) -> bool:
        """Give the connection to the caller that has waited longest; False if no caller waits."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _refuse_if_closed(self) -> None:
        if self._closing is not None:
            raise AppClosedError("the store was closed")


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=_CLOSE_TIMEOUT_S)
    except DRIVER_ERRORS:
        connection.terminate()
