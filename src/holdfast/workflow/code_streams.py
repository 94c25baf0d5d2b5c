"""Streams that workflow code writes to.

The items of the code are part of the turn's commit. A replay writes all of them again, so the machine counts them: the
items that the store has, by the counts of the snapshot, are left out. Whether a stream is closed for the code depends
only on what the code has seen: its own ``close``, and the results of steps that closed the stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core import codec
from holdfast.core.limits import Limits
from holdfast.core.names import check_stream_name
from holdfast.errors import StateError
from holdfast.kernel.streams import RateMeter, check_room, closed_message
from holdfast.store.protocol import RunRecord, Snapshot, TaskRef
from holdfast.store.protocol.streams import StreamWrite, pack
from holdfast.workflow.guard import check
from holdfast.workflow.loop import WorkflowLoop
from holdfast.workflow.position import Position

if TYPE_CHECKING:
    from holdfast.kernel.driver import Outcome


class _Written:
    """Items that the code has written to one stream."""

    __slots__ = ("closed", "count", "meter", "new", "size", "start", "stored")

    def __init__(self, stored: int) -> None:
        self.stored = stored
        """Number of items that the store has from earlier executions, with the close marker."""
        self.count = 0
        self.size = 0
        self.closed = False
        self.meter = RateMeter()
        self.new: list[bytes] = []
        self.start = 0
        """The number of items before ``new``."""


class CodeStreams:
    """The streams of one run, as its code sees them."""

    __slots__ = ("_changed", "_delivered", "_limits", "_position", "_run", "_stored", "_written", "closers")

    def __init__(self, run: RunRecord, position: Position, snapshot: Snapshot | None, limits: Limits) -> None:
        self._run = run
        self._position = position
        self._limits = limits
        self._stored: Mapping[str, int] = {}
        self.closers: dict[str, set[str]] = {}
        """Steps whose results close a stream, by its name."""
        if snapshot is not None and snapshot.streams:
            self._stored = {head.name: head.code_items for head in snapshot.streams}
            self.closers = {
                head.name: {key for key in head.closed_by if key is not None}
                for head in snapshot.streams
                if head.closed_by
            }
        self._delivered: set[str] = set()
        """Steps among them whose results the code has received."""
        self._written: dict[str, _Written] = {}
        self._changed: dict[str, bool] = {}
        """Streams with new items; True: closed."""

    @property
    def changed(self) -> bool:
        return bool(self._changed)

    def note_closes(self, outcomes: Sequence[Outcome]) -> None:
        """Note the streams that successful attempts closed. They are closed when the code receives the results."""
        for outcome in outcomes:
            if outcome.closes and outcome.succeeded:
                for name in outcome.closes:
                    self.closers.setdefault(name, set()).add(outcome.key)

    def delivered(self, step_key: str) -> None:
        """Note that the code receives the result of a step."""
        self._delivered.add(step_key)

    def write(self, name: str, value: Any) -> None:
        written = self._open(name)
        what = f"an item of stream {name!r}"
        data = codec.encode(value, what=what, limit=self._limits.stream_item)
        item = pack(self._position.wall_ms, data)
        check_room(name, self._run.pid, written.count + 1, written.size + len(data), self._limits)
        written.meter.count(self._position.now_ms, name, self._run.pid, self._limits)
        written.size += len(data)
        written.count += 1
        if written.count > written.stored:
            self._note(name, written)
            written.new.append(item)

    def close(self, name: str) -> None:
        written = self._written.get(name)
        if written is not None and written.closed:
            return
        written = self._open(name)
        written.closed = True
        written.count += 1
        if written.count > written.stored:
            self._note(name, written)
            self._changed[name] = True

    def _open(self, name: str) -> _Written:
        written = self._written.get(name)
        if written is None:
            check_stream_name(name, self._limits)
            written = self._written[name] = _Written(self._stored.get(name, 0))
        if written.closed or not self._delivered.isdisjoint(self.closers.get(name, ())):
            raise StateError(closed_message(name, self._run.pid))
        return written

    def _note(self, name: str, written: _Written) -> None:
        if name not in self._changed:
            self._changed[name] = False
            written.start = written.count - 1

    def take(self) -> list[StreamWrite]:
        """The writes of the next commit."""
        task = TaskRef(self._run.run, 0, "", 0)
        writes = [
            StreamWrite(task, name, None, 0, self._written[name].start, self._written[name].new, closes)
            for name, closes in self._changed.items()
        ]
        for name in self._changed:
            self._written[name].new = []
        self._changed.clear()
        return writes


class CodeStream:
    """A durable stream, as workflow code writes it. ``async with`` is allowed, and closes nothing.

    Items are stored with the next commit of the run, and only once, however often the code is replayed.

    Example::

        @app.workflow
        async def report(ctx: Context) -> None:
            progress = ctx.stream("progress")
            await progress.write({"done": 0})
    """

    __slots__ = ("_loop", "_streams", "name")

    def __init__(self, streams: CodeStreams, loop: WorkflowLoop, name: str) -> None:
        self._streams = streams
        self._loop = loop
        self.name = name

    async def __aenter__(self) -> CodeStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def write(self, value: Any) -> None:
        """Append an item: any JSON value of at most ``Limits.stream_item`` bytes.

        Raises ``StateError`` if the stream is closed, and ``StreamFullError`` if the code has written
        ``Limits.stream_items`` items or ``Limits.stream_bytes`` bytes to it, and ``StreamRateError`` if it has written
        ``Limits.stream_rate`` items in the last second.
        """
        check(self._loop, "a stream of workflow code")
        self._streams.write(self.name, value)

    async def close(self) -> None:
        """Close the stream: readers end after its last item."""
        check(self._loop, "a stream of workflow code")
        self._streams.close(self.name)
