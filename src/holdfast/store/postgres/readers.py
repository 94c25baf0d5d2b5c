"""The function that answers each query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.store.postgres import audit, outbox, permits, reads, schedules, stats, streams, workers
from holdfast.store.postgres.tx import Work
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

READERS: Mapping[type[Query[Any]], Work[Any, Any]] = {
    RunsById: reads.runs,
    RunByName: reads.runs,
    CurrentRuns: reads.runs,
    FactsQuery: reads.facts,
    EventsQuery: reads.events,
    LogsQuery: reads.logs,
    SnapshotQuery: reads.load,
    MailboxQuery: reads.undelivered,
    ReplyQuery: reads.reply,
    RepliesQuery: reads.replies,
    StreamQuery: streams.read,
    StreamHeadsQuery: streams.heads,
    AuditQuery: audit.records,
    RelationsQuery: reads.relations,
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
