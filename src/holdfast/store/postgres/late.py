"""Writes what comes after the end of a run: results and log lines that its worker had not written yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Status
from holdfast.store.postgres.rows import columns, fact_rows, log_rows
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Fact, Log

_FACT_WIDTH, _LOG_WIDTH = 16, 8


class Late(NamedTuple):
    run: int
    facts: Sequence[Fact]
    lines: Sequence[Log]


async def add(tx: Tx, late: Late) -> bool:
    """Inside a transaction, so that the lock holds until everything is written."""
    sql = statements("late", tx.schema)
    end = await tx.connection.fetchval(sql["end"], late.run)
    if end is None:
        return False
    if end == Status.TERMINATED and late.facts:
        await tx.connection.execute(sql["facts"], late.run, *columns(fact_rows(late.facts), _FACT_WIDTH))
    if late.lines:
        await tx.connection.execute(sql["lines"], late.run, *columns(log_rows(late.lines), _LOG_WIDTH))
    return True
