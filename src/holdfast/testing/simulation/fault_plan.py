"""Faults injected into a user's workflow: dying and stopped workers, failing and slow steps, early and late events.

No fault breaks a promise that the engine or the environment makes to the workflow. A step attempt fails only while the
step has more attempts left than it needs without faults; an event always arrives before the wait for it times out.
A run that ends differently from the baseline therefore does so because of the workflow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from holdfast.testing.simulation.faults import CallFault, Faults
from holdfast.testing.simulation.streams import stream

MAX_DEATHS = 3
"""Maximum number of worker deaths in one seed run; fewer than the losses that make the engine park a run."""


class FaultKind(StrEnum):
    # step calls
    SLOW = "slow"
    DIES_BEFORE = "dies_before"
    """The worker dies before the function is called."""
    DIES_WITHIN = "dies_within"
    """The worker dies while the function awaits something."""
    DIES_AFTER = "dies_after"
    """The worker dies after the function has returned; the result is not recorded."""
    STOPS_AFTER = "stops_after"
    """The worker stops after the function has returned, for longer than its lease, and then continues."""
    FAILS_BEFORE = "fails_before"
    """The attempt fails without a call of the function, as if a service were unreachable."""
    FAILS_AFTER = "fails_after"
    """The attempt fails after the function has returned, as if the reply were lost."""
    # events
    EARLY = "early"
    """The event is sent before the run waits for it."""
    LATE = "late"
    TWICE = "twice"
    # settings
    JITTER = "jitter"
    """Each call takes a short random time, so that parallel calls end in any order."""
    NO_CACHE = "no_cache"
    """The worker has no cache: a run is replayed each time it continues."""


BEFORE = (FaultKind.DIES_BEFORE, FaultKind.FAILS_BEFORE)
WITHIN = (FaultKind.DIES_WITHIN,)
AFTER = (FaultKind.DIES_AFTER, FaultKind.STOPS_AFTER, FaultKind.FAILS_AFTER)
FAILING = (FaultKind.FAILS_BEFORE, FaultKind.FAILS_AFTER)
_CALL_KINDS = (FaultKind.SLOW, *BEFORE, *WITHIN, *AFTER)
_EVENT_KINDS = (FaultKind.EARLY, FaultKind.LATE, FaultKind.TWICE)
_SETTINGS = (FaultKind.JITTER, FaultKind.NO_CACHE)


@dataclass(slots=True)
class FaultPlan(Faults):
    """The faults of one seed."""

    def __post_init__(self) -> None:
        draw = stream(self.seed, "mishaps")
        for kind in FaultKind:
            on, strength = draw.random() < 0.5, draw.random()
            if on:
                self.rates[kind] = _rate(kind, strength)
        if draw.random() < 0.5:
            self.rates[CallFault.CRASH_AFTER] = 0.01 + 0.04 * draw.random()

    def counts_by_kind(self) -> Counter[str]:
        """Return the number of injected faults per kind."""
        counted: Counter[str] = Counter()
        for (kind, _), times in self.counts.items():
            counted[str(kind)] += times
        return counted


def _rate(kind: FaultKind, strength: float) -> float:
    if kind in _CALL_KINDS:
        return 0.04 + 0.2 * strength
    if kind in _EVENT_KINDS:
        return 0.2 + 0.6 * strength
    return 0.5 + 0.5 * strength
