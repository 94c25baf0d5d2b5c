"""The outbox: outbound events of runs, their claims, and the outcomes of their deliveries.

Only the first pending event of each run has a ``due_at``. A claim therefore finds one event per run, however many
events wait behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from holdfast.store.protocol import (
    ClaimOutbox,
    Delivered,
    DeliveryFailure,
    Outbound,
    OutboxClaim,
    OutboxQuery,
    OutboxRow,
    SettleOutbox,
)
from holdfast.store.sqlite.rows import decode_text, encode_text
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("outbox")
_TEXTS = [index for index, field in enumerate(fields(OutboxRow)) if field.name in ("step", "type", "error")]


def outbox_rows(run: int, events: Iterable[Outbound], now: int) -> list[Row]:
    return [(run, encode_text(step), encode_text(type_), payload, now, trace) for type_, payload, step, trace in events]


def claim(tx: Tx, request: ClaimOutbox) -> OutboxClaim:
    rows = [_row(row) for row in tx.connection.execute(_SQL["due"], (tx.now, request.limit))]
    until = tx.now + request.lease_ms
    tx.connection.executemany(_SQL["claim"], [(row.run, row.n, request.owner, until, row.attempts) for row in rows])
    return OutboxClaim(rows, next_due(tx))


def next_due(tx: Tx, _: None = None) -> int | None:
    found: int | None = tx.connection.execute(_SQL["next_due"]).get
    return found


def settle(tx: Tx, settlement: SettleOutbox) -> int:
    return sum(_settle(tx, settlement.owner, outcome) for outcome in settlement.outcomes)


def _settle(tx: Tx, owner: str, outcome: Delivered | DeliveryFailure) -> bool:
    claim_key = (outcome.run, outcome.n, owner)
    match outcome:
        case Delivered():
            tx.connection.execute(_SQL["set_delivered"], (*claim_key, tx.now))
        case DeliveryFailure(run_at=None):
            tx.connection.execute(_SQL["park"], (*claim_key, encode_text(outcome.error), tx.now))
        case DeliveryFailure():
            tx.connection.execute(_SQL["retry"], (*claim_key, encode_text(outcome.error), outcome.run_at))
    if tx.connection.changes() == 0:
        return False
    tx.connection.execute(_SQL["schedule_next"], (outcome.run,))
    return True


def outbox(tx: Tx, query: OutboxQuery) -> list[OutboxRow]:
    return [_row(row) for row in tx.connection.execute(_SQL["of_run"], (query.run,))]


def redeliver(tx: Tx, run: int) -> int:
    """Make the parked events of a run due again; returns their number."""
    tx.connection.execute(_SQL["unpark"], (run, tx.now))
    parked = tx.connection.changes()
    tx.connection.execute(_SQL["clear_due"], (run,))
    tx.connection.execute(_SQL["schedule_next"], (run,))
    return parked


def _row(row: Row) -> OutboxRow:
    values = list(row)
    for index in _TEXTS:
        values[index] = decode_text(values[index])
    return OutboxRow(*values)
