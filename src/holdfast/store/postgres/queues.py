"""Queues: declarations of the code, pauses, and moves of tasks."""

from __future__ import annotations

from holdfast.store.postgres import audit
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import (
    DONE,
    DeclareQueues,
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
            if request.audit is not None:
                await audit.write(tx, request.audit, f"queue {request.name}", DONE)
        case MoveQueue():
            moved = await _move(tx, request)
        case ReadQueues():
            return await read(tx, request)
    await tx.connection.fetch(sql["notify"], tx.store_id)
    return QueueReply((await read(tx, ReadQueues())).queues, moved)


async def read(tx: Tx, _: ReadQueues) -> QueueReply:
    rows = await tx.connection.fetch(statements("queues", tx.schema)["queues"])
    return QueueReply(tuple(QueueRecord(*row.values()) for row in rows))


async def _move(tx: Tx, request: MoveQueue) -> int:
    sql = statements("queues", tx.schema)["move"]
    moved: int = await tx.connection.fetchval(sql, request.source, request.target)
    if request.audit is not None:
        await audit.write(tx, request.audit, f"queue {request.source}", f"{moved} to {request.target}")
    return moved
