"""The rules of schedules: the due ticks, those of them that start, wait or are skipped, and the next due time.

``take_up`` is a function of the stored schedule and the time. Its result is written in one change
(``ScheduleChange``), which fails if the schedule has been changed since it was read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from holdfast.core.model import Status, from_ms, to_ms
from holdfast.core.schedule_spec import ScheduleSpec
from holdfast.kernel.schedule_content import LAST, Overlap, ScheduleContent
from holdfast.store.protocol import MAX_QUEUED, OPEN_TICKS, ScheduleRow, TickRow, TickState

GRACE_MS = 10_000
"""Maximum delay of a tick that is taken up without having been missed."""
RECHECK_MS = 1_000, 30_000
"""A schedule with queued ticks is due again after a tenth of the time for which the newest of them has waited, within
these bounds. This replaces a lost notification of a run's end."""
MAX_STARTS = 100
"""Maximum number of runs that one change starts. The next change starts more."""
TICK, TRIGGER, BACKFILL = "tick", "trigger", "backfill"
"""Causes of ticks."""
_MILLISECOND = timedelta(milliseconds=1)
_ENDING = (Overlap.CANCEL_RUNNING, Overlap.TERMINATE_RUNNING)
_FIRST_SPAN, _SPAN_FACTOR = timedelta(minutes=1), 60


@dataclass(slots=True)
class Taken:
    """The result of ``take_up``."""

    row: ScheduleRow
    """The schedule after the change."""
    ticks: list[TickRow]
    """Ticks to write."""
    starts: list[TickRow] = field(default_factory=list)
    """The ticks among ``ticks`` whose runs are created with the change."""
    ends: list[tuple[TickRow, Overlap]] = field(default_factory=list)
    """Ticks whose runs have to be cancelled or terminated before the change is written."""
    blocking: list[int] = field(default_factory=list)
    """Runs for whose end a queued tick waits."""


def take_up(row: ScheduleRow, content: ScheduleContent, now: int) -> Taken:
    """Take up the due ticks of a schedule that was read with its open and queued ticks."""
    taking = _TakeUp(row, content, now)
    taking.record_ends()
    taking.settle_queued()
    if not row.paused:
        taking.take_due_ticks()
    return taking.taken()


def record_ends(row: ScheduleRow, content: ScheduleContent, now: int) -> tuple[ScheduleRow, list[TickRow]]:
    """Record the runs that have ended, and take up no tick.

    Returns the schedule with the output of the last successful run, and the ticks to write.
    """
    taking = _TakeUp(row, content, now)
    taking.record_ends()
    return taking.row, taking.changed


def first_tick(content: ScheduleContent, name: str, now: int) -> tuple[int | None, int | None]:
    """The first tick after a moment, and its due time: for a schedule that is created, resumed or changed."""
    tick = content.spec.after(from_ms(now))
    return (None, None) if tick is None else (to_ms(tick), to_ms(content.spec.due(name, tick)))


def instance_id(name: str, tick: int, manual: int | None = None) -> str:
    """The id of the run of a tick. ``manual``: the number of the tick, for a run that was triggered."""
    if "." in name:  # not allowed in ids; the digest keeps the ids of two schedules apart
        name = f"{name.replace('.', '-')[:50]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    at = from_ms(tick)
    stamp = f"{at:%Y%m%dT%H%M%S}" + (f"{at.microsecond // 1000:03d}" if at.microsecond else "") + "Z"
    return f"{name}-{stamp}" if manual is None else f"{name}-{stamp}-m{manual}"


def backfill_overlap(overlap: Overlap) -> Overlap:
    """The policy of a backfill that names none: every tick runs, one after the other unless runs may overlap."""
    return Overlap.ALLOW if overlap is Overlap.ALLOW else Overlap.QUEUE_ALL


def held(row: ScheduleRow, tick: TickRow) -> bool:
    """True for a queued tick that waits for the resume of its schedule. Ticks of a backfill do not."""
    return row.paused and tick.cause != BACKFILL


