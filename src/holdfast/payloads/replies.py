"""Decoding of the replies to queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from holdfast.core.facts import Fact, MailboxPage, StoredEvent, StoredLog
from holdfast.payloads.places import Open
from holdfast.store.protocol import (
    CurrentRuns,
    DueQuery,
    DueSchedules,
    EventsQuery,
    FactsQuery,
    LogsQuery,
    MailboxQuery,
    OutboxQuery,
    OutboxRow,
    Query,
    RepliesQuery,
    Reply,
    ReplyQuery,
    RunByName,
    RunRecord,
    RunsById,
    ScheduleByName,
    SchedulePage,
    ScheduleRow,
    Snapshot,
    SnapshotQuery,
    StreamQuery,
)
from holdfast.store.protocol.streams import StreamPage

Opener = Callable[[Open, Any, Any, str], Any]
"""Opens the values of a reply, given the query, the reply, and the pid of the run that the query names."""


def _open_runs(opening: Open, _: Any, runs: list[RunRecord], __: str) -> list[RunRecord]:
    return [opening.run(replace(run)) for run in runs]


def _open_facts(opening: Open, _: Any, facts: list[Fact], home: str) -> list[Fact]:
    return opening.facts(facts, home)


def _open_events(opening: Open, query: EventsQuery, events: list[StoredEvent], home: str) -> list[StoredEvent]:
    return opening.events(events, home, query.run)


def _open_logs(opening: Open, _: Any, logs: list[StoredLog], home: str) -> list[StoredLog]:
    return [opening.log(log, home) for log in logs]


def _open_snapshot(opening: Open, query: SnapshotQuery, snapshot: Snapshot, home: str) -> Snapshot:
    events = {n: opening.event(event, home, query.run) for n, event in snapshot.events.items()}
    return replace(snapshot, facts=opening.facts(snapshot.facts, home), events=events)


def _open_mailbox(opening: Open, query: MailboxQuery, page: MailboxPage, home: str) -> MailboxPage:
    return opening.page(page, home, query.run)


def _open_reply(opening: Open, _: Any, reply: Reply | None, home: str) -> Reply | None:
    return None if reply is None else Reply(reply.ok, opening.value(reply.value, home, "reply"))


def _open_stream(opening: Open, query: StreamQuery, page: StreamPage, home: str) -> StreamPage:
    return opening.stream_page(page, home, query.name)


def _open_outbox(opening: Open, _: Any, rows: list[OutboxRow], __: str) -> list[OutboxRow]:
    return [opening.outbox_row(row) for row in rows]


def _open_schedules(opening: Open, _: Any, rows: list[ScheduleRow], __: str) -> list[ScheduleRow]:
    return [opening.schedule(row) for row in rows]


def _open_due(opening: Open, _: Any, due: DueSchedules, __: str) -> DueSchedules:
    return due._replace(rows=[opening.schedule(row) for row in due.rows])


OPENERS: Mapping[type[Query[Any]], Opener] = {
    RunsById: _open_runs,
    RunByName: _open_runs,
    CurrentRuns: _open_runs,
    FactsQuery: _open_facts,
    EventsQuery: _open_events,
    LogsQuery: _open_logs,
    SnapshotQuery: _open_snapshot,
    MailboxQuery: _open_mailbox,
    ReplyQuery: _open_reply,
    RepliesQuery: lambda opening, query, found, home: {
        n: _open_reply(opening, query, reply, home) for n, reply in found.items()
    },
    StreamQuery: _open_stream,
    OutboxQuery: _open_outbox,
    ScheduleByName: _open_schedules,
    SchedulePage: _open_schedules,
    DueQuery: _open_due,
}
"""For each query whose reply has values: the function that opens them."""
