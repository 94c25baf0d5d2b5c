"""The PostgreSQL store: owns its life from open to close, and hands each intent to a connection.

The URL is one of PostgreSQL's own (``postgresql://user:password@host:5432/database?sslmode=require``). Three of its
parameters are the store's: ``pool_size`` (8), ``connect_timeout`` (how many seconds a call waits for a server that is
away, 10) and ``statement_cache_size``. Set the last one to 0 behind a pooler that hands out connections by the
transaction, such as PgBouncer: no statement stays prepared then, and what other processes write is noticed by looking,
twice a second, for such a pooler does not pass notifications on.

Time is the database's: leases, due times and all that is stored come from its clock, however wrong a worker's may be.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from holdfast.core.model import to_ms
from holdfast.errors import AppClosedError, StoreUnavailableError
from holdfast.ports import Clock, Randomness, SystemClock
from holdfast.store.postgres import control, late, leases, migrate, outbox, reads, workers
from holdfast.store.postgres.advance import Advances
from holdfast.store.postgres.borrowed import driver_connection
from holdfast.store.postgres.claim import Claiming, claim
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.commit import Commits
from holdfast.store.postgres.create import Making, create
from holdfast.store.postgres.database import Attempt, Database
from holdfast.store.postgres.errors import DRIVER, translate
from holdfast.store.postgres.foreseen import send_foreseen
from holdfast.store.postgres.gather import Gathered
from holdfast.store.postgres.guard import Guard
from holdfast.store.postgres.listener import Listener
from holdfast.store.postgres.live import Live
from holdfast.store.postgres.receipts import Receipts
from holdfast.store.postgres.send import Sending, send
from holdfast.store.postgres.settings import parse
from holdfast.store.postgres.sql import channel, check_schema, statements
from holdfast.store.postgres.tokens import token
from holdfast.store.postgres.tx import Tx, Work
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

A = TypeVar("A")
R = TypeVar("R")
List = builtins.list  # inside the class the name is a method of the protocol

_DOUBTFUL_S = 300.0
"""How long a claim whose answer got lost is asked for: by then it has been done or never will be."""


class PostgresStore:
    """One schema of one database. A store belongs to the process and the event loop that opened it.

    ``clock`` replaces the database's clock, for tests.
    """

    def __init__(self, url: str, *, schema: str = "holdfast", clock: Clock | None = None, random: Randomness) -> None:
        self._settings = parse(url)
        self._schema = check_schema(schema)
        self._given_clock = clock
        self._local = SystemClock()
        self._random = random
        self._clock = DatabaseClock(self._local)
        self._database: Database | None = None
        self._commits: Commits
        self._advances: Advances
        self._guard: Guard
        self._listener: Listener
        self._creates = Gathered[Making, Created](self._create)
        self._sends = Gathered[Sending, Sent](self._send)
        self._leases = Gathered[Lease, bool](self._set_leases)
        self._doubtful: dict[int, tuple[str, float]] = {}
        """Claims whose answers got lost, with their owners, and how long to ask for them."""
        self._process = 0

    # --- life

    async def open(self, *, migrate: bool = True) -> Migrated:
        if self._database is not None:
            return await self._call(_verify, None)
        by = self._random.uuid4().hex
        database = Database(self._settings, self._schema, by, self._now, self._local, self._random)
        try:
            await database.open()
            migrated = await database.call(_migrate if migrate else _verify, None)
            self._guard = Guard(await database.call(_relations, None))
            await self._set_clock(database)
            self._listener = Listener(database.connect, channel(self._schema), by, self._random, self._local)
            database.is_alone = self._listener.is_alone
            await self._listener.start()
        except BaseException:
            await database.close()
            raise
        receipts = Receipts()
        self._commits = Commits(database, self._guard, receipts, self._random)
        self._advances = Advances(database, receipts, self._random)
        self._process = os.getpid()
        self._database = database
        return migrated

    async def close(self) -> None:
        if self._database is None:
            return
        if self._process == os.getpid():
            await self._creates.drain()
            await self._sends.drain()
            await self._leases.drain()
        database, self._database = self._database, None
        if database is None or self._process != os.getpid():
            return
        await self._listener.stop()
        await database.close()

    async def now(self) -> int:
        return await self._call(reads.now, None) if self._given_clock is None else to_ms(self._given_clock.now())

    @property
    def clock(self) -> Clock:
        return self._clock if self._given_clock is None else self._given_clock

    # --- what a client writes

    async def create(self, runs: Sequence[NewRun], *, connection: Any = None) -> List[Created]:
        making = [Making(new, token(self._random)) for new in runs]
        if connection is None:
            self._in_use()
            return await self._creates(making)
        return await self._write_there(connection, create, making)

    async def send(self, events: Sequence[NewEvent], *, connection: Any = None) -> List[Sent]:
        sending = [Sending(event, token(self._random)) for event in events]
        if connection is None:
            self._in_use()
            return await self._sends(sending)
        return await self._write_there(connection, send, sending)

    async def pause(self, workflow: str, instance_id: str) -> RunRecord | None:
        return await self._control(control.pause, control.Target(workflow, instance_id))

    async def resume(self, workflow: str, instance_id: str) -> RunRecord | None:
        return await self._control(control.resume, control.Target(workflow, instance_id))

    async def terminate(self, workflow: str, instance_id: str, reason: str | None = None) -> Steered:
        target = control.Target(workflow, instance_id)
        return await self._control(control.terminate, control.Ending(target, reason))

    async def cancel(self, workflow: str, instance_id: str, payload: bytes, deadline_ms: int | None) -> Steered:
        target = control.Target(workflow, instance_id)
        return await self._control(control.cancel, control.Cancelling(target, payload, deadline_ms))

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
        asked = control.Restarting(target, expires_ms, expiry, options, token(self._random), units)
        return await self._control(control.restart, asked)

    # --- what a worker writes

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        doubts = self._take_doubts(request.owner) if request.run is None else []
        claiming = Claiming(request, token(self._random), doubts)
        try:
            return await self._call(claim, claiming)
        except BaseException:  # what it took, if it did, is the next one's to answer
            until = self._local.monotonic() + _DOUBTFUL_S
            self._doubtful |= dict.fromkeys((*claiming.doubtful, claiming.token), (request.owner, until))
            raise

    async def commit(self, commits: Sequence[Commit]) -> List[Committed]:
        self._in_use()
        return await self._commits.apply(commits)

    async def advance(self, advances: Sequence[Advance], claimant: Claimant, room: int) -> Advanced:
        self._in_use()
        return await self._advances.apply(advances, claimant, room)

    async def heartbeat(self, owner: str, lease_ms: int) -> List[Held]:
        database = self._in_use()
        asked = self._local.monotonic()
        now, held = await database.call_reserved(leases.heartbeat, leases.Beat(owner, lease_ms))
        self._clock.set(now, asked, self._local.monotonic())
        return held

    async def record_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None:
        await self._call(leases.record, heartbeats)

    async def signals(self, owner: str) -> List[Held]:
        return await self._call(leases.signals, owner)

    async def set_leases(self, wanted: Sequence[Lease]) -> List[bool]:
        self._in_use()
        return await self._leases(wanted)

    async def reap(self, max_losses: int) -> List[Freed]:
        return await self._call(leases.reap, max_losses)

    async def release(self, tasks: Sequence[TaskRef]) -> int:
        return await self._call(leases.release, tasks)

    async def enroll(self, worker: WorkerCard, lease_ms: int) -> None:
        await self._in_use().call_reserved(workers.enroll, workers.Enrolment(worker, lease_ms))

    async def dismiss(self, owner: str) -> None:
        await self._in_use().call_reserved(workers.dismiss, owner)

    async def begin(self) -> LiveTransaction:
        database = self._in_use()
        return await Live.begin(database, self._guard)

    async def add_late(self, run: int, facts: Sequence[Fact], lines: Sequence[Log]) -> bool:
        return await self._control(late.add, late.Late(run, facts, lines))

    # --- the outbox

    async def outbox_claim(self, owner: str, lease_ms: int, limit: int) -> OutboxClaim:
        return await self._call(outbox.claim, outbox.Carrier(owner, lease_ms, limit, token(self._random)))

    async def outbox_settle(self, owner: str, settled: Sequence[Delivered | Undelivered]) -> int:
        return await self._control(outbox.settle, outbox.Settling(owner, settled))

    async def outbox(self, run: int) -> List[OutboxRow]:
        return await self._call(outbox.outbox, run)

    async def outbox_retry(self, run: int) -> int:
        return await self._control(outbox.retry, run)

    # --- reads

    async def load(self, run: int) -> Snapshot:
        return await self._call(reads.load, run)

    async def undelivered(self, run: int, topics: frozenset[str] | None = None, after: int = 0) -> Mailbag:
        return await self._call(reads.undelivered, reads.Look(run, topics, after))

    async def reply(self, run: int, dedup: str) -> Reply | None:
        return await self._call(reads.reply, reads.Question(run, dedup))

    async def relations(self, run: int) -> Relations:
        return await self._call(reads.relations, run)

    async def find(self, workflow: str, instance_id: str, number: int | None = None) -> RunRecord | None:
        return await self._call(reads.find, reads.Which(workflow, instance_id, number))

    async def get(self, runs: Sequence[int]) -> List[RunRecord]:
        return await self._call(reads.get, runs)

    async def list(self, query: ListQuery) -> List[RunRecord]:
        return await self._call(reads.list_runs, query)

    async def facts(self, run: int, state: int | None = None, keys: Sequence[str] | None = None) -> List[Fact]:
        return await self._call(reads.facts, reads.Past(run, state, keys))

    async def events(self, query: PageQuery) -> List[Mail]:
        return await self._call(reads.events, query)

    async def logs(self, query: PageQuery) -> List[StoredLog]:
        return await self._call(reads.logs, query)

    async def workers(self) -> List[WorkerRecord]:
        return await self._call(workers.workers, None)

    async def changed(self, since: int | None) -> int:
        self._in_use()
        return await self._listener.changed(since)

    # --- inside

    def _create(self, making: List[Making]) -> Awaitable[List[Created]]:
        return self._call(create, making)

    def _send(self, sending: List[Sending]) -> Awaitable[List[Sent]]:
        return self._call(send_foreseen, sending)

    def _set_leases(self, wanted: List[Lease]) -> Awaitable[List[bool]]:
        return self._call(leases.set_leases, wanted)

    def _call(self, work: Work[A, R], argument: A) -> Awaitable[R]:
        return self._in_use().call(work, argument)

    async def _write_there(self, connection: Any, work: Work[A, R], argument: A) -> R:
        """On the caller's own connection."""
        database = self._in_use()
        try:
            return await work(database.tx(await driver_connection(connection), theirs=True), argument)
        except DRIVER as error:
            raise translate(error, database.where) from error

    async def _control(self, work: Work[A, R], asked: A) -> R:
        return await self._in_use().transact(work, asked, lambda _: True, Attempt())

    def _in_use(self) -> Database:
        if self._database is None:
            raise AppClosedError(
                f"the store on {self._settings.where} is not open. Open it first, and use it before it is closed"
            )
        if self._process != os.getpid():
            raise StoreUnavailableError(
                f"the store on {self._settings.where} was opened before this process was forked. "
                "Open one in each process"
            )
        return self._database

    def _now(self) -> int | None:
        return None if self._given_clock is None else to_ms(self._given_clock.now())

    async def _set_clock(self, database: Database) -> None:
        asked = self._local.monotonic()
        self._clock.set(await database.call(reads.now, None), asked, self._local.monotonic())

    def _take_doubts(self, owner: str) -> List[int]:
        now = self._local.monotonic()
        self._doubtful = {number: doubt for number, doubt in self._doubtful.items() if doubt[1] > now}
        taken = [number for number, (of, _) in self._doubtful.items() if of == owner]
        for number in taken:
            del self._doubtful[number]
        return taken


async def _migrate(tx: Tx, _: None) -> Migrated:
    return await migrate.migrate(tx)


async def _verify(tx: Tx, _: None) -> Migrated:
    return await migrate.verify(tx)


async def _relations(tx: Tx, _: None) -> List[int]:
    found: List[int] = await tx.connection.fetchval(statements("schema", tx.schema)["relations"], tx.schema)
    return found
