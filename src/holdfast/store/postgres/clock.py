"""The database's time without a query: the local monotonic clock plus an estimated offset."""

from __future__ import annotations

import math
from datetime import datetime

from holdfast.core.model import from_ms
from holdfast.ports import Clock


class DatabaseClock:
    """A clock that is set by replies which carry the database's time. This machine's own wall clock is not used.

    A reply may have taken long, because the server was unavailable or the process was stopped. The offset is then known
    only roughly, and an earlier, more exact estimate is kept unless the reply contradicts it.
    """

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._offset = 0.0
        """Milliseconds to add to the local monotonic clock to get the database's time."""
        self._uncertainty = math.inf
        """Width in milliseconds of the interval from which the offset was estimated."""

    def now(self) -> datetime:
        return from_ms(self.now_ms())

    def now_ms(self) -> int:
        return int(self._offset + self._local.monotonic() * 1000)

    def monotonic(self) -> float:
        return self._local.monotonic()

    def set(self, database_ms: int, sent_at: float, received_at: float) -> None:
        """Set the offset: ``database_ms`` was read between the monotonic times ``sent_at`` and ``received_at``."""
        least, most = database_ms - received_at * 1000, database_ms + 1 - sent_at * 1000  # database_ms is rounded down
        uncertainty = most - least
        if uncertainty <= self._uncertainty:
            self._offset, self._uncertainty = (least + most) / 2, uncertainty
        elif not least <= self._offset <= most:
            self._offset, self._uncertainty = min(max(self._offset, least), most), uncertainty
