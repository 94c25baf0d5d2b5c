"""Heartbeats, signals, leases, and tasks that are released or lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.postgres.columns import HEARTBEAT, LEASE, TASK
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import SUSPECT_LOSSES, ExpiredTask, Fact, Heartbeat, HeldTask, Lease, Signal, TaskRef


class HeartbeatRequest(NamedTuple):
    owner: str
    lease_ms: int


class HeartbeatResult(NamedTuple):
    now: int
    """The database's time, for the store's clock."""
    held: list[HeldTask]


async def heartbeat(tx: Tx, request: HeartbeatRequest) -> HeartbeatResult:
    rows = await tx.connection.fetch(
        statements("leases", tx.schema)["heartbeat"], tx.now, request.owner, request.lease_ms
    )
    *held, last = [tuple(row.values()) for row in rows]
    return HeartbeatResult(last[0], [_owned(tx, *found) for _, *found in held])


async def fetch_signals(tx: Tx, owner: str) -> list[HeldTask]:
    """The owned tasks with signals. Called often and almost always empty, so a cheap query comes first."""
    sql = statements("leases", tx.schema)
    if not tx.is_retry and not await tx.connection.fetchval(sql["has_signals"], owner):
        return []
    rows = await tx.connection.fetch(sql["fetch_signals"], owner, tx.is_retry)
    return [_owned(tx, *row.values()) for row in rows]


def _owned(tx: Tx, run: int, unit: int, epoch: int, signal: int) -> HeldTask:
    """An owned task. In a retry, every run has EVENTS: the first attempt, whose reply was lost, may have cleared it."""
    events = Signal.EVENTS if tx.is_retry and unit == 0 else Signal.NONE
    return HeldTask(run, unit, epoch, Signal(signal) | events)


async def record(tx: Tx, heartbeats: Sequence[Heartbeat]) -> None:
    latest = {(task, fact.key, fact.n): _heartbeat_row(task, fact) for task, fact in heartbeats}
    sql = statements("leases", tx.schema)["record_heartbeats"]
    await tx.connection.execute(sql, *HEARTBEAT.arrays(list(latest.values())))


def _heartbeat_row(task: TaskRef, fact: Fact) -> Row:
    return (
        *task, fact.key, fact.n, fact.kind, fact.at, fact.started_at, fact.value, fact.max_attempts,
        fact.timeout_ms,
    )  # fmt: skip


async def set_leases(tx: Tx, leases: list[Lease]) -> list[bool]:
    rows = [(*lease.task, lease.lease_ms) for lease in leases]
    sql = statements("leases", tx.schema)["set_leases"]
    found = await tx.connection.fetch(sql, tx.now, *LEASE.arrays(rows))
    return [held for row in found for held in row.values()]


async def reap(tx: Tx, max_losses: int) -> list[ExpiredTask]:
    sql = statements("leases", tx.schema)["reap"]
    rows = await tx.connection.fetch(sql, tx.now, tx.store_id, max_losses, SUSPECT_LOSSES)
    return [ExpiredTask(*row.values()) for row in rows]


async def release(tx: Tx, tasks: Sequence[TaskRef]) -> int:
    sql = statements("leases", tx.schema)["release"]
    count: int = await tx.connection.fetchval(sql, tx.now, tx.store_id, *TASK.arrays(tasks))
    return count
