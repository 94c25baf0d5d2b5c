"""Events on their way out of runs: who delivers them, and what came of it.

Of each run one has its turn, the first that is left: only that one has a ``due_at``, and is found by who looks for
work, however many wait behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.store.protocol import Delivered, Outbound, OutboxClaim, OutboxRow, Undelivered
from holdfast.store.sqlite.rows import safe, unsafe
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("outbox")


class Carrier(NamedTuple):
    """Who wants to deliver, for how long, and how many."""

    owner: str
    lease_ms: int
    limit: int


class Settling(NamedTuple):
    owner: str
    settled: Sequence[Delivered | Undelivered]


def outbox_rows(run: int, events: Iterable[Outbound], now: int) -> list[Row]:
    return [(run, safe(step), safe(type_), payload, now) for type_, payload, step in events]


def claim(tx: Tx, carrier: Carrier) -> OutboxClaim:
    rows = [_row(row) for row in tx.connection.execute(_SQL["due"], (tx.now, carrier.limit))]
    until = tx.now + carrier.lease_ms
    tx.connection.executemany(_SQL["take"], [(row.run, row.n, carrier.owner, until, row.attempts) for row in rows])
    return OutboxClaim(rows, next_due(tx))


def next_due(tx: Tx, _: None = None) -> int | None:
    found: int | None = tx.connection.execute(_SQL["next_due"]).get
    return found


def settle(tx: Tx, settling: Settling) -> int:
    return sum(_settle(tx, settling.owner, one) for one in settling.settled)


def _settle(tx: Tx, owner: str, one: Delivered | Undelivered) -> bool:
    held = (one.run, one.n, owner)
    match one:
        case Delivered():
            tx.connection.execute(_SQL["delivered"], (*held, tx.now))
        case Undelivered(run_at=None):
            tx.connection.execute(_SQL["park"], (*held, safe(one.error), tx.now))
        case Undelivered():
            tx.connection.execute(_SQL["again"], (*held, safe(one.error), one.run_at))
    if tx.connection.changes() == 0:
        return False
    tx.connection.execute(_SQL["next"], (one.run,))
    return True


def outbox(tx: Tx, run: int) -> list[OutboxRow]:
    return [_row(row) for row in tx.connection.execute(_SQL["all"], (run,))]


def retry(tx: Tx, run: int) -> int:
    tx.connection.execute(_SQL["unpark"], (run, tx.now))
    parked = tx.connection.changes()
    tx.connection.execute(_SQL["step_back"], (run,))
    tx.connection.execute(_SQL["next"], (run,))
    return parked


def _row(row: Row) -> OutboxRow:
    run, n, workflow, instance_id, number, step, type_, payload, created_at, attempts, run_at, error, *ends = row
    return OutboxRow(
        run,
        n,
        workflow,
        instance_id,
        number,
        unsafe(step),
        unsafe(type_),
        payload,
        created_at,
        attempts,
        run_at,
        unsafe(error),
        *ends,
    )
