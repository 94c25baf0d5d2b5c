"""Connections to the test server that one test leaves behind and a later one takes over.

A connection to PostgreSQL is a process that has to compile the engine's functions before it can call them. That takes
longer than most tests. So ``asyncpg.connect`` is replaced for the databases named to ``share``: ``close`` resets the
connection and keeps it, and the next ``connect`` with the same arguments on the same event loop takes it.
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
_MOST_KEPT = 16


def share(url: str) -> None:
    """Keep connections to this database for later tests."""
    _shared.add(_database(url))


def unshare(url: str) -> None:
    """The database is to be dropped, or is not in the state that the engine expects."""
    _shared.discard(_database(url))


def _database(url: str) -> tuple[str, str]:
    """The socket's folder, or the host, and the name: a connection through a test's proxy is another one."""
    parts = urlsplit(url)
    return dict(parse_qsl(parts.query)).get("host", parts.netloc), parts.path


class SharedConnection(asyncpg.Connection):  # type: ignore[misc]
    arguments: tuple[object, ...]
    kept = False
    clean = False
    """It was reset when it was kept."""

    def is_closed(self) -> bool:
        return self.kept or super().is_closed()

    async def close(self, *, timeout: float | None = None) -> None:
        if self._can_be_kept() and await self._is_reset():  # now: it may hold locks
            self._keep()
            self.clean = True
        elif not self.kept:
            await super().close(timeout=timeout)

    def terminate(self) -> None:
        if self._listeners and self._can_be_kept():  # one that only listens: nothing is under way
            self._keep()
        elif not self.kept:
            super().terminate()

    def _can_be_kept(self) -> bool:
        return (
            not self.is_closed()
            and not self.is_in_transaction()
            and _database(str(self.arguments[1])) in _shared
            and len(_kept[self.arguments]) < _MOST_KEPT
        )

    def _keep(self) -> None:
        self.kept = True
        self._listeners.clear()
        self._termination_listeners.clear()
        _kept[self.arguments].append(self)

    async def taken(self) -> bool:
        """Whether it can be used again."""
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

    async def close_for_good(self) -> None:
        self.kept = False
        await super().close(timeout=5)


async def connect(dsn: str | None = None, **options: Any) -> asyncpg.Connection:
    if dsn is None or _database(dsn) not in _shared or "connection_class" in options:
        return await _connect(dsn, **options)
    arguments = (asyncio.get_running_loop(), dsn, repr(sorted(options.items())))
    while _kept[arguments]:
        connection = _kept[arguments].pop()
        if await connection.taken():
            return connection
    connection = await _connect(dsn, connection_class=SharedConnection, **options)
    connection.arguments = arguments
    return connection


def kept_processes() -> list[int]:
    """The server processes of connections that wait for their next use."""
    return [connection.get_server_pid() for some in _kept.values() for connection in some if connection.kept]


async def close_kept() -> None:
    """Close those of the running event loop."""
    loop = asyncio.get_running_loop()
    for arguments in [arguments for arguments in _kept if arguments[0] is loop]:
        for connection in _kept.pop(arguments):
            await connection.close_for_good()


def install() -> None:
    asyncpg.connect = connect
