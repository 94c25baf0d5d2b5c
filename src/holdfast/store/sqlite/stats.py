"""Statistics of the database, and the tallies of runs that ended."""

from __future__ import annotations

from typing import Any

from holdfast.store.protocol import StatsQuery, StepTimes, StoreStats, Tally
from holdfast.store.protocol.stats import (
    EXACT_MINUTES,
    MAX_MINUTES,
    TALLY_MARGIN_MS,
    TALLY_PAUSE_MS,
    AttentionCount,
    MinuteCount,
    stats_of,
)
from holdfast.store.sqlite.rows import decode_text
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("stats")
_MINUTE_MS = 60_000


def stats(tx: Tx, query: StatsQuery) -> StoreStats:
    connection, now = tx.connection, tx.now
    rows = connection.execute(_SQL["counts"], (now,)).fetchall()
    if query.details:
        rows += connection.execute(_SQL["details"], (now,)).fetchall()
    found = stats_of(now, rows)
    if query.details:
        found.set_steps([_step_times(*row) for row in connection.execute(_SQL["steps"], (now,))])
    if query.attention:
        found.attention = [_attention(row) for row in connection.execute(_SQL["attention"], (now,))]
    if query.minutes:
        since = now - query.minutes * _MINUTE_MS
        found.minutes = [MinuteCount(*row) for row in connection.execute(_SQL["minutes"], (since,))]
    return found


def _step_times(workflow: str, step: bytes | None, *times: Any) -> StepTimes:
    return StepTimes(workflow, None if step is None else decode_text(step), *times)


def _attention(row: tuple[Any, ...]) -> AttentionCount:
    kind, workflow, name, *rest = row
    return AttentionCount(kind, workflow, None if name is None else decode_text(name), *rest)


def tally(tx: Tx, request: Tally) -> bool:
    connection, now = tx.connection, tx.now
    mark, newest = connection.execute(_SQL["mark"]).get, now - TALLY_MARGIN_MS
    if newest - mark < TALLY_PAUSE_MS:
        return False
    oldest = now - MAX_MINUTES * _MINUTE_MS
    part_end = connection.execute(_SQL["part_end"], (mark, newest, request.limit, oldest)).get
    end = newest if part_end is None else part_end
    connection.execute(_SQL["add"], (mark, end, oldest))
    connection.execute(_SQL["move_mark"], (end,))
    hour = (now // _MINUTE_MS - EXACT_MINUTES) // 60 * 60
    if connection.execute(_SQL["has_minutes"], (hour,)).get:
        connection.execute(_SQL["add_up_hours"], (hour,))
        connection.execute(_SQL["delete_minutes"], (hour,))
    connection.execute(_SQL["delete_old"], (oldest // _MINUTE_MS,))
    return part_end is not None
