"""The world as the engine sees it: time, randomness, timers, and how user functions are run.

Nothing else in the package asks the operating system for the time or for chance, or starts a thread; a test keeps
it so. Replace these objects and the whole engine runs in virtual time, which is what the test harness does. The
other two ports are the store (``holdfast.store.protocol``) and notifications (``holdfast.kernel.notify``).
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random as _random
import threading
import time as _time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from holdfast.core.model import to_ms


class Clock(Protocol):
    """Wall time for what is stored and shown, monotonic time for waiting."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class Randomness(Protocol):
    def random(self) -> float: ...

    def uuid4(self) -> uuid.UUID: ...

    def bytes(self, n: int) -> bytes: ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return _time.monotonic()

    def now_ms(self) -> int:
        return _time.time_ns() // 1_000_000


def milliseconds(clock: Clock) -> Callable[[], int]:
    """The clock's wall time in milliseconds since 1970, by its own shortcut where it has one."""
    if isinstance(clock, SystemClock):
        return clock.now_ms
    return lambda: to_ms(clock.now())


class SystemRandomness:
    """The operating system's entropy for ids and seeds, and a plain generator for jitter."""

    def random(self) -> float:
        return _random.random()  # noqa: S311  (jitter, not a secret)

    def uuid4(self) -> uuid.UUID:
        return uuid.uuid4()

    def bytes(self, n: int) -> bytes:
        return os.urandom(n)


@dataclass(frozen=True, slots=True)
class Runtime:
    """Time and randomness of one app."""

    time: Clock = field(default_factory=SystemClock)
    random: Randomness = field(default_factory=SystemRandomness)


class Alarm(Protocol):
    """A call that was put off and can be called off."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Calls back at a moment of the clock's wall time, in milliseconds since 1970."""

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Alarm: ...


class LoopTimers:
    """Timers of the running event loop.

    Nearly all of them are called off: the time limits of steps that end well before. So a distant one only goes into
    the bucket of its second, and becomes a timer of the loop when that second is near. Buckets are also
    looked at again and again, because a clock may be set and a machine may sleep.
    """

    _NEAR_MS = 2_000

    def __init__(self, clock: Clock) -> None:
        self._now_ms = milliseconds(clock)
        self._buckets: dict[int, dict[_Distant, None]] = {}
        self._looking: asyncio.TimerHandle | None = None

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Alarm:
        delay_ms = when_ms - self._now_ms()
        if delay_ms <= self._NEAR_MS:
            return asyncio.get_running_loop().call_later(max(delay_ms, 0) / 1000, callback)
        bucket = self._buckets.setdefault(when_ms // 1000, {})
        alarm = _Distant(when_ms, callback, bucket)
        bucket[alarm] = None
        if self._looking is None:
            self._look_later()
        return alarm

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(self._NEAR_MS / 4000, self._look)

    def _look(self) -> None:
        """Make timers of what is near, forget empty buckets."""
        near = (self._now_ms() + self._NEAR_MS) // 1000
        for second in [s for s, bucket in self._buckets.items() if s <= near or not bucket]:
            for alarm in self._buckets.pop(second):
                alarm.near = self.call_at(min(alarm.when_ms, near * 1000), alarm.callback)
        self._looking = None
        if self._buckets:
            self._look_later()


class _Distant:
    """A call that is still far away."""

    __slots__ = ("_bucket", "callback", "near", "when_ms")

    def __init__(self, when_ms: int, callback: Callable[[], None], bucket: dict[_Distant, None]) -> None:
        self.when_ms = when_ms
        self.callback = callback
        self.near: Alarm | None = None
        self._bucket = bucket

    def cancel(self) -> None:
        self._bucket.pop(self, None)
        if self.near is not None:
            self.near.cancel()


class Spawn(Protocol):
    """How user functions run: coroutines on the worker's loop, plain functions in threads."""

    def coroutine(self, coro: Any, context: contextvars.Context) -> asyncio.Future[Any]: ...

    def function(self, call: Callable[[], Any], context: contextvars.Context) -> asyncio.Future[Any]: ...

    def close(self) -> None: ...


class LocalSpawn:
    """This process: tasks of the running loop and a pool of threads."""

    def __init__(self, threads: int = 128) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def coroutine(self, coro: Any, context: contextvars.Context) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_task(coro, context=context)

    def function(self, call: Callable[[], Any], context: contextvars.Context) -> asyncio.Future[Any]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="holdfast-step")
        return asyncio.get_running_loop().run_in_executor(self._pool, context.run, call)

    def close(self) -> None:
        if self._pool is not None:
            # A step that ignores its cancellation may still be running; the process does not wait for it.
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread: one that never keeps a finished program alive."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
