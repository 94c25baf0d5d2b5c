"""Streams: appends of items, and reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.protocol import TaskRef
from holdfast.store.protocol.streams import (
    CHUNK_BYTES,
    CHUNK_ITEMS,
    PruneStreams,
    StreamChunk,
    StreamHead,
    StreamHeadsQuery,
    StreamPage,
    StreamQuery,
    StreamWrite,
    StreamWritten,
    WriterState,
    WriteVerdict,
    chunked,
)
from holdfast.store.sqlite.rows import Text, decode_text, encode_text_or_none
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("streams")
_LOST = StreamWritten(WriteVerdict.LOST)


class _Head(NamedTuple):
    """The row of a stream, and its last chunk; the fields of the chunk are None if there is none."""

    items: int = 0
    size: int = 0
    code_items: int = 0
    markers: int = 0
    first: int | None = None
    item_count: int = 0
    length: int = 0
    step_key: Text | None = None
    epoch: int | None = None
    attempt: int | None = None
    start: int = 0
    closes: int = 0


class _Writer(NamedTuple):
    """The writer of a chunk. All are None for the workflow's code."""

    step_key: Text | None
    epoch: int | None
    attempt: int | None


def write(tx: Tx, writes: Sequence[StreamWrite]) -> list[StreamWritten]:
    owned = _owned(tx, {one.task for one in writes})
    return [append(tx, one) if one.task in owned else _LOST for one in writes]


def _owned(tx: Tx, tasks: set[TaskRef]) -> set[TaskRef]:
    found = tx.connection.execute(_SQL["owned"], (json.dumps(list(tasks)),)).get
    return {TaskRef(*task) for task in json.loads(found)}


def append(tx: Tx, one: StreamWrite) -> StreamWritten:
    """Append the items of a writer whose fence holds."""
    execute, run, name = tx.connection.execute, one.task.run, one.name
    row = execute(_SQL["head"], (run, name)).fetchone()
    head = _Head() if row is None else _Head(*row)
    code = one.step_key is None
    key = encode_text_or_none(one.step_key)
    writer = _Writer(None, None, None) if code else _Writer(key, one.task.epoch, one.attempt)
    if head.markers and not code and _closers(tx, run, name):
        return StreamWritten(WriteVerdict.CLOSED, head.items, head.size)
    left = _not_stored(tx, one, head, writer)
    if left:
        head = _append(tx, one, head, writer, left)
        tail = head.first if head.first is not None else 0
        execute(_SQL["set_head"], (run, name, head.items, head.size, head.code_items, head.markers, tail))
    return StreamWritten(WriteVerdict.WRITTEN, head.items, head.size)


def _not_stored(tx: Tx, one: StreamWrite, head: _Head, writer: _Writer) -> list[bytes | None]:
    """The items that the store does not have yet; None stands for the close marker."""
    items: list[bytes | None] = [*one.items, None] if one.closes else [*one.items]
    if writer.step_key is None:
        written = head.code_items
    elif head.first is None:
        written = 0
    elif (head.step_key, head.epoch, head.attempt) == writer:
        written = head.start + head.item_count
    else:
        written = tx.connection.execute(_SQL["written"], (one.task.run, one.name, *writer)).get or 0
    return items[max(0, written - one.start) :]


def _append(tx: Tx, one: StreamWrite, head: _Head, writer: _Writer, left: list[bytes | None]) -> _Head:
    execute, run, name = tx.connection.execute, one.task.run, one.name
    values = [item for item in left if item is not None]
    total = one.start + len(one.items) + one.closes
    offset, start = head.items + 1, total - len(left)
    same = head.first is not None and (head.step_key, head.epoch, head.attempt) == writer and not head.closes
    room = (CHUNK_ITEMS - head.item_count, CHUNK_BYTES - head.length) if same else (0, 0)
    tail = head.first
    for n, chunk in enumerate(chunked(values, *room) if values else ()):
        if n == 0 and not chunk:
            continue
        data = b"".join(chunk)
        if n == 0:
            execute(_SQL["extend_chunk"], (run, name, tail, len(chunk), data))
        else:
            tail = offset
            row = (run, name, offset, len(chunk), writer.step_key, one.task.unit, *writer[1:], start, 0, data)
            execute(_SQL["insert_chunk"], row)
        offset += len(chunk)
        start += len(chunk)
    markers = head.markers
    if one.closes:
        row = (run, name, offset, 1, writer.step_key, one.task.unit, *writer[1:], start, 1, b"")
        execute(_SQL["insert_chunk"], row)
        tail, offset, markers = offset, offset + 1, markers + 1
    code = len(left) if writer.step_key is None else 0
    size = head.size + sum(map(len, values))
    return _Head(offset - 1, size, head.code_items + code, markers, tail)


def _closers(tx: Tx, run: int, name: str) -> tuple[str | None, ...]:
    return tuple(decode_text(key) for (key,) in tx.connection.execute(_SQL["closers"], (run, name)))


def read(tx: Tx, query: StreamQuery) -> StreamPage:
    ended = tx.connection.execute(_SQL["has_ended"], (query.run,)).get == 1
    rows = tx.connection.execute(_SQL["chunks"], (query.run, query.name, query.after, query.limit)).fetchall()
    return StreamPage([_chunk(*row) for row in rows], ended)


def _chunk(
    first: int, count: int, step_key: Text | None, attempt: int | None, state: int, closes: int, data: bytes
) -> StreamChunk:
    return StreamChunk(first, count, decode_text(step_key), attempt, WriterState(state), closes == 1, data)


def heads(tx: Tx, query: StreamHeadsQuery) -> list[StreamHead]:
    run = query.run
    return [
        StreamHead(name, items, size, code_items, _closers(tx, run, name) if markers else ())
        for name, items, size, code_items, markers in tx.connection.execute(_SQL["heads"], (run,)).fetchall()
    ]


def prune(tx: Tx, request: PruneStreams) -> int:
    before = tx.now - request.age_ms
    found = tx.connection.execute(_SQL["old_streams"], (request.workflow, before, request.limit)).fetchall()
    for stream in found:
        tx.connection.execute(_SQL["delete_chunks"], stream)
        tx.connection.execute(_SQL["delete_stream"], stream)
    return len(found)
