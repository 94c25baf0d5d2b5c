"""The function that answers each query, and whether it is short enough for the event loop's thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.store.protocol import (
    AuditQuery,
    CurrentRuns,
    DueQuery,
    EventsQuery,
    FactsQuery,
    LimitKeysQuery,
    LogsQuery,
    MailboxQuery,
    OutboxQuery,
    PermitPositionsQuery,
    Query,
    RelationsQuery,
    RepliesQuery,
    ReplyQuery,
    RunByName,
    RunsById,
    ScheduleByName,
    SchedulePage,
    SnapshotQuery,
    StatsQuery,
    StreamHeadsQuery,
    StreamQuery,
    VersionsQuery,
    WorkersQuery,
)
from holdfast.store.sqlite import (
    audit,
    mailbox,
    outbox,
    permits,
    reads,
    replies,
    schedules,
    stats,
    streams,
    watching,
    workers,
)
from holdfast.store.sqlite.tx import Work

INLINE_MAX_ROWS = 256
"""Maximum number of entries in a call that may run on the event loop's thread."""

READERS: Mapping[type[Query[Any]], Work[Any, Any]] = {
    RunsById: reads.runs,
    RunByName: reads.runs,
    CurrentRuns: reads.runs,
    FactsQuery: reads.facts,
    EventsQuery: reads.events,
    LogsQuery: reads.logs,
    SnapshotQuery: reads.load,
    MailboxQuery: mailbox.undelivered,
    ReplyQuery: replies.reply,
    RepliesQuery: replies.replies,
    StreamQuery: streams.read,
    StreamHeadsQuery: streams.heads,
    AuditQuery: audit.records,
    RelationsQuery: watching.relations,
    WorkersQuery: workers.workers,
    VersionsQuery: workers.versions,
    StatsQuery: stats.stats,
    PermitPositionsQuery: permits.positions,
    LimitKeysQuery: permits.keys,
    OutboxQuery: outbox.outbox,
    ScheduleByName: schedules.schedules,
    SchedulePage: schedules.schedules,
    DueQuery: schedules.due,
}

_SHORT = frozenset(
    {RunByName, SnapshotQuery, FactsQuery, MailboxQuery, ReplyQuery, StreamQuery, StreamHeadsQuery, DueQuery}
)


def is_short(query: Query[Any]) -> bool:
    """True if the query reads a few rows, so that it may run on the event loop's thread.

    A snapshot may be long: its reader stops on the event loop's thread when it is (``reads.load``).
    """
    return type(query) in _SHORT or (isinstance(query, RunsById) and len(query.ids) <= INLINE_MAX_ROWS)
