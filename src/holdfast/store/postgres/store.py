"""The PostgreSQL store: opens and closes its resources, and runs each intent on a connection.

The URL is a PostgreSQL URL (``postgresql://user:password@host:5432/database?sslmode=require``). Three of its parameters
belong to the store: ``pool_size`` (8), ``connect_timeout`` (the seconds for which a call retries while the server is
unavailable, 10) and ``statement_cache_size``. Set the last one to 0 behind a pooler that assigns connections by
transaction, such as PgBouncer: statements are then not kept prepared, and writes of other processes are noticed by
polling, twice a second, because such a pooler does not pass notifications on.

Times come from the database's clock: leases, due times and all stored times, however wrong a worker's clock is.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from holdfast.core.model import to_ms
from holdfast.errors import AppClosedError, StoreReadOnlyError, StoreUnavailableError
from holdfast.ports import Clock, Randomness, SystemClock
from holdfast.store.batching import Batcher
from holdfast.store.postgres import blobs as blob_rows
from holdfast.store.postgres import bulk as bulk_jobs
from holdfast.store.postgres import (
    control,
    late,
    leases,
    limits,
    migrate,
    outbox,
    permits,
    prune,
    queues,
    reads,
    schedules,
    stats,
    streams,
    workers,
)
from holdfast.store.postgres.advance import Advances
from holdfast.store.postgres.borrowed import callers_connection
from holdfast.store.postgres.claim import ClaimCall, claim
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.commit import Commits
from holdfast.store.postgres.create import CreateRequest, create
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.errors import DRIVER_ERRORS, translate
from holdfast.store.postgres.guard import Guard
from holdfast.store.postgres.listener import Listener
from holdfast.store.postgres.live import Live
from holdfast.store.postgres.markers import MarkedTransaction
from holdfast.store.postgres.predicted import send_predicted
from holdfast.store.postgres.readers import READERS
from holdfast.store.postgres.receipts import Receipts
from holdfast.store.postgres.send import SendRequest, send
from holdfast.store.postgres.settings import parse
from holdfast.store.postgres.sql import channel, check_schema, statements
from holdfast.store.postgres.tokens import token
from holdfast.store.postgres.tx import Tx, Work
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
    OutboxRequest,
    PermitExchange,
    PermitReply,
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
from holdfast.store.protocol.blobs import BlobRequest
from holdfast.store.protocol.streams import (
    PruneStreams,
    StreamWrite,
    StreamWritten,
)

A = TypeVar("A")
R = TypeVar("R")

_UNANSWERED_S = 300.0
"""Seconds for which a claim without a reply is remembered: after that it was executed or never will be."""
_WRITERS = 4
_MAX_ITEMS = 500
_COMMIT_WRITERS = 2
"""While the server writes one batch of commits, the worker runs turns and fills the next. A third batch did not pay."""


_MAINTENANCE: Mapping[type[MaintenanceRequest[Any]], Work[Any, Any]] = {
    PruneRuns: prune.prune,
    PruneStreams: streams.prune,
    Tally: stats.tally,
}


class PostgresStore:
    """A store in one schema of a database. It belongs to the process and the event loop that opened it.

    ``clock`` replaces the database's clock, for tests.
    """

    def __init__(self, url: str, *, schema: str = "holdfast", clock: Clock | None = None, random: Randomness) -> None:
        self._settings = parse(url)
        self._schema = check_schema(schema)
        self._test_clock = clock
        self._local = SystemClock()
        self._random = random
        self._failovers = Failovers()
        self._clock = DatabaseClock(self._local)
        self._database: Database | None = None
        self._commits: Commits
        self._advances: Advances
        self._guard: Guard
        self._listener: Listener
        self._creates = _batcher("holdfast-create", self._create)
        self._sends = _batcher("holdfast-send", self._send)
        self._leases = _batcher("holdfast-set-leases", self._set_leases)
        self._unanswered_claims: dict[int, tuple[str, float]] = {}
        """Tokens of claims whose replies were lost, with their owners and the times until which they are remembered."""
        self._process = 0

    # --- lifecycle

    async def open(self, *, migrate: bool = True) -> Migrated:
        if self._database is not None:
            return await self._call(_verify, None)
        store_id = self._random.uuid4().hex
        database = Database(
            self._settings, self._schema, store_id, self._now, self._local, self._random, self._failovers
        )
        try:
            await database.open()
            migrated = await database.call(_migrate if migrate else _verify, None)
            await database.call(_refuse_fenced, None)
            await database.follow_timeline()
            self._guard = Guard(await database.call(_relations, None))
            await self._set_clock(database)
            self._listener = Listener(database.connect, channel(self._schema), store_id, self._random)
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

    @property
    def clock(self) -> Clock:
        return self._clock if self._test_clock is None else self._test_clock

    @property
    def failovers(self) -> Failovers:
        return self._failovers

    @property
    def writers(self) -> int:
        return _COMMIT_WRITERS

    # --- writes of clients

    async def create(self, runs: Sequence[NewRun], *, connection: Any = None) -> list[Created]:
        requests = [CreateRequest(new, token(self._random)) for new in runs]
        if connection is None:
            self._require_open()
            if any(new.policy is not None for new in runs):  # its lock must be the first of its transaction
                return await self._call(create, requests)
            return await self._creates(requests)
        return await self._write_on(connection, create, requests)

    async def send(self, events: Sequence[NewEvent], *, connection: Any = None) -> list[Sent]:
        requests = [SendRequest(event, token(self._random)) for event in events]
        if connection is None:
            self._require_open()
            return await self._sends(requests)
        return await self._write_on(connection, send, requests)

    async def control(self, request: ControlRequest, audit: Audit | None = None) -> ControlResult:
        return await self._transact(control.control, control.ControlCall(request, token(self._random), audit))

    async def blobs(self, request: BlobRequest) -> list[Any]:
        return await self._call(blob_rows.blobs, request)

    async def bulk(self, request: BulkRequest) -> list[BulkJobRow]:
        return await self._call(bulk_jobs.bulk, request)

    # --- writes of turns

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        unanswered = self._take_unanswered(request.owner) if request.run is None else []
        call = ClaimCall(request, token(self._random), unanswered)
        try:
            return await self._call(claim, call)
        except BaseException:  # the owner's next claim returns the tasks that this one may have claimed
            until = self._local.monotonic() + _UNANSWERED_S
            self._unanswered_claims |= dict.fromkeys((*call.unanswered, call.token), (request.owner, until))
            raise

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        self._require_open()
        return await self._commits.apply(commits)

    async def advance(self, advances: Sequence[Advance], claimant: Claimant, claim_limit: int) -> Advanced:
        self._require_open()
        return await self._advances.apply(advances, claimant, claim_limit)

    async def begin(self) -> LiveTransaction:
        database = self._require_open()
        return await Live.begin(database, self._guard)

    async def release(self, tasks: Sequence[TaskRef]) -> int:
        return await self._call(leases.release, tasks)

    async def add_late_results(self, results: LateResults) -> bool:
        return await self._transact(late.add, results)

    # --- workers and leases

    async def register_worker(self, worker: WorkerProfile, lease_ms: int) -> None:
        await self._require_open().call_reserved(workers.register_worker, workers.WorkerRegistration(worker, lease_ms))

    async def unregister_worker(self, owner: str) -> None:
        await self._require_open().call_reserved(workers.unregister_worker, owner)

    async def heartbeat(self, owner: str, lease_ms: int) -> list[HeldTask]:
        database = self._require_open()
        sent_at = self._local.monotonic()
        now, held = await database.call_reserved(leases.heartbeat, leases.HeartbeatRequest(owner, lease_ms))
        self._clock.set(now, sent_at, self._local.monotonic())
        return held

    async def fetch_signals(self, owner: str) -> list[HeldTask]:
        return await self._call(leases.fetch_signals, owner)

    async def record_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None:
        await self._call(leases.record, heartbeats)

    async def set_leases(self, requested: Sequence[Lease]) -> list[bool]:
        self._require_open()
        return await self._leases(list(requested))

    async def reap(self, max_losses: int) -> list[ExpiredTask]:
        return await self._call(leases.reap, max_losses)

    # --- streams

    async def write_streams(self, writes: Sequence[StreamWrite]) -> list[StreamWritten]:
        return await self._call(streams.write, writes)

    # --- flow control

    async def limits(self, request: LimitRequest) -> list[LimitRecord]:
        if isinstance(request, ReadLimits):
            return await self._call(limits.records, request)
        return await self._transact(limits.apply, request)

    async def exchange_permits(self, exchange: PermitExchange) -> PermitReply:
        return await self._call(permits.exchange, exchange)

    async def queues(self, request: QueueRequest) -> QueueReply:
        if isinstance(request, ReadQueues):
            return await self._call(queues.read, request)
        return await self._transact(queues.apply, request)

    # --- the outbox

    async def outbox(self, request: OutboxRequest[R]) -> R:
        match request:
            case ClaimOutbox():
                call = outbox.OutboxClaimCall(request, token(self._random))
                return cast("R", await self._call(outbox.claim, call))
            case SettleOutbox():
                return cast("R", await self._transact(outbox.settle, request))
            case _:
                raise TypeError(f"unknown request {request!r}")

    # --- schedules

    async def change_schedules(self, changes: Sequence[ScheduleChange]) -> list[ScheduleChanged]:
        tokens = [token(self._random) for one in changes for _ in one.runs]
        return await self._transact(schedules.change, schedules.ChangeCall(changes, tokens))

    # --- maintenance

    async def maintain(self, request: MaintenanceRequest[R]) -> R:
        return cast("R", await self._call(_MAINTENANCE[type(request)], request))

    # --- reads

    async def read(self, query: Query[R]) -> R:
        return cast("R", await self._call(READERS[type(query)], query))

    async def wait_for_change(self, since: int | None, *, streams: bool = False) -> int:
        self._require_open()
        return await self._listener.wait_for_change(since, streams=streams)

    # --- internals

    def _create(self, requests: list[CreateRequest]) -> Awaitable[list[Created]]:
        return self._call(create, requests)

    def _send(self, requests: list[SendRequest]) -> Awaitable[list[Sent]]:
        return self._call(send_predicted, requests)

    def _set_leases(self, requested: list[Lease]) -> Awaitable[list[bool]]:
        return self._call(leases.set_leases, requested)

    def _call(self, work: Work[A, R], argument: A) -> Awaitable[R]:
        return self._require_open().call(work, argument)

    async def _write_on(self, connection: Any, work: Work[A, R], argument: A) -> R:
        """Run an intent on the caller's connection."""
        database = self._require_open()
        try:
            return await work(database.tx(await callers_connection(connection, database.where)), argument)
        except DRIVER_ERRORS as error:
            raise translate(error, database.where) from error

    async def _transact(self, work: Work[A, R], request: A) -> R:
        return await self._require_open().transact(work, request, lambda _: True, MarkedTransaction())

    def _require_open(self) -> Database:
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
        return None if self._test_clock is None else to_ms(self._test_clock.now())

    async def _set_clock(self, database: Database) -> None:
        sent_at = self._local.monotonic()
        self._clock.set(await database.call(reads.now, None), sent_at, self._local.monotonic())

    def _take_unanswered(self, owner: str) -> list[int]:
        now = self._local.monotonic()
        self._unanswered_claims = {number: entry for number, entry in self._unanswered_claims.items() if entry[1] > now}
        tokens = [number for number, (claim_owner, _) in self._unanswered_claims.items() if claim_owner == owner]
        for number in tokens:
            del self._unanswered_claims[number]
        return tokens


def _batcher(name: str, write: Callable[[list[A]], Awaitable[list[R]]]) -> Batcher[A, R]:
    return Batcher(name, write, max_items=lambda: _MAX_ITEMS, writers=_WRITERS)


async def _migrate(tx: Tx, _: None) -> Migrated:
    return await migrate.migrate(tx)


async def _refuse_fenced(tx: Tx, _: None) -> None:
    reason = await tx.connection.fetchval(statements("schema", tx.schema)["fence_reason"])
    if reason is not None:
        raise StoreReadOnlyError(f"the schema {tx.schema} is fenced: {reason}")


async def _verify(tx: Tx, _: None) -> Migrated:
    return await migrate.verify(tx)


async def _relations(tx: Tx, _: None) -> list[int]:
    found: list[int] = await tx.connection.fetchval(statements("schema", tx.schema)["relations"], tx.schema)
    return found
