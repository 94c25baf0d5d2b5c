"""Reconciliation of the schedules that the code declares with those in the store, when a program starts.

A declaration that has changed since the last start replaces the stored schedule. A declaration that has not changed
leaves the schedule as it is, so that changes at run time stay. A stored schedule that the program no longer declares,
of one of its workflows, is paused with a note.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.client.schedules import new_row, paused_row, with_next_tick
from holdfast.kernel.definition import Registry
from holdfast.kernel.schedule_content import Declaration, ScheduleContent
from holdfast.store.protocol import REMOVED, Audit, ScheduleByName, ScheduleChange, SchedulePage, ScheduleRow, Store

_log = logging.getLogger("holdfast")

_PAGE = 500
_ATTEMPTS = 20
_REMOVED_NOTE = "the code no longer declares this schedule"
_ACTOR = "reconciliation"


class Reconciliation:
    def __init__(self, store: Store, registry: Registry, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._registry = registry
        self._now_ms = now_ms

    async def run(self, declared: Sequence[Declaration]) -> None:
        for declaration in declared:
            await self._declare(declaration)
        if declared or self._registry.runnable():
            await self._pause_removed({declaration.name for declaration in declared})

    async def _declare(self, declared: Declaration) -> None:
        """Store a declaration. Of several programs that start at once, one writes the change."""
        for _ in range(_ATTEMPTS):
            rows = await self._store.read(ScheduleByName(declared.name))
            if rows and rows[0].declaration == declared.digest:
                return
            row = self._new(declared) if not rows else self._replaced(rows[0], declared)
            record = Audit("schedule_declare", _ACTOR)
            [done] = await self._store.change_schedules([ScheduleChange(row.name, row.revision, row, audit=record)])
            if done.applied:
                _log_change(rows[0] if rows else None, declared)
                return

    def _new(self, declared: Declaration) -> ScheduleRow:
        return new_row(declared, self._now_ms(), declaration=declared.digest)

    def _replaced(self, row: ScheduleRow, declared: Declaration) -> ScheduleRow:
        changed = replace(
            row, workflow=declared.workflow, content=declared.content.encode(), params=declared.params,
            declaration=declared.digest,
        )  # fmt: skip
        if row.declaration == REMOVED or declared.paused:
            changed = replace(changed, paused=declared.paused, note=None)
        spec = ScheduleContent.decode(row.content).spec
        if spec == declared.content.spec and changed.paused == row.paused:
            return changed
        return with_next_tick(changed, declared.content, self._now_ms())

    async def _pause_removed(self, names: set[str]) -> None:
        after, workflows = "", sorted(self._registry.runnable())
        while True:
            rows = await self._store.read(SchedulePage(after, _PAGE, workflows))
            removed = [row for row in rows if row.declaration not in (None, REMOVED) and row.name not in names]
            changes = [
                ScheduleChange(
                    row.name,
                    row.revision,
                    replace(paused_row(row, _REMOVED_NOTE), declaration=REMOVED),
                    audit=Audit("schedule_pause", _ACTOR, _REMOVED_NOTE),
                )
                for row in removed
            ]
            for row, done in zip(removed, await self._store.change_schedules(changes) if changes else (), strict=True):
                if done.applied:
                    _log.warning("schedule %s is paused: %s", row.name, _REMOVED_NOTE)
            if len(rows) < _PAGE:
                return
            after = rows[-1].name


def _log_change(row: ScheduleRow | None, declared: Declaration) -> None:
    now = declared.content.spec.describe()
    if row is None:
        _log.info("schedule %s of %s is created: %s", declared.name, declared.workflow, now)
        return
    before = ScheduleContent.decode(row.content).spec.describe()
    if before == now:
        _log.info("schedule %s is changed by the code: its policies, params or options", declared.name)
    else:
        _log.info("schedule %s is changed by the code: %s, before %s", declared.name, now, before)
