"""Stored bulk jobs."""

from __future__ import annotations

from typing import Any

from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import BulkJobById, BulkJobRow, BulkRequest, NewBulkJob, SaveBulkJob, TakeBulkJobs


async def bulk(tx: Tx, request: BulkRequest) -> list[BulkJobRow]:
    arguments: tuple[Any, ...]
    match request:
        case NewBulkJob(id, content, upto, progress):
            name, arguments = "insert", (tx.now, id, content, upto, progress)
        case TakeBulkJobs(owner, lease_ms, id, working):
            name, arguments = "take", (tx.now, owner, lease_ms, id, [*working])
        case SaveBulkJob(id, owner, lease_ms, position, progress, ended):
            name, arguments = "save", (tx.now, id, owner, lease_ms, position, progress, ended)
        case BulkJobById(id):
            name, arguments = "by_id", (id,)
    rows = await tx.connection.fetch(statements("bulk", tx.schema)[name], *arguments)
    return [BulkJobRow(*row.values()) for row in rows]
