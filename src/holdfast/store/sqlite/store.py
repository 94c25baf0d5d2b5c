"""The SQLite store: owns its life from open to close, and hands each intent to the thread that may do it."""

from __future__ import annotations

import asyncio
import builtins
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
    Claimant,
    ClaimRequest,
    ClaimResult,
    Commit,
    Committed,
    Created,
    Delivered,
    Expiry,
    Fact,
    Freed,
    Heartbeat,
    Held,
    Lease,
    ListQuery,
    LiveTransaction,
    Log,
    Mail,
    Mailbag,
    Migrated,
    NewEvent,
    NewRun,
    NewUnit,
    OutboxClaim,
    OutboxRow,
    PageQuery,
    Relations,
    Reply,
    RunRecord,
    Sent,
    Snapshot,
    Steered,
    StoredLog,
    TaskRef,
    Undelivered,
    WorkerCard,
    WorkerRecord,
)
from holdfast.store.sqlite import borrowed, control, late, leases, mailbox, opening, outbox, reads, workers
from holdfast.store.sqlite.advance import Advancing, advance
from holdfast.store.sqlite.claim import claim
from holdfast.store.sqlite.commit import commit
from holdfast.store.sqlite.connection import Database, Mode, Spawn
from holdfast.store.sqlite.create import create
from holdfast.store.sqlite.foreseen import send_foreseen
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.live import Live
from holdfast.store.sqlite.send import send
from holdfast.store.sqlite.tx import Connection, Tx, Work
from holdfast.store.sqlite.watching import relations

A = TypeVar("A")
R = TypeVar("R")
List = builtins.list  # inside the class the name is a method of the protocol


_WATCH_SECONDS = 0.025

_FEW = 256
"""Entries of one call that are few enough to be written on the event loop's own thread."""


