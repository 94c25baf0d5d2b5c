"""Reads runs, facts, events and logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Status
from holdfast.store.postgres.rows import columns, encode_text, fact, mailbox_page, record, stored_event, stored_log
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.terms import condition_rows
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import (
    ANY_TOPIC,
    CANCEL,
    EXIT,
    REPLY,
    Fact,
    ListQuery,
    MailboxPage,
    PageQuery,
    RelatedRun,
    Relations,
    Reply,
    RunRecord,
    Snapshot,
    StoredEvent,
    StoredLog,
    Watch,
)

_MAX_BIGINT = 2**63 - 1
_CONDITION_WIDTH = 4
_ENGINE_TOPICS = frozenset({EXIT, REPLY, CANCEL})
_MAX_RELATIONS = 100
"""Maximum number of each kind of relation."""


class RunQuery(NamedTuple):
    workflow: str
    instance_id: str
    number: int | None


class MailboxQuery(NamedTuple):
    run: int
    topics: frozenset[str] | None
    after: int = 0


class FactsQuery(NamedTuple):
    """Facts of a run: all, of one state, or of that state with these keys."""

    run: int
    state: int | None = None
    keys: Sequence[str] | None = None


class ReplyQuery(NamedTuple):
    run: int
    dedup: str


async def now(tx: Tx, _: None) -> int:
    found: int = await tx.connection.fetchval(statements("schema", tx.schema)["now"])
    return found


async def find(tx: Tx, query: RunQuery) -> RunRecord | None:
    sql = statements("reads", tx.schema)
    if query.number is None:
        row = await tx.connection.fetchrow(sql["current"], query.workflow, query.instance_id)
    else:
        row = await tx.connection.fetchrow(sql["numbered"], *query)
    return None if row is None else record(tuple(row))


async def get(tx: Tx, runs: Sequence[int]) -> list[RunRecord]:
    rows = await tx.connection.fetch(statements("reads", tx.schema)["records"], runs)
    found = {run.run: run for run in (record(tuple(row.values())) for row in rows)}
    return [found[run] for run in runs if run in found]


async def list_runs(tx: Tx, query: ListQuery) -> list[RunRecord]:
    before = _MAX_BIGINT if query.before is None else query.before
    sql = statements("reads", tx.schema)["list"]
    conditions = columns(condition_rows(query.search), _CONDITION_WIDTH)
    page = (query.workflow, query.status, before, query.limit, query.id_prefix)
    rows = await tx.connection.fetch(sql, *page, *conditions)
    return [record(tuple(row.values())) for row in rows]


async def load(tx: Tx, run: int) -> Snapshot:
    sql = statements("reads", tx.schema)
    found = await facts(tx, FactsQuery(run))
    logged: int = await tx.connection.fetchval(sql["log_count"], run)
    named = [stored.event for stored in found if stored.event is not None]
    rows = await tx.connection.fetch(sql["events_by_number"], run, named) if named else ()
    return Snapshot(found, {event.n: event for event in (stored_event(tuple(row.values())) for row in rows)}, logged)


async def facts(tx: Tx, query: FactsQuery) -> list[Fact]:
    sql, (run, state, keys) = statements("reads", tx.schema), query
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


async def relations(tx: Tx, run: int) -> Relations:
    sql = statements("reads", tx.schema)
    children, watches, watched_by = [
        [tuple(row.values()) for row in await tx.connection.fetch(sql[name], run, _MAX_RELATIONS)]
        for name in ("children", "watches", "watched_by")
    ]
    return Relations(
        [RelatedRun(pid, Status(status)) for pid, status in children],
        [(pid, Watch(kind)) for pid, kind in watches],
        [(pid, Watch(kind)) for pid, kind in watched_by],
    )


async def events(tx: Tx, query: PageQuery) -> list[StoredEvent]:
    name, page = _page("events", query)
    rows = await tx.connection.fetch(statements("reads", tx.schema)[name], *page)
    return [stored_event(tuple(row.values())) for row in rows]


async def logs(tx: Tx, query: PageQuery) -> list[StoredLog]:
    name, page = _page("logs", query)
    rows = await tx.connection.fetch(statements("reads", tx.schema)[name], *page, query.level, query.category)
    return [stored_log(tuple(row.values())) for row in rows]


def _page(table: str, query: PageQuery) -> tuple[str, tuple[int, int, int | None]]:
    name, edge = (f"{table}_descending", _MAX_BIGINT) if query.descending else (table, 0)
    after = edge if query.after is None else query.after
    return name, (query.run, after, query.limit)
