"""Records of control requests."""

from __future__ import annotations

from holdfast.store.protocol import (
    DONE,
    DUPLICATE,
    REFUSED,
    Audit,
    AuditQuery,
    AuditRow,
    ContinueRun,
    ControlRequest,
    ControlResult,
)
from holdfast.store.sqlite.rows import decode_text, encode_text_or_none
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("audit")
_MAX_INTEGER = 2**63 - 1


def write(tx: Tx, audit: Audit, target: str, outcome: str) -> None:
    actor, reason = encode_text_or_none(audit.actor), encode_text_or_none(audit.reason)
    tx.connection.execute(_SQL["insert"], (tx.now, actor, audit.action, target, reason, outcome))


def described(request: ControlRequest, result: ControlResult) -> tuple[str, str]:
    """The target and the outcome of a request on a run that exists."""
    outcome = REFUSED if result.refused else DONE
    if result.sent is not None and result.sent.duplicate:
        outcome = DUPLICATE
    if isinstance(request, ContinueRun) and not result.refused and result.run is not None:
        outcome = f"{result.run.pid} run {result.run.number}"
    return f"{request.workflow}/{request.instance_id}", outcome


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
