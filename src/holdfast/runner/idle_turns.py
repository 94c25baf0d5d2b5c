"""Detection and slowing down of runs that are claimed repeatedly without progress.

A turn is *idle* if it releases its task without having written anything: no new fact, no new wait, no message read.
A single idle turn is harmless: a spurious wake-up, or a timer that is due by the store's clock a moment before it is by
the worker's. Many idle turns in direct succession are an error of the engine. Without a limit, such a run would use all
the CPU time of the worker. The run is not parked: it continues as soon as the cause is gone, for example when a newer
version of the engine claims it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.model import TaskKind
from holdfast.store.protocol import Claim

_log = logging.getLogger("holdfast")

FREE_TURNS = 10
"""Number of consecutive idle turns that are not slowed down."""
REPORTED_TURNS = 20
"""Number of consecutive idle turns that is reported, and again each time it has doubled."""
MAX_PAUSE_S = 1.0
_FIRST_PAUSE_S = 0.001
_APART_S = 1.0
"""Maximum time between two turns of a streak, besides the pause. Turns further apart use little CPU time."""
_MAX_STREAKS = 1000
"""Maximum number of streaks kept. A run that continues in another worker leaves its entry behind."""

_TaskKey = tuple[int, int]
"""Run and unit."""


@dataclass(slots=True)
class _Streak:
    last_event: int
    """Number of the run's last event at its last claim. A new event explains a turn, so it ends the streak."""
    at: float
    turns: int = 1
    report_at: int = REPORTED_TURNS

    @property
    def pause(self) -> float:
        slowed = self.turns - FREE_TURNS
        return min(MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(slowed, 20)) if slowed >= 0 else 0.0


class IdleTurns:
    """Idle turns of one worker. False in a boolean context while there are none, which is the common case."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._streaks: dict[_TaskKey, _Streak] = {}

    def __bool__(self) -> bool:
        return bool(self._streaks)

    def pause_before(self, task_key: _TaskKey) -> float:
        """Seconds to wait before the next turn of a task."""
        streak = self._streaks.get(task_key)
        return 0.0 if streak is None else streak.pause

    def idle(self, claim: Claim) -> None:
        """Count a turn that wrote nothing, and report the run if there were too many."""
        task_key, now = claim.task[:2], self._monotonic()
        streak = self._streaks.pop(task_key, None)
        if streak is None or not _continues(streak, claim, now):
            streak = _Streak(claim.mailbox_page.last, now)
        else:
            streak.turns += 1
            streak.at = now
        self._streaks[task_key] = streak
        if streak.turns >= streak.report_at:
            streak.report_at *= 2
            _report(claim, streak.turns)
        if len(self._streaks) > _MAX_STREAKS:
            del self._streaks[next(iter(self._streaks))]

    def forget(self, task_key: _TaskKey) -> None:
        """Remove the streak of a task that made progress or is owned by another worker."""
        self._streaks.pop(task_key, None)


def _continues(streak: _Streak, claim: Claim, now: float) -> bool:
    """False if there is a reason for the turn: a resume, a new event, or a long time since the last turn."""
    resumed = claim.kind is TaskKind.RESUME and claim.at is not None
    return not resumed and claim.mailbox_page.last == streak.last_event and now - streak.at <= streak.pause + _APART_S


def _report(claim: Claim, turns: int) -> None:
    _log.error(
        "run %s/%s was claimed %d times in a row without progress (no new fact, no new wait, no message read): this is "
        "an error of Holdfast, please report it; until the run makes progress, its turns are at least %g s apart",
        claim.run.workflow,
        claim.run.instance_id,
        turns,
        MAX_PAUSE_S,
    )
