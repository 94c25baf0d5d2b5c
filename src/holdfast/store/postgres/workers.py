"""Registered workers: a row for each, renewed by its heartbeats."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import VersionCount, VersionsQuery, WorkerProfile, WorkerRecord, WorkersQuery

_KEPT_AFTER_EXPIRY_MS = 24 * 60 * 60 * 1000


class WorkerRegistration(NamedTuple):
    profile: WorkerProfile
    lease_ms: int


async def register_worker(tx: Tx, registration: WorkerRegistration) -> None:
    sql, profile = statements("workers", tx.schema), registration.profile
    await tx.connection.execute(sql["delete_dead"], tx.now, _KEPT_AFTER_EXPIRY_MS)
    await tx.connection.execute(sql["delete_old_receipts"], tx.now, _KEPT_AFTER_EXPIRY_MS)
    row = (profile.id, profile.host, profile.pid, list(profile.queues), profile.concurrency, registration.lease_ms)
    await tx.connection.execute(sql["register_worker"], tx.now, *row, profile.version)


async def unregister_worker(tx: Tx, owner: str) -> None:
    await tx.connection.execute(statements("workers", tx.schema)["unregister_worker"], owner)


async def workers(tx: Tx, _: WorkersQuery) -> list[WorkerRecord]:
    rows = await tx.connection.fetch(statements("workers", tx.schema)["all"], tx.now)
    return [_worker(tuple(row.values())) for row in rows]


async def versions(tx: Tx, query: VersionsQuery) -> list[VersionCount]:
    sql = statements("workers", tx.schema)
    counts = [VersionCount(*row.values()) for row in await tx.connection.fetch(sql["versions"], query.workflow)]
    rest = await tx.connection.fetchval(sql["open_runs"], query.workflow) - sum(count.open_runs for count in counts)
    return [*counts, VersionCount(None, rest)] if rest else counts


def _worker(row: Row) -> WorkerRecord:
    id_, host, pid, queues, concurrency, version, started_at, seen_at, alive, draining, held = row
    profile = WorkerProfile(id_, host, pid, tuple(queues), concurrency, version)
    return WorkerRecord(profile, started_at, seen_at, alive, draining, held)
