"""Reads runs, facts, events and logs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import codec
from holdfast.core.model import Status
from holdfast.store.postgres.columns import CONDITION
from holdfast.store.postgres.rows import MAX_BIGINT, fact, mailbox_page, record, stored_event, stored_log
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.streams import heads
from holdfast.store.postgres.terms import condition_rows
from holdfast.store.postgres.text import encode_text
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import (
    ANY_TOPIC,
    CANCEL,
    EXIT,
    REPLY,
    RESOLVE,
    CurrentRuns,
    EventsQuery,
    Fact,
    FactsQuery,
    LogsQuery,
    MailboxPage,
    MailboxQuery,
    RelatedRun,
    Relations,
    RelationsQuery,
    RepliesQuery,
    Reply,
    ReplyQuery,
    RunByName,
    RunQuery,
    RunRecord,
    RunsById,
    Snapshot,
    SnapshotQuery,
    StoredEvent,
    StoredLog,
    StreamHeadsQuery,
    Watch,
)

_ENGINE_TOPICS = frozenset({EXIT, REPLY, CANCEL, RESOLVE})
_MAX_RELATIONS = 100
"""Maximum number of each kind of relation."""


async def now(tx: Tx, _: None) -> int:
    found: int = await tx.connection.fetchval(statements("schema", tx.schema)["now"])
    return found


async def runs(tx: Tx, query: RunQuery) -> list[RunRecord]:
    match query:
        case RunByName():
            return await _run_by_name(tx, query)
        case RunsById(ids):
            return await _runs_by_id(tx, ids)
        case CurrentRuns():
            return await _current_runs(tx, query)


async def _run_by_name(tx: Tx, query: RunByName) -> list[RunRecord]:
    run = await find_run(tx, query.workflow, query.instance_id, query.number)
    return [] if run is None else [run]


async def find_run(tx: Tx, workflow: str, instance_id: str, number: int | None) -> RunRecord | None:
    sql = statements("reads", tx.schema)
    if number is None:
        row = await tx.connection.fetchrow(sql["current"], workflow, instance_id)
    else:
        row = await tx.connection.fetchrow(sql["numbered"], workflow, instance_id, number)
    return None if row is None else record(tuple(row))


async def _runs_by_id(tx: Tx, ids: Sequence[int]) -> list[RunRecord]:
    rows = await tx.connection.fetch(statements("reads", tx.schema)["records"], ids)
    found = {run.run: run for run in (record(tuple(row.values())) for row in rows)}
    return [found[run] for run in ids if run in found]


async def _current_runs(tx: Tx, query: CurrentRuns) -> list[RunRecord]:
    edge = 0 if query.ascending else MAX_BIGINT
    start = edge if query.before is None else query.before
    error = None if query.error is None else codec.encode({"name": query.error}, what="error")
    page = (query.workflow, query.status, start, query.limit, query.ascending)
    filters = (query.id_prefix, error, query.version, query.queue, *query.created, *query.ended)
    conditions = CONDITION.arrays(condition_rows(query.search))
    rows = await tx.connection.fetch(statements("reads", tx.schema)["list"], *page, *filters, *conditions)
    return [record(tuple(row.values())) for row in rows]


async def load(tx: Tx, query: SnapshotQuery) -> Snapshot:
    run, sql = query.run, statements("reads", tx.schema)
    found = await facts(tx, FactsQuery(run))
    logged: int = await tx.connection.fetchval(sql["log_count"], run)
    named = [stored.event for stored in found if stored.event is not None]
    rows = await tx.connection.fetch(sql["events_by_number"], run, named) if named else ()
    events = (stored_event(tuple(row.values())) for row in rows)
    return Snapshot(found, {event.n: event for event in events}, logged, await heads(tx, StreamHeadsQuery(run)))


async def facts(tx: Tx, query: FactsQuery) -> list[Fact]:
    sql, run, state, keys = statements("reads", tx.schema), query.run, query.state, query.keys
    if state is None:
        rows = await tx.connection.fetch(sql["facts"], run)
    elif keys is None:
        rows = await tx.connection.fetch(sql["facts_of_state"], run, state)
    else:
        rows = await tx.connection.fetch(sql["facts_of_keys"], run, state, [encode_text(key) for key in {*keys}])
    return [fact(tuple(row.values())) for row in rows]


async def undelivered(tx: Tx, query: MailboxQuery) -> MailboxPage:
    sql = statements("reads", tx.schema)
    if query.topics is None or ANY_TOPIC in query.topics:
        return mailbox_page(tuple(await tx.connection.fetchrow(sql["mailbox_page"], query.run, query.after)))
    topics = sorted(query.topics | _ENGINE_TOPICS)
    return mailbox_page(
        tuple(await tx.connection.fetchrow(sql["mailbox_page_of_topics"], query.run, topics, query.after))
    )


async def reply(tx: Tx, query: ReplyQuery) -> Reply | None:
    sql = statements("reads", tx.schema)["reply"]
    row = await tx.connection.fetchrow(sql, query.run, encode_text(query.dedup))
    return None if row is None or row["reply_ok"] is None else Reply(*row)


async def replies(tx: Tx, query: RepliesQuery) -> dict[int, Reply]:
    sql = statements("reads", tx.schema)["replies"]
    rows = await tx.connection.fetch(sql, query.run, list(query.events))
    return {n: Reply(ok, value) for n, ok, value in (row.values() for row in rows)}


async def relations(tx: Tx, query: RelationsQuery) -> Relations:
    sql = statements("reads", tx.schema)
    children, watches, watched_by, forks = [
        [tuple(row.values()) for row in await tx.connection.fetch(sql[name], query.run, _MAX_RELATIONS)]
        for name in ("children", "watches", "watched_by", "forks")
    ]
    return Relations(
        [RelatedRun(pid, Status(status)) for pid, status in children],
        [(pid, Watch(kind)) for pid, kind in watches],
        [(pid, Watch(kind)) for pid, kind in watched_by],
        [pid for (pid,) in forks],
    )


async def events(tx: Tx, query: EventsQuery) -> list[StoredEvent]:
    name, page = _page("events", query)
    rows = await tx.connection.fetch(statements("reads", tx.schema)[name], *page)
    return [stored_event(tuple(row.values())) for row in rows]


async def logs(tx: Tx, query: LogsQuery) -> list[StoredLog]:
    name, page = _page("logs", query)
    rows = await tx.connection.fetch(statements("reads", tx.schema)[name], *page, query.level, query.category)
    return [stored_log(tuple(row.values())) for row in rows]


def _page(table: str, query: EventsQuery | LogsQuery) -> tuple[str, tuple[int, int, int | None]]:
    name, edge = (f"{table}_descending", MAX_BIGINT) if query.descending else (table, 0)
    after = edge if query.after is None else query.after
    return name, (query.run, after, query.limit)
