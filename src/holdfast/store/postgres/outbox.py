"""Outbound events: claiming them for delivery, and recording the outcomes.

For each run only the first pending event can be claimed. A row of ``holdfast_outlet`` names that event, so that a claim
need not read the events behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.postgres.rows import columns, decode_text, encode_text
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import Delivered, DeliveryFailure, OutboxClaim, OutboxRow

_WIDTH = 4


class OutboxClaimRequest(NamedTuple):
    """The claiming owner, its lease, and the maximum number of events."""

    owner: str
    lease_ms: int
    limit: int
    token: int
    """By which a repeated call recognises the events that it claimed."""


class OutboxSettlement(NamedTuple):
    owner: str
    outcomes: Sequence[Delivered | DeliveryFailure]


async def claim(tx: Tx, request: OutboxClaimRequest) -> OutboxClaim:
    rows = await tx.connection.fetch(statements("outbox", tx.schema)["claim"], tx.now, *request, tx.is_retry)
    *claimed, last = [tuple(row.values()) for row in rows]
    return OutboxClaim([_row(row[1:]) for row in claimed], last[0])


async def settle(tx: Tx, settlement: OutboxSettlement) -> int:
    arguments = columns([_outcome_row(outcome) for outcome in settlement.outcomes], _WIDTH)
    sql = statements("outbox", tx.schema)["settle"]
    count: int = await tx.connection.fetchval(sql, tx.now, settlement.owner, *arguments)
    return count


async def outbox(tx: Tx, run: int) -> list[OutboxRow]:
    rows = await tx.connection.fetch(statements("outbox", tx.schema)["all"], run)
    return [_row(tuple(row.values())) for row in rows]


async def retry(tx: Tx, run: int) -> int:
    count: int = await tx.connection.fetchval(statements("outbox", tx.schema)["retry"], tx.now, tx.store_id, run)
    return count


def _outcome_row(outcome: Delivered | DeliveryFailure) -> Row:
    match outcome:
        case Delivered(run, n):
            return (run, n, None, None)
        case DeliveryFailure(run, n, error, run_at):
            return (run, n, encode_text(error), run_at)


def _row(row: Row) -> OutboxRow:
    run, n, workflow, instance_id, number, step, type_, payload, created_at, attempts, run_at, error, *ends = row
    return OutboxRow(
        run,
        n,
        workflow,
        instance_id,
        number,
        decode_text(step),
        decode_text(type_),
        payload,
        created_at,
        attempts,
        run_at,
        decode_text(error),
        *ends,
    )
