"""Ports of the engine to the operating system: time, randomness, timers, and the execution of user functions.

No other module of the package reads the clock or a source of randomness, or starts a thread; a test enforces this. With
other objects in their place the whole engine runs in virtual time, as in the test harness. The other two ports are the
store (``holdfast.store.protocol``) and notifications (``holdfast.kernel.notify``).
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
from typing import Any, Protocol, TypeVar

from holdfast.core import eager_tasks
from holdfast.core.model import to_ms

T = TypeVar("T")

_system = SystemRandom()


class Clock(Protocol):
    """Wall-clock time for stored and displayed times, monotonic time for waiting."""

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
    """A function that returns the clock's time in milliseconds since 1970; the clock's own ``now_ms`` if it has one."""
    shortcut: Callable[[], int] | None = getattr(clock, "now_ms", None)
    return shortcut or (lambda: to_ms(clock.now()))


class SystemRandomness:
    """Randomness from the operating system.

    Not from the global generator of ``random``, which users may seed: equal seeds would give equal ids. Not from a
    private generator either: a forked process would repeat the numbers of its parent.
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
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Schedules calls by the clock's wall time, in milliseconds since 1970."""

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Alarm: ...


class LoopTimers:
    """Timers on the running event loop.

    Nearly all timers are cancelled, because steps end well before their timeouts. A distant timer is therefore only
    added to the alarms of its second, and becomes a timer of the loop when that second is near. The alarms are scanned
    periodically, because the clock may be set and the machine may sleep.
    """

    _NEAR_MS = 2_000

    def __init__(self, clock: Clock) -> None:
        self._now_ms = milliseconds(clock)
        self._alarms_by_second: dict[int, dict[_DistantAlarm, None]] = {}
        self._scan_timer: asyncio.TimerHandle | None = None

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Alarm:
        delay_ms = when_ms - self._now_ms()
        if delay_ms <= self._NEAR_MS:
            return asyncio.get_running_loop().call_later(max(delay_ms, 0) / 1000, callback)
        alarms = self._alarms_by_second.setdefault(when_ms // 1000, {})
        alarm = _DistantAlarm(when_ms, callback, alarms)
        alarms[alarm] = None
        if self._scan_timer is None:
            self._schedule_scan()
        return alarm

    def _schedule_scan(self) -> None:
        self._scan_timer = asyncio.get_running_loop().call_later(self._NEAR_MS / 4000, self._scan)

    def _scan(self) -> None:
        """Turn near alarms into timers of the loop, and delete seconds without alarms."""
        near = (self._now_ms() + self._NEAR_MS) // 1000
        for second in [s for s, alarms in self._alarms_by_second.items() if s <= near or not alarms]:
            for alarm in self._alarms_by_second.pop(second):
                alarm.near = self.call_at(min(alarm.when_ms, near * 1000), alarm.callback)
        self._scan_timer = None
        if self._alarms_by_second:
            self._schedule_scan()


class _DistantAlarm:
    """An alarm that is held by its second until its time is near."""

    __slots__ = ("_alarms", "callback", "near", "when_ms")

    def __init__(self, when_ms: int, callback: Callable[[], None], alarms: dict[_DistantAlarm, None]) -> None:
        self.when_ms = when_ms
        self.callback = callback
        self.near: Alarm | None = None
        self._alarms = alarms

    def cancel(self) -> None:
        self._alarms.pop(self, None)
        if self.near is not None:
            self.near.cancel()


class Spawn(Protocol):
    """Execution of user functions: coroutines on the worker's event loop, plain functions in threads."""

    def coroutine(self, coro: Any, context: contextvars.Context) -> asyncio.Future[Any] | None:
        """Run a coroutine; None: it has ended already."""
        ...

    def function(self, call: Callable[[], Any], context: contextvars.Context) -> asyncio.Future[Any]: ...

    def watch(self, check: WatchCallback, seconds: float) -> Callable[[], None] | None:
        """Call ``check`` every ``seconds`` in a thread; returns a function that stops the calls.

        None: ``check`` is never called.
        """
        ...

    def close(self) -> None: ...


WatchCallback = Callable[[float, float], None]
"""Receives the seconds since its last call, and the CPU time that the process has used in between."""


class LocalSpawn:
    """Execution in this process: coroutines on the running event loop, and threads."""

    def __init__(self, threads: int = 128) -> None:
        self._threads = Threads(threads)

    def coroutine(self, coro: Any, context: contextvars.Context) -> asyncio.Future[Any] | None:
        """Run a coroutine on the running event loop; None: it has ended without suspending.

        A loop with a task factory gets a task in any case, because the factory may be there to see every task.
        """
        loop = asyncio.get_running_loop()
        if loop.get_task_factory() is None:
            return eager_tasks.start(coro, context, loop)
        return loop.create_task(coro, context=context)

    def function(self, call: Callable[[], Any], context: contextvars.Context) -> asyncio.Future[Any]:
        return self._threads.submit(lambda: context.run(call))

    def watch(self, check: WatchCallback, seconds: float) -> Callable[[], None] | None:
        stopped = threading.Event()
        start_thread(lambda: _watch_loop(check, seconds, stopped), "holdfast-watch")
        return stopped.set

    def close(self) -> None:
        self._threads.close()


def _watch_loop(check: WatchCallback, seconds: float, stopped: threading.Event) -> None:
    last_time, last_cpu = _time.monotonic(), _time.process_time()
    while not stopped.wait(seconds):
        now, cpu = _time.monotonic(), _time.process_time()
        check(now - last_time, cpu - last_cpu)
        last_time, last_cpu = now, cpu


class Threads:
    """A pool of daemon threads: a step that never returns does not prevent the program from exiting.

    The standard library's pool waits for its threads when the interpreter exits.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
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
            elif self._count < self._max_threads:
                self._count += 1
                start_thread(self._serve, f"holdfast-step-{self._count}")
        return future

    def close(self) -> None:
        """End the threads once they are idle, without waiting for them."""
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
            with suppress(RuntimeError):  # the event loop is closed, so no caller waits
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
    """Start a daemon thread, which does not prevent the program from exiting."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a function that blocks, such as one that syncs a file, in a thread of the event loop."""
    return await asyncio.to_thread(function, *args)
