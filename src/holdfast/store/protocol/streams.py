"""Streams: ordered items that a run writes, and that readers follow while it runs.

A stream is a name in a run. Its items have offsets from 1 that the store assigns when it writes them. Items are stored
in **chunks**: one row holds up to ``CHUNK_ITEMS`` items of one writer, and grows until it is full, so that a stream of
tokens does not cost a row per token. An item in a blob has a chunk of its own, whose reference the database counts. The
writers of a stream are the attempts of steps, and the workflow's own code.

An attempt writes while it runs (``write_streams``), under the fence of its task. Its items belong to the final output
if the attempt succeeds: the commit or advance with the outcome of the attempt contains a SETTLEMENT fact. Without this
fact an attempt is undecided while its claim holds, and has failed afterwards. A late write of an attempt that has
timed out is therefore never taken for output.

A **close marker** is an item without a value. The stream ends at the first marker whose writer succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from holdfast.core.facts import Fact, FactState
from holdfast.core.model import StepType
from holdfast.store.protocol.requests import MaintenanceRequest, Query
from holdfast.store.protocol.units import TaskRef

CHUNK_ITEMS = 100
"""Number of items after which a new chunk begins."""
CHUNK_BYTES = 4096
"""Size in bytes after which a new chunk begins. A write to a chunk writes the whole row again."""
_ATTEMPTS = 1 << 24
"""Greater than the number of any attempt."""


class StreamWrite(NamedTuple):
    """Items of one writer for one stream."""

    task: TaskRef
    name: str
    step_key: str | None
    """None: the workflow's code."""
    attempt: int
    start: int
    """Number of items that this writer wrote to the stream before. Items that the store has already are skipped, so
    that a repeated call writes nothing twice."""
    items: Sequence[bytes]
    """Items as ``pack`` makes them."""
    closes: bool = False
    """A close marker follows the items; it counts as an item of the writer."""


class WriteVerdict(IntEnum):
    WRITTEN = 0
    LOST = 1
    """The fence did not hold; nothing was written."""
    CLOSED = 2
    """The stream is closed; nothing was written."""


class StreamWritten(NamedTuple):
    verdict: WriteVerdict
    items: int = 0
    """Number of items in the stream, of all writers."""
    size: int = 0
    """Size of the stream in bytes."""


class WriterState(IntEnum):
    """The state of the writer of a chunk."""

    UNDECIDED = 0
    """The attempt is running."""
    SUCCEEDED = 1
    """The attempt has succeeded; also the workflow's code."""
    FAILED = 2


class StreamChunk(NamedTuple):
    first: int
    """The offset of the first item."""
    length: int
    """Number of items; a close marker is one item."""
    step_key: str | None
    attempt: int | None
    state: WriterState
    closes: bool
    """The chunk is a close marker."""
    data: bytes

    def items(self) -> Iterator[tuple[int, int, bytes]]:
        """Offset, time in milliseconds and value of each item."""
        if not self.closes:
            for offset, (at, value) in enumerate(unpack(self.data), self.first):
                yield offset, at, value


class StreamPage(NamedTuple):
    chunks: Sequence[StreamChunk]
    """In the order of their offsets. The first one may begin before the requested offset."""
    ended: bool
    """True if the run has ended, or does not exist: no chunk follows those of this page and later ones."""


@dataclass(frozen=True, slots=True)
class StreamQuery(Query[StreamPage]):
    """The chunks of a stream that have items after an offset."""

    run: int
    name: str
    after: int = 0
    limit: int = 64
    """Maximum number of chunks."""


class StreamHead(NamedTuple):
    """A stream of a run."""

    name: str
    items: int
    """Number of items, of all attempts, with close markers."""
    size: int
    code_items: int
    """Number of items that the workflow's code wrote, with close markers."""
    closed_by: tuple[str | None, ...] = ()
    """Steps whose successful attempts closed the stream; None: the workflow's code."""


@dataclass(frozen=True, slots=True)
class StreamHeadsQuery(Query[list[StreamHead]]):
    """The streams of a run, in the order of their names."""

    run: int


@dataclass(frozen=True, slots=True)
class PruneStreams(MaintenanceRequest[int]):
    """Delete streams of finished runs of a workflow; the reply is their number."""

    workflow: str
    age_ms: int
    """Only streams of runs that ended at least this long ago."""
    limit: int = 20
    """Maximum number of streams to delete."""


def settlement_number(epoch: int, attempt: int) -> int:
    """The number of a SETTLEMENT fact. An attempt whose number was used under an earlier claim is another one."""
    return epoch * _ATTEMPTS + attempt


def settlement(task: TaskRef, step_key: str, attempt: int, at: int, *, succeeded: bool) -> Fact:
    """The fact that decides whether the items of an attempt belong to the output."""
    number = settlement_number(task.epoch, attempt)
    return Fact(FactState.SETTLEMENT, step_key, number, StepType.DO, at, at, ok=succeeded, attempts=attempt)


def pack(at: int, value: bytes) -> bytes:
    """An item as it is stored: time, length and value. The length allows values with any bytes."""
    return b"%d %d %s\n" % (at, len(value), value)


def unpack(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Times and values of stored items."""
    position = 0
    while position < len(data):
        end_of_at = data.index(b" ", position)
        end_of_length = data.index(b" ", end_of_at + 1)
        begin, length = end_of_length + 1, int(data[end_of_at + 1 : end_of_length])
        yield int(data[position:end_of_at]), data[begin : begin + length]
        position = begin + length + 1


_REFERENCE = b'"blobs":['
_HEAD = 40
"""More bytes than the time and the length of an item take."""


def holds_blob(item: bytes) -> bool:
    """True if the value of an item is an envelope that refers to a blob. Such an item has a chunk of its own."""
    return _REFERENCE in item and b"  {" in item[:_HEAD]


def chunked(items: Iterable[bytes], items_left: int, bytes_left: int) -> Iterator[list[bytes]]:
    """Split items into chunks. The first one fills the room that the last stored chunk has, and may be empty."""
    chunk: list[bytes] = []
    for item in items:
        alone = holds_blob(item)
        if alone or items_left <= 0 or bytes_left <= 0:
            yield chunk
            chunk, items_left, bytes_left = [], CHUNK_ITEMS, CHUNK_BYTES
        chunk.append(item)
        items_left -= CHUNK_ITEMS if alone else 1
        bytes_left -= len(item)
    yield chunk