class _TakeUp:
    """One call of ``take_up``: the ticks that it changes, and the runs that it starts and ends."""

    def __init__(self, row: ScheduleRow, content: ScheduleContent, now: int) -> None:
        self._row = replace(row, ticks=())
        self._content = content
        self._now = now
        self._open = [tick for tick in row.ticks if tick.state in OPEN_TICKS]
        self._queued = [tick for tick in row.ticks if tick.state == TickState.QUEUED and not held(row, tick)]
        self._more = len(self._queued) == MAX_QUEUED
        """There may be queued ticks that were not read."""
        self._changed: dict[int, TickRow] = {}
        self._starts: list[TickRow] = []
        self._ends: list[tuple[TickRow, Overlap]] = []

    # --- runs that ended

    def record_ends(self) -> None:
        """Record the ends of runs, and keep the output of the last successful one."""
        for tick in self._open:
            if tick.status is None or tick.status.terminal:
                self._write(tick, TickState.GONE if tick.status is None else tick.status.value)
                if tick.status is Status.COMPLETE and tick.n > self._row.result_n:
                    self._row.result, self._row.result_n = tick.output, tick.n
        self._open = [tick for tick in self._open if tick.status is not None and not tick.status.terminal]

    # --- the queue

    def settle_queued(self) -> None:
        """Start, skip or keep each queued tick, the oldest first."""
        for tick in list(self._queued):
            if len(self._starts) < MAX_STARTS:
                self._settle(tick)

    def _settle(self, tick: TickRow) -> None:
        overlap = Overlap(tick.overlap)
        if overlap is Overlap.ALLOW or not (self._open or self._starts):
            self._queued.remove(tick)
            self._starts.append(self._write(tick, TickState.STARTED))
        elif overlap is Overlap.SKIP:
            self._queued.remove(tick)
            self._write(tick, TickState.SKIPPED)
        elif overlap in _ENDING:
            for running in self._open:
                if running.state == TickState.STARTED:
                    self._ends.append((self._write(running, TickState.CANCELLING), overlap))

    def _enqueue(self, tick: datetime) -> None:
        overlap, at = self._content.overlap, to_ms(tick)
        self._row.seq += 1
        new = TickRow(
            self._row.seq, at, TICK, overlap, TickState.QUEUED, self._row.workflow,
            instance_id(self._row.name, at), self._now,
        )  # fmt: skip
        earlier = [queued for queued in self._queued if queued.overlap == overlap]
        if overlap is Overlap.QUEUE_ONE and earlier:
            self._write(new, TickState.SKIPPED)
            return
        if overlap in _ENDING:
            for queued in earlier:
                self._queued.remove(queued)
                self._write(queued, TickState.SKIPPED)
        self._queued.append(new)
        self._write(new, TickState.QUEUED)
        self.settle_queued()

    def _write(self, tick: TickRow, state: str) -> TickRow:
        tick.state = state
        self._changed[tick.n] = tick
        return tick

    # --- ticks

    def take_due_ticks(self) -> None:
        """Take up the due ticks, at most ``MAX_STARTS``; missed ticks by the policy ``catch_up``."""
        tick = self._first()
        for _ in range(MAX_STARTS):
            if tick is None or self._due(tick) > self._now or len(self._starts) >= MAX_STARTS:
                break
            self._enqueue(tick)
            tick = self._spec.after(tick)
        self._row.next_tick = None if tick is None else to_ms(tick)

    def _first(self) -> datetime | None:
        """The first tick to take up; the ticks before it were missed."""
        if self._row.next_tick is None:
            return None
        first, catch_up = from_ms(self._row.next_tick), self._content.catch_up
        window = max(GRACE_MS, catch_up) if isinstance(catch_up, int) else GRACE_MS
        oldest = self._now - window
        if self._due(first) >= oldest:
            return first
        kept: datetime | None
        if catch_up == LAST:
            kept = self._latest(first)
        else:
            start = from_ms(oldest - self._spec.jitter_ms)
            kept = self._spec.after(max(first, start) - _MILLISECOND)
            while kept is not None and self._due(kept) < oldest:
                kept = self._spec.after(kept)
        if kept != first:
            self._miss(first)
        return kept

    def _latest(self, first: datetime) -> datetime:
        """The latest due tick, searched backwards from now in growing steps."""
        now, span = from_ms(self._now), _FIRST_SPAN
        while True:
            start = max(first, now - span)
            tick, found = self._spec.after(start - _MILLISECOND), None
            while tick is not None and self._due(tick) <= self._now:
                found, tick = tick, self._spec.after(tick)
            if found is not None or start == first:
                return found or first
            span *= _SPAN_FACTOR

    def _miss(self, tick: datetime) -> None:
        self._row.seq += 1
        at = to_ms(tick)
        missed = TickRow(
            self._row.seq, at, TICK, self._content.overlap, TickState.MISSED, self._row.workflow,
            instance_id(self._row.name, at), self._now,
        )  # fmt: skip
        self._write(missed, TickState.MISSED)

    def _due(self, tick: datetime) -> int:
        return to_ms(self._spec.due(self._row.name, tick))

    @property
    def _spec(self) -> ScheduleSpec:
        return self._content.spec

    # --- the result

    @property
    def row(self) -> ScheduleRow:
        return self._row

    @property
    def changed(self) -> list[TickRow]:
        """The ticks to write."""
        return list(self._changed.values())

    def taken(self) -> Taken:
        self._row.due_at = self._next_due()
        blocking = [tick.run for tick in self._open if tick.run is not None] if self._queued else []
        return Taken(self._row, self.changed, self._starts, self._ends, blocking)

    def _next_due(self) -> int | None:
        times: list[int] = []
        if self._row.next_tick is not None and not self._row.paused:
            times.append(self._due(from_ms(self._row.next_tick)))
        if len(self._starts) >= MAX_STARTS or (self._more and not self._queued):
            times.append(self._now)
        elif self._queued:
            shortest, longest = RECHECK_MS
            waited = self._now - max(tick.at for tick in self._queued)
            times.append(self._now + min(max(waited // 10, shortest), longest))
        return min(times, default=None)
