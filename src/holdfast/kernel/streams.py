"""Streams of steps, which ``step_info().stream(name)`` returns.

An item is buffered with its attempt when ``write`` is called, and the worker stores the buffers of all attempts in
batches (``StreamSink``): at once while nothing is being written, otherwise with the next batch. The first ``write`` of
an attempt to a stream waits until its item is stored, so that a closed stream is reported there; later ones wait only
while the buffer is full. The outcome of an attempt is reported after its last item is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core import codec
from holdfast.core.limits import Limits
from holdfast.core.names import check_stream_name
from holdfast.errors import StateError, StreamFullError, StreamRateError
from holdfast.store.protocol.streams import StreamWrite, StreamWritten, WriteVerdict, pack

if TYPE_CHECKING:
    from holdfast.store.protocol import TaskRef

_BUFFER_BYTES = 256 * 1024
"""Size of a buffer above which ``write`` waits."""


_NOTHING = StreamWritten(WriteVerdict.WRITTEN)


class StreamSink(Protocol):
    """The part of the worker that stores items."""

    def put(self, stream: AttemptStream) -> None:
        """Store the buffered items of a stream. Called from the thread of the event loop."""
        ...


@dataclass(slots=True, eq=False)
class StreamPort:
    """The part of the engine that streams of steps use."""

    sink: StreamSink
    limits: Limits
    now_ms: Callable[[], int]


class RateMeter:
    """Measures the rate of one writer: ``Limits.stream_rate`` items at once, and as many in each further second."""

    __slots__ = ("_full_at",)

    def __init__(self) -> None:
        self._full_at = 0
        """The time at which the writer may write a full second's items at once again, in milliseconds times the rate.

        Whole numbers: milliseconds since 1970 leave a float too few digits."""

    def count(self, now_ms: int, name: str, pid: str, limits: Limits) -> None:
        """Count an item. Raises ``StreamRateError``."""
        rate = limits.stream_rate
        full_at = max(self._full_at, now_ms * rate) + 1000
        if full_at > (now_ms + 1000) * rate:
            raise StreamRateError(
                f"too many items for stream {name!r} of run {pid}: {rate} in a second are allowed (Limits.stream_rate)"
            )
        self._full_at = full_at


@dataclass(slots=True, eq=False)
class AttemptStream:
    """The items of one attempt for one stream."""

    pid: str
    task: TaskRef
    name: str
    step_key: str
    attempt: int
    buffer: list[bytes] = field(default_factory=list)
    buffered: int = 0
    """Size of the buffer in bytes."""
    stored: int = 0
    """Number of items that are stored, with the close marker."""
    in_flight: bool = False
    """True while a write has no reply yet."""
    in_flight_items: int = 0
    in_flight_size: int = 0
    """Number and size of the items of that write."""
    closing: bool = False
    """True if a close marker has to be stored."""
    closed: bool = False
    """True once ``close`` was called."""
    total: StreamWritten = _NOTHING
    """Size of the whole stream after the last write."""
    error: Exception | None = None
    meter: RateMeter = field(default_factory=RateMeter)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def has_unstored(self) -> bool:
        return self.error is None and bool(self.buffer or self.closing)

    def add(self, item: bytes) -> None:
        if self.error is None:
            self.buffer.append(item)
            self.buffered += len(item)

    def take(self) -> StreamWrite:
        """The next write. ``written`` is called with its result."""
        items, self.in_flight = self.buffer, True
        self.in_flight_items, self.in_flight_size = len(items), self.buffered
        self.buffer, self.buffered = [], 0
        return StreamWrite(self.task, self.name, self.step_key, self.attempt, self.stored, items, self.closing)

    def failed(self, error: Exception) -> None:
        self.error = error
        self._landed()
        self.wake()

    def written(self, write: StreamWrite, result: StreamWritten) -> None:
        self._landed()
        if result.verdict is WriteVerdict.WRITTEN:
            self.stored += len(write.items) + write.closes
            self.closing = self.closing and not write.closes
            self.total = result
        elif result.verdict is WriteVerdict.CLOSED:
            self.error = StateError(closed_message(self.name, self.pid))
        else:
            self.error = StateError(f"run {self.pid} has another owner: this attempt can no longer write")
        self.wake()

    def _landed(self) -> None:
        self.in_flight, self.in_flight_items, self.in_flight_size = False, 0, 0

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Wait for the end of the next write."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        await waiter


class Stream:
    """A durable stream, as a step writes it. ``async with`` is allowed, and closes nothing.

    Example::

        @app.step
        async def answer(question: str) -> str:
            async with step_info().stream("tokens") as out:
                async for token in model(question):
                    await out.write(token)
    """

    def __init__(self, items: AttemptStream, port: StreamPort, loop: asyncio.AbstractEventLoop | None) -> None:
        self._items = items
        self._port = port
        self._loop = loop
        """The worker's event loop, for a step that runs in a thread."""
        self.name = items.name

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def write(self, value: Any) -> Awaitable[None]:
        """Append an item: any JSON value of at most ``Limits.stream_item`` bytes.

        Await it in an async step; a plain step only calls it. Raises ``StateError`` if the stream is closed, and
        ``StreamFullError`` if the stream has reached ``Limits.stream_items`` or ``Limits.stream_bytes``, and
        ``StreamRateError`` if the attempt writes more than ``Limits.stream_rate`` items in a second.
        """
        items, limits = self._items, self._port.limits
        if items.closed:
            raise StateError(closed_message(self.name, items.pid))
        if items.error is not None:
            raise items.error
        what = f"an item of stream {self.name!r}"
        now = self._port.now_ms()
        data = pack(now, codec.encode(value, what=what, limit=limits.stream_item))
        self._check_room(len(data))
        items.meter.count(now, self.name, items.pid, limits)
        first = items.stored == 0
        self._on_loop(items.add, data)
        return _Stored(items, first)

    def close(self) -> Awaitable[None]:
        """Close the stream. The stream stays open until the attempt succeeds, and if the attempt fails."""
        items = self._items
        if not items.closed:
            items.closed = True
            self._on_loop(self._begin_close)
        return _Stored(items, False)

    def _check_room(self, size: int) -> None:
        items, limits = self._items, self._port.limits
        count = items.total.items + items.in_flight_items + len(items.buffer) + 1
        check_room(self.name, items.pid, count, items.total.size + items.in_flight_size + items.buffered + size, limits)

    def _begin_close(self) -> None:
        self._items.closing = True

    def _on_loop(self, change: Callable[..., None], *args: Any) -> None:
        """Change the items in the thread of the event loop, in the order of the calls, and have them stored."""

        def apply() -> None:
            change(*args)
            self._port.sink.put(self._items)

        apply() if self._loop is None else self._loop.call_soon_threadsafe(apply)


