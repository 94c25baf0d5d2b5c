"""The world as the engine sees it: time, randomness, timers, and how user functions are run.

Nothing else in the package asks the operating system for the time or for chance, or starts a thread; a test keeps
it so. Replace these objects and the whole engine runs in virtual time, which is what the test harness does. The
other two ports are the store (``holdfast.store.protocol``) and notifications (``holdfast.kernel.notify``).
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time as _time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import SimpleQueue
from random import SystemRandom
from typing import Any, Protocol

from holdfast.core.model import to_ms

_system = SystemRandom()


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
    shortcut: Callable[[], int] | None = getattr(clock, "now_ms", None)
    return shortcut or (lambda: to_ms(clock.now()))


class SystemRandomness:
    """The operating system's entropy.

    Never the process-global generator of `random`, which users seed: equal seeds would give equal ids. Nor a private
    generator: a forked process would repeat the numbers of its parent.
    """

    def random(self) -> float:
        return _system.random()

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

    def watch(self, look: Look, seconds: float) -> Callable[[], None] | None:
        """Call ``look`` every so many seconds beside the event loop; the answer ends that. None: it is not called."""
        ...

    def close(self) -> None: ...


Look = Callable[[float, float], None]
"""Takes the seconds since the last look, and the CPU time that the process has used meanwhile."""


class LocalSpawn:
    """This process: tasks of the running loop, and threads."""

    def __init__(self, threads: int = 128) -> None:
        self._threads = Threads(threads)

    def coroutine(self, coro: Any, context: contextvars.Context) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_task(coro, context=context)

    def function(self, call: Callable[[], Any], context: contextvars.Context) -> asyncio.Future[Any]:
        return self._threads.submit(lambda: context.run(call))

    def watch(self, look: Look, seconds: float) -> Callable[[], None] | None:
        over = threading.Event()
        start_thread(lambda: _look_on(look, seconds, over), "holdfast-watch")
        return over.set

    def close(self) -> None:
        self._threads.close()


def _look_on(look: Look, seconds: float, over: threading.Event) -> None:
    before, worked = _time.monotonic(), _time.process_time()
    while not over.wait(seconds):
        now, work = _time.monotonic(), _time.process_time()
        look(now - before, work - worked)
        before, worked = now, work


class Threads:
    """A pool of daemon threads: a step that never returns does not keep a finished program alive.

    The standard library's pool waits for its threads when the interpreter exits, whatever they do.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put((future, call))
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._count < self._most:
                self._count += 1
                start_thread(self._serve, f"holdfast-step-{self._count}")
        return future

    def close(self) -> None:
        """Let the threads end once they have nothing to do. Nobody waits for one that is still busy."""
        with self._lock:
            for _ in range(self._count):
                self._calls.put(None)
            self._count = self._idle = 0

    def _serve(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            try:
                result, error = call(), None
            except BaseException as raised:
                result, error = None, raised
            with self._lock:
                self._idle += 1
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del item, future, call, result, error


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):  # a future cannot hold one
        error = RuntimeError(f"the function raised StopIteration: {error}")
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread: one that never keeps a finished program alive."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
