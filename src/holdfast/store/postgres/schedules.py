"""Schedules: due ones, and changes that start the runs of ticks."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from holdfast.core.model import Status
from holdfast.store.postgres import audit
from holdfast.store.postgres.create import CreateRequest, create
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import decode_text, encode_text
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    DONE,
    KEPT_TICKS,
    MAX_QUEUED,
    DueQuery,
    DueSchedules,
    ScheduleByName,
    ScheduleChange,
    ScheduleChanged,
    SchedulePage,
    ScheduleQuery,
    ScheduleRow,
    TickRow,
)

_NOTE, _STATUS = 6, 8
"""Positions of columns in the rows of a schedule and of a tick."""


class ChangeCall(NamedTuple):
    changes: Sequence[ScheduleChange]
    tokens: Sequence[int]
    """A token for each run of all changes."""


async def due(tx: Tx, query: DueQuery) -> DueSchedules:
    sql = statements("schedules", tx.schema)
    now, first = await tx.connection.fetchrow(sql["first_due"], tx.now, query.workflows)
    rows: list[ScheduleRow] = []
    if first is not None and first <= now:
        rows = _schedules(await tx.connection.fetch(sql["due"], now, query.workflows, query.limit))
    found = {row.name for row in rows}
    if others := [name for name in query.names if name not in found]:
        rows += _schedules(await tx.connection.fetch(sql["by_names"], others))
    await _add_active_ticks(tx, rows)
    return DueSchedules(rows, first, now)


async def schedules(tx: Tx, query: ScheduleQuery) -> list[ScheduleRow]:
    sql = statements("schedules", tx.schema)
    match query:
        case ScheduleByName(name):
            rows = _schedules(await tx.connection.fetch(sql["by_names"], [name]))
        case SchedulePage(after, limit, workflows):
            rows = _schedules(await tx.connection.fetch(sql["page"], after, limit, workflows))
    if query.ticks:
        found = await tx.connection.fetch(sql["newest_ticks"], [row.name for row in rows], query.ticks)
        _distribute(rows, [tuple(row.values()) for row in found])
    else:
        await _add_active_ticks(tx, rows)
    return rows


async def change(tx: Tx, call: ChangeCall) -> list[ScheduleChanged]:
    unchanged = await _unchanged(tx, call.changes)
    new = [one.row for one in unchanged if one.row is not None and one.revision == 0]
    inserted = await _write_rows(tx, "insert", new)
    # A transaction that could not be seen when the schedules were locked may have created one of them.
    done = [one for one in unchanged if one.row is None or one.revision != 0 or one.name in inserted]
    await _write_rows(tx, "update", [one.row for one in done if one.row is not None and one.revision != 0])
    await _write_ticks(tx, done)
    sql = statements("schedules", tx.schema)
    if deleted := [one.name for one in done if one.row is None]:
        await tx.connection.execute(sql["delete"], deleted)
    for one in done:
        if one.audit is not None:
            await audit.write(tx, one.audit, f"schedule {one.name}", DONE)
    tokens = iter(call.tokens)
    requests = [CreateRequest(new, next(tokens)) for one in done for new in one.runs]
    created = iter(await create(tx, requests))
    if done:
        await tx.connection.fetchval(sql["notify"], tx.store_id)
    applied = {*map(id, done)}
    return [
        ScheduleChanged(id(one) in applied, list(islice(created, len(one.runs))) if id(one) in applied else ())
        for one in call.changes
    ]


async def _unchanged(tx: Tx, changes: Sequence[ScheduleChange]) -> list[ScheduleChange]:
    """Lock the schedules in the order of their names; returns the changes whose revision is the expected one."""
    sql = statements("schedules", tx.schema)["lock"]
    found = await tx.connection.fetch(sql, sorted({one.name for one in changes}))
    revisions: dict[str, int] = {row["name"]: row["revision"] for row in found}
    unchanged = []
    for one in changes:
        if revisions.get(one.name, 0) == one.revision:
            revisions[one.name] = -1  # another change of the same call was computed from the same revision
            unchanged.append(one)
    return unchanged


async def _write_rows(tx: Tx, statement: str, rows: Sequence[ScheduleRow]) -> Container[str]:
    """Insert or update rows; returns the names of inserted ones."""
    if not rows:
        return ()
    columns: list[Row] = list(zip(*(_values(row) for row in rows), strict=True))
    written = await tx.connection.fetch(statements("schedules", tx.schema)[statement], tx.now, *columns)
    return {row["name"] for row in written}


async def _write_ticks(tx: Tx, done: Sequence[ScheduleChange]) -> None:
    sql = statements("schedules", tx.schema)
    ticks = [
        (one.name, tick.n, tick.tick, tick.cause, tick.overlap, tick.state, tick.workflow, tick.instance_id)
        for one in done
        for tick in one.ticks
    ]
    if not ticks:
        return
    await tx.connection.execute(sql["write_ticks"], tx.now, *zip(*ticks, strict=True))
    full = [(one.name, one.row.seq - KEPT_TICKS) for one in done if one.ticks and one.row and one.row.seq > KEPT_TICKS]
    if full:
        await tx.connection.execute(sql["trim_ticks"], *zip(*full, strict=True))


def _values(row: ScheduleRow) -> Row:
    return (
        row.name, row.workflow, row.content, row.params, row.declaration, row.paused, encode_text(row.note),
        row.next_tick, row.due_at, row.seq, row.result, row.result_n,
    )  # fmt: skip


async def _add_active_ticks(tx: Tx, rows: Sequence[ScheduleRow]) -> None:
    if rows:
        sql = statements("schedules", tx.schema)["active_ticks"]
        found = await tx.connection.fetch(sql, [row.name for row in rows], MAX_QUEUED)
        _distribute(rows, [tuple(row.values()) for row in found])


def _distribute(rows: Sequence[ScheduleRow], ticks: Sequence[Row]) -> None:
    """Give each schedule its ticks. The first column of a tick is the name of its schedule."""
    by_name: dict[str, list[TickRow]] = {row.name: [] for row in rows}
    for name, *tick in ticks:
        tick[_STATUS] = None if tick[_STATUS] is None else Status(tick[_STATUS])
        by_name[name].append(TickRow(*tick))
    for row in rows:
        row.ticks = by_name[row.name]


def _schedules(rows: Sequence[Mapping[str, Any]]) -> list[ScheduleRow]:
    found = []
    for row in rows:
        values = list(row.values())
        values[_NOTE] = decode_text(values[_NOTE])
        found.append(ScheduleRow(*values))
    return found