class _Stored:
    """Waits until the buffer has room. Not a coroutine, because a plain step does not await it."""

    __slots__ = ("_first", "_items")

    def __init__(self, items: AttemptStream, first: bool) -> None:
        self._items = items
        self._first = first

    def __await__(self) -> Generator[Any, None, None]:
        items = self._items
        while items.error is None and (items.buffered > _BUFFER_BYTES or (self._first and not items.stored)):
            yield from items.changed().__await__()
        if items.error is not None:
            raise items.error


class AttemptStreams:
    """The streams of one attempt."""

    def __init__(self, pid: str, task: TaskRef, step_key: str, attempt: int, port: StreamPort) -> None:
        self._pid, self._task, self._step_key, self._attempt, self._port = pid, task, step_key, attempt, port
        self._streams: dict[str, AttemptStream] = {}

    def open(self, name: str, loop: asyncio.AbstractEventLoop | None) -> Stream:
        items = self._streams.get(name)
        if items is None:
            check_stream_name(name, self._port.limits)
            items = AttemptStream(self._pid, self._task, name, self._step_key, self._attempt)
            self._streams[name] = items
        return Stream(items, self._port, loop)

    @property
    def used(self) -> bool:
        """True if anything was written."""
        return any(one.stored or one.in_flight or one.has_unstored for one in self._streams.values())

    @property
    def closes(self) -> tuple[str, ...]:
        """The names of the streams that the attempt closed."""
        return tuple(name for name, one in self._streams.items() if one.closed)

    async def store(self) -> None:
        """Wait until everything is stored. Raises the error of a stream that could not be written."""
        for one in self._streams.values():
            while one.in_flight or one.has_unstored:
                await one.changed()
            if one.error is not None:
                raise one.error

    def abandon(self) -> None:
        """Drop the items that are not stored: the attempt has failed or was cancelled."""
        for one in self._streams.values():
            one.buffer, one.buffered, one.closing = [], 0, False
            one.error = one.error or StateError("the attempt has ended")
            one.wake()


def closed_message(name: str, pid: str) -> str:
    return f"stream {name!r} of run {pid} is closed"


def check_room(name: str, pid: str, items: int, size: int, limits: Limits) -> None:
    """Raise ``StreamFullError`` if a stream would have more items or bytes than allowed."""
    if items > limits.stream_items:
        raise StreamFullError(
            f"stream {name!r} of run {pid} is full: it has {limits.stream_items} items (Limits.stream_items)"
        )
    if size > limits.stream_bytes:
        raise StreamFullError(
            f"stream {name!r} of run {pid} is full: it would exceed {limits.stream_bytes} bytes (Limits.stream_bytes)"
        )
