"""A handful of connections, lent to one caller at a time.

Not the driver's own pool, because that goes round the event loop several times to take a connection back, which costs
as much as a short statement. Whoever gives one back has it clean, or closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from holdfast.errors import AppClosedError
from holdfast.store.postgres.errors import DRIVER, is_gone
from holdfast.store.postgres.tx import Connection

_IDLE_S = 300.0
_CLOSE_S = 5.0


class Pool:
    def __init__(self, size: int, connect: Callable[[], Awaitable[Any]], monotonic: Callable[[], float]) -> None:
        self._size = size
        self._connect = connect
        self._monotonic = monotonic
        self._idle: deque[tuple[Connection, float]] = deque()
        """With the time since when; the last one is lent first, so the first ones are those that are not needed."""
        self._lent: set[Connection] = set()
        self._connecting = 0
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        """Each is handed a connection, or nothing: then there is room for another one."""
        self._closing: asyncio.Event | None = None
        """Set when all are back."""

    def idle(self) -> Connection | None:
        """One that nobody has, at once, if there is one."""
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
                return await self._another()
            handed = await self._turn()
            if handed is not None:
                return handed

    def release(self, connection: Connection) -> None:
        if connection not in self._lent:
            return
        gone = is_gone(connection)
        if not gone and self._closing is None and self._hand_over(connection):
            return
        self._lent.remove(connection)
        if gone:
            self._hand_over(None)
        else:
            self._idle.append((connection, self._monotonic()))
        if self._closing is not None:
            self._closing.set()
        elif self._idle and self._monotonic() - self._idle[0][1] > _IDLE_S:
            self._idle.popleft()[0].terminate()

    async def close(self, patience: float) -> None:
        """Wait for those that are lent; those that do not come back are cut off."""
        self._closing = asyncio.Event()
        while self._hand_over(None):
            pass
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._lent:
                    self._closing.clear()
                    await self._closing.wait()
        for connection in self._lent:
            connection.terminate()
        while self._idle:
            await _close(self._idle.popleft()[0])

    async def _another(self) -> Connection:
        self._connecting += 1
        try:
            connection: Connection = await self._connect()
        except BaseException:
            self._hand_over(None)
            raise
        finally:
            self._connecting -= 1
        if self._closing is not None:
            await _close(connection)
        self._refuse_if_closed()
        self._lent.add(connection)
        return connection

    async def _turn(self) -> Connection | None:
        turn: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was, a moment too late
                handed = turn.result()
                if handed is None:
                    self._hand_over(None)
                else:
                    self.release(handed)
            raise

    def _hand_over(self, connection: Connection | None) -> bool:
        """To whoever has waited longest; False if nobody does."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return True
        return False

    def _refuse_if_closed(self) -> None:
        if self._closing is not None:
            raise AppClosedError("the store was closed")


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=_CLOSE_S)
    except DRIVER:
        connection.terminate()
