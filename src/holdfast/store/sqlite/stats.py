"""Statistics of the database, and the tallies of runs that ended."""

from __future__ import annotations

from holdfast.store.protocol import StatsQuery, StepTimes, StoreStats
from holdfast.store.protocol.stats import TALLY_MARGIN_MS, TALLY_PAUSE_MS, stats_of
from holdfast.store.sqlite.rows import decode_text
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("stats")
_HOUR_MS = 3_600_000


def stats(tx: Tx, query: StatsQuery) -> StoreStats:
    connection, now = tx.connection, tx.now
    rows = connection.execute(_SQL["counts"], (now,)).fetchall()
    if not query.details:
        return stats_of(now, rows)
    found = stats_of(now, [*rows, *connection.execute(_SQL["details"], (now,))])
    found.slowest_steps = [
        StepTimes(workflow, decode_text(step), count, mean, longest)
        for workflow, step, count, mean, longest in connection.execute(_SQL["steps"], (now,))
    ]
    return found


def tally(tx: Tx, limit: int) -> bool:
    connection, now = tx.connection, tx.now
    mark, newest = connection.execute(_SQL["mark"]).get, now - TALLY_MARGIN_MS
    if newest - mark < TALLY_PAUSE_MS:
        return False
    part_end = connection.execute(_SQL["part_end"], (mark, newest, limit)).get
    end = newest if part_end is None else part_end
    connection.execute(_SQL["add"], (mark, end, now - 2 * _HOUR_MS))
    connection.execute(_SQL["move_mark"], (end,))
    connection.execute(_SQL["delete_old"], ((now - 2 * _HOUR_MS) // 60_000,))
    return part_end is not None
