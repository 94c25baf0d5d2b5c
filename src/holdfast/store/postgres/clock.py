"""The database's time without asking it: the local monotonic clock, and how far the two are apart."""

from __future__ import annotations

from datetime import datetime

from holdfast.core.model import from_ms
from holdfast.ports import Clock


class DatabaseClock:
    """Set by each answer that carries the database's time. How wrong this machine's own time is does not matter."""

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._apart = 0.0
        """Milliseconds from the local monotonic clock to the database's time."""

    def now(self) -> datetime:
        return from_ms(self.now_ms())

    def now_ms(self) -> int:
        return int(self._apart + self._local.monotonic() * 1000)

    def monotonic(self) -> float:
        return self._local.monotonic()

    def set(self, database_ms: int, asked: float, answered: float) -> None:
        """``asked`` and ``answered``: the local monotonic times between which the database said it."""
        self._apart = database_ms + 0.5 - (asked + answered) * 500  # of a millisecond begun, half is over
