"""Timers as channels: ``ctx.after``, ``ctx.timer`` and ``ctx.every``. Durable, as every timer of the loop is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime

from holdfast.core.durations import Duration
from holdfast.workflow.channels import Channel


class Timer(Channel[datetime]):
    """A channel that gets the time once, when it has come. It can be stopped, and set again."""

    def __init__(self, seconds: float, now: Callable[[], datetime], seconds_of: Callable[[Duration], float]) -> None:
        super().__init__(capacity=1)
        self._now = now
        self._seconds_of = seconds_of
        self._handle: asyncio.TimerHandle | None = None
        self._set(seconds)

    def stop(self) -> bool:
        """Call it off; a time that was not received yet is dropped. Whether there was something to call off."""
        self._check()
        pending = self._handle is not None or len(self) > 0
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._buffer.clear()
        return pending

    def reset(self, duration: Duration) -> bool:
        """Stop it and begin anew with this duration from now. Whether there was something to call off."""
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
    """The time, every so many seconds from now. Ticks that were missed, because nobody took them, are one tick."""
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    while True:
        await asyncio.sleep(max(0.0, due - loop.time()))
        if loop.time() - due >= seconds:
            due = loop.time()
        due += seconds
        yield now()
