"""Leases: heartbeats, signals to owners, and tasks that are released or whose lease has expired."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol import SUSPECT_LOSSES, ExpiredTask, Heartbeat, HeldTask, Lease, Signal, TaskRef
from holdfast.store.sqlite.claim import SUSPECT_BUCKET
from holdfast.store.sqlite.pausing import set_paused
from holdfast.store.sqlite.rows import fact_rows
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx
from holdfast.store.sqlite.workers import renew

_SQL = statements("leases")


class HeartbeatRequest(NamedTuple):
    owner: str
    lease_ms: int


class _Expired(NamedTuple):
    run: int
    unit: int
    losses: int
    signal: int


def heartbeat(tx: Tx, request: HeartbeatRequest) -> list[HeldTask]:
    renew(tx, request.owner, request.lease_ms)
    owned = _owned(tx, "owned", request.owner)
    if owned:
        tx.connection.execute(_SQL["extend"], (request.owner, tx.now, request.lease_ms))
    return _clear_events_signal(tx, request.owner, owned)


def set_leases(tx: Tx, leases: Sequence[Lease]) -> list[bool]:
    return [_set_lease(tx, lease) for lease in leases]


def _set_lease(tx: Tx, lease: Lease) -> bool:
    tx.connection.execute(_SQL["set_lease"], (*lease.task, lease.lease_ms, tx.now + lease.lease_ms))
    return tx.connection.changes() == 1


def fetch_signals(tx: Tx, owner: str) -> list[HeldTask]:
    return _clear_events_signal(tx, owner, _owned(tx, "signalled", owner))


def has_signals(tx: Tx, owner: str) -> bool:
    """Check for signals without the write lock."""
    return bool(_owned(tx, "signalled", owner))


def expired(tx: Tx, _: None = None) -> list[_Expired]:
    return [_Expired(*row) for row in json.loads(tx.connection.execute(_SQL["expired"], (tx.now,)).get)]


def reap(tx: Tx, max_losses: int) -> list[ExpiredTask]:
    return [_expire(tx, task, max_losses) for task in expired(tx)]


def release(tx: Tx, tasks: Sequence[TaskRef]) -> int:
    return sum(_release(tx, task) for task in tasks)


def record(tx: Tx, heartbeats: Sequence[Heartbeat]) -> None:
    rows = [(*task, *fact_rows(task.run, [fact])[0]) for task, fact in heartbeats]
    tx.connection.executemany(_SQL["record_heartbeat"], rows)


def _owned(tx: Tx, statement: str, owner: str) -> list[HeldTask]:
    found = json.loads(tx.connection.execute(_SQL[statement], (owner,)).get)
    return [HeldTask(run, unit, epoch, Signal(signal)) for run, unit, epoch, signal in found]


def _clear_events_signal(tx: Tx, owner: str, owned: list[HeldTask]) -> list[HeldTask]:
    if any(task.signal & Signal.EVENTS for task in owned):
        tx.connection.execute(_SQL["clear_events_signal"], (owner,))
    return owned


def _expire(tx: Tx, task: _Expired, max_losses: int) -> ExpiredTask:
    losses, kind = task.losses + 1, TaskKind.RETRY
    bucket = SUSPECT_BUCKET if losses >= SUSPECT_LOSSES else kind.bucket
    tx.connection.execute(_SQL["expire"], (task.run, task.unit, tx.now, kind, bucket, losses))
    parked = losses >= max_losses
    if parked:
        times = "once" if losses == 1 else f"{losses} times in a row"
        set_paused(tx, task.run, f"parked: the lease of its task expired {times}; resume to try again")
    elif task.signal & Signal.PAUSE:
        set_paused(tx, task.run)  # the pause was requested while the task was owned
    return ExpiredTask(task.run, task.unit, losses, parked)


def _release(tx: Tx, task: TaskRef) -> bool:
    signal = tx.connection.execute(_SQL["signal_of"], task).get
    if signal is None:
        return False
    tx.connection.execute(_SQL["release"], (task.run, task.unit, tx.now))
    if signal & Signal.PAUSE:
        set_paused(tx, task.run)
    return True
