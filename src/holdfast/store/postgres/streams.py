"""Streams: appends of items, and reads. A repeated append is recognised by the number of the writer's items."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import decode_text, encode_text
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol.streams import (
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
)


async def write(tx: Tx, writes: Sequence[StreamWrite]) -> list[StreamWritten]:
    if not writes:
        return []
    items: list[bytes] = []
    rows: list[Row] = []
    for task, name, step_key, attempt, start, values, closes in writes:
        place = (len(items) + 1, len(items) + len(values))
        rows.append((*task, name, encode_text(step_key), attempt, start, *place, closes))
        items += values
    sql = statements("streams", tx.schema)["write"]
    found = await tx.connection.fetch(sql, tx.store_id, *map(list, zip(*rows, strict=True)), items)
    return [StreamWritten(WriteVerdict(row["verdict"]), row["items"], row["size"]) for row in found]


async def append(tx: Tx, writes: Sequence[StreamWrite]) -> None:
    """Append the items of the workflow's code, in the transaction of its commit."""
    sql = statements("streams", tx.schema)
    for one in sorted(writes, key=lambda one: one.name):
        task, name, _, _, start, values, closes = one
        await tx.connection.fetchrow(
            sql["append"], task.run, task.unit, task.epoch, name, None, None, start, list(values), closes
        )
    await tx.connection.fetchval(sql["notify"], tx.store_id)


async def read(tx: Tx, query: StreamQuery) -> StreamPage:
    sql = statements("streams", tx.schema)
    # Read before the chunks: a run that has ended by now writes no further chunk.
    ended: bool = await tx.connection.fetchval(sql["has_ended"], query.run)
    rows = await tx.connection.fetch(sql["chunks"], query.run, query.name, query.after, query.limit)
    return StreamPage([_chunk(*row.values()) for row in rows], ended)


def _chunk(
    first: int, count: int, step_key: bytes | None, attempt: int | None, state: int, closes: bool, data: bytes
) -> StreamChunk:
    return StreamChunk(first, count, decode_text(step_key), attempt, WriterState(state), closes, data)


async def heads(tx: Tx, query: StreamHeadsQuery) -> list[StreamHead]:
    rows = await tx.connection.fetch(statements("streams", tx.schema)["heads"], query.run)
    return [_head(*row.values()) for row in rows]


def _head(name: str, items: int, size: int, code_items: int, closers: list[bytes | None] | None) -> StreamHead:
    return StreamHead(name, items, size, code_items, tuple(decode_text(key) for key in closers or ()))


async def prune(tx: Tx, request: PruneStreams) -> int:
    sql = statements("streams", tx.schema)["prune"]
    count: int = await tx.connection.fetchval(sql, tx.now, request.workflow, request.age_ms, request.limit)
    return count
