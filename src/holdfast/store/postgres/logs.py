"""Log lines that come after the end of their run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.postgres.rows import columns, log_rows
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Log

_LOG_WIDTH = 8


class Late(NamedTuple):
    run: int
    lines: Sequence[Log]


async def add_late(tx: Tx, late: Late) -> bool:
    """Inside a transaction, so that the lock holds until the lines are written."""
    sql = statements("logs", tx.schema)
    ended = bool(await tx.connection.fetchval(sql["ended"], late.run))
    if ended:
        await tx.connection.execute(sql["add"], late.run, *columns(log_rows(late.lines), _LOG_WIDTH))
    return ended
