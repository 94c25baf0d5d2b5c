"""Reads of runs, facts, events and logs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from heapq import merge
from itertools import islice

from holdfast.store.protocol import (
    CurrentRuns,
    EventsQuery,
    Fact,
    FactsQuery,
    LogsQuery,
    RunByName,
    RunQuery,
    RunRecord,
    RunsById,
    Snapshot,
    SnapshotQuery,
    StoredEvent,
    StoredLog,
    StreamHeadsQuery,
)
from holdfast.store.sqlite.rows import encode_text, fact, record, stored_event, stored_log
from holdfast.store.sqlite.search import page
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.streams import heads
from holdfast.store.sqlite.tx import Row, TooLongInlineError, Tx

_SQL = statements("reads")
_INLINE_MAX_FACTS = 100
"""Maximum length of a history that is loaded on the event loop's thread."""
_MAX_INTEGER = 2**63 - 1
_INSTANCE_COLUMN = 15


def record_of(tx: Tx, run: int) -> RunRecord:
    row = tx.connection.execute(_SQL["record"], (run,)).fetchone()
    if row is None:
        raise AssertionError(f"run {run} cannot be found")
    return record(row)


def find_current(tx: Tx, workflow: str, instance_id: str) -> RunRecord | None:
    row = tx.connection.execute(_SQL["current"], (workflow, instance_id)).fetchone()
    return None if row is None else record(row)


def runs(tx: Tx, query: RunQuery) -> list[RunRecord]:
    match query:
        case RunByName():
            return _run_by_name(tx, query)
        case RunsById(ids):
            found = records_by_run(tx, json.dumps(ids))
            return [found[run] for run in ids if run in found]
        case CurrentRuns():
            return _current_runs(tx, query)


def _run_by_name(tx: Tx, query: RunByName) -> list[RunRecord]:
    run = find_run(tx, query.workflow, query.instance_id, query.number)
    return [] if run is None else [run]


def find_run(tx: Tx, workflow: str, instance_id: str, number: int | None) -> RunRecord | None:
    if number is None:
        return find_current(tx, workflow, instance_id)
    row = tx.connection.execute(_SQL["numbered"], (workflow, instance_id, number)).fetchone()
    return None if row is None else record(row)


def records_by_run(tx: Tx, runs: str) -> dict[int, RunRecord]:
    """The records of a JSON list of run ids."""
    return {row[0]: record(row) for row in tx.connection.execute(_SQL["records"], (runs,))}


def _current_runs(tx: Tx, query: CurrentRuns) -> list[RunRecord]:
    """A page of one workflow is an index range; a page of all workflows merges one range per workflow."""
    if query.workflow is not None:
        workflows = [query.workflow]
    else:
        workflows = [name for (name,) in tx.connection.execute(_SQL["workflows"])]
    sign = 1 if query.ascending else -1
    ordered = merge(
        *(page(tx, workflow, query) for workflow in workflows), key=lambda row: sign * row[_INSTANCE_COLUMN]
    )
    return [record(row) for row in islice(ordered, query.limit)]


def load(tx: Tx, query: SnapshotQuery) -> Snapshot:
    run = query.run
    rows: Iterable[Row] = tx.connection.execute(_SQL["facts"], (run,))
    if tx.inline:
        first = list(islice(rows, _INLINE_MAX_FACTS + 1))
        if len(first) > _INLINE_MAX_FACTS:
            raise TooLongInlineError
        rows = first
    recorded = list(map(fact, rows))
    numbers = [fact.event for fact in recorded if fact.event is not None]
    events: Iterable[StoredEvent] = ()
    if numbers:
        events = map(stored_event, tx.connection.execute(_SQL["events_by_number"], (run, json.dumps(numbers))))
    log_count: int = tx.connection.execute(_SQL["log_count"], (run,)).get
    return Snapshot(recorded, {event.n: event for event in events}, log_count, heads(tx, StreamHeadsQuery(run)))


def facts(tx: Tx, query: FactsQuery) -> list[Fact]:
    run, state, keys = query.run, query.state, query.keys
    if state is None:
        return [fact(row) for row in tx.connection.execute(_SQL["facts"], (run,))]
    if keys is None:
        return [fact(row) for row in tx.connection.execute(_SQL["facts_of_state"], (run, state))]
    found = [tx.connection.execute(_SQL["facts_of_key"], (run, state, encode_text(key))) for key in sorted(set(keys))]
    return [fact(row) for rows in found for row in rows]


def events(tx: Tx, query: EventsQuery) -> list[StoredEvent]:
    name, bounds = _page("events", query)
    return [stored_event(row) for row in tx.connection.execute(_SQL[name], bounds)]


def logs(tx: Tx, query: LogsQuery) -> list[StoredLog]:
    name, bounds = _page("logs", query)
    return [stored_log(row) for row in tx.connection.execute(_SQL[name], (*bounds, query.level, query.category))]


def _page(table: str, query: EventsQuery | LogsQuery) -> tuple[str, tuple[int, int, int]]:
    name, edge = (f"{table}_descending", _MAX_INTEGER) if query.descending else (table, 0)
    after = edge if query.after is None else query.after
    return name, (query.run, after, -1 if query.limit is None else query.limit)
