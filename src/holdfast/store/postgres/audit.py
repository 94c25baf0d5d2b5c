"""Records of control requests."""

from __future__ import annotations

from holdfast.store.postgres.rows import MAX_BIGINT
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import decode_text, encode_text
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Audit, AuditQuery, AuditRow


async def write(tx: Tx, audit: Audit, target: str, outcome: str) -> None:
    sql = statements("audit", tx.schema)["insert"]
    actor, reason = encode_text(audit.actor), encode_text(audit.reason)
    await tx.connection.execute(sql, tx.now, actor, audit.action, target, reason, outcome)


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
