"""Schedules: due ones, and changes that start the runs of ticks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice

from holdfast.core.model import Status
from holdfast.store.protocol import (
    DONE,
    KEPT_TICKS,
    MAX_QUEUED,
    DueQuery,
    DueSchedules,
    NewRun,
    ScheduleByName,
    ScheduleChange,
    ScheduleChanged,
    SchedulePage,
    ScheduleQuery,
    ScheduleRow,
    TickRow,
)
from holdfast.store.sqlite import audit
from holdfast.store.sqlite.create import create
from holdfast.store.sqlite.rows import decode_text, encode_text_or_none
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("schedules")
_PAUSED, _NOTE, _STATUS = 5, 6, 8
"""Positions of columns in the rows of a schedule and of a tick."""


def due(tx: Tx, query: DueQuery) -> DueSchedules:
    workflows = json.dumps(list(query.workflows))
    first: int | None = tx.connection.execute(_SQL["first_due"], (workflows,)).get
    rows: list[ScheduleRow] = []
    if first is not None and first <= tx.now:
        rows = [_schedule(row) for row in tx.connection.execute(_SQL["due"], (workflows, tx.now, query.limit))]
    found = {row.name for row in rows}
    for name in query.names:
        if name not in found:
            rows += [_schedule(row) for row in tx.connection.execute(_SQL["by_name"], (name,))]
    for row in rows:
        row.ticks = _active_ticks(tx, row.name)
    return DueSchedules(rows, first, tx.now)


def schedules(tx: Tx, query: ScheduleQuery) -> list[ScheduleRow]:
    match query:
        case ScheduleByName(name):
            found = tx.connection.execute(_SQL["by_name"], (name,))
        case SchedulePage(after, limit, workflows):
            names = None if workflows is None else json.dumps(list(workflows))
            found = tx.connection.execute(_SQL["page"], (after, limit, names))
    rows = [_schedule(row) for row in found.fetchall()]
    for row in rows:
        row.ticks = _newest_ticks(tx, row.name, query.ticks) if query.ticks else _active_ticks(tx, row.name)
    return rows


def _active_ticks(tx: Tx, name: str) -> list[TickRow]:
    rows = tx.connection.execute(_SQL["open_ticks"], (name,)).fetchall()
    rows += tx.connection.execute(_SQL["queued_ticks"], (name, MAX_QUEUED)).fetchall()
    return [_tick(row) for row in rows]


def _newest_ticks(tx: Tx, name: str, count: int) -> list[TickRow]:
    return [_tick(row) for row in tx.connection.execute(_SQL["newest_ticks"], (name, count))]


def change(tx: Tx, changes: Sequence[ScheduleChange]) -> list[ScheduleChanged]:
    applied = [_apply(tx, one) for one in changes]
    runs: list[NewRun] = []
    for one, done in zip(changes, applied, strict=True):
        runs += one.runs if done else ()
    created = iter(create(tx, runs) if runs else ())
    return [
        ScheduleChanged(done, list(islice(created, len(one.runs))) if done else ())
        for one, done in zip(changes, applied, strict=True)
    ]


def _apply(tx: Tx, one: ScheduleChange) -> bool:
    connection, row = tx.connection, one.row
    if row is None:
        connection.execute(_SQL["delete"], (one.name, one.revision))
    elif one.revision == 0:
        connection.execute(_SQL["insert"], _values(row, tx.now))
    else:
        connection.execute(_SQL["update"], (*_values(row, tx.now), one.revision))
    if not connection.changes():
        return False
    if row is None:
        connection.execute(_SQL["delete_ticks"], (one.name,))
    elif one.ticks:
        connection.executemany(_SQL["write_tick"], [_tick_values(one.name, tick, tx.now) for tick in one.ticks])
        if row.seq > KEPT_TICKS:
            connection.execute(_SQL["trim_ticks"], (one.name, row.seq - KEPT_TICKS))
    if one.audit is not None:
        audit.write(tx, one.audit, f"schedule {one.name}", DONE)
    return True


def _values(row: ScheduleRow, now: int) -> Row:
    return (
        row.name, row.workflow, row.content, row.params, row.declaration, row.paused, encode_text_or_none(row.note),
        now, row.next_tick, row.due_at, row.seq, row.result, row.result_n,
    )  # fmt: skip


def _tick_values(schedule: str, tick: TickRow, now: int) -> Row:
    return (
        schedule, tick.n, tick.tick, tick.cause, tick.overlap, tick.state, tick.workflow, tick.instance_id, now
    )  # fmt: skip


def _schedule(row: Row) -> ScheduleRow:
    values = list(row)
    values[_PAUSED] = values[_PAUSED] == 1
    values[_NOTE] = decode_text(values[_NOTE])
    return ScheduleRow(*values)


def _tick(row: Row) -> TickRow:
    values = list(row)
    values[_STATUS] = None if values[_STATUS] is None else Status(values[_STATUS])
    return TickRow(*values)
