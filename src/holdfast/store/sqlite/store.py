"""The SQLite store: opens and closes the database, and submits each intent to its writer or reader connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, TypeVar

import apsw

from holdfast.core.model import to_ms
from holdfast.errors import AppClosedError, StateError, StoreUnavailableError
from holdfast.ports import Clock, start_thread
from holdfast.store.protocol import (
    Advance,
    Advanced,
    Audit,
    AuditQuery,
    AuditRow,
    BulkJobRow,
    BulkRequest,
    Claimant,
    ClaimRequest,
    ClaimResult,
    Commit,
    Committed,
    ControlRequest,
    ControlResult,
    Created,
    CurrentRuns,
    Delivered,
    DeliveryFailure,
    ExpiredTask,
    Fact,
    FactsQuery,
    Failovers,
    Heartbeat,
    HeldTask,
    LateResults,
    Lease,
    LiveTransaction,
    MailboxPage,
    MailboxQuery,
    Migrated,
    NewEvent,
    NewRun,
    OutboxClaim,
    OutboxClaimRequest,
    OutboxRow,
    PageQuery,
    Pruned,
    PruneRequest,
    Relations,
    Reply,
    RunByName,
    RunQuery,
    RunRecord,
    RunsById,
    Sent,
    Snapshot,
    StatsQuery,
    StoredEvent,
    StoredLog,
    StoreStats,
    TaskRef,
    VersionCount,
    WorkerProfile,
    WorkerRecord,
)
from holdfast.store.sqlite import audit as audit_log
from holdfast.store.sqlite import (
    borrowed,
    control,
    late,
    leases,
    mailbox,
    opening,
    outbox,
    prune,
    reads,
    stats,
    workers,
)
from holdfast.store.sqlite import bulk as bulk_jobs
from holdfast.store.sqlite.advance import AdvanceRequest, advance
from holdfast.store.sqlite.claim import claim
from holdfast.store.sqlite.commit import commit
from holdfast.store.sqlite.create import create
from holdfast.store.sqlite.database import Database, Spawn
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.jobs import Mode
from holdfast.store.sqlite.live import Live
from holdfast.store.sqlite.predicted import send_predicted
from holdfast.store.sqlite.send import send
from holdfast.store.sqlite.tx import Connection, Tx, Work
from holdfast.store.sqlite.watching import relations

A = TypeVar("A")
R = TypeVar("R")


_POLL_SECONDS = 0.025

_INLINE_MAX_ROWS = 256
"""Maximum number of entries in a call that may run on the event loop's thread."""


