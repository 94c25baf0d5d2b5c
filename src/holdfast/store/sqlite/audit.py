"""Records of control requests."""

from __future__ import annotations

from holdfast.store.protocol import Audit, AuditQuery, AuditRow
from holdfast.store.sqlite.rows import decode_text, encode_text_or_none
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("audit")
_MAX_INTEGER = 2**63 - 1


def write(tx: Tx, audit: Audit, target: str, outcome: str) -> None:
    actor, reason = encode_text_or_none(audit.actor), encode_text_or_none(audit.reason)
    tx.connection.execute(_SQL["insert"], (tx.now, actor, audit.action, target, reason, outcome))


def records(tx: Tx, query: AuditQuery) -> list[AuditRow]:
    before = _MAX_INTEGER if query.before is None else query.before
    if query.target is None:
        rows = tx.connection.execute(_SQL["all"], (before, query.limit))
    else:
        rows = tx.connection.execute(_SQL["of_target"], (before, query.limit, query.target))
    return [
        AuditRow(n, at, decode_text(actor), action, target, decode_text(reason), outcome)
        for n, at, actor, action, target, reason, outcome in rows
    ]
