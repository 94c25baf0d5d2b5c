"""What people do to runs: pause, resume, terminate, restart. Terminal runs are never changed."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.store.postgres.rows import packed, record
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import RunRecord

RESTARTED = "restarted"


class Target(NamedTuple):
    workflow: str
    instance_id: str
    reason: str | None = None
    token: int = 0
    """By which a restart knows the run again that it made."""


async def pause(tx: Tx, target: Target) -> RunRecord | None:
    return await _one(tx, "pause", target)


async def resume(tx: Tx, target: Target) -> RunRecord | None:
    return await _one(tx, "resume", target)


async def terminate(tx: Tx, target: Target) -> RunRecord | None:
    return await _one(tx, "terminate", target, packed(target.reason))


async def restart(tx: Tx, target: Target) -> RunRecord | None:
    return await _one(tx, "restart", target, packed(RESTARTED), target.token)


async def _one(tx: Tx, verb: str, target: Target, *more: object) -> RunRecord | None:
    sql = statements("control", tx.schema)[verb]
    row = await tx.connection.fetchrow(sql, tx.now, tx.by, target.workflow, target.instance_id, *more)
    return None if row is None else record(tuple(row))
