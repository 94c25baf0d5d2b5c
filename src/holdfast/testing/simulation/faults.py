"""Faults of a simulation: the place at which each fault is injected, and the record of those that were.

A fault is named by its kind and its place, for example ``ambiguous@w1.commit#4``. With ``only``, no other faults are
injected; this is how a failing run is minimized. The kinds in this module are faults of the connection between a
process and the database. Each simulation has further kinds of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import TypeVar

from holdfast.testing.simulation.streams import chance, mixed

K = TypeVar("K", bound=StrEnum)

UNREACHABLE = "partition"
"""The kind under which a call is counted whose process cannot reach the database."""


class CallFault(StrEnum):
    """Faults of a call of the store."""

    REFUSED = "refused"
    """The call is not executed, and the caller receives an error."""
    BUSY = "busy"
    """As REFUSED, with the error of a serialization failure or a deadlock."""
    FULL = "full"
    """As REFUSED, with the error of a full disk."""
    LATE_REQUEST = "late_request"
    LATE_ANSWER = "late_answer"
    AMBIGUOUS = "ambiguous"
    """The call is executed, and the caller receives an error."""
    LOST_REQUEST = "lost_request"
    """The call is not executed, and the caller receives an error after a timeout."""
    CRASH_BEFORE = "crash_before"
    """The process dies before the call is sent."""
    CRASH_AFTER = "crash_after"
    """The process dies after the call was executed, before it receives the answer."""


class NotificationFault(StrEnum):
    LOST = "notify_lost"
    TWICE = "notify_twice"
    LATE = "notify_late"


CALL_FAULTS = tuple(CallFault)
NOTIFICATION_FAULTS = tuple(NotificationFault)


@dataclass(slots=True)
class Faults:
    """The faults of one seed. A subclass fills ``rates`` from the seed."""

    seed: int
    only: Collection[str] | None = None
    """The names of the faults that may be injected; None: all faults of the seed."""
    rates: dict[str, float] = field(default_factory=dict)
    """The rate of each kind that the seed has."""
    happened: list[str] = field(default_factory=list)
    """The names of the injected faults, in order."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of injected faults by kind and operation."""
    over: bool = False
    """True once the phase with faults has ended."""

    def at(self, kinds: Collection[K], operation: str, place: str) -> K | None:
        """Return the kind of the fault to inject at a place, or None. The fault is recorded."""
        if self.over:
            return None
        drawn = chance(self.seed, place)
        for kind in kinds:
            rate = self.rates.get(kind, 0.0)
            if drawn < rate:
                return kind if self.happens(kind, operation, place) else None
            drawn -= rate
        return None

    def happens(self, kind: str, operation: str, place: str) -> bool:
        """Record a fault and return True, unless ``only`` excludes it."""
        name = f"{kind}@{place}"
        if self.only is not None and name not in self.only:
            return False
        self.happened.append(name)
        self.counts[kind, operation] += 1
        return True

    def has(self, kind: StrEnum, place: str) -> bool:
        """Return True if a setting applies to a place. The setting is recorded."""
        applies = chance(self.seed, f"{kind}.{place}") < self.rates.get(kind, 0.0)
        return applies and self.happens(kind, "setting", place)

    def times(self, kind: str, place: str, span: float) -> list[tuple[str, float]]:
        """Return the times of the faults of a kind within ``span`` seconds, each with its place."""
        rate = self.rates.get(kind)
        if rate is None:
            return []
        draw = self.draw(f"{kind}.{place}")
        return [(f"{place}#{n}", draw.uniform(0, span)) for n in range(1, 1 + round(rate * draw.uniform(0.4, 2.5)))]

    def draw(self, place: str) -> Random:
        """Return a random stream for the details of the faults at a place."""
        return Random(mixed(self.seed, f"details.{place}"))  # noqa: S311  (reproducible by design)
