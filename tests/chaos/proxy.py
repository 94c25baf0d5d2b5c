"""A proxy between one client process and PostgreSQL that breaks the connection around a commit.

*Before*: the server does not receive the message that commits. *After*: the server has committed, and the client does
not receive the reply. The client cannot tell the two cases apart. The proxy can also stop forwarding, be slow, or
refuse connections.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .server import PORT
from .wire_protocol import CANCEL_REQUEST, GSS_REQUEST, SSL_REQUEST, ConnectionState, Splitter, Unit, startup_code

When = Literal["before", "after"]
ANY = re.compile("")


@dataclass(slots=True)
class Cut:
    """A cut armed for the n-th commit whose SQL matches. ``fired`` is the SQL of the commit that was cut.

    ``reply_contains``: (only *after*) bytes that the server's reply must contain, for calls that may do nothing.
    """

    when: When
    nth: int
    matching: re.Pattern[str]
    refuse_connections: bool
    reply_contains: bytes = b""
    fired: str | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def matches(self, sql: str) -> bool:
        if self.fired is not None or not self.matching.search(sql):
            return False
        self.nth -= 1
        return self.nth <= 0

    def match_next(self) -> None:
        """Cut the next commit, whatever its SQL."""
        self.nth, self.matching = 1, ANY

    def fire(self, sql: str) -> None:
        self.fired = sql
        self.done.set()


@dataclass(slots=True)
class Hold:
    """Armed for the next unit whose SQL matches: the unit and its connection wait until ``release`` is set."""

    matching: re.Pattern[str]
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    replied: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has replied to the unit that was held."""


