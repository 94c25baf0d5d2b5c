"""Events on their way out of runs: who delivers them, and what came of it.

Of each run one has its turn, the first that is left. A row of its own says so (``holdfast_outlet``), and is all that
who looks for work has to find, however many wait behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.postgres.rows import columns, packed, unpacked
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import Delivered, OutboxClaim, OutboxRow, Undelivered

_WIDTH = 4


class Carrier(NamedTuple):
    """Who wants to deliver, for how long, and how many."""

    owner: str
    lease_ms: int
    limit: int
    token: int
    """By which the call knows what it took."""


class Settling(NamedTuple):
    owner: str
    settled: Sequence[Delivered | Undelivered]


async def claim(tx: Tx, carrier: Carrier) -> OutboxClaim:
    rows = await tx.connection.fetch(statements("outbox", tx.schema)["claim"], tx.now, *carrier, tx.again)
    *claimed, last = [tuple(row.values()) for row in rows]
    return OutboxClaim([_row(row[1:]) for row in claimed], last[0])


async def settle(tx: Tx, settling: Settling) -> int:
    given = columns([_outcome(one) for one in settling.settled], _WIDTH)
    sql = statements("outbox", tx.schema)["settle"]
    count: int = await tx.connection.fetchval(sql, tx.now, settling.owner, *given)
    return count


async def outbox(tx: Tx, run: int) -> list[OutboxRow]:
    rows = await tx.connection.fetch(statements("outbox", tx.schema)["all"], run)
    return [_row(tuple(row.values())) for row in rows]


async def retry(tx: Tx, run: int) -> int:
    count: int = await tx.connection.fetchval(statements("outbox", tx.schema)["retry"], tx.now, tx.by, run)
    return count


def _outcome(one: Delivered | Undelivered) -> Row:
    match one:
        case Delivered(run, n):
            return (run, n, None, None)
        case Undelivered(run, n, error, run_at):
            return (run, n, packed(error), run_at)


def _row(row: Row) -> OutboxRow:
    run, n, workflow, instance_id, number, step, type_, payload, created_at, attempts, run_at, error, *ends = row
    return OutboxRow(
        run,
        n,
        workflow,
        instance_id,
        number,
        unpacked(step),
        unpacked(type_),
        payload,
        created_at,
        attempts,
        run_at,
        unpacked(error),
        *ends,
    )
