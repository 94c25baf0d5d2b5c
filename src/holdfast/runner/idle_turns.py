"""Notices runs that are claimed again and again without progress, and slows them down.

A turn is *idle* if it gives its task back without having written anything: no new fact, no new wait, no message read.
Single idle turns are harmless: a wake-up by mistake, or a timer that the store's clock calls due a moment before the
worker's does. Many in a row, one right after the other, are an error of the engine. Without this, such a run would take
as many turns as the machine can do, at the cost of all others. It is not parked: once the cause is gone, for example
because a newer version of the engine claims it, it goes on by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.model import TaskKind
from holdfast.store.protocol import Claim

_log = logging.getLogger("holdfast")

FREE_TURNS = 10
"""Idle turns in a row that are not slowed down."""
REPORTED_TURNS = 20
"""Idle turns in a row that are reported; and again when they have doubled."""
LONGEST_PAUSE_S = 1.0
_FIRST_PAUSE_S = 0.001
_APART_S = 1.0
"""A turn that comes so long after the last one (and its pause) does not continue the streak: that is no spinning."""
_MOST_STREAKS = 1000
"""Runs that are remembered. An idle turn of a run that goes on elsewhere leaves an entry behind."""

_Place = tuple[int, int]
"""Run and unit."""


@dataclass(slots=True)
class _Streak:
    last_event: int
    """Number of the last event of the run at its last claim: with another event, a turn is not idle by mistake."""
    at: float
    turns: int = 1
    report_at: int = REPORTED_TURNS

    @property
    def pause(self) -> float:
        slowed = self.turns - FREE_TURNS
        return min(LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(slowed, 20)) if slowed >= 0 else 0.0


class IdleTurns:
    """Idle turns of one worker. Empty, which a worker asks before anything else, while no run has any."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._streaks: dict[_Place, _Streak] = {}

    def __bool__(self) -> bool:
        return bool(self._streaks)

    def pause_before(self, place: _Place) -> float:
        """Seconds to wait before the next turn of a task."""
        streak = self._streaks.get(place)
        return 0.0 if streak is None else streak.pause

    def idle(self, claim: Claim) -> None:
        """Count a turn that wrote nothing, and report the run if there were too many."""
        place, now = claim.task[:2], self._monotonic()
        streak = self._streaks.pop(place, None)
        if streak is None or not _continues(streak, claim, now):
            streak = _Streak(claim.mailbag.last, now)
        else:
            streak.turns += 1
            streak.at = now
        self._streaks[place] = streak
        if streak.turns >= streak.report_at:
            streak.report_at *= 2
            _report(claim, streak.turns)
        if len(self._streaks) > _MOST_STREAKS:
            del self._streaks[next(iter(self._streaks))]

    def forget(self, place: _Place) -> None:
        """The task got further, or is held by another worker."""
        self._streaks.pop(place, None)


def _continues(streak: _Streak, claim: Claim, now: float) -> bool:
    """False if something from outside explains the turn: a resume, a new event, or plain time."""
    resumed = claim.kind is TaskKind.RESUME and claim.at is not None
    return not resumed and claim.mailbag.last == streak.last_event and now - streak.at <= streak.pause + _APART_S


def _report(claim: Claim, turns: int) -> None:
    _log.error(
        "run %s/%s was claimed %d times in a row without progress (no new fact, no new wait, no message read): this is "
        "an error of Holdfast, please report it; until the run gets further its turns are at least %g s apart",
        claim.run.workflow,
        claim.run.instance_id,
        turns,
        LONGEST_PAUSE_S,
    )
