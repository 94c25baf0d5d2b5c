"""``app.schedules``: schedules as stored objects. Workers take up their ticks (``runner/schedules.py``)."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.client.audit import audit
from holdfast.core import codec
from holdfast.core.checks import check_enum, check_optional_text, is_whole_number
from holdfast.core.model import from_ms, optional_from_ms, to_ms
from holdfast.core.names import is_schedule_name
from holdfast.core.records import Page
from holdfast.core.schedule_records import ScheduledRun, ScheduleInfo
from holdfast.core.schedule_spec import check_first, check_time
from holdfast.core.show import shown
from holdfast.errors import (
    InvalidCursorError,
    InvalidOptionError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    StoreBusyError,
)
from holdfast.kernel.requests import Requests
from holdfast.kernel.schedule_content import Declaration, Overlap, ScheduleContent
from holdfast.kernel.schedule_options import (
    ALL_OPTIONS,
    START_OPTIONS,
    check_known,
    declare,
    kept_options,
    shown_options,
    start_options,
)
from holdfast.kernel.schedule_rules import (
    BACKFILL,
    TRIGGER,
    backfill_overlap,
    first_tick,
    held,
    instance_id,
    record_ends,
)
from holdfast.kernel.scheduled_runs import scheduled_run
from holdfast.store.protocol import (
    OPEN_TICKS,
    REMOVED,
    Audit,
    ScheduleByName,
    ScheduleChange,
    ScheduleChanged,
    SchedulePage,
    ScheduleRow,
    Store,
    TickRow,
    TickState,
)

if TYPE_CHECKING:
    from holdfast.client.handle import Handle

_MAX_CONFLICTS = 50
_PAGE = 500
_MAX_BACKFILL = 100_000
_MAX_PREVIEW = 1000
_CHUNK = 500
_CURSOR = "n:"
"""Prefix of a cursor: the rest is the last name of the page before."""

Edit = Callable[[ScheduleRow, ScheduleContent], ScheduleChange]


class Schedules:
    """Creates, changes and reads schedules. Every change is audited."""

    def __init__(
        self, store: Store, requests: Requests, now_ms: Callable[[], int], changed: Callable[[], None],
        handle: Callable[[str, str], Handle[Any]],
    ) -> None:  # fmt: skip
        """``changed``: notifies the workers of this process. ``handle``: makes the handle of a run."""
        self._store = store
        self._requests = requests
        self._now_ms = now_ms
        self._changed = changed
        self._handle = handle

    # --- reading

    async def list(self, workflow: Any = None, *, runs: int = 1) -> builtins.list[ScheduleInfo]:
        """All schedules, or those of one workflow, by name, each with its next tick and its last ``runs``."""
        found: builtins.list[ScheduleInfo] = []
        cursor: str | None = None
        while True:
            page = await self.page(workflow, cursor=cursor, limit=_PAGE, runs=runs)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found

    async def page(
        self, workflow: Any = None, *, cursor: str | None = None, limit: int = 25, runs: int = 1
    ) -> Page[ScheduleInfo]:
        """A page of ``list``."""
        workflows = None if workflow is None else [self._requests.definition(workflow).name]
        after = "" if cursor is None else _name_before(cursor)
        rows = await self._store.read(SchedulePage(after, limit + 1, workflows, max(1, runs)))
        infos = [info(row, next_ticks=1, runs=runs) for row in rows[:limit]]
        return Page(infos, _CURSOR + rows[limit - 1].name if len(rows) > limit else None)

    async def get(self, name: str, *, runs: int = 10, next_ticks: int = 5) -> ScheduleInfo:
        """A schedule with its next ticks and its last runs."""
        return info(await self._find(name, ticks=max(1, runs)), next_ticks=next_ticks, runs=runs)

    async def preview(self, name: str, count: int = 10) -> builtins.list[datetime]:
        """The next ticks, also of a paused schedule."""
        if not is_whole_number(count, 1, _MAX_PREVIEW):
            raise InvalidOptionError(f"count must be a whole number from 1 to {_MAX_PREVIEW}, not {shown(count)}")
        row = await self._find(name)
        return ScheduleContent.decode(row.content).spec.preview(from_ms(self._now_ms()), count)

    # --- changing

    async def create(
        self, /, name: str, workflow: Any, *, params: Any = None, paused: bool = False, note: str | None = None,
        **options: Any,
    ) -> ScheduleInfo:  # fmt: skip
        """Create a schedule. ``options``: as those of ``app.schedule``."""
        check_optional_text("note", note)
        definition = self._requests.definition(workflow)
        encoded = self._requests.start_params(definition.name, params)
        declared = declare(name, definition.name, encoded, paused, options, self._requests.limits)
        row = new_row(declared, self._now_ms(), declaration=None, note=note)
        [done] = await self._store.change_schedules(
            [ScheduleChange(row.name, 0, row, audit=audit("schedule_create", note))]
        )
        if not done.applied:
            raise ScheduleExistsError(f"there is a schedule {name!r} already; change it with update()")
        self._changed()
        return await self.get(name)

    async def update(self, /, name: str, *, reason: str | None = None, **changes: Any) -> ScheduleInfo:
        """Replace some options of a schedule: those of ``app.schedule``, without ``paused``. None removes an option."""
        _check_changes(changes)

        def edit(row: ScheduleRow, content: ScheduleContent) -> ScheduleChange:
            return _changed(row, self._updated(row, content, changes), audit("schedule_update", reason))

        await self._apply(name, edit)
        return await self.get(name)

    async def pause(self, name: str, note: str | None = None) -> None:
        """Pause a schedule: no more ticks are taken up and no queued ones started. Runs that were started continue."""
        check_optional_text("note", note)

        def edit(row: ScheduleRow, _: ScheduleContent) -> ScheduleChange:
            return _changed(row, paused_row(row, note), audit("schedule_pause", note))

        await self._apply(name, edit)

    async def resume(self, name: str, note: str | None = None) -> None:
        """Resume a schedule: ticks are taken up again, from the next one on."""
        check_optional_text("note", note)

        def edit(row: ScheduleRow, content: ScheduleContent) -> ScheduleChange:
            return _changed(row, self._resumed(row, content), audit("schedule_resume", note))

        await self._apply(name, edit)

    async def delete(self, name: str, *, reason: str | None = None) -> None:
        """Delete a schedule and its record of ticks. Its runs stay."""

        def edit(row: ScheduleRow, _: ScheduleContent) -> ScheduleChange:
            return ScheduleChange(row.name, row.revision, None, audit=audit("schedule_delete", reason))

        await self._apply(name, edit)

    async def trigger(self, name: str, *, reason: str | None = None) -> Handle[Any]:
        """Start a run now, whether or not the schedule is paused or another run of it is open."""

        def edit(row: ScheduleRow, content: ScheduleContent) -> ScheduleChange:
            seq, now = row.seq + 1, self._now_ms()
            ended, ticks = record_ends(row, content, now)  # the run receives the result of the last successful one
            run = instance_id(row.name, now, seq)
            tick = TickRow(seq, now, TRIGGER, Overlap.ALLOW, TickState.STARTED, row.workflow, run, now)
            new = scheduled_run(self._requests, ended, content, tick)
            return ScheduleChange(
                row.name, row.revision, replace(ended, seq=seq), [*ticks, tick], [new],
                audit("schedule_trigger", reason),
            )  # fmt: skip

        changed = await self._apply(name, edit)
        run = changed.created[0].run
        return self._handle(run.workflow, run.instance_id)

    async def backfill(
        self, name: str, start: datetime, end: datetime, overlap: str | None = None, *, reason: str | None = None
    ) -> int:
        """Start runs for the ticks from ``start`` to ``end``, both included; returns the number of ticks.

        Ticks that have a run start nothing new. ``overlap``: the policy for these ticks; None: one run after the other,
        or all at once if the schedule's policy is ``allow``.
        """
        check_first("start", start)
        check_time("end", end)
        policy = None if overlap is None else check_enum("overlap", overlap, Overlap)
        ticks = ScheduleContent.decode((await self._find(name)).content).spec.between(start, end)
        times = [to_ms(tick) for tick in islice(ticks, _MAX_BACKFILL + 1)]
        if len(times) > _MAX_BACKFILL:
            raise InvalidOptionError(f"a backfill has at most {_MAX_BACKFILL:,} ticks; divide the period")
        for chunk in _chunks(times):
            await self._apply(name, partial(self._backfilled, chunk, policy, audit("schedule_backfill", reason)))
        return len(times)

    # --- inside

    def _backfilled(
        self, times: Sequence[int], overlap: Overlap | None, record: Audit, row: ScheduleRow, content: ScheduleContent
    ) -> ScheduleChange:
        policy, now = overlap or backfill_overlap(content.overlap), self._now_ms()
        ticks = [
            TickRow(row.seq + n, at, BACKFILL, policy, TickState.QUEUED, row.workflow, instance_id(row.name, at), now)
            for n, at in enumerate(times, 1)
        ]
        changed = replace(row, seq=row.seq + len(ticks), due_at=now)
        return ScheduleChange(row.name, row.revision, changed, ticks, audit=record)

    def _updated(self, row: ScheduleRow, content: ScheduleContent, changes: Mapping[str, Any]) -> ScheduleRow:
        changed = content.changed(changes)
        started = {name: value for name, value in changes.items() if name in START_OPTIONS}
        if started:
            queue, priority, options = start_options(started, self._requests.limits)
            changed = replace(
                changed,
                queue=queue if "queue" in started else content.queue,
                priority=priority if "priority" in started else content.priority,
                options={**kept_options(content.options, started), **options},
            )
        definition = self._requests.definition(changes.get("workflow", row.workflow))
        params = row.params
        if "params" in changes or "workflow" in changes:
            value = changes["params"] if "params" in changes else self._given_params(row)
            params = self._requests.start_params(definition.name, value)
        new = replace(row, workflow=definition.name, content=changed.encode(), params=params)
        return with_next_tick(new, changed, self._now_ms()) if changed.spec != content.spec else new

    def _resumed(self, row: ScheduleRow, content: ScheduleContent) -> ScheduleRow:
        if not row.paused:
            return row
        declaration = None if row.declaration == REMOVED else row.declaration
        return with_next_tick(replace(row, paused=False, note=None, declaration=declaration), content, self._now_ms())

    def _given_params(self, row: ScheduleRow) -> Any:
        """The params as the caller gave them. If the workflow has batches, the row has a list with them."""
        value = codec.plain(row.params)
        return value[0] if value and self._requests.definition(row.workflow).batch is not None else value

    async def _apply(self, name: str, edit: Edit) -> ScheduleChanged:
        """Change a schedule; repeat the change if a worker or another client changed the schedule in between."""
        for _ in range(_MAX_CONFLICTS):
            row = await self._find(name)
            change = edit(row, ScheduleContent.decode(row.content))
            [done] = await self._store.change_schedules([change])
            if done.applied:
                self._changed()
                return done
        raise StoreBusyError(f"schedule {name!r} was changed by others {_MAX_CONFLICTS} times in a row; try again")

    async def _find(self, name: str, ticks: int = 0) -> ScheduleRow:
        rows = await self._store.read(ScheduleByName(name, ticks)) if is_schedule_name(name) else []
        if not rows:
            raise ScheduleNotFoundError(f"there is no schedule {shown(name)}")
        return rows[0]


def _name_before(cursor: Any) -> str:
    """The name that a cursor has."""
    name = cursor.removeprefix(_CURSOR) if isinstance(cursor, str) else ""
    if name == cursor or not is_schedule_name(name):
        raise InvalidCursorError(f"{shown(cursor)} is not a cursor that this list returned")
    return name


def _changed(row: ScheduleRow, new: ScheduleRow, record: Audit) -> ScheduleChange:
    return ScheduleChange(row.name, row.revision, new, audit=record)


def paused_row(row: ScheduleRow, note: str | None) -> ScheduleRow:
    """The paused schedule, which takes up no tick. Queued ticks of a backfill are still started."""
    queued = any(tick.cause == BACKFILL and tick.state == TickState.QUEUED for tick in row.ticks)
    return replace(row, paused=True, note=note, due_at=row.due_at if queued else None)


def with_next_tick(row: ScheduleRow, content: ScheduleContent, now: int) -> ScheduleRow:
    """The schedule with its next tick computed from now on. Workers check its queued ticks at once."""
    tick, due = first_tick(content, row.name, now)
    queued = any(queued.state == TickState.QUEUED and not held(row, queued) for queued in row.ticks)
    return replace(row, next_tick=tick, due_at=now if queued else None if row.paused else due)


def new_row(declared: Declaration, now: int, *, declaration: str | None, note: str | None = None) -> ScheduleRow:
    tick, due = first_tick(declared.content, declared.name, now)
    return ScheduleRow(
        declared.name, declared.workflow, declared.content.encode(), declared.params, declaration, declared.paused,
        note, now, now, 0, tick, None if declared.paused else due, 0, None, 0,
    )  # fmt: skip


def info(row: ScheduleRow, *, next_ticks: int, runs: int) -> ScheduleInfo:
    content = ScheduleContent.decode(row.content)
    ticks = [] if row.paused or row.next_tick is None else [from_ms(row.next_tick)]
    if ticks and next_ticks > 1:
        ticks += content.spec.preview(ticks[0], next_ticks - 1)
    return ScheduleInfo(
        row.name, row.workflow, row.paused, row.note, content.spec, content.overlap.value, content.catch_up_text(),
        codec.displayed(row.params), content.queue, content.priority, shown_options(content.options),
        row.declaration not in (None, REMOVED), from_ms(row.created_at), from_ms(row.updated_at), ticks[:next_ticks],
        [_run(tick) for tick in row.ticks[:runs]],
    )  # fmt: skip


def _run(tick: TickRow) -> ScheduledRun:
    outcome = tick.state
    if tick.state in OPEN_TICKS:
        outcome = TickState.GONE.value if tick.status is None else tick.status.value
    at = optional_from_ms(tick.at) or from_ms(tick.tick)
    return ScheduledRun(from_ms(tick.tick), tick.instance_id, tick.workflow, str(outcome), tick.cause, at)


def _check_changes(changes: Mapping[str, Any]) -> None:
    check_known(changes, {"workflow", "params", *ALL_OPTIONS})
    if not changes:
        raise InvalidOptionError("update() needs at least one option to change")


def _chunks(times: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(times), _CHUNK):
        yield times[start : start + _CHUNK]
