"""Adds late results to an ended run: facts and log lines that its worker had not written when the run was ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Status
from holdfast.store.postgres.rows import columns, fact_rows, log_rows
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Fact, Log

_FACT_WIDTH, _LOG_WIDTH = 16, 8


class LateResults(NamedTuple):
    run: int
    facts: Sequence[Fact]
    logs: Sequence[Log]


async def add(tx: Tx, late: LateResults) -> bool:
    """Add late results. Runs inside a transaction, so that the lock is held until everything is written."""
    sql = statements("late", tx.schema)
    status = await tx.connection.fetchval(sql["end_status"], late.run)
    if status is None:
        return False
    if status == Status.TERMINATED and late.facts:
        await tx.connection.execute(sql["facts"], late.run, *columns(fact_rows(late.facts), _FACT_WIDTH))
    if late.logs:
        await tx.connection.execute(sql["logs"], late.run, *columns(log_rows(late.logs), _LOG_WIDTH))
    return True
