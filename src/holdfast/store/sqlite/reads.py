"""What can be looked at: runs, facts, events, logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

from holdfast.store.protocol import Fact, ListQuery, Mail, PageQuery, RunRecord, Snapshot, StoredLog
from holdfast.store.sqlite.rows import fact, mail, record, stored_log
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("reads")
_ENDLESS = 2**63 - 1
_INSTANCE = 15
TOPICS = 23
"""Where holdfast_record has the topics."""


class Which(NamedTuple):
    workflow: str
    instance_id: str
    number: int | None


def current_row(tx: Tx, workflow: str, instance_id: str) -> Row | None:
    row: Row | None = tx.connection.execute(_SQL["current"], (workflow, instance_id)).fetchone()
    return row


def find_current(tx: Tx, workflow: str, instance_id: str) -> RunRecord | None:
    row = current_row(tx, workflow, instance_id)
    return None if row is None else record(row)


def find(tx: Tx, which: Which) -> RunRecord | None:
    if which.number is None:
        return find_current(tx, which.workflow, which.instance_id)
    row = tx.connection.execute(_SQL["numbered"], which).fetchone()
    return None if row is None else record(row)


def records_by_run(tx: Tx, runs: str) -> dict[int, RunRecord]:
    """The records of a JSON list of run ids."""
    return {row[0]: record(row) for row in tx.connection.execute(_SQL["records"], (runs,))}


def get(tx: Tx, runs: Sequence[int]) -> list[RunRecord]:
    found = records_by_run(tx, json.dumps(runs))
    return [found[run] for run in runs if run in found]


def list_runs(tx: Tx, query: ListQuery) -> list[RunRecord]:
    """Pages of single workflows are index ranges; all workflows are merged from one open range each."""
    if query.workflow is not None:
        workflows = [query.workflow]
    else:
        workflows = [name for (name,) in tx.connection.execute(_SQL["workflows"])]
    before = _ENDLESS if query.before is None else query.before
    name, extra = ("list", ()) if query.status is None else ("list_status", (query.status,))
    ranges = [tx.connection.execute(_SQL[name], (workflow, before, query.limit, *extra)) for workflow in workflows]
    newest_first = merge(*ranges, key=lambda row: -row[_INSTANCE])
    return [record(row) for row in islice(newest_first, query.limit)]


def load(tx: Tx, run: int) -> Snapshot:
    consumed = map(mail, tx.connection.execute(_SQL["consumed"], (run,)))
    logged: int = tx.connection.execute(_SQL["logged"], (run,)).get
    return Snapshot(facts(tx, run), {event.n: event for event in consumed}, logged)


def facts(tx: Tx, run: int) -> list[Fact]:
    return [fact(row) for row in tx.connection.execute(_SQL["facts"], (run,))]


def undelivered(tx: Tx, run: int) -> list[Mail]:
    return [mail(row) for row in tx.connection.execute(_SQL["undelivered"], (run,))]


def events(tx: Tx, query: PageQuery) -> list[Mail]:
    name, page = _page("events", query)
    return [mail(row) for row in tx.connection.execute(_SQL[name], page)]


def logs(tx: Tx, query: PageQuery) -> list[StoredLog]:
    name, page = _page("logs", query)
    return [stored_log(row) for row in tx.connection.execute(_SQL[name], (*page, query.level, query.category))]


def _page(table: str, query: PageQuery) -> tuple[str, tuple[int, int, int]]:
    name, edge = (f"{table}_descending", _ENDLESS) if query.descending else (table, 0)
    after = edge if query.after is None else query.after
    return name, (query.run, after, -1 if query.limit is None else query.limit)
