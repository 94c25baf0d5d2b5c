"""The intents of the PostgreSQL store that only read: each is one call of a function or a query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import TypeVar

from holdfast.store.postgres import audit as audit_log
from holdfast.store.postgres import outbox, permits, reads, schedules, stats, streams, workers
from holdfast.store.postgres.tx import Work
from holdfast.store.protocol import (
    AuditQuery,
    AuditRow,
    Fact,
    FactsQuery,
    MailboxPage,
    MailboxQuery,
    OutboxRow,
    PageQuery,
    PermitPosition,
    Relations,
    Reply,
    RunQuery,
    RunRecord,
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

A = TypeVar("A")
R = TypeVar("R")


class ReadIntents(ABC):
    """The part of the store that reads."""

    @abstractmethod
    def _call(self, work: Work[A, R], argument: A) -> Awaitable[R]:
        """Run a function on a connection of the pool."""

    async def runs(self, query: RunQuery) -> list[RunRecord]:
        return await self._call(reads.runs, query)

    async def facts(self, query: FactsQuery) -> list[Fact]:
        return await self._call(reads.facts, query)

    async def events(self, query: PageQuery) -> list[StoredEvent]:
        return await self._call(reads.events, query)

    async def logs(self, query: PageQuery) -> list[StoredLog]:
        return await self._call(reads.logs, query)

    async def load(self, run: int) -> Snapshot:
        return await self._call(reads.load, run)

    async def undelivered(self, query: MailboxQuery) -> MailboxPage:
        return await self._call(reads.undelivered, query)

    async def reply(self, run: int, dedup: str) -> Reply | None:
        return await self._call(reads.reply, reads.ReplyQuery(run, dedup))

    async def audit(self, query: AuditQuery) -> list[AuditRow]:
        return await self._call(audit_log.records, query)

    async def relations(self, run: int) -> Relations:
        return await self._call(reads.relations, run)

    async def workers(self) -> list[WorkerRecord]:
        return await self._call(workers.workers, None)

    async def versions(self) -> list[VersionCount]:
        return await self._call(workers.versions, None)

    async def stats(self, query: StatsQuery) -> StoreStats:
        return await self._call(stats.stats, query)

    async def read_stream(self, query: StreamQuery) -> StreamPage:
        return await self._call(streams.read, query)

    async def streams(self, run: int) -> list[StreamHead]:
        return await self._call(streams.heads, run)

    async def permit_positions(self, run: int) -> list[PermitPosition]:
        return await self._call(permits.positions, run)

    async def outbox(self, run: int) -> list[OutboxRow]:
        return await self._call(outbox.outbox, run)

    async def schedules(self, query: ScheduleQuery) -> list[ScheduleRow]:
        return await self._call(schedules.schedules, query)