class SqliteStore:
    """A store in one SQLite file, or with ``path=None`` in memory until ``close``.

    Several processes may use the same file. A store object can only be used in the process that opened it.
    """

    def __init__(self, path: str | None, *, clock: Clock, spawn_thread: Spawn | None = start_thread) -> None:
        """``spawn_thread=None``: use no threads and run everything on the event loop."""
        self._path = opening.MEMORY if path is None else path
        self._clock = clock
        self._failovers = Failovers()
        self._spawn = spawn_thread
        self._writer: Database | None = None
        self._reader: Database | None = None
        self._file: opening.FileIdentity | None = None
        self._migrated = Migrated(0, 0)
        self._process = 0

    # --- lifecycle

    async def open(self, *, migrate: bool = True) -> Migrated:
        if self._writer is not None:
            return self._migrated._replace(before=self._migrated.after)
        writer = self._make_writer(create=migrate)
        migrated = await writer.start("holdfast-writer", self._spawn, lambda found: self._check(found, migrate))
        reader = writer
        if self._path != opening.MEMORY:
            reader = self._make_reader()
            try:
                await reader.start("holdfast-reader", self._spawn, lambda _: None)
            except BaseException:
                await writer.stop()
                raise
        self._process = os.getpid()
        self._writer, self._reader, self._migrated = writer, reader, migrated
        return migrated

    async def close(self) -> None:
        writer, reader = self._writer, self._reader
        self._writer = self._reader = None
        if writer is None or reader is None or self._process != os.getpid():
            return
        if reader is not writer:
            await reader.stop()
        await writer.stop()

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def failovers(self) -> Failovers:
        return self._failovers

    # --- writes of clients

    async def create(self, runs: Sequence[NewRun], *, connection: Any = None) -> list[Created]:
        if connection is not None:
            return self._write_on(connection, create, runs)
        return await self._write(create, runs, Mode.MERGED, inline=_row_count(runs) <= _INLINE_MAX_ROWS)

    async def send(self, events: Sequence[NewEvent], *, connection: Any = None) -> list[Sent]:
        if connection is not None:
            return self._write_on(connection, send, events)
        return await self._write(send_predicted, events, Mode.MERGED, inline=len(events) <= _INLINE_MAX_ROWS)

    async def control(self, request: ControlRequest, audit: Audit | None = None) -> ControlResult:
        return await self._write(control.control, control.ControlCall(request, audit))

    async def bulk(self, request: BulkRequest) -> list[BulkJobRow]:
        return await self._write(bulk_jobs.bulk, request)

    # --- writes of turns

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        return await self._write(claim, request, inline=True)

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        short = len(commits) <= _INLINE_MAX_ROWS
        for one in commits:
            if one.observed.transaction is not None:
                return await self._commit_live(commits)
            if one.observed.statements:
                short = False  # users' statements may take any amount of time
        # Immediate, because the caller has batched the commits already.
        return await self._write(commit, commits, Mode.MERGED, inline=short, immediate=True)

    async def advance(self, advances: Sequence[Advance], claimant: Claimant, claim_limit: int) -> Advanced:
        request = AdvanceRequest(advances, claimant, claim_limit)
        inline = len(advances) <= _INLINE_MAX_ROWS
        return await self._write(advance, request, inline=inline, immediate=True)  # already batched by the caller

    async def begin(self) -> LiveTransaction:
        writer = self._require_open(self._writer)
        live = Live(writer)
        try:
            await writer.submit(_open, live, Mode.EXCLUSIVE)
        except asyncio.CancelledError:
            live.request_end()  # the transaction is open already, or will be opened
            raise
        return live

    async def release(self, tasks: Sequence[TaskRef]) -> int:
        return await self._write(leases.release, tasks)

    async def add_late_results(self, results: LateResults) -> bool:
        return await self._write(late.add, results)

    # --- workers and leases

    async def register_worker(self, worker: WorkerProfile, lease_ms: int) -> None:
        await self._write(workers.register_worker, workers.WorkerRegistration(worker, lease_ms))

    async def unregister_worker(self, owner: str) -> None:
        await self._write(workers.unregister_worker, owner)

    async def heartbeat(self, owner: str, lease_ms: int) -> list[HeldTask]:
        return await self._write(leases.heartbeat, leases.HeartbeatRequest(owner, lease_ms))

    async def fetch_signals(self, owner: str) -> list[HeldTask]:
        # Polled often and almost always empty: read first, and leave the write lock to other processes.
        if not await self._read(leases.has_signals, owner):
            return []
        return await self._write(leases.fetch_signals, owner)

    async def record_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None:
        await self._write(leases.record, heartbeats)

    async def set_leases(self, requested: Sequence[Lease]) -> list[bool]:
        return await self._write(leases.set_leases, requested, inline=len(requested) <= _INLINE_MAX_ROWS)

    async def reap(self, max_losses: int) -> list[ExpiredTask]:
        if not await self._read(leases.expired, None):
            return []
        return await self._write(leases.reap, max_losses)

    # --- the outbox

    async def claim_outbox(self, request: OutboxClaimRequest) -> OutboxClaim:
        # Polled often and almost always empty, as signals are.
        due = await self._read(outbox.next_due, None, short=True)
        if due is None or due > self._now():
            return OutboxClaim([], due)
        return await self._write(outbox.claim, request, inline=True)

    async def settle_outbox(self, owner: str, outcomes: Sequence[Delivered | DeliveryFailure]) -> int:
        return await self._write(
            outbox.settle, outbox.OutboxSettlement(owner, outcomes), inline=len(outcomes) <= _INLINE_MAX_ROWS
        )

    async def outbox(self, run: int) -> list[OutboxRow]:
        return await self._read(outbox.outbox, run)

    # --- reads

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

    async def audit(self, query: AuditQuery) -> list[AuditRow]:
        return await self._read(audit_log.records, query)

    async def relations(self, run: int) -> Relations:
        return await self._read(relations, run)

    async def workers(self) -> list[WorkerRecord]:
        return await self._read(workers.workers, None)

    async def versions(self) -> list[VersionCount]:
        return await self._read(workers.versions, None)

    async def prune(self, request: PruneRequest) -> Pruned:
        found = await self._read(prune.find, request)
        if request.dry_run:
            return Pruned(await self._read(prune.count, found.runs), found.next, found.stored)
        if await self._read(prune.has_leftovers, None):
            await self._write(prune.delete_leftovers, None)
            return Pruned(0, request.after, found.stored)
        deleted, seconds = await self._write(self._timed_delete, found.runs) if found.runs else (0, 0.0)
        left = await self._write(prune.compact, request.compact) if deleted or request.compact else 0
        return Pruned(deleted, found.next, found.stored, left, seconds)

    def _timed_delete(self, tx: Tx, runs: list[int]) -> tuple[int, float]:
        started = self._clock.monotonic()
        return prune.delete(tx, runs), self._clock.monotonic() - started

    async def stats(self, query: StatsQuery) -> StoreStats:
        return await self._read(stats.stats, query)

    async def tally(self, limit: int) -> bool:
        return await self._write(stats.tally, limit)

    async def wait_for_change(self, since: int | None) -> int:
        if since is not None:
            await asyncio.sleep(_POLL_SECONDS)  # one cheap pragma, many times per second
        # On the writer's connection, where data_version does not change with this store's own writes.
        return await self._write(_data_version, None, Mode.BARE, inline=True, immediate=True)

    # --- inside

    def _write(
        self, work: Work[A, R], argument: A, mode: Mode = Mode.SINGLE, *, inline: bool = False, immediate: bool = False
    ) -> asyncio.Future[R]:
        return self._require_open(self._writer).submit(work, argument, mode, inline=inline, immediate=immediate)

    async def _commit_live(self, commits: Sequence[Commit]) -> list[Committed]:
        """Apply commits that carry a live transaction first: no other write can run before that transaction ends."""
        results = {id(one): await self._live(one).commit(one) for one in commits if one.observed.transaction}
        others = [one for one in commits if id(one) not in results]
        if others:
            results |= zip(map(id, others), await self.commit(others), strict=True)
        return [results[id(one)] for one in commits]

    def _live(self, one: Commit) -> Live:
        live = one.observed.transaction
        if not isinstance(live, Live) or live.database is not self._require_open(self._writer):
            raise StateError(f"the transaction of run {one.task.run} was not begun by this store since it was opened")
        return live

    def _write_on(self, connection: Any, work: Work[A, R], argument: A) -> R:
        self._require_open(self._writer)
        self._check_same_file()
        caller_connection = borrowed.check(connection, self._path, self._file)
        return borrowed.write(caller_connection, self._path, self._now(), work, argument)

    def _read(self, work: Work[A, R], argument: A, *, short: bool = False) -> asyncio.Future[R]:
        return self._require_open(self._reader).read(work, argument, short=short)

    def _require_open(self, database: Database | None) -> Database:
        if database is None:
            raise AppClosedError(
                f"the store on {self._path} is not open. Open it first, and use it before it is closed"
            )
        if self._process != os.getpid():
            raise StoreUnavailableError(
                f"the store on {self._path} was opened before this process was forked. Open one in each process"
            )
        return database

    def _now(self) -> int:
        return to_ms(self._clock.now())

    def _make_writer(self, *, create: bool) -> Database:
        guard, may_create = Guard(), create

        def connect() -> apsw.Connection:
            nonlocal may_create
            opening.prepare(self._path, create=may_create)
            may_create = False  # a file that is missing later is an error, and not replaced by an empty one
            return opening.writer(self._path, guard)

        return Database(
            connect,
            path=self._path,
            begin="BEGIN IMMEDIATE",
            now=self._now,
            monotonic=self._clock.monotonic,
            guard=guard,
            check_file=self._check_same_file,
        )

    def _make_reader(self) -> Database:
        def connect() -> apsw.Connection:
            opening.prepare(self._path, create=False)
            return opening.reader(self._path)

        return Database(
            connect,
            path=self._path,
            begin="BEGIN",
            now=self._now,
            monotonic=self._clock.monotonic,
            guard=Guard(),
            check_file=lambda: None,
        )

    def _check(self, connection: Connection, migrate: bool) -> Migrated:
        migrated = opening.check(connection, self._path, migrating=migrate)
        self._file = opening.identity(self._path)
        return migrated

    def _check_same_file(self) -> None:
        # SQLite continues to write to a file that was deleted or replaced: commits acknowledged then would be lost.
        if self._path != opening.MEMORY and opening.identity(self._path) != self._file:
            raise StoreUnavailableError(
                f"{self._path} was deleted or replaced while in use. Stop, restore the file, start again"
            )


def _row_count(runs: Sequence[NewRun]) -> int:
    """Approximate number of rows to insert."""
    return len(runs) + sum(len(new.units) + len(new.plan) for new in runs)


def _is_short(query: RunQuery) -> bool:
    """True if the query reads a few rows, so that it may run on the event loop's thread."""
    match query:
        case RunByName():
            return True
        case RunsById(ids):
            return len(ids) <= _INLINE_MAX_ROWS
        case CurrentRuns():
            return False


def _open(_: Tx, live: Live) -> None:
    live.open()


def _data_version(tx: Tx, _: None) -> int:
    version: int = tx.connection.pragma("data_version")
    return version
