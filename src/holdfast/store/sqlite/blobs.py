"""Counts of the references to blobs, and blobs that the database holds as chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holdfast.store.protocol.blobs import (
    REFERRING,
    BlobRequest,
    CountReferences,
    ForgetBlobs,
    GarbageBlobs,
    KnownBlobs,
    ReadChunk,
    RenewBlobs,
    WriteChunk,
)
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Connection, Tx

_SQL = statements("blobs")
_EMBEDDED = ("event", "payload")
"""The column whose values may contain the envelope of another run's value: the engine's own events."""
_EMBEDDING = ("output", "value")
"""Fields of the engine's events that contain the value of another run."""
_CHUNK = ("chunk", "data")


def blobs(tx: Tx, request: BlobRequest) -> list[Any]:
    match request:
        case CountReferences():
            create_triggers(tx.connection)
            return []
        case WriteChunk(id, n, data):
            tx.connection.execute(_SQL["insert"], (id, tx.now))
            return [*tx.connection.execute(_SQL["write_chunk"], (id, n, data))]
        case ReadChunk(id, n):
            rows = tx.connection.execute(_SQL["read_chunk"], (id, n))
        case RenewBlobs(ids):
            rows = tx.connection.execute(_SQL["renew"], (json.dumps([*ids]), tx.now))
        case KnownBlobs(ids):
            rows = tx.connection.execute(_SQL["known"], (json.dumps([*ids]),))
        case GarbageBlobs(age_ms, limit):
            rows = tx.connection.execute(_SQL["garbage"], (tx.now - age_ms, limit))
        case ForgetBlobs(ids):
            names = json.dumps([*ids])
            tx.connection.execute(_SQL["delete_chunks"], (names,))
            rows = tx.connection.execute(_SQL["forget"], (names,))
    return [row[0] for row in rows]


def create_triggers(connection: Connection) -> None:
    """Create the triggers, and replace those of another release."""
    existing = {row[0]: row[1] for row in connection.execute(_SQL["triggers"])}
    for name, statement in _triggers():
        if existing.get(name) != statement:
            connection.execute(f"DROP TRIGGER IF EXISTS {name}")
            connection.execute(statement)


def _triggers() -> Iterator[tuple[str, str]]:
    """Names of the triggers, and the statements that create them.

    A row without an envelope costs the evaluation of ``WHEN``.
    """
    for table, columns in REFERRING:
        for column in columns:
            yield _trigger(table, column, "INSERT", ["NEW"])
            yield _trigger(table, column, "DELETE", ["OLD"])
            yield _trigger(table, column, f"UPDATE OF {column}", ["OLD", "NEW"])


def _trigger(table: str, column: str, operation: str, rows: list[str]) -> tuple[str, str]:
    verb = operation.partition(" ")[0].lower()
    when = " OR ".join(_refers(table, column, row) for row in rows)
    body = " ".join(_count(table, column, row) for row in rows)
    name = f"holdfast_blob_{table}_{column}_{verb}"
    return name, f"CREATE TRIGGER {name} AFTER {operation} ON holdfast_{table} WHEN {when} BEGIN {body} END"


def _refers(table: str, column: str, row: str) -> str:
    if (table, column) == _CHUNK:
        value = _item(row)
        return f"(substr({value}, 1, 1) = x'20' AND instr({value}, CAST('\"blobs\":[' AS BLOB)) > 0)"
    envelope = _is_envelope(f"{row}.{column}")
    if (table, column) == _EMBEDDED:
        embedded = " OR ".join(_embeds(row, name) for name in _EMBEDDING)
        envelope += f" OR ({row}.type IN ('@exit', '@reply') AND ({embedded}))"
    return f"({envelope})"


def _is_envelope(value: str) -> str:
    return f"substr({value}, 1, 1) = x'20'"


def _embeds(row: str, name: str) -> str:
    """True if an engine's event has the envelope of another run's value under this name.

    An envelope begins with a space, and a value of a program does not: a value that only looks like a reference, such
    as ``{"blobs": [null]}``, is not one.
    """
    return f"instr({row}.payload, CAST('\"{name}\": {{' AS BLOB)) > 0"


def _item(row: str) -> str:
    """The value of the first item of a chunk, which follows the item's time and length."""
    after_time = f"substr({row}.data, instr({row}.data, x'20') + 1)"
    length = f"CAST(CAST({after_time} AS TEXT) AS INTEGER)"
    return f"substr(substr({after_time}, instr({after_time}, x'20') + 1), 1, {length})"


def _count(table: str, column: str, row: str) -> str:
    """The statement that counts the references of one row. All parts of it are constants of this module."""
    text = f"CAST({_item(row) if (table, column) == _CHUNK else f'{row}.{column}'} AS TEXT)"
    found = {"$.blobs": _refers(table, column, row)}
    if (table, column) == _EMBEDDED:
        found = {"$.blobs": _is_envelope(f"{row}.payload")}
        found |= {f"$.{name}.blobs": _embeds(row, name) for name in _EMBEDDING}
    ids = " UNION ALL ".join(
        f"SELECT value FROM json_each({text}, '{path}') WHERE {condition}"  # noqa: S608
        for path, condition in found.items()
    )
    if row == "OLD":
        return f"UPDATE holdfast_blob SET refs = refs - 1 WHERE id IN ({ids});"  # noqa: S608
    return (
        f"INSERT INTO holdfast_blob (id, refs, used, at) SELECT value, 1, 1, 0 FROM ({ids}) WHERE true "  # noqa: S608
        "ON CONFLICT (id) DO UPDATE SET refs = refs + 1, used = 1;"
    )
