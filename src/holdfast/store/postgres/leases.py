"""Who holds what: heartbeats, signals to holders, and what happens to tasks that are given back or lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.postgres.rows import columns, packed
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import SUSPECT_LOSSES, Fact, Freed, Heartbeat, Held, Lease, Signal, TaskRef

_TASK_WIDTH = 4
_HEARTBEAT_WIDTH = 12
_LEASE_WIDTH = 5


class Beat(NamedTuple):
    owner: str
    lease_ms: int


class Beaten(NamedTuple):
    now: int
    """The database's time, to set clocks by."""
    held: list[Held]


async def heartbeat(tx: Tx, beat: Beat) -> Beaten:
    rows = await tx.connection.fetch(statements("leases", tx.schema)["heartbeat"], tx.now, beat.owner, beat.lease_ms)
    *held, last = [tuple(row.values()) for row in rows]
    return Beaten(last[0], [_held(tx, *found) for _, *found in held])


async def signals(tx: Tx, owner: str) -> list[Held]:
    """Asked often and almost always empty: look first."""
    sql = statements("leases", tx.schema)
    if not tx.again and not await tx.connection.fetchval(sql["has_signals"], owner):
        return []
    rows = await tx.connection.fetch(sql["signals"], owner, tx.again)
    return [_held(tx, *row.values()) for row in rows]


def _held(tx: Tx, run: int, unit: int, epoch: int, signal: int) -> Held:
    """Asked again, the first answer got lost, and with it which runs have mail, for reading clears that: all may."""
    mail = Signal.MAIL if tx.again and unit == 0 else Signal.NONE
    return Held(run, unit, epoch, Signal(signal) | mail)


async def record(tx: Tx, heartbeats: Sequence[Heartbeat]) -> None:
    latest = {(task, fact.key, fact.n): _heartbeat_row(task, fact) for task, fact in heartbeats}
    sql = statements("leases", tx.schema)["record"]
    await tx.connection.execute(sql, *columns(list(latest.values()), _HEARTBEAT_WIDTH))


def _heartbeat_row(task: TaskRef, fact: Fact) -> Row:
    return (
        *task, packed(fact.key), fact.n, fact.kind, fact.at, fact.started_at, fact.value, fact.max_attempts,
        fact.timeout_ms,
    )  # fmt: skip


async def set_leases(tx: Tx, leases: list[Lease]) -> list[bool]:
    rows = [(*lease.task, lease.lease_ms) for lease in leases]
    sql = statements("leases", tx.schema)["set_leases"]
    found = await tx.connection.fetch(sql, tx.now, *columns(rows, _LEASE_WIDTH))
    return [held for row in found for held in row.values()]


async def reap(tx: Tx, max_losses: int) -> list[Freed]:
    sql = statements("leases", tx.schema)["reap"]
    rows = await tx.connection.fetch(sql, tx.now, tx.by, max_losses, SUSPECT_LOSSES)
    return [Freed(*row.values()) for row in rows]


async def release(tx: Tx, tasks: Sequence[TaskRef]) -> int:
    sql = statements("leases", tx.schema)["release"]
    count: int = await tx.connection.fetchval(sql, tx.now, tx.by, *columns(list(tasks), _TASK_WIDTH))
    return count
