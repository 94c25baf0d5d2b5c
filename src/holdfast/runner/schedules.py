"""The schedule loop: takes up the ticks of schedules, and starts their runs.

Every worker has this loop for the workflows that it implements. The change that advances a schedule creates the runs
of its ticks in the same transaction and names the revision that it was computed from. A tick is therefore started once,
however many workers take it up, and at whatever point they crash. The loop sleeps until the next schedule is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from holdfast.core.model import from_ms
from holdfast.errors import HoldfastError, StoreError
from holdfast.kernel.definition import Registry
from holdfast.kernel.notify import Hub
from holdfast.kernel.requests import Requests
from holdfast.kernel.schedule_content import Overlap, ScheduleContent
from holdfast.kernel.schedule_rules import Taken, take_up
from holdfast.kernel.scheduled_runs import scheduled_run
from holdfast.ports import Randomness
from holdfast.runner.attempts import Ports
from holdfast.runner.background_loop import BackgroundLoop
from holdfast.store.protocol import (
    Audit,
    CancelRun,
    DueQuery,
    Finish,
    ScheduleChange,
    ScheduleRow,
    Store,
    TerminateRun,
    TickRow,
    TickState,
)

Listener = Callable[..., None]

_log = logging.getLogger("holdfast")

_BATCH = 100
_MAX_PAUSE_SECONDS = 30.0
"""Longest time between two passes, in case a notification was lost."""
_POSTPONED_MS = 60_000
"""Time after which a schedule that cannot be taken up is tried again."""
_MAX_NOTE = 500
_FAILED = "cannot be taken up: "
"""Beginning of the note of a schedule that could not be taken up."""


class ScheduleLoop:
    """Takes up due schedules, in a background loop or one pass at a time."""

    def __init__(
        self, store: Store, registry: Registry, hub: Hub, ports: Ports, random: Randomness, poll_ms: int
    ) -> None:
        self.loop = BackgroundLoop("schedules", self._step, random)
        self._store = store
        self._registry = registry
        self._hub = hub
        self._requests: Requests = ports.requests
        self._now_ms = ports.now_ms
        self._poll = poll_ms / 1000
        self._next_due: int | None = None
        self._waiting: dict[str, dict[int, asyncio.Future[Finish | None]]] = {}
        """Runs for whose end a queued tick waits, with the futures that the hub sets, by the name of the schedule."""
        self._ended: set[str] = set()
        """Names of schedules for which a run in ``_waiting`` has ended."""

    def subscribe(self, wrap: Callable[[Listener], Listener], unsubscribe: Listener) -> Listener:
        """Subscribe to the hub; returns a function that ends the subscription and calls ``unsubscribe``."""
        forget = self._hub.subscribe_to_schedules(wrap(self.wake))

        def end() -> None:
            unsubscribe()
            forget()
            self.stop_waiting()

        return end

    def wake(self) -> None:
        """Start a pass now: a schedule was changed in this process."""
        self.loop.wake()

    def notice_change(self) -> None:
        """Start a pass soon: another process has written something."""
        self.loop.wake_at_most(self._poll)

    def stop_waiting(self) -> None:
        """Drop the waits for the ends of runs."""
        for name in [*self._waiting]:
            self._wait_for_ends(name, ())

    async def _step(self) -> float:
        if await self.take_up_due():
            return 0.0
        if self._next_due is None:
            return _MAX_PAUSE_SECONDS
        return min(_MAX_PAUSE_SECONDS, max(0.0, (self._next_due - self._now_ms()) / 1000))

    async def take_up_due(self) -> int:
        """Take up the schedules that are due, at most one batch; returns the number of due schedules."""
        workflows = sorted(self._registry.runnable())
        if not workflows:
            self._next_due = None
            return 0
        ended, self._ended = self._ended, set()
        due = await self._store.read(DueQuery(workflows, _BATCH, sorted(ended)))
        self._next_due = due.next_due
        computed = [(row, self._compute(row, due.now)) for row in due.rows]
        for row, (_, taken) in computed:
            if taken is not None:
                await self._end_runs(row, taken)
        await self._write([change for _, (change, _) in computed])
        for row, (_, taken) in computed:
            if taken is not None:
                self._wait_for_ends(row.name, taken.blocking)
        return len(due.rows)

    def _compute(self, row: ScheduleRow, now: int) -> tuple[ScheduleChange, Taken | None]:
        """The change that takes up a schedule; if that fails, a change that postpones the schedule, and None."""
        try:
            content = ScheduleContent.decode(row.content)
            taken = take_up(row, content, now)
            runs = [scheduled_run(self._requests, taken.row, content, tick) for tick in taken.starts]
        except Exception as error:
            _log.exception("schedule %s cannot be taken up; the next attempt is in a minute", row.name)
            note = f"{_FAILED}{error}"[:_MAX_NOTE]
            return ScheduleChange(row.name, row.revision, replace(row, note=note, due_at=now + _POSTPONED_MS)), None
        _report(row, taken)
        if taken.row.note is not None and taken.row.note.startswith(_FAILED):
            taken.row.note = None
        return ScheduleChange(row.name, row.revision, taken.row, taken.ticks, runs), taken

    async def _write(self, changes: Sequence[ScheduleChange]) -> None:
        if not changes:
            return
        done = await self._store.change_schedules(changes)
        if any(one.created for one in done):
            self._hub.work()

    # --- the ends of runs

    async def _end_runs(self, row: ScheduleRow, taken: Taken) -> None:
        """Cancel or terminate runs before the change is written, so that a crash in between repeats the requests."""
        for tick, overlap in taken.ends:
            try:
                await self._end(row.name, tick, overlap)
            except StoreError:
                raise
            except HoldfastError as error:
                _log.warning("schedule %s cannot end %s/%s: %s", row.name, tick.workflow, tick.instance_id, error)

    async def _end(self, name: str, tick: TickRow, overlap: Overlap) -> None:
        reason = f"a later tick of schedule {name}"
        request: CancelRun | TerminateRun
        if overlap is Overlap.TERMINATE_RUNNING:
            action, request = "terminate", TerminateRun(tick.workflow, tick.instance_id, reason)
        else:
            payload, _ = self._requests.cancellation(reason, None)
            action, request = "cancel", CancelRun(tick.workflow, tick.instance_id, payload)
        result = await self._store.control(request, Audit(action, f"schedule {name}", reason))
        self._hub.affected(result.affected)

    def _wait_for_ends(self, name: str, runs: Sequence[int]) -> None:
        """Take up a schedule again as soon as one of these runs, and no others, ends in this process."""
        waiting = self._waiting.pop(name, {})
        for run in waiting.keys() - {*runs}:
            self._hub.stop_waiting(run, waiting.pop(run))
        for run in runs:
            if run not in waiting:
                waiting[run] = self._hub.wait(run)
                waiting[run].add_done_callback(partial(self._run_ended, name, run))
        if waiting:
            self._waiting[name] = waiting

    def _run_ended(self, name: str, run: int, _: object) -> None:
        if self._waiting.get(name, {}).pop(run, None) is not None:
            self._ended.add(name)
            self.loop.wake()


def _report(row: ScheduleRow, taken: Taken) -> None:
    for tick in taken.ticks:
        if tick.state == TickState.MISSED:
            first = from_ms(tick.tick).isoformat(sep=" ", timespec="seconds")
            _log.warning("schedule %s: ticks since %s were missed; catch_up decides which of them run", row.name, first)
        elif tick.state == TickState.SKIPPED:
            _log.info("schedule %s: the tick %s is skipped, because an earlier run is open", row.name, tick.instance_id)
