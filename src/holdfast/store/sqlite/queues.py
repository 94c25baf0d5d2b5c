"""Queues: declarations of the code, pauses, and moves of tasks; drains of the workers that serve them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.protocol import (
    DONE,
    DeclareQueues,
    DrainWorker,
    MoveQueue,
    NewRun,
    PauseQueue,
    QueueRecord,
    QueueReply,
    QueueRequest,
    ReadQueues,
)
from holdfast.store.sqlite import audit, fair_keys, permits
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("queues")
_WORKERS = statements("workers")


def apply(tx: Tx, request: QueueRequest) -> QueueReply:
    moved = 0
    match request:
        case DeclareQueues():
            tx.connection.executemany(_SQL["declare"], [(name, paused) for name, paused in request.declared.items()])
        case PauseQueue():
            tx.connection.execute(_SQL["pause"], (request.name, request.paused))
            if request.paused:  # a permit of a task that is not claimed would hold back others
                permits.withdraw_queue(tx, request.name)
            if request.audit is not None:
                audit.write(tx, request.audit, f"queue {request.name}", DONE)
        case MoveQueue():
            moved = _move(tx, request)
        case DrainWorker():
            tx.connection.execute(_WORKERS["drain"], (request.worker, request.draining))
            if request.audit is not None:
                audit.write(tx, request.audit, f"worker {request.worker}", DONE)
        case ReadQueues():
            pass
    rows = tx.connection.execute(_SQL["queues"])
    return QueueReply(tuple(QueueRecord(name, paused == 1) for name, paused in rows), moved, _draining(tx, request))


def _draining(tx: Tx, request: QueueRequest) -> bool:
    worker = request.worker if isinstance(request, ReadQueues) else None
    return worker is not None and any(tx.connection.execute(_WORKERS["draining"], (worker,)))


def paused_queues(tx: Tx) -> frozenset[str]:
    """The names of the paused queues. Almost always there are none, and the table is empty or has a few rows."""
    return frozenset(name for (name,) in tx.connection.execute(_SQL["paused"]))


def leave_paused_unclaimed(tx: Tx, runs: Sequence[NewRun]) -> None:
    """Remove the owner of new runs in paused queues: a later claim takes them after the queue is resumed."""
    if any(new.owner is not None for new in runs) and (paused := paused_queues(tx)):
        for new in runs:
            if new.queue in paused:
                new.owner = None


def _move(tx: Tx, request: MoveQueue) -> int:
    """The run's own task is moved first, because the statement about runs reads its queue."""
    queues = (request.source, request.target)
    permits.withdraw_queue(tx, request.source)  # the runs request permits of their new queue
    fair_keys.move(tx, *queues)
    tx.connection.execute(_SQL["move_runs"], queues)
    moved: int = tx.connection.changes()
    tx.connection.execute(_SQL["move_tasks"], queues)
    if request.audit is not None:
        audit.write(tx, request.audit, f"queue {request.source}", f"{moved} to {request.target}")
    return moved
