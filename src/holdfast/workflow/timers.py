"""Timers as channels: ``ctx.after``, ``ctx.timer`` and ``ctx.every``. They are durable, like all timers of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime

from holdfast.core.durations import Duration
from holdfast.workflow.channels import Channel


class Timer(Channel[datetime]):
    """A channel that receives the time once, when the timer fires. The timer can be stopped, and set again."""

    def __init__(self, seconds: float, now: Callable[[], datetime], seconds_of: Callable[[Duration], float]) -> None:
        super().__init__(capacity=1)
        self._now = now
        self._seconds_of = seconds_of
        self._handle: asyncio.TimerHandle | None = None
        self._set(seconds)

    def stop(self) -> bool:
        """Stop the timer and drop a time that was not received. True if the timer was set or its time not received."""
        self._check()
        pending = self._handle is not None or len(self) > 0
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._buffer.clear()
        return pending

    def reset(self, duration: Duration) -> bool:
        """Stop the timer and set it to this duration from now. Returns what ``stop`` returns."""
        seconds = self._seconds_of(duration)
        pending = self.stop()
        self._set(seconds)
        return pending

    def _set(self, seconds: float) -> None:
        self._handle = asyncio.get_running_loop().call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._try_send(self._now())


async def ticks(seconds: float, now: Callable[[], datetime]) -> AsyncIterator[datetime]:
    """Yield the time at intervals of ``seconds``. Ticks that were not taken in time are merged into one."""
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    while True:
        await asyncio.sleep(max(0.0, due - loop.time()))
        if loop.time() - due >= seconds:
            due = loop.time()
        due += seconds
        yield now()
