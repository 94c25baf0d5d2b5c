"""What befalls a user's workflow: its workers die and stand still, its steps fail and take long, its events go astray.

Nothing that would be a promise to break. A step is failed only while it has attempts to spare, beyond those that it
needs without faults; an event always comes in time for who waits for it. So whatever ends differently from the run
without faults does so because of the workflow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from holdfast.testing.simulation.faults import Faults, Kind
from holdfast.testing.simulation.streams import stream

MOST_DEATHS = 3
"""Of workers, in one run: less than what parks a run."""


class Mishap(StrEnum):
    # of a call of a step
    SLOW = "slow"
    DIES_BEFORE = "dies_before"
    """Its worker dies before the function is called."""
    DIES_WITHIN = "dies_within"
    """Its worker dies while the function waits for something."""
    DIES_AFTER = "dies_after"
    """Its worker dies when the function has returned, and its result is not recorded."""
    STOPS_AFTER = "stops_after"
    """Its worker stands still then, for longer than its lease, and goes on."""
    FAILS_BEFORE = "fails_before"
    """The function is not called: as if what it asks for could not be reached."""
    FAILS_AFTER = "fails_after"
    """The function has returned, and its answer gets lost."""
    # of events
    EARLY = "early"
    """It comes before anything waits for it."""
    LATE = "late"
    TWICE = "twice"
    # settings
    JITTER = "jitter"
    """Calls take a little time each, and so end in any order."""
    NO_CACHE = "no_cache"
    """Each time a run goes on, it is replayed."""


BEFORE = (Mishap.DIES_BEFORE, Mishap.FAILS_BEFORE)
WITHIN = (Mishap.DIES_WITHIN,)
AFTER = (Mishap.DIES_AFTER, Mishap.STOPS_AFTER, Mishap.FAILS_AFTER)
FAILING = (Mishap.FAILS_BEFORE, Mishap.FAILS_AFTER)
_OF_A_CALL = (Mishap.SLOW, *BEFORE, *WITHIN, *AFTER)
_OF_AN_EVENT = (Mishap.EARLY, Mishap.LATE, Mishap.TWICE)
_SETTINGS = (Mishap.JITTER, Mishap.NO_CACHE)


@dataclass(slots=True)
class Mishaps(Faults):
    """Those of one seed."""

    def __post_init__(self) -> None:
        draw = stream(self.seed, "mishaps")
        for kind in Mishap:
            on, strength = draw.random() < 0.5, draw.random()
            if on:
                self.rates[kind] = _rate(kind, strength)
        if draw.random() < 0.5:
            self.rates[Kind.CRASH_AFTER] = 0.01 + 0.04 * draw.random()

    def numbers(self) -> Counter[str]:
        """How often each kind happened."""
        counted: Counter[str] = Counter()
        for (kind, _), times in self.counts.items():
            counted[str(kind)] += times
        return counted


def _rate(kind: Mishap, strength: float) -> float:
    if kind in _OF_A_CALL:
        return 0.04 + 0.2 * strength
    if kind in _OF_AN_EVENT:
        return 0.2 + 0.6 * strength
    return 0.5 + 0.5 * strength
