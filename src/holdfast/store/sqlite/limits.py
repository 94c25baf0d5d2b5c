"""Limits: declarations of the code, changes at run time, and their use."""

from __future__ import annotations

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
from holdfast.store.sqlite import audit
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("permits")


def apply(tx: Tx, request: LimitRequest) -> list[LimitRecord]:
    match request:
        case DeclareLimits():
            _declare(tx, request)
            return []
        case ChangeLimit():
            _set(tx, StoredLimit(request.name, request.values, None))
            if request.audit is not None:
                audit.write(tx, request.audit, f"limit {request.name}", DONE)
            return records(tx, ReadLimits(request.name))
        case ReadLimits():
            return records(tx, request)


def stored_limits(tx: Tx) -> dict[str, StoredLimit]:
    return {row[0]: StoredLimit.of_row(row) for row in tx.connection.execute(_SQL["limits"])}


def records(tx: Tx, query: ReadLimits) -> list[LimitRecord]:
    stored = stored_limits(tx).values()
    return [_record(tx, one, query.key) for one in stored if query.name in (None, one.name)]


def _declare(tx: Tx, request: DeclareLimits) -> None:
    stored = stored_limits(tx)
    for name, values in request.declared.items():
        text = declared_text(values)
        if name not in stored or stored[name].declared != text:
            _set(tx, StoredLimit(name, values, text))


def _set(tx: Tx, limit: StoredLimit) -> None:
    tx.connection.execute(_SQL["set_limit"], limit.row())
    tx.connection.execute(_SQL["mark_freed"], (limit.name,))  # a higher limit has room for waiting permits


def _record(tx: Tx, one: StoredLimit, key: str | None) -> LimitRecord:
    [(used, keys, tat)] = tx.connection.execute(_SQL["use_of_limit"], (one.name, key)).fetchall()
    [(waiting, oldest)] = tx.connection.execute(_SQL["waiting_at"], (one.name, key)).fetchall()
    return one.record(used, waiting, oldest, keys, tat, tx.now)
