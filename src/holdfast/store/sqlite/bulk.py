"""Stored bulk jobs."""

from __future__ import annotations

import json

from holdfast.store.protocol import BulkJobById, BulkJobRow, BulkRequest, NewBulkJob, SaveBulkJob, TakeBulkJobs
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("bulk")


def bulk(tx: Tx, request: BulkRequest) -> list[BulkJobRow]:
    match request:
        case NewBulkJob(id, content, upto, progress):
            rows = tx.connection.execute(_SQL["insert"], (id, tx.now, content, upto, progress))
        case TakeBulkJobs(owner, lease_ms, id, working):
            rows = tx.connection.execute(_SQL["take"], (owner, tx.now, tx.now + lease_ms, id, json.dumps([*working])))
        case SaveBulkJob(id, owner, lease_ms, position, progress, ended):
            until, ended_at = tx.now + lease_ms, tx.now if ended else None
            rows = tx.connection.execute(_SQL["save"], (id, owner, until, position, progress, ended_at))
        case BulkJobById(id):
            rows = tx.connection.execute(_SQL["by_id"], (id,))
    return [BulkJobRow(*row) for row in rows]
