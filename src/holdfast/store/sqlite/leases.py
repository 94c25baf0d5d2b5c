"""Who holds what: heartbeats, signals to holders, and what happens to tasks that are given back or lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol import SUSPECT_LOSSES, Freed, Heartbeat, Held, Lease, Signal, TaskRef
from holdfast.store.sqlite.claim import SUSPECT_BUCKET
from holdfast.store.sqlite.control import set_paused
from holdfast.store.sqlite.rows import fact_rows
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx
from holdfast.store.sqlite.workers import renew

_SQL = statements("leases")


class Beat(NamedTuple):
    owner: str
    lease_ms: int


class _Expired(NamedTuple):
    run: int
    unit: int
    losses: int
    signal: int


def heartbeat(tx: Tx, beat: Beat) -> list[Held]:
    renew(tx, beat.owner, beat.lease_ms)
    held = _held(tx, "held", beat.owner)
    if held:
        tx.connection.execute(_SQL["extend"], (beat.owner, tx.now, beat.lease_ms))
    return _reading_mail(tx, beat.owner, held)


def set_leases(tx: Tx, leases: Sequence[Lease]) -> list[bool]:
    return [_set_lease(tx, lease) for lease in leases]


def _set_lease(tx: Tx, lease: Lease) -> bool:
    tx.connection.execute(_SQL["set_lease"], (*lease.task, lease.lease_ms, tx.now + lease.lease_ms))
    return tx.connection.changes() == 1


def signals(tx: Tx, owner: str) -> list[Held]:
    return _reading_mail(tx, owner, _held(tx, "signalled", owner))


def has_signals(tx: Tx, owner: str) -> bool:
    """A look without the write lock."""
    return bool(_held(tx, "signalled", owner))


def expired(tx: Tx, _: None = None) -> list[_Expired]:
    return [_Expired(*row) for row in json.loads(tx.connection.execute(_SQL["expired"], (tx.now,)).get)]


def reap(tx: Tx, max_losses: int) -> list[Freed]:
    return [_free(tx, task, max_losses) for task in expired(tx)]


def release(tx: Tx, tasks: Sequence[TaskRef]) -> int:
    return sum(_give_back(tx, task) for task in tasks)


def record(tx: Tx, heartbeats: Sequence[Heartbeat]) -> None:
    rows = [(*task, *fact_rows(task.run, [fact])[0]) for task, fact in heartbeats]
    tx.connection.executemany(_SQL["record"], rows)


def _held(tx: Tx, statement: str, owner: str) -> list[Held]:
    found = json.loads(tx.connection.execute(_SQL[statement], (owner,)).get)
    return [Held(run, unit, epoch, Signal(signal)) for run, unit, epoch, signal in found]


def _reading_mail(tx: Tx, owner: str, held: list[Held]) -> list[Held]:
    if any(task.signal & Signal.MAIL for task in held):
        tx.connection.execute(_SQL["clear_mail"], (owner,))
    return held


def _free(tx: Tx, task: _Expired, max_losses: int) -> Freed:
    losses, kind = task.losses + 1, TaskKind.RETRY
    bucket = SUSPECT_BUCKET if losses >= SUSPECT_LOSSES else kind.bucket
    tx.connection.execute(_SQL["lose"], (task.run, task.unit, tx.now, kind, bucket, losses))
    parked = losses >= max_losses
    if parked:
        times = "once" if losses == 1 else f"{losses} times in a row"
        set_paused(tx, task.run, f"parked: its worker died {times}; resume to try again")
    elif task.signal & Signal.PAUSE:
        set_paused(tx, task.run)  # asked for while it was held, and nobody holds it now
    return Freed(task.run, task.unit, losses, parked)


def _give_back(tx: Tx, task: TaskRef) -> bool:
    signal = tx.connection.execute(_SQL["signal_of"], task).get
    if signal is None:
        return False
    tx.connection.execute(_SQL["give_back"], (task.run, task.unit, tx.now))
    if signal & Signal.PAUSE:
        set_paused(tx, task.run)
    return True
