"""The SQLite store: opens and closes the database, and submits each intent to its writer or reader connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import apsw

from holdfast.core.model import to_ms
from holdfast.errors import AppClosedError, StateError, StoreUnavailableError
from holdfast.ports import Clock, start_thread
from holdfast.store.callers import in_thread_of
from holdfast.store.protocol import (
    Advance,
    Advanced,
    Audit,
    BulkJobRow,
    BulkRequest,
    Claimant,
    ClaimOutbox,
    ClaimRequest,
    ClaimResult,
    Commit,
    Committed,
    ControlRequest,
    ControlResult,
    Created,
    ExpiredTask,
    Failovers,
    Heartbeat,
    HeldTask,
    LateResults,
    Lease,
    LimitRecord,
    LimitRequest,
    LiveTransaction,
    MaintenanceRequest,
    Migrated,
    NewEvent,
    NewRun,
    OutboxClaim,
    OutboxRequest,
    PermitExchange,
    PermitReply,
    Pruned,
    PruneRuns,
    Query,
    QueueReply,
    QueueRequest,
    ReadLimits,
    ReadQueues,
    ScheduleChange,
    ScheduleChanged,
    Sent,
    SettleOutbox,
    Tally,
    TaskRef,
    WorkerProfile,
)
from holdfast.store.protocol.blobs import BlobRequest, GarbageBlobs, KnownBlobs, ReadChunk
from holdfast.store.protocol.streams import PruneStreams, StreamWrite, StreamWritten
from holdfast.store.sqlite import blobs as blob_rows
from holdfast.store.sqlite import (
    borrowed,
    control,
    late,
    leases,
    limits,
    opening,
    outbox,
    permits,
    prune,
    queues,
    schedules,
    stats,
    streams,
    workers,
)
from holdfast.store.sqlite import bulk as bulk_jobs
from holdfast.store.sqlite.advance import AdvanceRequest, advance
from holdfast.store.sqlite.claim import claim
from holdfast.store.sqlite.commit import commit
from holdfast.store.sqlite.create import create, row_count
from holdfast.store.sqlite.database import Database, Spawn
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.jobs import Mode
from holdfast.store.sqlite.live import Live, begin
from holdfast.store.sqlite.opening import SqliteDriver
from holdfast.store.sqlite.predicted import send_predicted
from holdfast.store.sqlite.readers import INLINE_MAX_ROWS, READERS, is_short
from holdfast.store.sqlite.send import send
from holdfast.store.sqlite.tx import Connection, Tx, Work

A = TypeVar("A")
R = TypeVar("R")

_POLL_SECONDS = 0.025
_MAINTENANCE: Mapping[type[MaintenanceRequest[Any]], Work[Any, Any]] = {
    PruneStreams: streams.prune,
    Tally: stats.tally,
}


class SqliteStore:
    """A store in one SQLite file, or with ``path=None`` in memory until ``close``.

    Several processes may use the same file. A store object can only be used in the process that opened it.
    """

    def __init__(
        self, path: str | None, *, clock: Clock, spawn_thread: Spawn | None = start_thread,
        driver: SqliteDriver = SqliteDriver.APSW,
    ) -> None:  # fmt: skip
        """``spawn_thread=None``: use no threads and run everything on the event loop."""
        self._path = opening.MEMORY if path is None else path
        self._driver = driver
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

    @property
    def writers(self) -> int:
        return 1

    # --- writes of clients

    async def create(self, runs: Sequence[NewRun], *, connection: Any = None) -> list[Created]:
        if connection is not None:
            return await self._write_on(connection, create, runs)
        return await self._write(create, runs, Mode.MERGED, inline=row_count(runs) <= INLINE_MAX_ROWS)

    async def send(self, events: Sequence[NewEvent], *, connection: Any = None) -> list[Sent]:
        if connection is not None:
            return await self._write_on(connection, send, events)
        return await self._write(send_predicted, events, Mode.MERGED, inline=len(events) <= INLINE_MAX_ROWS)

    async def control(self, request: ControlRequest, audit: Audit | None = None) -> ControlResult:
        return await self._write(control.control, control.ControlCall(request, audit))

    async def blobs(self, request: BlobRequest) -> list[Any]:
        if isinstance(request, ReadChunk | KnownBlobs | GarbageBlobs):  # not behind a live transaction
            return await self._read(blob_rows.blobs, request)
        return await self._write(blob_rows.blobs, request)

    async def bulk(self, request: BulkRequest) -> list[BulkJobRow]:
        return await self._write(bulk_jobs.bulk, request)

    # --- writes of turns

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        return await self._write(claim, request, inline=True)

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        short = len(commits) <= INLINE_MAX_ROWS
        for one in commits:
            if one.observed.transaction is not None:
                return await self._commit_live(commits)
            if one.observed.statements:
                short = False  # users' statements may take any amount of time
        # Immediate, because the caller has batched the commits already.
        return await self._write(commit, commits, Mode.MERGED, inline=short, immediate=True)

    async def advance(self, advances: Sequence[Advance], claimant: Claimant, claim_limit: int) -> Advanced:
        request = AdvanceRequest(advances, claimant, claim_limit)
        inline = len(advances) <= INLINE_MAX_ROWS
        return await self._write(advance, request, inline=inline, immediate=True)  # already batched by the caller

    async def begin(self) -> LiveTransaction:
        return await begin(self._require_open(self._writer))

    async def release(self, tasks: Sequence[TaskRef]) -> int:
        return await self._write(leases.release, tasks)

    async def add_late_results(self, results: LateResults) -> bool:
        return await self._write(late.add, results)

    # --- streams

    async def write_streams(self, writes: Sequence[StreamWrite]) -> list[StreamWritten]:
        return await self._write(streams.write, writes, Mode.MERGED, inline=len(writes) <= INLINE_MAX_ROWS)

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
        return await self._write(leases.set_leases, requested, inline=len(requested) <= INLINE_MAX_ROWS)

    async def reap(self, max_losses: int) -> list[ExpiredTask]:
        if not await self._read(leases.expired, None):
            return []
        return await self._write(leases.reap, max_losses)

    # --- flow control

    async def limits(self, request: LimitRequest) -> list[LimitRecord]:
        if isinstance(request, ReadLimits):
            return await self._read(limits.records, request)
        self._settle_in_each_transaction()
        return await self._write(limits.apply, request)

    async def exchange_permits(self, exchange: PermitExchange) -> PermitReply:
        # Workers ask after every change of the database, and almost always there is nothing to grant.
        if exchange.empty and not await self._read(permits.has_work, exchange.owner, short=True):
            return PermitReply(next_at=await self._read(permits.next_ready, None, short=True))
        return await self._write(permits.exchange, exchange, inline=True)

    def _settle_in_each_transaction(self) -> None:
        """Hand permits over in the transaction that frees them. Processes without limits do not pay for the check."""
        self._require_open(self._writer).tx.before_commit = permits.settle

    async def queues(self, request: QueueRequest) -> QueueReply:
        if isinstance(request, ReadQueues):
            return await self._read(queues.apply, request)
        return await self._write(queues.apply, request)

    # --- the outbox

    async def outbox(self, request: OutboxRequest[R]) -> R:
        match request:
            case ClaimOutbox():
                return cast("R", await self._claim_outbox(request))
            case SettleOutbox():
                short = len(request.outcomes) <= INLINE_MAX_ROWS
                return cast("R", await self._write(outbox.settle, request, inline=short))
            case _:
                raise TypeError(f"unknown request {request!r}")

    async def _claim_outbox(self, request: ClaimOutbox) -> OutboxClaim:
        # Polled often and almost always empty, as signals are.
        due = await self._read(outbox.next_due, None, short=True)
        if due is None or due > self._now():
            return OutboxClaim([], due)
        return await self._write(outbox.claim, request, inline=True)

    # --- schedules

    async def change_schedules(self, changes: Sequence[ScheduleChange]) -> list[ScheduleChanged]:
        inline = sum(len(one.runs) + len(one.ticks) + 1 for one in changes) <= INLINE_MAX_ROWS
        return await self._write(schedules.change, changes, Mode.MERGED, inline=inline)

    # --- maintenance

    async def maintain(self, request: MaintenanceRequest[R]) -> R:
        if isinstance(request, PruneRuns):
            return cast("R", await self._prune(request))
        return cast("R", await self._write(_MAINTENANCE[type(request)], request))

    async def _prune(self, request: PruneRuns) -> Pruned:
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

    # --- reads

    async def read(self, query: Query[R]) -> R:
        return cast("R", await self._read(READERS[type(query)], query, short=is_short(query)))

    async def wait_for_change(self, since: int | None, *, streams: bool = False) -> int:  # noqa: ARG002  (any write)
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

    async def _write_on(self, connection: Any, work: Work[A, R], argument: A) -> R:
        self._require_open(self._writer)
        self._check_same_file()

        def write(lent: Any) -> R:
            checked = borrowed.check(lent, self._path, self._file, self._driver)
            return borrowed.write(checked, self._path, self._now(), work, argument)

        return await in_thread_of(connection, write)

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
            return opening.writer(self._path, guard, self._driver)

        return Database(
            connect,
            path=self._path,
            recover=lambda close_broken: self._rebuild_wal_index(guard, close_broken),
            begin="BEGIN IMMEDIATE",
            now=self._now,
            monotonic=self._clock.monotonic,
            guard=guard,
            check_file=self._check_same_file,
        )

    def _make_reader(self) -> Database:
        def connect() -> apsw.Connection:
            opening.prepare(self._path, create=False)
            return opening.reader(self._path, self._driver)

        return Database(
            connect,
            path=self._path,
            recover=lambda close_broken: close_broken(),
            begin="BEGIN",
            now=self._now,
            monotonic=self._clock.monotonic,
            guard=Guard(),
            check_file=lambda: None,
        )

    def _rebuild_wal_index(self, guard: Guard, close_broken: Callable[[], None]) -> None:
        """Make the next connection read the whole WAL again, and checkpoint all of it again.

        SQLite does not sync the pages of a checkpoint that a reader limited before the next complete checkpoint. If
        that sync fails, the kernel discards all these pages, but the wal-index counts them as written: the next
        checkpoint would leave them out, and then the WAL is overwritten. The last connection of all processes removes
        the wal-index when it is closed. The broken connection keeps it until the frames of a failed commit are
        overwritten.
        """
        self._check_same_file()
        opening.overwrite_failed_commit(self._path, guard, self._driver)
        close_broken()
        if self._reader is not None and self._reader is not self._writer:
            self._reader.close_connection()

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


def _data_version(tx: Tx, _: None) -> int:
    version: int = tx.connection.pragma("data_version")
    return version
