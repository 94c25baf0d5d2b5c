"""Queues: declarations of the code, pauses, and moves of tasks; drains of the workers that serve them."""

from __future__ import annotations

from holdfast.store.postgres import audit
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import (
    DONE,
    DeclareQueues,
    DrainWorker,
    MoveQueue,
    PauseQueue,
    QueueRecord,
    QueueReply,
    QueueRequest,
    ReadQueues,
)


async def apply(tx: Tx, request: QueueRequest) -> QueueReply:
    sql, moved = statements("queues", tx.schema), 0
    match request:
        case DeclareQueues():
            for name, paused in sorted(request.declared.items()):
                await tx.connection.execute(sql["declare"], name, paused)
        case PauseQueue():
            await tx.connection.execute(sql["pause"], request.name, request.paused)
            if request.paused:  # a permit of a task that is not claimed would hold back others
                await tx.connection.fetch(sql["withdraw"], tx.now, request.name)
            if request.audit is not None:
                await audit.write(tx, request.audit, f"queue {request.name}", DONE)
        case MoveQueue():
            moved = await _move(tx, request)
        case DrainWorker():
            drain = statements("workers", tx.schema)["drain"]
            await tx.connection.execute(drain, request.worker, request.draining)
            if request.audit is not None:
                await audit.write(tx, request.audit, f"worker {request.worker}", DONE)
        case ReadQueues():
            return await read(tx, request)
    await tx.connection.fetch(sql["notify"], tx.store_id)
    return QueueReply((await read(tx, ReadQueues())).queues, moved)


async def read(tx: Tx, request: ReadQueues) -> QueueReply:
    rows = await tx.connection.fetch(statements("queues", tx.schema)["queues"])
    draining = request.worker is not None and await tx.connection.fetchval(
        statements("workers", tx.schema)["draining"], request.worker
    )
    return QueueReply(tuple(QueueRecord(*row.values()) for row in rows), draining=draining)


async def _move(tx: Tx, request: MoveQueue) -> int:
    sql = statements("queues", tx.schema)
    await tx.connection.fetch(sql["withdraw"], tx.now, request.source)  # the runs request permits of their new queue
    await tx.connection.fetch(sql["move_fair_keys"], request.source, request.target)
    moved: int = await tx.connection.fetchval(sql["move"], request.source, request.target)
    if request.audit is not None:
        await audit.write(tx, request.audit, f"queue {request.source}", f"{moved} to {request.target}")
    return moved
