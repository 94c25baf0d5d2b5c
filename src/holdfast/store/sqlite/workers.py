"""Registered workers: a row for each worker, renewed by its heartbeat. For display only; claims do not read it."""

from __future__ import annotations

import json
from typing import NamedTuple

from holdfast.store.protocol import VersionCount, VersionsQuery, WorkerProfile, WorkerRecord, WorkersQuery
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("workers")
_DEAD_KEPT_MS = 24 * 60 * 60 * 1000


class WorkerRegistration(NamedTuple):
    profile: WorkerProfile
    lease_ms: int


def register_worker(tx: Tx, new: WorkerRegistration) -> None:
    profile = new.profile
    tx.connection.execute(_SQL["delete_dead"], (tx.now - _DEAD_KEPT_MS,))
    row = (
        profile.id,
        profile.host,
        profile.pid,
        json.dumps(profile.queues),
        profile.concurrency,
        tx.now,
        tx.now + new.lease_ms,
        profile.version,
    )
    tx.connection.execute(_SQL["register_worker"], row)


def renew(tx: Tx, owner: str, lease_ms: int) -> None:
    """Renew the row of a registered worker; a heartbeat does not register a worker."""
    tx.connection.execute(_SQL["renew"], (owner, tx.now, tx.now + lease_ms))


def unregister_worker(tx: Tx, owner: str) -> None:
    tx.connection.execute(_SQL["unregister_worker"], (owner,))


def workers(tx: Tx, _: WorkersQuery) -> list[WorkerRecord]:
    return [_worker(row) for row in tx.connection.execute(_SQL["all"], (tx.now,))]


def versions(tx: Tx, query: VersionsQuery) -> list[VersionCount]:
    counts = [VersionCount(*row) for row in tx.connection.execute(_SQL["versions"], (query.workflow,))]
    rest = tx.connection.execute(_SQL["open_runs"], (query.workflow,)).get - sum(count.open_runs for count in counts)
    return [*counts, VersionCount(None, rest)] if rest else counts


def _worker(row: Row) -> WorkerRecord:
    id_, host, pid, queues, concurrency, version, started_at, seen_at, alive, draining, held = row
    profile = WorkerProfile(id_, host, pid, tuple(json.loads(queues)), concurrency, version)
    return WorkerRecord(profile, started_at, seen_at, alive == 1, draining == 1, held)
