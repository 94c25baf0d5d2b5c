"""The intents of the SQLite store that only read: each submits one function to the reader connection."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TypeVar

from holdfast.store.protocol import (
    AuditQuery,
    AuditRow,
    CurrentRuns,
    Fact,
    FactsQuery,
    MailboxPage,
    MailboxQuery,
    OutboxRow,
    PageQuery,
    PermitPosition,
    Relations,
    Reply,
    RunByName,
    RunQuery,
    RunRecord,
    RunsById,
    ScheduleQuery,
    ScheduleRow,
    Snapshot,
    StatsQuery,
    StoredEvent,
    StoredLog,
    StoreStats,
    VersionCount,
    WorkerRecord,
)
from holdfast.store.protocol.streams import StreamHead, StreamPage, StreamQuery
from holdfast.store.sqlite import audit as audit_log
from holdfast.store.sqlite import (
    mailbox,
    outbox,
    permits,
    reads,
    schedules,
    stats,
    streams,
    workers,
)
from holdfast.store.sqlite.tx import Work
from holdfast.store.sqlite.watching import relations

A = TypeVar("A")
R = TypeVar("R")

INLINE_MAX_ROWS = 256
"""Maximum number of entries in a call that may run on the event loop's thread."""


class ReadIntents(ABC):
    """The part of the store that reads runs, facts, events, logs, workers and statistics."""

    @abstractmethod
    def _read(self, work: Work[A, R], argument: A, *, short: bool = False) -> asyncio.Future[R]:
        """Run a function on the reader connection. ``short``: it may run on the event loop's thread."""

    async def runs(self, query: RunQuery) -> list[RunRecord]:
        return await self._read(reads.runs, query, short=_is_short(query))

    async def facts(self, query: FactsQuery) -> list[Fact]:
        return await self._read(reads.facts, query, short=True)

    async def events(self, query: PageQuery) -> list[StoredEvent]:
        return await self._read(reads.events, query)

    async def logs(self, query: PageQuery) -> list[StoredLog]:
        return await self._read(reads.logs, query)

    async def load(self, run: int) -> Snapshot:
        return await self._read(reads.load, run)

    async def undelivered(self, query: MailboxQuery) -> MailboxPage:
        return await self._read(mailbox.undelivered, query, short=True)

    async def reply(self, run: int, dedup: str) -> Reply | None:
        return await self._read(mailbox.reply, mailbox.ReplyQuery(run, dedup), short=True)

    async def read_stream(self, query: StreamQuery) -> StreamPage:
        return await self._read(streams.read, query, short=True)

    async def streams(self, run: int) -> list[StreamHead]:
        return await self._read(streams.heads, run, short=True)

    async def audit(self, query: AuditQuery) -> list[AuditRow]:
        return await self._read(audit_log.records, query)

    async def relations(self, run: int) -> Relations:
        return await self._read(relations, run)

    async def workers(self) -> list[WorkerRecord]:
        return await self._read(workers.workers, None)

    async def versions(self) -> list[VersionCount]:
        return await self._read(workers.versions, None)

    async def stats(self, query: StatsQuery) -> StoreStats:
        return await self._read(stats.stats, query)

    async def permit_positions(self, run: int) -> list[PermitPosition]:
        return await self._read(permits.positions, run)

    async def outbox(self, run: int) -> list[OutboxRow]:
        return await self._read(outbox.outbox, run)

    async def schedules(self, query: ScheduleQuery) -> list[ScheduleRow]:
        return await self._read(schedules.schedules, query)


def _is_short(query: RunQuery) -> bool:
    """True if the query reads a few rows, so that it may run on the event loop's thread."""
    match query:
        case RunByName():
            return True
        case RunsById(ids):
            return len(ids) <= INLINE_MAX_ROWS
        case CurrentRuns():
            return False
