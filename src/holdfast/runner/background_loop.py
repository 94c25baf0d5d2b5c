"""The common part of all background loops: start, stop, wake, jittered backoff."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import inf

from holdfast.errors import StoreError
from holdfast.ports import Randomness
from holdfast.store.retry import backoff

_log = logging.getLogger("holdfast")


class BackgroundLoop:
    """Calls a function repeatedly. The function returns how many seconds to wait; a wake ends the wait.

    After an error of the store, or any other error, the loop logs it and continues after a backoff: a loop that ended
    would leave runs unattended.
    """

    def __init__(self, name: str, step: Callable[[], Awaitable[float]], random: Randomness) -> None:
        self.name = name
        self._step = step
        self._random = random
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        """Ends the wait; None while the function runs."""
        self._latest_end = inf
        """Time of the event loop at which the next wait ends at the latest, requested while the function runs."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"holdfast-{self.name}")

    def wake(self) -> None:
        self._wake.set()

    def wake_at_most(self, seconds: float) -> None:
        """Wake after at most this many seconds."""
        if seconds <= 0:
            self._wake.set()
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._alarm is None:
            self._latest_end = min(self._latest_end, at)
        elif self._alarm.when() > at:
            self._alarm.cancel()
            self._alarm = loop.call_at(at, self._wake.set)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                pause = await self._step()
                failures = 0
            except StoreError as error:
                failures += 1
                pause = backoff(failures, self._random)
                _log.warning(
                    "%s: the store failed (%s), trying again in %.1f s: %s",
                    self.name,
                    error.code,
                    pause,
                    error,
                )
            except Exception:
                failures += 1
                pause = backoff(failures, self._random)
                _log.exception("%s: unexpected error, trying again in %.1f s", self.name, pause)
            await self._wait(pause)

    async def _wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end, self._latest_end = min(loop.time() + seconds, self._latest_end), inf
        if not self._wake.is_set():
            self._alarm = loop.call_at(end, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                self._alarm.cancel()
                self._alarm = None
        self._wake.clear()
