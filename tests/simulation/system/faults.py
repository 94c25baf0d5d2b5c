"""The kinds of faults of the engine's simulation, and the rate of each kind in a seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.testing.simulation.faults import CALL_FAULTS, UNREACHABLE, CallFault, Faults, NotificationFault
from holdfast.testing.simulation.streams import chance, stream
from simulation.features.table import REQUESTS


class Fault(StrEnum):
    """Faults besides those of store calls and notifications."""

    # processes, at a time
    CRASH = "crash"
    """A worker dies, at any of its awaits."""
    STOP = "stop"
    """A worker stops for a time that may exceed its lease, and then continues."""
    RESTART = "restart"
    """A worker is shut down in an orderly way, and started again."""
    DEPLOY = "deploy"
    """As RESTART, with the second version of the code."""
    PARTITION = UNREACHABLE
    """A worker cannot reach the database for a time, and continues to work."""
    STALL = "stall"
    """The database stops for a time."""
    CLOCK_JUMP = "clock_jump"
    CLIENT_CRASH = "client_crash"
    # requests of clients
    REPEATED_REQUEST = "repeated_request"
    """A request is sent twice, at the same time or one after the other."""
    REORDERED_REQUEST = "reordered_request"
    # steps
    POISON = "poison"
    """A step kills its worker."""
    SLOW_STEP = "slow_step"
    DELIVERY_FAILS = "delivery_fails"
    """The delivery of an outbound event fails."""
    # settings
    SKEW = "skew"
    NO_CACHE = "no_cache"
    SHORT_LEASE = "short_lease"
    ONE_AT_A_TIME = "one_at_a_time"
    # bulk actions
    BULK_CRASH = "bulk_crash"
    """A process dies after a request of a bulk action."""


TIMED_FAULTS = (
    Fault.CRASH, Fault.STOP, Fault.RESTART, Fault.DEPLOY, Fault.PARTITION, Fault.STALL, Fault.CLOCK_JUMP,
    Fault.CLIENT_CRASH,
)  # fmt: skip
_CRASHES = (CallFault.CRASH_BEFORE, CallFault.CRASH_AFTER, Fault.POISON)
_PROBABILITY_OF_A_KIND = 0.4


@dataclass(slots=True)
class SeedFaults(Faults):
    """The faults of one seed. Each seed has some of the kinds, each at a rate of its own (swarm testing)."""

    def __post_init__(self) -> None:
        draw = stream(self.seed, "swarm")
        for kind in (*CallFault, *NotificationFault, *Fault):
            included, strength = draw.random() < _PROBABILITY_OF_A_KIND, draw.random()
            if included:
                self.rates[kind] = _rate(kind, strength)
        for name, request in REQUESTS.items():
            kind = request_kind(name)
            if request.weight and chance(self.seed, f"swarm.{kind}") < _PROBABILITY_OF_A_KIND:
                self.rates[kind] = request.weight * (0.4 + 0.8 * chance(self.seed, f"rate.{kind}"))


def request_kind(feature: str) -> str:
    """The name under which the requests of a feature are faults, which can be left out to minimize a failure."""
    return f"{feature}_run"


def _rate(kind: StrEnum, strength: float) -> float:
    """Return the probability of a kind at a place; of a timed fault, the number of times per process."""
    if kind in _CRASHES:
        return 0.002 + 0.02 * strength
    if kind in CALL_FAULTS:
        return 0.005 + 0.06 * strength
    if kind in TIMED_FAULTS:
        return 1 + 2 * strength
    return 0.05 + 0.4 * strength
