"""Statistics of the database, and the tallies of runs that ended."""

from __future__ import annotations

from typing import Any

from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import decode_text
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import StatsQuery, StepTimes, StoreStats, Tally
from holdfast.store.protocol.stats import TALLY_MARGIN_MS, TALLY_PAUSE_MS, AttentionCount, MinuteCount, stats_of


async def stats(tx: Tx, query: StatsQuery) -> StoreStats:
    sql, connection = statements("stats", tx.schema), tx.connection
    rows = await connection.fetch(sql["counts"], tx.now)
    if query.details:
        rows = [*rows, *await connection.fetch(sql["details"], tx.now)]
    found = stats_of(0, [tuple(row.values()) for row in rows])
    if query.details:
        found.set_steps([_step_times(*row.values()) for row in await connection.fetch(sql["steps"], tx.now)])
    if query.attention:
        found.attention = [_attention(*row.values()) for row in await connection.fetch(sql["attention"], tx.now)]
    if query.minutes:
        rows = await connection.fetch(sql["minutes"], tx.now, query.minutes)
        found.minutes = [MinuteCount(*row.values()) for row in rows]
    return found


def _attention(kind: str, workflow: str, name: bytes | None, *rest: Any) -> AttentionCount:
    return AttentionCount(kind, workflow, None if name is None else decode_text(name), *rest)


def _step_times(workflow: str, step: bytes | None, *times: Any) -> StepTimes:
    return StepTimes(workflow, None if step is None else decode_text(step), *times)


async def tally(tx: Tx, request: Tally) -> bool:
    sql = statements("stats", tx.schema)
    more: bool = await tx.connection.fetchval(sql["tally"], tx.now, TALLY_MARGIN_MS, TALLY_PAUSE_MS, request.limit)
    return more
