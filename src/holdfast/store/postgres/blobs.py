"""Counts of the references to blobs, and blobs that the database holds as chunks."""

from __future__ import annotations

from typing import Any

from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
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


async def blobs(tx: Tx, request: BlobRequest) -> list[Any]:
    arguments: tuple[Any, ...]
    match request:
        case CountReferences():
            await create_triggers(tx.connection, tx.schema)
            return []
        case WriteChunk(id, n, data):
            name, arguments = "write_chunk", (tx.now, id, n, data)
        case ReadChunk(id, n):
            name, arguments = "read_chunk", (id, n)
        case RenewBlobs(ids):
            name, arguments = "renew", (tx.now, [*ids])
        case KnownBlobs(ids):
            name, arguments = "known", ([*ids],)
        case GarbageBlobs(age_ms, limit):
            name, arguments = "garbage", (tx.now, age_ms, limit)
        case ForgetBlobs(ids):
            name, arguments = "forget", ([*ids],)
    rows = await tx.connection.fetch(statements("blobs", tx.schema)[name], *arguments)
    return [next(iter(row.values())) for row in rows]


async def create_triggers(connection: Any, schema: str) -> None:
    """Create the triggers that do not exist yet: creating one waits for all writers of its table."""
    existing = {row[0] for row in await connection.fetch(statements("blobs", schema)["triggers"], schema)}
    for table, columns in REFERRING:
        for column in columns:
            for operation, rows in (("INSERT", ["NEW"]), ("DELETE", ["OLD"]), (f"UPDATE OF {column}", ["OLD", "NEW"])):
                name = f"holdfast_blob_{table}_{column}_{operation.partition(' ')[0].lower()}"
                if name not in existing:
                    when = " OR ".join(_refers(table, column, row) for row in rows)
                    await connection.execute(
                        f'CREATE OR REPLACE TRIGGER {name} AFTER {operation} ON "{schema}".holdfast_{table} '
                        f"FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION \"{schema}\".holdfast_count_blobs('{column}')"
                    )


def _refers(table: str, column: str, row: str) -> str:
    if (table, column) == ("chunk", "data"):
        return f"(position('\"blobs\":['::bytea IN {row}.data) > 0)"
    condition = f"substring({row}.{column} FROM 1 FOR 1) = '\\x20'::bytea"
    if (table, column) == ("event", "payload"):
        condition += f" OR ({row}.type IN ('@exit', '@reply') AND position('\"blobs\":['::bytea IN {row}.{column}) > 0)"
    return f"({condition})"
