"""Ways to a store that its users do not have: a line that breaks at the worst moment, and other processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path
from textwrap import dedent

SOURCE = Path(__file__).parents[3] / "src"
TESTS = Path(__file__).parents[2]
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
    """The server never hears of it."""
    AFTER = 2
    """The server does it, and its answer is lost."""


class Proxy:
    """A socket in ``folder`` that leads to the server's, until it is told to cut a line."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder = folder
        self.cuts = 0
        self._server = server
        self._at: bytes | None = None
        self._how = Cut.BEFORE
        self._skip = 0
        self._down = False
        self._stays_down = False
        self._lines: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server

    async def start(self) -> None:
        self._listening = await asyncio.start_unix_server(self._connected, self.folder / SOCKET)

    async def stop(self) -> None:
        self._listening.close()
        self.hang_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, at: str | bytes, how: Cut, *, stays_down: bool = False, skip: int = 0) -> None:
        """Break the next line on which the client says this, once. ``stays_down``: and let nobody in after that.

        ``skip``: not the first times it is said.
        """
        self._at, self._how, self._stays_down = at if isinstance(at, bytes) else at.encode(), how, stays_down
        self._skip = skip

    def back(self) -> None:
        self._down = False

    def hang_up(self) -> None:
        for line in self._lines:
            line.close()
        self._lines.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._down:
            writer.close()
            return
        server_reader, server_writer = await asyncio.open_unix_connection(self._server / SOCKET)
        self._lines |= {writer, server_writer}
        swallow = asyncio.Event()
        there = asyncio.ensure_future(self._there(reader, server_writer, swallow, writer))
        back = asyncio.ensure_future(self._back(server_reader, writer, swallow, server_writer))
        self._tasks |= {there, back}

    async def _there(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        swallow: asyncio.Event,
        client: asyncio.StreamWriter,
    ) -> None:
        while data := await _read(reader):
            if self._at is not None and self._at in data and self._skip:
                self._skip -= 1
            elif self._at is not None and self._at in data:
                self._at = None
                self.cuts += 1
                self._down = self._stays_down
                if self._how is Cut.BEFORE:
                    break
                swallow.set()
            server.write(data)
        if not swallow.is_set():
            server.close()
            client.close()

    async def _back(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        swallow: asyncio.Event,
        server: asyncio.StreamWriter,
    ) -> None:
        while data := await _read(reader):
            if swallow.is_set():
                if READY in data:
                    break
                continue
            client.write(data)
        client.close()
        server.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    with suppress(ConnectionError):
        return await reader.read(65_536)
    return b""


def process(code: str, *args: str) -> subprocess.Popen[str]:
    """Another Python process, with the suite's words imported and the database's URL as ``url``."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + dedent(code), *args],
        env=os.environ | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(started: subprocess.Popen[str]) -> str:
    """What it printed, once it has ended well."""
    out, err = started.communicate(timeout=100)
    assert started.returncode == 0, err
    return out.strip()