class Proxy:
    """A proxy that listens in its own folder, so that a client needs only another ``host=``."""

    def __init__(self, folder: Path, server: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.sockets = folder
        self.commits = 0
        """Number of commits that were forwarded or cut."""
        self._server_path = server / f".s.PGSQL.{PORT}"
        self._path = folder / f".s.PGSQL.{PORT}"
        self._cuts: list[Cut] = []
        self._holds: list[Hold] = []
        self._random: tuple[random.Random, float, re.Pattern[str]] | None = None
        self._random_cuts: list[str] = []
        self._delay = 0.0
        self._flow_allowed = asyncio.Event()
        self._flow_allowed.set()
        self._refuses = False
        self._links: set[_Link] = set()
        self._listener: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._links)

    async def open(self) -> None:
        self._listener = await asyncio.start_unix_server(self._serve, self._path)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self.cut_all()
        self._flow_allowed.set()
        await asyncio.gather(*(link.task for link in self._links), return_exceptions=True)
        with suppress(FileNotFoundError):
            self._path.unlink()

    # --- faults

    def cut(
        self,
        when: When,
        *,
        nth: int = 1,
        matching: str = "",
        refuse_connections: bool = False,
        reply_contains: bytes = b"",
    ) -> Cut:
        """Break the connection around the n-th commit from now; ``refuse_connections``: refuse new ones after that."""
        cut = Cut(when, nth, re.compile(matching, re.IGNORECASE | re.DOTALL), refuse_connections, reply_contains)
        self._cuts.append(cut)
        return cut

    def hold(self, matching: str) -> Hold:
        """Hold the next unit that matches, and its connection, until ``release`` is set."""
        hold = Hold(re.compile(matching, re.IGNORECASE | re.DOTALL))
        self._holds.append(hold)
        return hold

    @contextmanager
    def cut_randomly(self, seed: int, share: float, matching: str = "") -> Iterator[list[str]]:
        """Cut this share of the commits, randomly before or after. Yields the list of the SQL that was cut."""
        rng, pattern, cuts = random.Random(seed), re.compile(matching, re.IGNORECASE | re.DOTALL), list[str]()
        self._random, self._random_cuts = (rng, share, pattern), cuts
        try:
            yield cuts
        finally:
            self._random = None

    def cut_all(self) -> None:
        """Break every connection."""
        for link in list(self._links):
            link.cut()

    @contextmanager
    def unavailable(self) -> Iterator[None]:
        """Break all connections, and refuse new ones."""
        self.refuse_connections()
        try:
            yield
        finally:
            self.accept_connections()

    def refuse_connections(self) -> None:
        self._refuses = True
        self.cut_all()

    def accept_connections(self) -> None:
        self._refuses = False

    @asynccontextmanager
    async def black_hole(self) -> AsyncIterator[None]:
        """Forward nothing in either direction, without an error. Afterwards the delayed messages are forwarded."""
        self._flow_allowed.clear()
        try:
            yield
        finally:
            self._flow_allowed.set()

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Delay every unit by ``seconds``."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    # --- used by links

    def choose(self, sql: str) -> Cut | None:
        """The cut for this commit; None to forward it."""
        self.commits += 1
        for cut in self._cuts:
            if cut.matches(sql):
                self._cuts.remove(cut)
                return cut
        if self._random is not None:
            rng, share, pattern = self._random
            if pattern.search(sql) and rng.random() < share:
                self._random_cuts.append(sql)
                return Cut(rng.choice(["before", "after"]), 1, ANY, refuse_connections=False)
        return None

    def hold_for(self, unit: Unit) -> Hold | None:
        for hold in self._holds:
            if hold.matching.search("\n".join(unit.statements)):
                self._holds.remove(hold)
                return hold
        return None

    def rearm(self, cut: Cut) -> None:
        """Arm a cut again: the reply did not match, or there was none."""
        self._cuts.append(cut)

    def fired(self, cut: Cut, sql: str) -> None:
        if cut.refuse_connections:
            self.refuse_connections()
        cut.fire(sql)

    async def flow(self) -> None:
        await self._flow_allowed.wait()
        if self._delay:
            await asyncio.sleep(self._delay)

    async def wait_for_flow(self) -> None:
        await self._flow_allowed.wait()

    # --- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            server_stream = await asyncio.open_unix_connection(self._server_path, limit=2**20)
        except OSError:
            writer.transport.abort()
            return
        if self._refuses:
            server_stream[1].transport.abort()
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), server_stream)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """A connection of a client, and the connection to the server behind it."""

    def __init__(self, proxy: Proxy, client: Stream, server: Stream) -> None:
        self._proxy = proxy
        self._client_reader, self._client = client
        self._server_reader, self._server = server
        self._state = ConnectionState()
        self._pending_cut: tuple[Cut, str] | None = None
        self._hold: Hold | None = None
        self.task = asyncio.current_task()

    async def run(self) -> None:
        pumps = [asyncio.create_task(self._from_client()), asyncio.create_task(self._from_server())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            if self._pending_cut is not None:  # the connection broke by itself before the server's reply
                self._proxy.rearm(self._pending_cut[0])
            for writer in (self._client, self._server):
                with suppress(OSError):
                    writer.close()

    def cut(self) -> None:
        self._client.transport.abort()
        self._server.transport.abort()

    # --- client to server

    async def _from_client(self) -> None:
        if not await self._forward_startup():
            await self._forward_unparsed()
            return
        splitter = Splitter()
        while data := await self._client_reader.read(2**18):
            for message in splitter.feed(data):
                unit = self._state.client(message)
                if unit is not None and not await self._forward(unit):
                    return
        self._server.write_eof()
        await self._server.drain()
        await asyncio.Event().wait()  # until the server closes the connection

    async def _forward_startup(self) -> bool:
        """Forward the untyped startup messages; False if no typed messages follow."""
        while True:
            size = await self._client_reader.readexactly(4)
            packet = size + await self._client_reader.readexactly(int.from_bytes(size, "big") - 4)
            await self._proxy.wait_for_flow()
            code = startup_code(packet)
            if code in (SSL_REQUEST, GSS_REQUEST):
                self._client.write(b"N")
                continue
            self._server.write(packet)
            return code != CANCEL_REQUEST

    async def _forward_unparsed(self) -> None:
        while data := await self._client_reader.read(2**16):
            self._server.write(data)
        self._server.write_eof()
        await asyncio.Event().wait()

    async def _forward(self, unit: Unit) -> bool:
        """Forward a unit, unless it is to be cut; False if the connection was cut."""
        await self._proxy.flow()
        self._hold = self._proxy.hold_for(unit)
        if self._hold is not None:
            self._hold.reached.set()
            await self._hold.release.wait()
        sql = self._state.commits(unit)
        cut = None if sql is None else self._proxy.choose(sql)
        if cut is not None and sql is not None:
            if cut.when == "before":
                self.cut()
                self._proxy.fired(cut, sql)
                return False
            self._pending_cut = cut, sql
        self._server.write(unit.data)
        await self._server.drain()
        return True

    # --- server to client

    async def _from_server(self) -> None:
        splitter, reply = Splitter(), b""
        while data := await self._server_reader.read(2**18):
            await self._proxy.wait_for_flow()
            done = [self._state.is_ready(message) for message in splitter.feed(data)]
            reply += data
            if self._pending_cut is not None:
                if not any(done):
                    continue
                if self._cut_after_reply(reply):
                    return
            if any(done) and self._hold is not None:
                self._hold.replied.set()
            self._client.write(reply)
            reply = b""
            await self._client.drain()

    def _cut_after_reply(self, reply: bytes) -> bool:
        """Cut after the server's reply, unless the reply does not match the cut."""
        assert self._pending_cut is not None
        cut, sql = self._pending_cut
        self._pending_cut = None
        if cut.reply_contains not in reply or not self._state.idle:
            self._proxy.rearm(cut)
            return False
        self.cut()
        self._proxy.fired(cut, sql)
        return True
