"""Live updates: one loop per server reads what open pages show, and sends each change to all pages that show it.

A **topic** is the content of a page: the overview, a page of a list, one run. Pages that show the same share a topic,
so the number of queries depends on the number of topics, not on the number of pages. The loop reads all topics in a
*round*. The pause after a round is at least ``_MIN_PAUSE_S``, and ``_SHARE`` times as long as the reads of the round
and the sends to all pages took, so that live updates use a bounded part of the time of the process, however many topics
and pages there are.

A topic has a version, which is the id of its events. A page that reconnects sends the last id that it received: it gets
nothing if the version is the same, otherwise the whole present state. No history of events is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from holdfast.client import Client
from holdfast.core.redaction import Redaction
from holdfast.errors import HoldfastError
from holdfast.http.hiding import current_redaction
from holdfast.http.responses import encoded

_log = logging.getLogger("holdfast.http")

_MIN_PAUSE_S = 0.2
"""A page gets at most five updates per second."""
_MAX_PAUSE_S = 10.0
_IDLE_S = 2.0
"""Longest time without a round if no other process has written anything."""
_SHARE = 40
_MAX_SEND_S = 0.002
"""Longest time of a send that counts: a send that takes longer waits for its client, and uses no processor."""
_PING_S = 15.0
"""An idle stream sends a comment this often, so that proxies keep it open, and checks whether it is still allowed."""


class Update(NamedTuple):
    """A new state of a topic."""

    event: str
    data: Mapping[str, Any]
    """The change since the last version."""
    full_event: str
    full: Callable[[], Mapping[str, Any]]
    """The whole state, for pages that missed a version."""


class Reader(Protocol):
    """Reads the state of a topic."""

    async def read(self, client: Client) -> Update | None:
        """The update since the last call; None: nothing changed."""
        ...


class _Topic:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.version = 0
        self.update: Update | None = None
        self.changed = asyncio.Event()
        self.pages = 0
        self.failed = False
        """The last read failed unexpectedly; this has been logged."""
        self._frames: dict[str, bytes] = {}

    def set(self, update: Update) -> None:
        self.version += 1
        self.update = update
        self._frames = {}
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def frame(self, boot: str, *, full: bool) -> bytes:
        """The event for pages that have the version before, or for all others; encoded once for all pages."""
        update = self.update
        if update is None:
            raise RuntimeError("the topic has not been read yet")
        key = "full" if full else "change"
        if key not in self._frames:
            event, data = (update.full_event, update.full()) if full else (update.event, update.data)
            self._frames[key] = frame(event, data, f"{boot}.{self.version}")
        return self._frames[key]


def frame(event: str, data: Mapping[str, Any], id: str | None = None) -> bytes:
    """One server-sent event. The JSON has no line breaks."""
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {event}\ndata: {encoded(data)}\n\n".encode()


class Broadcaster:
    """Sends the updates of topics to open pages."""

    def __init__(self, client: Callable[[], Client], boot: str, redaction: Redaction | None) -> None:
        """``boot`` distinguishes the versions of this server from those of the server before."""
        self._client = client
        self._boot = boot
        self._redaction = redaction
        self._topics: dict[Hashable, _Topic] = {}
        self._loop: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._sending = 0.0
        """Time of all sends since the last round."""
        self._closed = False
        self.closing = asyncio.Event()
        """Set when the server stops."""

    def close(self) -> None:
        """End all streams: the server stops."""
        self._closed = True
        self.closing.set()
        for topic in self._topics.values():
            topic.changed.set()

    async def stream(
        self, key: Hashable, reader: Reader, last_id: str, allowed: Callable[[], Awaitable[str | None]]
    ) -> AsyncIterator[bytes]:
        """The events of one page, until it disconnects. ``allowed``: the code of the reason to end the stream."""
        topic = self._topics.setdefault(key, _Topic(reader))
        topic.pages += 1
        self._ensure_loop()
        sent = 0
        try:
            yield b": open\n\n"
            while True:
                if topic.version > sent:
                    version, began = topic.version, asyncio.get_running_loop().time()
                    if last_id != f"{self._boot}.{version}":
                        yield topic.frame(self._boot, full=sent == 0 or version != sent + 1)
                    self._sending += min(asyncio.get_running_loop().time() - began, _MAX_SEND_S)
                    sent, last_id = version, ""
                ended = await self._ended(topic, sent, allowed)
                if ended is None:
                    continue
                yield ended
                if ended != _PING:
                    return
        finally:
            topic.pages -= 1
            if not topic.pages and self._topics.get(key) is topic:
                del self._topics[key]

    async def _ended(self, topic: _Topic, sent: int, allowed: Callable[[], Awaitable[str | None]]) -> bytes | None:
        """Wait for the next version: None, a ping after a while, or the last event of the stream."""
        changed = topic.changed
        if topic.version == sent and not self._closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PING_S):
                    await changed.wait()
        if self._closed:
            return frame("end", {"code": "APP_CLOSED"})
        if topic.version != sent:
            return None
        code = await allowed()
        return _PING if code is None else frame("end", {"code": code})

    def _ensure_loop(self) -> None:
        self._wake.set()
        if self._loop is None or self._loop.done():
            self._loop = asyncio.get_running_loop().create_task(self._run(), name="holdfast-live")

    async def _run(self) -> None:
        current_redaction.set(self._redaction)
        version: int | None = None
        while self._topics and not self._closed:
            self._wake.clear()
            began = asyncio.get_running_loop().time()
            try:
                client = self._client()
                await self._round(client)
                await self._pause(asyncio.get_running_loop().time() - began)
                version = await self._next(client, version)
            except HoldfastError as error:  # the pages show the old data with the time of their read
                _log.warning("cannot read live updates (%s): %s", error.code, error)
                await asyncio.sleep(_IDLE_S)
            except Exception:  # without the loop, all open pages would show old data
                _log.exception("cannot read live updates")
                await asyncio.sleep(_IDLE_S)

    async def _pause(self, reading: float) -> None:
        """Wait after a round whose reads took ``reading`` seconds. Its updates are sent during the wait."""
        await asyncio.sleep(_MIN_PAUSE_S)
        pause = min(_SHARE * (reading + self._sending), _MAX_PAUSE_S)
        self._sending = 0.0
        if pause > _MIN_PAUSE_S:
            await asyncio.sleep(pause - _MIN_PAUSE_S)

    async def _round(self, client: Client) -> None:
        for topic in [*self._topics.values()]:
            try:
                update = await topic.reader.read(client)
            except HoldfastError as error:
                _log.debug("a topic of live updates could not be read: %s", error)
                continue
            except Exception:  # the other topics are read
                if not topic.failed:
                    _log.exception("a topic of live updates cannot be read")
                topic.failed = True
                continue
            topic.failed = False
            if update is not None:
                topic.set(update)

    async def _next(self, client: Client, version: int | None) -> int | None:
        """Wait until something may have changed. A worker in this process writes without a notification."""
        if client.has_local_worker:
            return version
        until = asyncio.get_running_loop().time() + _IDLE_S
        seen = version
        while seen == version and not self._wake.is_set() and asyncio.get_running_loop().time() < until:
            seen = await client.wait_for_change(version)
        return seen


_PING = b": ping\n\n"
