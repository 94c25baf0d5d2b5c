"""What goes wrong in a simulation: which kinds a seed has, at which places, and proof that they happened.

A fault has a name made of its kind and its place (``ambiguous@w1.commit#4``). A plan that is told ``only`` some names
lets nothing else happen: that is how a failure is made small. Kinds are of three sorts: of a call of the store, of the
world (at a time), and settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import TypeVar

from holdfast.testing.simulation.streams import chance, mixed, stream

K = TypeVar("K", bound=StrEnum)


class Kind(StrEnum):
    # of a call of the store
    REFUSED = "refused"
    """Nothing is written, and the caller hears so."""
    BUSY = "busy"
    """A serialization failure or a deadlock: as REFUSED, by another error."""
    FULL = "full"
    LATE_REQUEST = "late_request"
    LATE_ANSWER = "late_answer"
    AMBIGUOUS = "ambiguous"
    """It is written, and the caller hears that it failed."""
    LOST_REQUEST = "lost_request"
    """It never arrives, which the caller learns after a while."""
    CRASH_BEFORE = "crash_before"
    CRASH_AFTER = "crash_after"
    """The process dies when it is written, before it hears of it."""
    # of notifications
    NOTIFY_LOST = "notify_lost"
    NOTIFY_TWICE = "notify_twice"
    NOTIFY_LATE = "notify_late"
    # of the world, at a time
    CRASH = "crash"
    """A worker dies, at whatever it awaits."""
    STOP = "stop"
    """A worker stands still for longer than its lease, and goes on."""
    RESTART = "restart"
    """A worker is stopped in order, and started again."""
    DEPLOY = "deploy"
    """As RESTART, with changed code from then on."""
    PARTITION = "partition"
    """A worker cannot reach the store for a while, and works on."""
    STALL = "stall"
    """The store stands still for a while."""
    CLOCK_JUMP = "clock_jump"
    CLIENT_CRASH = "client_crash"
    # what people ask
    PAUSE_RUN = "pause_run"
    CANCEL_RUN = "cancel_run"
    TERMINATE_RUN = "terminate_run"
    RESTART_RUN = "restart_run"
    REPEATED_REQUEST = "repeated_request"
    """The same request twice at once."""
    REORDERED_REQUEST = "reordered_request"
    # of steps
    POISON = "poison"
    """A step takes its worker with it."""
    SLOW_STEP = "slow_step"
    DELIVERY_FAILS = "delivery_fails"
    """An outbound event does not arrive."""
    # settings
    SKEW = "skew"
    NO_CACHE = "no_cache"
    SHORT_LEASE = "short_lease"
    ONE_AT_A_TIME = "one_at_a_time"


CALL_FAULTS = (
    Kind.REFUSED, Kind.BUSY, Kind.FULL, Kind.LATE_REQUEST, Kind.LATE_ANSWER, Kind.AMBIGUOUS, Kind.LOST_REQUEST,
    Kind.CRASH_BEFORE, Kind.CRASH_AFTER,
)  # fmt: skip
NOTIFICATION_FAULTS = (Kind.NOTIFY_LOST, Kind.NOTIFY_TWICE, Kind.NOTIFY_LATE)
TIMED_FAULTS = (
    Kind.CRASH, Kind.STOP, Kind.RESTART, Kind.DEPLOY, Kind.PARTITION, Kind.STALL, Kind.CLOCK_JUMP, Kind.CLIENT_CRASH,
)  # fmt: skip
CONTROL_FAULTS = (Kind.PAUSE_RUN, Kind.CANCEL_RUN, Kind.TERMINATE_RUN, Kind.RESTART_RUN)
SETTINGS = (Kind.SKEW, Kind.NO_CACHE, Kind.SHORT_LEASE, Kind.ONE_AT_A_TIME)
_CRASHES = (Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.POISON)


@dataclass(slots=True)
class Faults:
    """The faults of one seed: which kinds are on and how often (swarm), and what came of it."""

    seed: int
    only: Collection[str] | None = None
    """None: all that the seed has."""
    rates: dict[StrEnum, float] = field(default_factory=dict)
    happened: list[str] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each kind met each operation."""
    over: bool = False
    """The phase of faults has ended."""

    def __post_init__(self) -> None:
        draw = stream(self.seed, "swarm")
        for kind in Kind:
            on, strength = draw.random() < 0.4, draw.random()
            if on:
                self.rates[kind] = _rate(kind, strength)

    def at(self, kinds: Collection[K], operation: str, place: str) -> K | None:
        """Which of these kinds happens at a place, if any; it is then taken to have happened."""
        if self.over:
            return None
        drawn = chance(self.seed, place)
        for kind in kinds:
            rate = self.rates.get(kind, 0.0)
            if drawn < rate:
                return kind if self.happens(kind, operation, place) else None
            drawn -= rate
        return None

    def happens(self, kind: StrEnum, operation: str, place: str) -> bool:
        """Whether a fault that the seed has may happen; it is then taken to have happened."""
        name = f"{kind}@{place}"
        if self.only is not None and name not in self.only:
            return False
        self.happened.append(name)
        self.counts[kind, operation] += 1
        return True

    def has(self, kind: StrEnum, place: str) -> bool:
        """Whether a setting holds."""
        held = chance(self.seed, f"{kind}.{place}") < self.rates.get(kind, 0.0)
        return held and self.happens(kind, "setting", place)

    def times(self, kind: Kind, place: str, span: float) -> list[tuple[str, float]]:
        """When a fault of the world is to happen within a span of seconds, each with its place."""
        often = self.rates.get(kind)
        if often is None:
            return []
        draw = self.draw(f"{kind}.{place}")
        return [(f"{place}#{n}", draw.uniform(0, span)) for n in range(1, 1 + round(often * draw.uniform(0.4, 2.5)))]

    def draw(self, place: str) -> Random:
        """A stream for the details of what happens at a place."""
        return Random(mixed(self.seed, f"details.{place}"))  # noqa: S311  (reproducible by design)


def _rate(kind: Kind, strength: float) -> float:
    if kind in _CRASHES:
        return 0.002 + 0.02 * strength
    if kind in CALL_FAULTS:
        return 0.005 + 0.06 * strength
    if kind in TIMED_FAULTS:
        return 1 + 2 * strength
    if kind in (Kind.PAUSE_RUN, Kind.RESTART_RUN):
        return 0.4 + 0.8 * strength
    return 0.05 + 0.4 * strength
