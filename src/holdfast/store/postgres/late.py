"""Adds late results to an ended run: facts and log lines that its worker had not written when the run was ended."""

from __future__ import annotations

from holdfast.core.model import Status
from holdfast.store.postgres.columns import FACT, LOG
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import LateResults


async def add(tx: Tx, late: LateResults) -> bool:
    """Add late results. Runs inside a transaction, so that the lock is held until everything is written."""
    sql = statements("late", tx.schema)
    status = await tx.connection.fetchval(sql["end_status"], late.run)
    if status is None:
        return False
    if status == Status.TERMINATED and late.facts:
        await tx.connection.execute(sql["facts"], late.run, *FACT.arrays(late.facts))
    if late.logs:
        await tx.connection.execute(sql["logs"], late.run, *LOG.arrays(late.logs))
    return True
