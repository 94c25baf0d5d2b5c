"""What can be looked at: runs, facts, events, logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.postgres.rows import fact, mail, record, stored_log
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Fact, ListQuery, Mail, PageQuery, RunRecord, Snapshot, StoredLog

_ENDLESS = 2**63 - 1


class Which(NamedTuple):
    workflow: str
    instance_id: str
    number: int | None


async def now(tx: Tx, _: None) -> int:
    found: int = await tx.connection.fetchval(statements("schema", tx.schema)["now"])
    return found


async def find(tx: Tx, which: Which) -> RunRecord | None:
    sql = statements("reads", tx.schema)
    if which.number is None:
        row = await tx.connection.fetchrow(sql["current"], which.workflow, which.instance_id)
    else:
        row = await tx.connection.fetchrow(sql["numbered"], *which)
    return None if row is None else record(tuple(row))


async def get(tx: Tx, runs: Sequence[int]) -> list[RunRecord]:
    rows = await tx.connection.fetch(statements("reads", tx.schema)["records"], runs)
    found = {run.run: run for run in (record(tuple(row.values())) for row in rows)}
    return [found[run] for run in runs if run in found]


async def list_runs(tx: Tx, query: ListQuery) -> list[RunRecord]:
    before = _ENDLESS if query.before is None else query.before
    sql = statements("reads", tx.schema)["list"]
    rows = await tx.connection.fetch(sql, query.workflow, query.status, before, query.limit)
    return [record(tuple(row.values())) for row in rows]


async def load(tx: Tx, run: int) -> Snapshot:
    sql = statements("reads", tx.schema)
    found = await facts(tx, run)
    logged, consumed = await tx.connection.fetchrow(sql["counts"], run)
    rows = await tx.connection.fetch(sql["consumed"], run) if consumed else ()
    return Snapshot(found, {event.n: event for event in (mail(tuple(row.values())) for row in rows)}, logged)


async def facts(tx: Tx, run: int) -> list[Fact]:
    rows = await tx.connection.fetch(statements("reads", tx.schema)["facts"], run)
    return [fact(tuple(row.values())) for row in rows]


async def undelivered(tx: Tx, run: int) -> list[Mail]:
    rows = await tx.connection.fetch(statements("reads", tx.schema)["undelivered"], run)
    return [mail(tuple(row.values())) for row in rows]


async def events(tx: Tx, query: PageQuery) -> list[Mail]:
    name, page = _page("events", query)
    rows = await tx.connection.fetch(statements("reads", tx.schema)[name], *page)
    return [mail(tuple(row.values())) for row in rows]


async def logs(tx: Tx, query: PageQuery) -> list[StoredLog]:
    name, page = _page("logs", query)
    rows = await tx.connection.fetch(statements("reads", tx.schema)[name], *page, query.level, query.category)
    return [stored_log(tuple(row.values())) for row in rows]


def _page(table: str, query: PageQuery) -> tuple[str, tuple[int, int, int | None]]:
    name, edge = (f"{table}_descending", _ENDLESS) if query.descending else (table, 0)
    after = edge if query.after is None else query.after
    return name, (query.run, after, query.limit)
