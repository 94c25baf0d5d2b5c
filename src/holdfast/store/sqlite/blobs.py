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
from holdfast.store.sqlite.tx import Tx

_SQL = statements("blobs")
_EMBEDDED = ("event", "payload")
"""The column whose values may contain the envelope of another run's value: the engine's own events."""


def blobs(tx: Tx, request: BlobRequest) -> list[Any]:
    match request:
        case CountReferences():
            for statement in triggers():
                tx.connection.execute(statement)
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


def triggers() -> Iterator[str]:
    """Statements that create the triggers. A row without an envelope costs the evaluation of ``WHEN``."""
    for table, columns in REFERRING:
        for column in columns:
            yield _trigger(table, column, "INSERT", ["NEW"])
            yield _trigger(table, column, "DELETE", ["OLD"])
            yield _trigger(table, column, f"UPDATE OF {column}", ["OLD", "NEW"])


def _trigger(table: str, column: str, operation: str, rows: list[str]) -> str:
    verb = operation.partition(" ")[0].lower()
    when = " OR ".join(_refers(table, column, row) for row in rows)
    body = " ".join(_count(table, column, row) for row in rows)
    return (
        f"CREATE TRIGGER IF NOT EXISTS holdfast_blob_{table}_{column}_{verb} AFTER {operation} ON holdfast_{table} "
        f"WHEN {when} BEGIN {body} END"
    )


def _refers(table: str, column: str, row: str) -> str:
    envelope = f"substr({row}.{column}, 1, 1) = x'20'"
    if (table, column) == _EMBEDDED:
        envelope += (
            f" OR ({row}.type IN ('@exit', '@reply') AND instr({row}.{column}, CAST('\"blobs\":[' AS BLOB)) > 0)"
        )
    return f"({envelope})"


def _count(table: str, column: str, row: str) -> str:
    """The statement that counts the references of one row. All parts of it are constants of this module."""
    paths = ["$.blobs"]
    if (table, column) == _EMBEDDED:
        paths += ["$.output.blobs", "$.value.blobs"]
    text = f"CAST({row}.{column} AS TEXT)"
    where = f"WHERE {_refers(table, column, row)}"
    ids = " UNION ALL ".join(f"SELECT value FROM json_each({text}, '{path}') {where}" for path in paths)  # noqa: S608
    if row == "OLD":
        return f"UPDATE holdfast_blob SET refs = refs - 1 WHERE id IN ({ids});"  # noqa: S608
    return (
        f"INSERT INTO holdfast_blob (id, refs, used, at) SELECT value, 1, 1, 0 FROM ({ids}) WHERE true "  # noqa: S608
        "ON CONFLICT (id) DO UPDATE SET refs = refs + 1, used = 1;"
    )
