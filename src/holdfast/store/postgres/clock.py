"""The database's time without asking it: the local monotonic clock, and how far the two are apart."""

from __future__ import annotations

import math
from datetime import datetime

from holdfast.core.model import from_ms
from holdfast.ports import Clock


class DatabaseClock:
    """Set by answers that carry the database's time. How wrong this machine's own time is does not matter.

    An answer may have taken long, because the server was away or the process was stopped. Then the database's time is
    known only roughly, and an earlier and more exact estimate is kept unless the answer contradicts it.
    """

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._apart = 0.0
        """Milliseconds from the local monotonic clock to the database's time."""
        self._doubt = math.inf
        """Width in milliseconds of the interval that the estimate was taken from."""

    def now(self) -> datetime:
        return from_ms(self.now_ms())

    def now_ms(self) -> int:
        return int(self._apart + self._local.monotonic() * 1000)

    def monotonic(self) -> float:
        return self._local.monotonic()

    def set(self, database_ms: int, asked: float, answered: float) -> None:
        """``asked`` and ``answered``: the local monotonic times between which the database said it."""
        least, most = database_ms - answered * 1000, database_ms + 1 - asked * 1000  # of a millisecond that has begun
        doubt = most - least
        if doubt <= self._doubt:
            self._apart, self._doubt = (least + most) / 2, doubt
        elif not least <= self._apart <= most:
            self._apart, self._doubt = min(max(self._apart, least), most), doubt
