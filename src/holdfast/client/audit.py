"""Audit records of control requests."""

from __future__ import annotations

from typing import Any

from holdfast.client.records import position
from holdfast.core.actor import current_actor
from holdfast.core.checks import check_optional_text
from holdfast.core.limits import Limits
from holdfast.core.model import from_ms
from holdfast.core.records import AuditRecord, Page
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError
from holdfast.store.protocol import Audit, AuditQuery, Store


def audit(action: str, reason: str | None = None) -> Audit:
    """The record of a request that the current actor makes."""
    check_optional_text("reason", reason)
    return Audit(action, current_actor.get(), reason)


class AuditReader:
    """Reads the records, the newest first."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    async def of_run(self, run: Any, cursor: str | None) -> Page[AuditRecord]:
        """The records of one instance, or of all. ``run``: a handle, or None."""
        if run is not None and not isinstance(getattr(run, "pid", None), str):
            raise InvalidOptionError(f"audit takes the handle of a run, not {shown(run)}")
        return await self.records(None if run is None else run.pid, cursor=cursor)

    async def records(
        self, target: str | None = None, *, cursor: str | None = None, limit: int | None = None
    ) -> Page[AuditRecord]:
        size = self._limits.page_size if limit is None else limit
        rows = await self._store.read(AuditQuery(target, position(cursor, "a"), size + 1))
        records = [
            AuditRecord(from_ms(row.at), row.actor, row.action, row.target, row.reason, row.outcome)
            for row in rows[:size]
        ]
        return Page(records, f"a{rows[size - 1].n}" if len(rows) > size else None)
