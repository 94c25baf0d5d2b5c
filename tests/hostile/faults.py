"""The faults of store calls, determined by the seed, the test and the number of the call."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b


class Kind(StrEnum):
    REFUSED = "refused"
    """Nothing is written, and the call raises an error."""
    BUSY = "busy"
    """As REFUSED, with the error of a serialization failure or a deadlock."""
    LATE = "late"
    """The request or the reply is delayed."""
    AMBIGUOUS = "ambiguous"
    """The call is executed and then raises an error."""


_RATES = {Kind.REFUSED: 0.04, Kind.BUSY: 0.04, Kind.LATE: 0.08, Kind.AMBIGUOUS: 0.04}


@dataclass
class Faults:
    """Chooses the faults of a test, and counts them."""

    seed: int
    test: str = ""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of faults of each kind and operation, in all tests."""
    calls: Counter[str] = field(default_factory=Counter)
    leases_lost: int = 0
    """The number of leases that expired in the current test."""
    _in_test: Counter[str] = field(default_factory=Counter)

    def begin(self, test: str) -> None:
        self.test, self.leases_lost = test, 0
        self._in_test.clear()

    def at(self, operation: str, kinds: frozenset[Kind]) -> tuple[Kind | None, float]:
        """The fault of the next call of an operation, one of ``kinds`` or None, and its severity from 0 to 1."""
        self.calls[operation] += 1
        place = self._place(operation)
        drawn = self._chance(place)
        for kind, rate in _RATES.items():
            if drawn < rate:
                if kind not in kinds:
                    break
                self.counts[kind.value, operation] += 1
                return kind, self._chance(f"how.{place}")
            drawn -= rate
        return None, 0.0

    def lease_lost(self) -> None:
        """Count an expired lease: the steps of its owner are called again by another worker."""
        self.leases_lost += 1

    def half(self, what: str) -> bool:
        """True for half of the calls."""
        return self._chance(self._place(what)) < 0.5

    def _place(self, what: str) -> str:
        self._in_test[what] += 1
        return f"{self.test}.{what}#{self._in_test[what]}"

    def _chance(self, place: str) -> float:
        return int.from_bytes(blake2b(f"{self.seed}.{place}".encode(), digest_size=8).digest()) / 2**64
