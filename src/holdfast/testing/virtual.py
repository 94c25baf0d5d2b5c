"""Ports for tests: a clock that the test moves, timers of that clock, seeded randomness."""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random

from holdfast.core.model import to_ms
from holdfast.ports import Alarm

_START = datetime(2030, 1, 1, tzinfo=UTC)


class VirtualClock:
    """A clock that shows the same time until ``move_to`` is called."""

    def __init__(self, start: datetime = _START) -> None:
        self._start = start
        self._now = start

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start).total_seconds()

    def move_to(self, when: datetime) -> None:
        self._now = max(self._now, when)


class _Alarm:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualTimers:
    """Timers of a virtual clock. ``fire_due`` calls the callbacks that are due."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._alarms: list[tuple[int, int, _Alarm]] = []
        self._count = 0

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Alarm:
        alarm = _Alarm(callback)
        self._count += 1
        heapq.heappush(self._alarms, (when_ms, self._count, alarm))
        return alarm

    def next_at(self) -> int | None:
        while self._alarms and self._alarms[0][2].cancelled:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def fire_due(self) -> None:
        now = to_ms(self._clock.now())
        while (when := self.next_at()) is not None and when <= now:
            heapq.heappop(self._alarms)[2].callback()


class SeededRandomness:
    """Random numbers that depend only on the seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311  (reproducible by design)

    def random(self) -> float:
        return self._random.random()

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.bytes(16), version=4)

    def bytes(self, n: int) -> bytes:
        return self._random.randbytes(n)


def later(when: datetime, ms: int) -> datetime:
    return when + timedelta(milliseconds=ms)
