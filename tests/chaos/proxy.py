"""A proxy between one client process and PostgreSQL that breaks the connection where it hurts.

*Before*: the server never sees the message that commits. *After*: it has committed, and the client never learns it.
Both look the same to the client, which is the point. The proxy can also stand still, be slow, or be away.
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
from .wire import CANCEL_REQUEST, GSS_REQUEST, SSL_REQUEST, Splitter, Talk, Unit, startup_code

When = Literal["before", "after"]
ANY = re.compile("")


@dataclass(slots=True)
class Cut:
    """Armed for the n-th commit whose SQL matches. ``fired`` is its SQL once that has happened.

    ``answering``: (only *after*) what must be in the server's answer, for calls that may do nothing.
    """

    when: When
    nth: int
    matching: re.Pattern[str]
    keep_out: bool
    answering: bytes = b""
    fired: str | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def takes(self, sql: str) -> bool:
        if self.fired is not None or not self.matching.search(sql):
            return False
        self.nth -= 1
        return self.nth <= 0

    def fire(self, sql: str) -> None:
        self.fired = sql
        self.done.set()


@dataclass(slots=True)
class Hold:
    """Armed for the next unit whose SQL matches: it is kept, its connection stands still, until it is let go."""

    matching: re.Pattern[str]
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has done what was held, or refused to."""


