"""Limits: declarations of the code, changes at run time, and their use."""

from __future__ import annotations

from holdfast.store.postgres import audit
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import (
    DONE,
    ChangeLimit,
    DeclareLimits,
    LimitRecord,
    LimitRequest,
    ReadLimits,
    StoredLimit,
    declared_text,
)


async def apply(tx: Tx, request: LimitRequest) -> list[LimitRecord]:
    match request:
        case DeclareLimits():
            await _declare(tx, request)
            return []
        case ChangeLimit():
            await _set(tx, StoredLimit(request.name, request.values, None))
            if request.audit is not None:
                await audit.write(tx, request.audit, f"limit {request.name}", DONE)
            return await records(tx, ReadLimits(request.name))
        case ReadLimits():
            return await records(tx, request)


async def records(tx: Tx, query: ReadLimits) -> list[LimitRecord]:
    return [await _record(tx, one, query.key) for one in await _stored(tx) if query.name in (None, one.name)]


async def _declare(tx: Tx, request: DeclareLimits) -> None:
    stored = {one.name: one.declared for one in await _stored(tx)}
    for name, values in sorted(request.declared.items()):
        text = declared_text(values)
        if stored.get(name) != text:
            await _set(tx, StoredLimit(name, values, text))


async def _set(tx: Tx, limit: StoredLimit) -> None:
    sql = statements("permits", tx.schema)
    await tx.connection.fetch(sql["lock"])
    await tx.connection.execute(sql["set_limit"], *limit.row())
    await tx.connection.fetch(sql["mark_freed"], limit.name)  # a higher limit has room for waiting permits


async def _stored(tx: Tx) -> list[StoredLimit]:
    rows = await tx.connection.fetch(statements("permits", tx.schema)["limits"])
    return [StoredLimit.of_row(tuple(row.values())) for row in rows]


async def _record(tx: Tx, one: StoredLimit, key: str | None) -> LimitRecord:
    row = await tx.connection.fetchrow(statements("permits", tx.schema)["use_of_limit"], one.name, key, tx.now)
    used, keys, tat, waiting, oldest, now = tuple(row.values())
    return one.record(used, waiting, oldest, keys, tat, now)
