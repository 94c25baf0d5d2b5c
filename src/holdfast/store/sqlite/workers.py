"""Who works here: a row for each worker, renewed by its heartbeat. For people to see; no claim looks at it."""

from __future__ import annotations

import json
from typing import NamedTuple

from holdfast.store.protocol import WorkerCard, WorkerRecord
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("workers")
_REMEMBERED_MS = 24 * 60 * 60 * 1000


class Enrolment(NamedTuple):
    card: WorkerCard
    lease_ms: int


def enroll(tx: Tx, new: Enrolment) -> None:
    card = new.card
    tx.connection.execute(_SQL["forget"], (tx.now - _REMEMBERED_MS,))
    row = (card.id, card.host, card.pid, json.dumps(card.queues), card.concurrency, tx.now, tx.now + new.lease_ms)
    tx.connection.execute(_SQL["enroll"], row)


def renew(tx: Tx, owner: str, lease_ms: int) -> None:
    """For one that is enrolled; nobody becomes so by a heartbeat."""
    tx.connection.execute(_SQL["renew"], (owner, tx.now, tx.now + lease_ms))


def dismiss(tx: Tx, owner: str) -> None:
    tx.connection.execute(_SQL["dismiss"], (owner,))


def workers(tx: Tx, _: None) -> list[WorkerRecord]:
    return [_worker(row) for row in tx.connection.execute(_SQL["all"], (tx.now,))]


def _worker(row: Row) -> WorkerRecord:
    id_, host, pid, queues, concurrency, started_at, seen_at, alive = row
    card = WorkerCard(id_, host, pid, tuple(json.loads(queues)), concurrency)
    return WorkerRecord(card, started_at, seen_at, alive == 1)
