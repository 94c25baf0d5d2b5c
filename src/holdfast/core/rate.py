"""Rates of limits."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.checks import check_count
from holdfast.core.durations import Duration, to_ms
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

_MAX_COUNT = 1_000_000_000
_MAX_PER_MS = 1000
"""Starts per millisecond: the database counts in microseconds."""
_MAX_BURST_MS = 100 * 365 * 86_400_000
"""Time in which the tokens of a burst come back: its microseconds are added to a time in the database, as 64 bits."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate of starts: ``count`` in each period ``per``, and at most ``burst`` at once (default: ``count``).

    Example::

        Rate(10, per="1 second", burst=20)
    """

    count: int
    per: Duration
    burst: int | None = None

    def __post_init__(self) -> None:
        check_count("count", self.count, _MAX_COUNT)
        if self.burst is not None:
            check_count("burst", self.burst, _MAX_COUNT)
        per = to_ms(self.per, "per")
        if per < 1:
            raise InvalidOptionError(f"per must be at least a millisecond, not {shown(self.per)}")
        if self.count > per * _MAX_PER_MS:
            raise InvalidOptionError(
                f"a rate is at most {_MAX_PER_MS * 1000:,} starts per second, not {self.count:,} per {shown(self.per)}"
            )
        burst = self.burst or self.count
        if burst * per > _MAX_BURST_MS * self.count:
            raise InvalidOptionError(
                f"burst={burst:,} is too high for {self.count:,} per {shown(self.per)}: so many starts would take more "
                "than 100 years at this rate"
            )

    @classmethod
    def unchecked(cls, count: int, per: Duration, burst: int) -> Rate:
        """A rate that the database has, which may be one that an earlier release accepted."""
        rate = object.__new__(cls)
        for name, value in (("count", count), ("per", per), ("burst", burst)):
            object.__setattr__(rate, name, value)
        return rate
