"""Who works here: a row for each worker, renewed by its heartbeat."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import WorkerCard, WorkerRecord

_REMEMBERED_MS = 24 * 60 * 60 * 1000


class Enrolment(NamedTuple):
    card: WorkerCard
    lease_ms: int


async def enroll(tx: Tx, new: Enrolment) -> None:
    sql, card = statements("workers", tx.schema), new.card
    await tx.connection.execute(sql["forget"], tx.now, _REMEMBERED_MS)
    await tx.connection.execute(sql["forget_receipts"], tx.now, _REMEMBERED_MS)
    row = (card.id, card.host, card.pid, list(card.queues), card.concurrency, new.lease_ms)
    await tx.connection.execute(sql["enroll"], tx.now, *row)


async def dismiss(tx: Tx, owner: str) -> None:
    await tx.connection.execute(statements("workers", tx.schema)["dismiss"], owner)


async def workers(tx: Tx, _: None) -> list[WorkerRecord]:
    rows = await tx.connection.fetch(statements("workers", tx.schema)["all"], tx.now)
    return [_worker(tuple(row.values())) for row in rows]


def _worker(row: Row) -> WorkerRecord:
    id_, host, pid, queues, concurrency, started_at, seen_at, alive = row
    return WorkerRecord(WorkerCard(id_, host, pid, tuple(queues), concurrency), started_at, seen_at, alive)
