"""Limits: declarations of the code, changes at run time, and their use."""

from __future__ import annotations

import json
from typing import NamedTuple

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
from holdfast.store.sqlite import audit
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("permits")


class StoredLimit(NamedTuple):
    name: str
    values: LimitValues
    declared: str | None
    """The values in the code, as stored."""


def apply(tx: Tx, request: LimitRequest) -> list[LimitRecord]:
    match request:
        case DeclareLimits():
            _declare(tx, request)
            return []
        case ChangeLimit():
            _set(tx, request.name, request.values, None)
            if request.audit is not None:
                audit.write(tx, request.audit, f"limit {request.name}", DONE)
            return records(tx, ReadLimits(request.name))
        case ReadLimits():
            return records(tx, request)


def stored_limits(tx: Tx) -> dict[str, StoredLimit]:
    return {row[0]: _stored(row) for row in tx.connection.execute(_SQL["limits"])}


def records(tx: Tx, query: ReadLimits) -> list[LimitRecord]:
    stored = stored_limits(tx).values()
    return [_record(tx, one, query.key) for one in stored if query.name in (None, one.name)]


def _declare(tx: Tx, request: DeclareLimits) -> None:
    stored = stored_limits(tx)
    for name, values in request.declared.items():
        text = _declared_text(values)
        if name not in stored or stored[name].declared != text:
            _set(tx, name, values, text)


def _set(tx: Tx, name: str, values: LimitValues, declared: str | None) -> None:
    rate = (None, None, None) if values.rate is None else values.rate
    row = (name, values.concurrency, *rate, values.fair, json.dumps(dict(values.weights)), declared)
    tx.connection.execute(_SQL["set_limit"], row)
    tx.connection.execute(_SQL["mark_freed"], (name,))  # a higher limit has room for waiting permits


def _declared_text(values: LimitValues) -> str:
    return json.dumps([values.concurrency, values.rate, values.fair, dict(values.weights)], sort_keys=True)


def _stored(row: Row) -> StoredLimit:
    name, concurrency, count, per_ms, burst, fair, weights, declared = row
    rate = None if count is None else Pace(count, per_ms, burst)
    return StoredLimit(name, LimitValues(concurrency, rate, fair == 1, json.loads(weights)), declared)


def _record(tx: Tx, one: StoredLimit, key: str | None) -> LimitRecord:
    [(used, keys)] = tx.connection.execute(_SQL["use_of_limit"], (one.name, key)).fetchall()
    waiting = tx.connection.execute(_SQL["waiting_at"], (one.name, key)).get
    declared = None
    if one.declared is not None:
        concurrency, rate, fair, weights = json.loads(one.declared)
        declared = LimitValues(concurrency, None if rate is None else Pace(*rate), fair, weights)
    return LimitRecord(one.name, one.values, declared, used, waiting, keys)
