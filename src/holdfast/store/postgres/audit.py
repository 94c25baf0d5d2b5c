"""Records of control requests."""

from __future__ import annotations

from holdfast.store.postgres.rows import MAX_BIGINT
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import decode_text, encode_text
from holdfast.store.postgres.tx import Tx
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


async def write(tx: Tx, audit: Audit, target: str, outcome: str) -> None:
    sql = statements("audit", tx.schema)["insert"]
    actor, reason = encode_text(audit.actor), encode_text(audit.reason)
    await tx.connection.execute(sql, tx.now, actor, audit.action, target, reason, outcome)


def described(request: ControlRequest, result: ControlResult) -> tuple[str, str]:
    """The target and the outcome of a request on a run that exists."""
    outcome = REFUSED if result.refused else DONE
    if result.sent is not None and result.sent.duplicate:
        outcome = DUPLICATE
    if isinstance(request, ContinueRun) and not result.refused and result.run is not None:
        outcome = f"{result.run.pid} run {result.run.number}"
    return f"{request.workflow}/{request.instance_id}", outcome


async def records(tx: Tx, query: AuditQuery) -> list[AuditRow]:
    before = MAX_BIGINT if query.before is None else query.before
    sql = statements("audit", tx.schema)
    if query.target is None:
        rows = await tx.connection.fetch(sql["all"], before, query.limit)
    else:
        rows = await tx.connection.fetch(sql["of_target"], before, query.limit, query.target)
    return [
        AuditRow(n, at, decode_text(actor), action, target, decode_text(reason), outcome)
        for n, at, actor, action, target, reason, outcome in (tuple(row.values()) for row in rows)
    ]
