"""Permits: requests, returns and grants. The algorithm is in ``functions/permit_*.sql``."""

from __future__ import annotations

import json
from functools import lru_cache

from holdfast.store.postgres.columns import EXCHANGE
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import decode_text
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    GrantedPermit,
    LimitKey,
    LimitKeysQuery,
    LimitKeyUse,
    LimitKeyUses,
    PermitExchange,
    PermitPosition,
    PermitPositionsQuery,
    PermitReply,
    PermitRequest,
    PermitResult,
    ordered_limits,
)

_MAX_COUNTED = 1000
"""Maximum number of permits that are counted for a position."""


async def exchange(tx: Tx, request: PermitExchange) -> PermitReply:
    arrays = EXCHANGE.arrays(
        returns=[(*one.task, one.step, one.attempt) for one in request.returns],
        requests=[_request_row(one) for one in request.requests],
    )
    sql = statements("permits", tx.schema)["exchange"]
    row = await tx.connection.fetchrow(sql, tx.now, tx.store_id, tx.is_retry, request.owner, *arrays)
    results, *granted, due, next_at = tuple(row.values())
    permits = [] if granted[0] is None else zip(*granted, strict=True)
    held = [GrantedPermit(run, unit, decode_text(step), attempt, epoch) for run, unit, step, attempt, epoch in permits]
    return PermitReply([PermitResult(n) for n in results or ()], held, due, next_at)


async def positions(tx: Tx, query: PermitPositionsQuery) -> list[PermitPosition]:
    rows = await tx.connection.fetch(statements("permits", tx.schema)["positions"], query.run, _MAX_COUNTED)
    return [_position(*row.values()) for row in rows]


async def keys(tx: Tx, query: LimitKeysQuery) -> LimitKeyUses:
    rows = await tx.connection.fetch(statements("permits", tx.schema)["keys"], query.name, query.limit)
    found = [tuple(row.values()) for row in rows]
    uses = [LimitKeyUse(key, used, waiting, oldest) for key, used, waiting, _, oldest in found]
    return LimitKeyUses(found[0][3] if found else 0, uses)


def _position(
    step: bytes, name: str, key: str, used: int | None, concurrency: int | None, n: int, waiting: int, ready: int | None
) -> PermitPosition:
    before = None if n == _MAX_COUNTED else n
    return PermitPosition(decode_text(step), LimitKey(name, key), used or 0, concurrency, before, waiting, ready)


def _request_row(one: PermitRequest) -> Row:
    limits = _text(tuple(one.limits))
    return (*one.task, one.step, one.attempt, limits, one.priority, one.until_end, one.park)


@lru_cache(maxsize=4096)
def _text(limits: tuple[LimitKey, ...]) -> str:
    """Limits in the order in which they are settled, as the text of their group."""
    return json.dumps(ordered_limits(limits))
