"""Connections to the test server that later tests reuse.

Each connection has a server process that compiles the engine's functions before their first call, which takes longer
than most tests. ``asyncpg.connect`` is therefore replaced for the databases passed to ``share``: ``close`` resets and
keeps the connection, and the next ``connect`` with the same arguments on the same event loop returns it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import asyncpg

_connect = asyncpg.connect
_shared: set[tuple[str, str]] = set()
_kept: dict[tuple[object, ...], list[SharedConnection]] = defaultdict(list)
_MAX_KEPT = 16
_keeping: list[asyncio.AbstractEventLoop] = []
"""Event loops that run for as long as the test process."""


def keep_for(loop: asyncio.AbstractEventLoop) -> None:
    """Keep the connections of this event loop.

    A kept connection of a loop that has ended, such as that of a blocking client, would read nothing more. Its server
    process would fill the socket with notifications, and then block every DROP DATABASE.
    """
    _keeping.append(loop)


def share(url: str) -> None:
    """Keep connections to this database for later tests."""
    _shared.add(_database(url))


def unshare(url: str) -> None:
    """Stop keeping connections: the database will be dropped, or its schema was changed."""
    _shared.discard(_database(url))


def _database(url: str) -> tuple[str, str]:
    """The socket's folder or the host, and the database name; a test's proxy has another folder."""
    parts = urlsplit(url)
    return dict(parse_qsl(parts.query)).get("host", parts.netloc), parts.path


class SharedConnection(asyncpg.Connection):  # type: ignore[misc]
    arguments: tuple[object, ...]
    kept = False
    clean = False
    """True if the connection was reset before it was kept."""

    def is_closed(self) -> bool:
        return self.kept or super().is_closed()

    async def close(self, *, timeout: float | None = None) -> None:
        if self._can_be_kept() and await self._is_reset():  # reset now, because it may hold locks
            self._keep()
            self.clean = True
        elif not self.kept:
            await super().close(timeout=timeout)

    def terminate(self) -> None:
        if self._listeners and self._can_be_kept():  # a listening connection has no statement in progress
            self._keep()
        elif not self.kept:
            super().terminate()

    def _can_be_kept(self) -> bool:
        return (
            not self.is_closed()
            and not self.is_in_transaction()
            and _database(str(self.arguments[1])) in _shared
            and len(_kept[self.arguments]) < _MAX_KEPT
        )

    def _keep(self) -> None:
        self.kept = True
        self._listeners.clear()
        self._termination_listeners.clear()
        _kept[self.arguments].append(self)

    async def take(self) -> bool:
        """Take the connection into use; False if it is closed or cannot be reset."""
        self.kept = False
        clean, self.clean = self.clean, False
        return not self.is_closed() and (clean or await self._is_reset())

    async def _is_reset(self) -> bool:
        try:
            await self.reset(timeout=5)
        except BaseException as error:
            super().terminate()
            if not isinstance(error, Exception):
                raise
            return False
        return True

    async def close_kept_connection(self) -> None:
        self.kept = False
        await super().close(timeout=5)


async def connect(dsn: str | None = None, **options: Any) -> asyncpg.Connection:
    loop = asyncio.get_running_loop()
    if dsn is None or _database(dsn) not in _shared or "connection_class" in options or loop not in _keeping:
        return await _connect(dsn, **options)
    arguments = (loop, dsn, repr(sorted(options.items())))
    while _kept[arguments]:
        connection = _kept[arguments].pop()
        if await connection.take():
            return connection
    connection = await _connect(dsn, connection_class=SharedConnection, **options)
    connection.arguments = arguments
    return connection


def kept_processes() -> list[int]:
    """The server processes of kept connections."""
    return [
        connection.get_server_pid() for connections in _kept.values() for connection in connections if connection.kept
    ]


async def close_kept() -> None:
    """Close the kept connections of the running event loop."""
    loop = asyncio.get_running_loop()
    for arguments in [arguments for arguments in _kept if arguments[0] is loop]:
        for connection in _kept.pop(arguments):
            await connection.close_kept_connection()


def install() -> None:
    asyncpg.connect = connect
