"""Checks that each tick of a schedule starts exactly one run, by the overlap and catch-up policies.

``ScheduleWatch`` checks each change at the moment of its transaction; ``schedule_failures`` checks the ticks and the
runs at the end. The checks state what every decision must satisfy. They do not use ``kernel/schedule_rules.py``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.core.model import Status
from holdfast.store.protocol import DueQuery, ScheduleChange, TickRow, TickState
from holdfast.testing.simulation.watch import Rows
from simulation.programs.scheduled import Schedule

if TYPE_CHECKING:
    from simulation.system.world import World

_GRACE_MS = 10_000
"""Maximum delay of a tick that is taken up without having been missed."""
_LATE_MS = 5_000
"""Maximum time between the read of a schedule and its change, and between the start and the first read."""
_OPEN = (TickState.STARTED, TickState.CANCELLING)
_NOT_STARTED = (TickState.QUEUED, TickState.SKIPPED, TickState.MISSED)
_RUN_OF_TICK = re.compile(r"s\d+-\d{8}T\d{6,9}Z(-m\d+)?")


@dataclass(frozen=True, slots=True)
class _Before:
    """A schedule just before a change."""

    revision: int | None
    next_tick: int | None
    states: dict[int, str]
    open_runs: list[str]
    """Instances of open ticks whose runs have not ended."""


class ScheduleWatch:
    """Checks of changes of schedules. ``rows`` queries the database, ``now_ms`` returns its time."""

    def __init__(self, rows: Rows, now_ms: Callable[[], int]) -> None:
        self._rows = rows
        self._now_ms = now_ms
        self.schedules: dict[str, Schedule] = {}
        self._started: set[str] = set()
        """The ids of the runs that changes have started."""
        self._ended: set[str] = set()
        """Instances whose end a worker has read. A restart after that does not open the tick again."""

    def before(self, operation: str, args: tuple[Any, ...]) -> Any:
        return {change.name: self._read(change.name) for change in args[0]} if operation == "change_schedules" else None

    def after(self, operation: str, args: tuple[Any, ...], answer: Any, before: Any) -> Iterator[str]:
        if operation == "read" and isinstance(args[0], DueQuery):
            ticks = [tick for row in answer.rows for tick in row.ticks]
            self._ended |= {tick.instance_id for tick in ticks if tick.status is not None and tick.status.terminal}
        if operation == "change_schedules":
            for change, done in zip(args[0], answer, strict=True):
                if done.applied:
                    yield from self._check(change, before[change.name])

    def _read(self, name: str) -> _Before:
        found = self._rows("SELECT revision, next_tick FROM holdfast_schedule WHERE name = ?", name)
        ticks = self._rows(
            "SELECT t.n, t.state, t.instance_id, r.status FROM holdfast_tick AS t LEFT JOIN holdfast_run AS r "
            "ON r.workflow = t.workflow AND r.instance_id = t.instance_id AND r.current = 1 WHERE t.schedule = ?",
            name,
        )
        open_runs = [
            instance
            for _, state, instance, status in ticks
            if state in _OPEN and status and not Status(status).terminal and instance not in self._ended
        ]
        states = {n: state for n, state, _, _ in ticks}
        revision, next_tick = found[0] if found else (None, None)
        return _Before(revision, next_tick, states, open_runs)

    def _check(self, change: ScheduleChange, before: _Before) -> Iterator[str]:
        if before.revision not in (None, change.revision):
            yield f"a change of {change.name} of revision {change.revision} was applied to revision {before.revision}"
        if change.row is None or before.revision is None:
            return
        following = change.row.next_tick
        if following is not None and (before.next_tick is None or following < before.next_tick):
            yield f"schedule {change.name} went back to the tick {following}"
        began = [tick for tick in change.ticks if tick.state == TickState.STARTED and tick.cause == "tick"]
        for tick in began:
            yield from self._check_start(self.schedules[change.name], tick, before, len(began))
        yield from self._check_skipped(change, before)

    def _check_start(self, schedule: Schedule, tick: TickRow, before: _Before, started: int) -> Iterator[str]:
        if tick.instance_id in self._started:
            yield f"the tick {tick.instance_id} was started twice"
        self._started.add(tick.instance_id)
        if schedule.overlap != "allow" and (before.open_runs or started > 1):
            yield f"the tick {tick.instance_id} was started while {before.open_runs or 'another tick'} was open"
        age = self._now_ms() - tick.tick
        if tick.n not in before.states and age > _window_ms(schedule) + _LATE_MS:
            yield f"the tick {tick.instance_id} was started {age} ms late"

    def _check_skipped(self, change: ScheduleChange, before: _Before) -> Iterator[str]:
        """Check that a tick is skipped only because of another one that is open, queued or taken up with it."""
        others = [n for n, state in before.states.items() if state in (*_OPEN, TickState.QUEUED)]
        for tick in change.ticks:
            if tick.state == TickState.SKIPPED and not any(
                n != tick.n for n in [*others, *(t.n for t in change.ticks)]
            ):
                yield f"the tick {tick.instance_id} was skipped, and no other tick was open or queued"


def _window_ms(schedule: Schedule) -> int:
    return max(_GRACE_MS, schedule.catch_up * 1000) if isinstance(schedule.catch_up, int) else _GRACE_MS


def schedule_failures(world: World) -> Iterator[str]:
    """Check that every tick has one row, and one run unless it was skipped or missed."""
    created = Counter(run.instance for run in world.database.repairs.runs.values() if run.number == 0)
    recorded = set[str]()
    for schedule in world.workload.schedules:
        rows = world.database.rows("SELECT instance_id, state FROM holdfast_tick WHERE schedule = ?", schedule.name)
        recorded |= {instance for instance, _ in rows}
        yield from _missing_ticks(schedule, Counter(instance for instance, _ in rows))
        for instance, state in rows:
            expected = 0 if state in _NOT_STARTED else 1
            if created[instance] != expected:
                yield f"the tick {instance} is {state}, and {created[instance]} runs were started for it"
    for instance in created:
        if _RUN_OF_TICK.fullmatch(instance) and instance not in recorded:
            yield f"{instance} was started, and its schedule has no such tick"


def _missing_ticks(schedule: Schedule, rows: Counter[str]) -> Iterator[str]:
    window = 0 if schedule.catch_up == "last" else _window_ms(schedule)
    for seconds in schedule.ticks:
        times = rows[schedule.instance(seconds)]
        if times > 1 or (times == 0 and seconds * 1000 >= _LATE_MS - window):
            yield f"the tick {schedule.instance(seconds)} was recorded {times} times"