class Proxy:
    """Listens in a folder of its own, so that a client needs only another ``host=``."""

    def __init__(self, folder: Path, server: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.sockets = folder
        self.commits = 0
        """How many went through or were cut."""
        self._server_path = server / f".s.PGSQL.{PORT}"
        self._path = folder / f".s.PGSQL.{PORT}"
        self._cuts: list[Cut] = []
        self._holds: list[Hold] = []
        self._chance: tuple[random.Random, float, re.Pattern[str]] | None = None
        self._chosen: list[str] = []
        self._delay = 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._links: set[_Link] = set()
        self._listener: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._links)

    async def open(self) -> None:
        self._listener = await asyncio.start_unix_server(self._serve, self._path)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self.cut_all()
        self._flowing.set()
        await asyncio.gather(*(link.task for link in self._links), return_exceptions=True)
        with suppress(FileNotFoundError):
            self._path.unlink()

    # --- faults

    def cut(
        self, when: When, *, nth: int = 1, matching: str = "", keep_out: bool = False, answering: bytes = b""
    ) -> Cut:
        """Break the connection around the n-th commit from now. ``keep_out``: and let nobody in afterwards."""
        cut = Cut(when, nth, re.compile(matching, re.IGNORECASE | re.DOTALL), keep_out, answering)
        self._cuts.append(cut)
        return cut

    def hold(self, matching: str) -> Hold:
        """Keep the next unit that matches, on its own connection, until ``let_go`` is set."""
        hold = Hold(re.compile(matching, re.IGNORECASE | re.DOTALL))
        self._holds.append(hold)
        return hold

    @contextmanager
    def chance(self, seed: int, share: float, matching: str = "") -> Iterator[list[str]]:
        """Cut this share of the commits, before or after as it falls. Yields the list of what was cut."""
        rng, pattern, cuts = random.Random(seed), re.compile(matching, re.IGNORECASE | re.DOTALL), list[str]()
        self._chance, self._chosen = (rng, share, pattern), cuts
        try:
            yield cuts
        finally:
            self._chance = None

    def cut_all(self) -> None:
        """Break every connection, whatever it is doing."""
        for link in list(self._links):
            link.cut()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody answers: connections are broken, and new ones are refused."""
        self.keep_out()
        try:
            yield
        finally:
            self.let_in()

    def keep_out(self) -> None:
        self._refusing = True
        self.cut_all()

    def let_in(self) -> None:
        self._refusing = False

    @asynccontextmanager
    async def black_hole(self) -> AsyncIterator[None]:
        """Nothing gets through in either direction, and nobody is told. Afterwards what was said arrives late."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Every unit waits for so long."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    # --- what links ask

    def choose(self, sql: str) -> Cut | None:
        """The cut for this commit, if there is one."""
        self.commits += 1
        for cut in self._cuts:
            if cut.takes(sql):
                self._cuts.remove(cut)
                return cut
        if self._chance is not None:
            rng, share, pattern = self._chance
            if pattern.search(sql) and rng.random() < share:
                self._chosen.append(sql)
                return Cut(rng.choice(["before", "after"]), 1, ANY, keep_out=False)
        return None

    def held_by(self, unit: Unit) -> Hold | None:
        for hold in self._holds:
            if hold.matching.search("\n".join(unit.statements)):
                self._holds.remove(hold)
                return hold
        return None

    def put_back(self, cut: Cut) -> None:
        """It was not the commit it waits for."""
        self._cuts.append(cut)

    def fired(self, cut: Cut, sql: str) -> None:
        if cut.keep_out:
            self.keep_out()
        cut.fire(sql)

    async def flow(self) -> None:
        await self._flowing.wait()
        if self._delay:
            await asyncio.sleep(self._delay)

    async def standing(self) -> None:
        await self._flowing.wait()

    # --- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            theirs = await asyncio.open_unix_connection(self._server_path, limit=2**20)
        except OSError:
            writer.transport.abort()
            return
        if self._refusing:
            theirs[1].transport.abort()
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), theirs)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client's connection and the one to the server behind it."""

    def __init__(self, proxy: Proxy, client: Stream, server: Stream) -> None:
        self._proxy = proxy
        self._client_reader, self._client = client
        self._server_reader, self._server = server
        self._talk = Talk()
        self._after: tuple[Cut, str] | None = None
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
            for writer in (self._client, self._server):
                with suppress(OSError):
                    writer.close()

    def cut(self) -> None:
        self._client.transport.abort()
        self._server.transport.abort()

    # --- client to server

    async def _from_client(self) -> None:
        if not await self._greet():
            await self._forward_blindly()
            return
        splitter = Splitter()
        while data := await self._client_reader.read(2**18):
            for message in splitter.feed(data):
                unit = self._talk.client(message)
                if unit is not None and not await self._pass_on(unit):
                    return
        self._server.write_eof()
        await self._server.drain()
        await asyncio.Event().wait()  # until the server has hung up

    async def _greet(self) -> bool:
        """Pass the untyped messages of the beginning; False if nothing typed follows."""
        while True:
            size = await self._client_reader.readexactly(4)
            packet = size + await self._client_reader.readexactly(int.from_bytes(size, "big") - 4)
            await self._proxy.standing()
            code = startup_code(packet)
            if code in (SSL_REQUEST, GSS_REQUEST):
                self._client.write(b"N")
                continue
            self._server.write(packet)
            return code != CANCEL_REQUEST

    async def _forward_blindly(self) -> None:
        while data := await self._client_reader.read(2**16):
            self._server.write(data)
        self._server.write_eof()
        await asyncio.Event().wait()

    async def _pass_on(self, unit: Unit) -> bool:
        """Forward a unit, unless it is to be cut off; whether to go on."""
        await self._proxy.flow()
        self._hold = self._proxy.held_by(unit)
        if self._hold is not None:
            self._hold.reached.set()
            await self._hold.let_go.wait()
        sql = self._talk.commits(unit)
        cut = None if sql is None else self._proxy.choose(sql)
        if cut is not None and sql is not None:
            if cut.when == "before":
                self.cut()
                self._proxy.fired(cut, sql)
                return False
            self._after = cut, sql
        self._server.write(unit.data)
        await self._server.drain()
        return True

    # --- server to client

    async def _from_server(self) -> None:
        splitter, kept = Splitter(), b""
        while data := await self._server_reader.read(2**18):
            await self._proxy.standing()
            done = [self._talk.ready(message) for message in splitter.feed(data)]
            kept += data
            if self._after is not None:
                if not any(done):
                    continue
                if self._cuts_after(kept):
                    return
            if any(done) and self._hold is not None:
                self._hold.answered.set()
            self._client.write(kept)
            kept = b""
            await self._client.drain()

    def _cuts_after(self, answer: bytes) -> bool:
        """The server has done it: cut, unless it is not what the cut waits for."""
        assert self._after is not None
        cut, sql = self._after
        self._after = None
        if cut.answering not in answer or not self._talk.idle:
            self._proxy.put_back(cut)
            return False
        self.cut()
        self._proxy.fired(cut, sql)
        return True
