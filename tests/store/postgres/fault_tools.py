"""A proxy that breaks connections at a chosen moment, and other processes that use the database."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress
from enum import Enum
from pathlib import Path

from holdfast.ports import SystemClock
from store import processes

SOCKET = ".s.PGSQL.5432"
READY = b"Z\x00\x00\x00\x05"

PRELUDE = """
import asyncio, os, signal, sys
from holdfast.errors import *
from holdfast.ports import SystemRandomness
from holdfast.store.protocol import *
from holdfast.store.postgres import PostgresStore, migrate
from holdfast.store.postgres.sql import migrations

url = sys.argv[1]
def new_store(**options):
    return PostgresStore(url, random=SystemRandomness(), **options)
"""


class Cut(Enum):
    BEFORE = 1
    """The server does not receive the message."""
    AFTER = 2
    """The server executes the message, and its reply is lost."""


class Proxy:
    """A socket in ``folder`` that forwards to the server's socket and can break a connection."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder = folder
        self.cuts = 0
        self.refused = 0
        """Number of connections that were refused."""
        self._server = server
        self._pattern: bytes | None = None
        self._when = Cut.BEFORE
        self._skip = 0
        self._down = False
        self._stays_down = False
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server

    async def start(self) -> None:
        self._listener = await asyncio.start_unix_server(self._accept, self.folder / SOCKET)

    async def stop(self) -> None:
        self._listener.close()
        self.close_connections()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, pattern: str | bytes, when: Cut, *, stays_down: bool = False, skip: int = 0) -> None:
        """Break the next connection on which the client sends ``pattern``, once.

        ``stays_down``: new connections are refused after that, until ``restore``. ``skip``: ignore the first matches.
        """
        self._pattern, self._when, self._stays_down = (
            pattern if isinstance(pattern, bytes) else pattern.encode(),
            when,
            stays_down,
        )
        self._skip = skip

    def go_down(self) -> None:
        """Close all connections and refuse new ones, until ``restore``."""
        self._down = True
        self.close_connections()

    def restore(self) -> None:
        self._down = False

    def close_connections(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._down:
            self.refused += 1
            writer.close()
            return
        server_reader, server_writer = await asyncio.open_unix_connection(self._server / SOCKET)
        self._connections |= {writer, server_writer}
        reply_lost = asyncio.Event()
        forward = asyncio.ensure_future(self._forward(reader, server_writer, reply_lost, writer))
        replies = asyncio.ensure_future(self._forward_replies(server_reader, writer, reply_lost, server_writer))
        self._tasks |= {forward, replies}

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        reply_lost: asyncio.Event,
        client: asyncio.StreamWriter,
    ) -> None:
        while data := await _read(reader):
            if self._pattern is not None and self._pattern in data and self._skip:
                self._skip -= 1
            elif self._pattern is not None and self._pattern in data:
                self._pattern = None
                self.cuts += 1
                self._down = self._stays_down
                if self._when is Cut.BEFORE:
                    break
                reply_lost.set()
            server.write(data)
        if not reply_lost.is_set():
            server.close()
            client.close()

    async def _forward_replies(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        reply_lost: asyncio.Event,
        server: asyncio.StreamWriter,
    ) -> None:
        while data := await _read(reader):
            if reply_lost.is_set():
                if READY in data:
                    break
                continue
            client.write(data)
        client.close()
        server.close()


class RefusalClock(SystemClock):
    """The clock of a store whose calls give up after the proxy has refused two connections, however slow the machine.

    Each refused connection takes a minute by this clock, and ``URL_OPTION`` lets a call retry for 100 seconds.
    """

    URL_OPTION = "connect_timeout=100"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def monotonic(self) -> float:
        return super().monotonic() + 60 * self._proxy.refused


async def _read(reader: asyncio.StreamReader) -> bytes:
    with suppress(ConnectionError):
        return await reader.read(65_536)
    return b""


def process(code: str, *args: str) -> subprocess.Popen[str]:
    """Start a Python process that has run PRELUDE: store classes imported, and the database's URL as ``url``."""
    return processes.start(PRELUDE, code, *args)
