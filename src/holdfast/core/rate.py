"""Rates of limits."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.checks import check_count
from holdfast.core.durations import Duration, to_ms
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

_MAX_COUNT = 1_000_000_000


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
        if to_ms(self.per, "per") < 1:
            raise InvalidOptionError(f"per must be at least a millisecond, not {shown(self.per)}")