class SqliteStore:
    """One SQLite file, or with ``path=None`` one database in memory that ends with ``close``.

    Several processes may use the same file. A store belongs to the process that opened it.
    """

    def __init__(self, path: str | None, *, clock: Clock, spawn_thread: Spawn | None = start_thread) -> None:
        """``spawn_thread=None``: no threads; all is done on the event loop."""
        self._path = opening.MEMORY if path is None else path
        self._clock = clock
        self._spawn = spawn_thread
        self._writer: Database | None = None
        self._reader: Database | None = None
        self._file: opening.FileIdentity | None = None
        self._migrated = Migrated(0, 0)
        self._process = 0

    # --- life

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

    async def now(self) -> int:
        return self._now()

    @property
    def clock(self) -> Clock:
        return self._clock

    # --- what a client writes

    async def create(self, runs: Sequence[NewRun], *, connection: Any = None) -> List[Created]:
        if connection is not None:
            return self._write_on(connection, create, runs)
        return await self._write(create, runs, Mode.MERGED, anywhere=_weight(runs) <= _FEW)

    async def send(self, events: Sequence[NewEvent], *, connection: Any = None) -> List[Sent]:
        if connection is not None:
            return self._write_on(connection, send, events)
        return await self._write(send_foreseen, events, Mode.MERGED, anywhere=len(events) <= _FEW)

    async def pause(self, workflow: str, instance_id: str) -> RunRecord | None:
        return await self._write(control.pause, control.Target(workflow, instance_id))

    async def resume(self, workflow: str, instance_id: str) -> RunRecord | None:
        return await self._write(control.resume, control.Target(workflow, instance_id))

    async def terminate(self, workflow: str, instance_id: str, reason: str | None = None) -> Steered:
        target = control.Target(workflow, instance_id)
        return await self._write(control.terminate, control.Ending(target, reason))

    async def cancel(self, workflow: str, instance_id: str, payload: bytes, deadline_ms: int | None) -> Steered:
        target = control.Target(workflow, instance_id)
        return await self._write(control.cancel, control.Cancelling(target, payload, deadline_ms))

    async def restart(
        self,
        workflow: str,
        instance_id: str,
        expires_ms: int | None = None,
        expiry: Expiry | None = None,
        options: bytes | None = None,
        units: Sequence[NewUnit] = (),
    ) -> Steered:
        target = control.Target(workflow, instance_id)
        return await self._write(control.restart, control.Restarting(target, expires_ms, expiry, options, units))

    # --- what a worker writes

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        return await self._write(claim, request, anywhere=True)

    async def commit(self, commits: Sequence[Commit]) -> List[Committed]:
        if any(one.observed.transaction is not None for one in commits):
            return await self._commit_live(commits)
        # Users' statements may take any time.
        short = len(commits) <= _FEW and not any(one.observed.statements for one in commits)
        return await self._write(commit, commits, Mode.MERGED, anywhere=short, alone=True)  # already gathered

    async def advance(self, advances: Sequence[Advance], claimant: Claimant, room: int) -> Advanced:
        asked = Advancing(advances, claimant, room)
        return await self._write(advance, asked, anywhere=len(advances) <= _FEW, alone=True)  # already gathered

    async def heartbeat(self, owner: str, lease_ms: int) -> List[Held]:
        return await self._write(leases.heartbeat, leases.Beat(owner, lease_ms))

    async def record_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None:
        await self._write(leases.record, heartbeats)

    async def signals(self, owner: str) -> List[Held]:
        # Polled often and almost always empty: look first, and leave the write lock to other processes.
        if not await self._read(leases.has_signals, owner):
            return []
        return await self._write(leases.signals, owner)

    async def set_leases(self, wanted: Sequence[Lease]) -> List[bool]:
        return await self._write(leases.set_leases, wanted, anywhere=len(wanted) <= _FEW)

    async def reap(self, max_losses: int) -> List[Freed]:
        if not await self._read(leases.expired, None):
            return []
        return await self._write(leases.reap, max_losses)

    async def enroll(self, worker: WorkerCard, lease_ms: int) -> None:
        await self._write(workers.enroll, workers.Enrolment(worker, lease_ms))

    async def dismiss(self, owner: str) -> None:
        await self._write(workers.dismiss, owner)

    async def begin(self) -> LiveTransaction:
        writer = self._in_use(self._writer)
        live = Live(writer)
        try:
            await writer.submit(_open, live, Mode.GUEST)
        except asyncio.CancelledError:
            live.leave()  # it may be open already, or will be
            raise
        return live

    async def release(self, tasks: Sequence[TaskRef]) -> int:
        return await self._write(leases.release, tasks)

    async def add_late(self, run: int, facts: Sequence[Fact], lines: Sequence[Log]) -> bool:
        return await self._write(late.add, late.Late(run, facts, lines))

    # --- the outbox

    async def outbox_claim(self, owner: str, lease_ms: int, limit: int) -> OutboxClaim:
        # Asked for often, and there is almost always nothing: as for signals.
        due = await self._read(outbox.next_due, None, short=True)
        if due is None or due > self._now():
            return OutboxClaim([], due)
        return await self._write(outbox.claim, outbox.Carrier(owner, lease_ms, limit), anywhere=True)

    async def outbox_settle(self, owner: str, settled: Sequence[Delivered | Undelivered]) -> int:
        return await self._write(outbox.settle, outbox.Settling(owner, settled), anywhere=len(settled) <= _FEW)

    async def outbox(self, run: int) -> List[OutboxRow]:
        return await self._read(outbox.outbox, run)

    async def outbox_retry(self, run: int) -> int:
        return await self._write(outbox.retry, run)

    # --- reads

    async def load(self, run: int) -> Snapshot:
        return await self._read(reads.load, run)

    async def undelivered(self, run: int, topics: frozenset[str] | None = None, after: int = 0) -> Mailbag:
        return await self._read(mailbox.undelivered, mailbox.Look(run, topics, after), short=True)

    async def reply(self, run: int, dedup: str) -> Reply | None:
        return await self._read(mailbox.reply, mailbox.Question(run, dedup), short=True)

    async def relations(self, run: int) -> Relations:
        return await self._read(relations, run)

    async def find(self, workflow: str, instance_id: str, number: int | None = None) -> RunRecord | None:
        return await self._read(reads.find, reads.Which(workflow, instance_id, number), short=True)

    async def get(self, runs: Sequence[int]) -> List[RunRecord]:
        return await self._read(reads.get, runs, short=len(runs) <= _FEW)

    async def list(self, query: ListQuery) -> List[RunRecord]:
        return await self._read(reads.list_runs, query)

    async def facts(self, run: int, state: int | None = None, keys: Sequence[str] | None = None) -> List[Fact]:
        return await self._read(reads.facts, reads.Chosen(run, state, keys), short=True)

    async def events(self, query: PageQuery) -> List[Mail]:
        return await self._read(reads.events, query)

    async def logs(self, query: PageQuery) -> List[StoredLog]:
        return await self._read(reads.logs, query)

    async def workers(self) -> List[WorkerRecord]:
        return await self._read(workers.workers, None)

    async def changed(self, since: int | None) -> int:
        if since is not None:
            await asyncio.sleep(_WATCH_SECONDS)  # one cheap pragma, many times a second
        # On the connection that writes, because there the number does not move with this store's own writes.
        return await self._write(_data_version, None, Mode.BARE, anywhere=True, alone=True)

    # --- inside

    def _write(
        self, work: Work[A, R], argument: A, mode: Mode = Mode.SINGLE, *, anywhere: bool = False, alone: bool = False
    ) -> asyncio.Future[R]:
        return self._in_use(self._writer).submit(work, argument, mode, anywhere=anywhere, alone=alone)

    async def _commit_live(self, commits: Sequence[Commit]) -> List[Committed]:
        """Those with a transaction first: nobody else can write before it is over."""
        answers = {id(one): await self._live(one).commit(one) for one in commits if one.observed.transaction}
        others = [one for one in commits if id(one) not in answers]
        if others:
            answers |= zip(map(id, others), await self.commit(others), strict=True)
        return [answers[id(one)] for one in commits]

    def _live(self, one: Commit) -> Live:
        live = one.observed.transaction
        if not isinstance(live, Live) or live.database is not self._in_use(self._writer):
            raise StateError(f"the transaction of run {one.task.run} is not one that this store, as it is open, began")
        return live

    def _write_on(self, connection: Any, work: Work[A, R], argument: A) -> R:
        self._in_use(self._writer)
        self._same_file()
        theirs = borrowed.check(connection, self._path, self._file)
        return borrowed.write(theirs, self._path, self._now(), work, argument)

    def _read(self, work: Work[A, R], argument: A, *, short: bool = False) -> asyncio.Future[R]:
        return self._in_use(self._reader).look(work, argument, short=short)

    def _in_use(self, database: Database | None) -> Database:
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
        guard, making = Guard(), create

        def connect() -> apsw.Connection:
            nonlocal making
            opening.prepare(self._path, create=making)
            making = False  # a file that is gone later is a fault, and not replaced by an empty one
            return opening.writer(self._path, guard)

        return Database(
            connect,
            path=self._path,
            begin="BEGIN IMMEDIATE",
            now=self._now,
            monotonic=self._clock.monotonic,
            guard=guard,
            ensure=self._same_file,
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
            ensure=lambda: None,
        )

    def _check(self, connection: Connection, migrate: bool) -> Migrated:
        migrated = opening.check(connection, self._path, migrating=migrate)
        self._file = opening.identity(self._path)
        return migrated

    def _same_file(self) -> None:
        # SQLite goes on writing to a file that was deleted or replaced: what it acknowledges then is lost.
        if self._path != opening.MEMORY and opening.identity(self._path) != self._file:
            raise StoreUnavailableError(
                f"{self._path} was deleted or replaced while it was in use. Stop, put the right file back, start again"
            )


def _weight(runs: Sequence[NewRun]) -> int:
    """Rows, about."""
    return len(runs) + sum(len(new.units) + len(new.plan) for new in runs)


def _open(_: Tx, live: Live) -> None:
    live.open()


def _data_version(tx: Tx, _: None) -> int:
    version: int = tx.connection.pragma("data_version")
    return version
