"""Limits: declarations of the code, changes at run time, and their use."""

from __future__ import annotations

import json
from typing import NamedTuple

from holdfast.store.postgres import audit
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    DONE,
    ChangeLimit,
    DeclareLimits,
    LimitRecord,
    LimitRequest,
    LimitValues,
    Pace,
    ReadLimits,
)


class _StoredLimit(NamedTuple):
    name: str
    values: LimitValues
    declared: str | None
    """The values in the code, as stored."""


async def apply(tx: Tx, request: LimitRequest) -> list[LimitRecord]:
    match request:
        case DeclareLimits():
            await _declare(tx, request)
            return []
        case ChangeLimit():
            await _set(tx, request.name, request.values, None)
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
        text = json.dumps([values.concurrency, values.rate, values.fair, dict(values.weights)], sort_keys=True)
        if stored.get(name) != text:
            await _set(tx, name, values, text)


async def _set(tx: Tx, name: str, values: LimitValues, declared: str | None) -> None:
    sql = statements("permits", tx.schema)
    rate = (None, None, None) if values.rate is None else values.rate
    row = (name, values.concurrency, *rate, values.fair, json.dumps(dict(values.weights)), declared)
    await tx.connection.fetch(sql["lock"])
    await tx.connection.execute(sql["set_limit"], *row)
    await tx.connection.fetch(sql["mark_freed"], name)  # a higher limit has room for waiting permits


async def _stored(tx: Tx) -> list[_StoredLimit]:
    rows = await tx.connection.fetch(statements("permits", tx.schema)["limits"])
    return [_decode(tuple(row.values())) for row in rows]


def _decode(row: Row) -> _StoredLimit:
    name, concurrency, count, per_ms, burst, fair, weights, declared = row
    rate = None if count is None else Pace(count, per_ms, burst)
    return _StoredLimit(name, LimitValues(concurrency, rate, fair, json.loads(weights)), declared)


async def _record(tx: Tx, one: _StoredLimit, key: str | None) -> LimitRecord:
    row = await tx.connection.fetchrow(statements("permits", tx.schema)["use_of_limit"], one.name, key)
    used, keys, waiting = tuple(row.values())
    declared = None
    if one.declared is not None:
        concurrency, rate, fair, weights = json.loads(one.declared)
        declared = LimitValues(concurrency, None if rate is None else Pace(*rate), fair, weights)
    return LimitRecord(one.name, one.values, declared, used, waiting, keys)
