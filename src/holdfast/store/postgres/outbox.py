"""Outbound events: claiming them for delivery, and recording the outcomes.

For each run only the first pending event can be claimed. A row of ``holdfast_outlet`` names that event, so that a claim
need not read the later events.
"""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

from holdfast.store.postgres.columns import OUTCOME
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import decode_text
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    ClaimOutbox,
    Delivered,
    DeliveryFailure,
    OutboxClaim,
    OutboxQuery,
    OutboxRow,
    SettleOutbox,
)

_TEXTS = [index for index, field in enumerate(fields(OutboxRow)) if field.name in ("step", "type", "error")]


class OutboxClaimCall(NamedTuple):
    request: ClaimOutbox
    token: int
    """Token by which a repeated call recognises the events that it claimed."""


async def claim(tx: Tx, call: OutboxClaimCall) -> OutboxClaim:
    sql = statements("outbox", tx.schema)["claim"]
    claim = (call.request.owner, call.request.lease_ms, call.request.limit)
    rows = await tx.connection.fetch(sql, tx.now, *claim, call.token, tx.is_retry)
    *claimed, last = [tuple(row.values()) for row in rows]
    return OutboxClaim([_row(row[1:]) for row in claimed], last[0])


async def settle(tx: Tx, settlement: SettleOutbox) -> int:
    arguments = OUTCOME.arrays([_outcome_row(outcome) for outcome in settlement.outcomes])
    sql = statements("outbox", tx.schema)["settle"]
    count: int = await tx.connection.fetchval(sql, tx.now, settlement.owner, *arguments)
    return count


async def outbox(tx: Tx, query: OutboxQuery) -> list[OutboxRow]:
    rows = await tx.connection.fetch(statements("outbox", tx.schema)["all"], query.run)
    return [_row(tuple(row.values())) for row in rows]


async def redeliver(tx: Tx, run: int) -> int:
    """Make the parked events of a run due again; returns their number."""
    count: int = await tx.connection.fetchval(statements("outbox", tx.schema)["retry"], tx.now, tx.store_id, run)
    return count


def _outcome_row(outcome: Delivered | DeliveryFailure) -> Row:
    match outcome:
        case Delivered(run, n):
            return (run, n, None, None)
        case DeliveryFailure(run, n, error, run_at):
            return (run, n, error, run_at)


def _row(row: Row) -> OutboxRow:
    values = list(row)
    for index in _TEXTS:
        values[index] = decode_text(values[index])
    return OutboxRow(*values)
