"""The event loop of a simulation: several processes in one thread, virtual time, an order drawn from the seed.

A callback belongs to the process in whose context it was created. The callbacks of a process run in their order, as in
asyncio; the process that runs next is drawn at random. Time stands still while a callback can run, and then moves to
the next timer. There is no I/O. A stopped process keeps its callbacks. A killed process loses them, and none of its
code runs again, not even a ``finally`` block.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, TypeVar, TypeVarTuple, Unpack

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_MAX_CLOSES = 100
_CONTINUE_PROBABILITIES = (0.0, 0.6, 0.95)
"""Probabilities that the running process runs its next callback, too: from single callbacks to long bursts."""


class Deadlock(AssertionError):
    """No callback can run and no timer is set."""


class Livelock(AssertionError):
    """The maximum number of callbacks was exceeded."""


class Process:
    """A simulated process: a queue of callbacks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        self.shut_down = False
        """True if an orderly shutdown has begun."""
        self.ready: deque[asyncio.Handle] = deque()
        self._context = contextvars.copy_context()
        self._context.run(_current.set, self)

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def context(self) -> contextvars.Context:
        """A context for callbacks that are to run in this process."""
        return self._context.copy()

    def kill(self) -> None:
        self.alive = False
        self.ready.clear()


_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("holdfast_process", default=None)


class _Future(asyncio.Future[R]):
    """A future whose hash is its number, so the order of a set of futures does not depend on memory addresses."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        super().__init__(loop=loop)
        self._number = loop.next_number()

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Task(asyncio.Task[R]):
    """A task whose hash is its number; see ``_Future``."""

    _number: int  # set before Task.__init__, which adds the task to a set

    def __new__(cls, _coro: Any, *, loop: SimulatedLoop, **_options: Any) -> _Task[R]:
        task = super().__new__(cls)
        task._number = loop.next_number()
        return task

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Handle(asyncio.Handle):
    """asyncio's handle without its support for debugging, because a second creates thousands of handles."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimulatedLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of a simulation.

    ``order`` chooses among the processes that can run; more than ``max_callbacks`` callbacks are a livelock.
    """

    def __init__(self, order: Random, max_callbacks: int) -> None:
        super().__init__()
        self.callbacks = 0
        self.running: Process | None = None
        """The process whose callback is running."""
        self.unhandled: list[str] = []
        """Uncaught errors of callbacks and tasks, and errors that the engine logged."""
        self._order = order
        self._continue_probability = order.choice(_CONTINUE_PROBABILITIES)
        self._max_callbacks = max_callbacks
        self._time = 0.0
        self._ending = False
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._numbered = 0
        self._main = Process("main")
        self._processes: list[Process] = [self._main]
        self._tasks: list[asyncio.Task[Any]] = []
        self.set_exception_handler(self._note_unhandled)

    # --- processes

    @property
    def main(self) -> Process:
        """The process of callbacks that belong to no other process."""
        return self._main

    def start_process(self, name: str) -> Process:
        self._processes = [process for process in self._processes if process.alive]
        process = Process(name)
        self._processes.append(process)
        return process

    def spawn(self, process: Process, coro: Coroutine[Any, Any, R], name: str | None = None) -> asyncio.Task[R]:
        return self.create_task(coro, name=name, context=process.context())

    def end(self) -> None:
        """Close the remaining tasks and the loop. Callbacks and errors of their cleanup are discarded."""
        self._ending = True
        asyncio.events._set_running_loop(self)
        try:
            while self._tasks:  # cleanup may start more tasks
                task = self._tasks.pop(0)
                if not task.done():
                    _close(task)
            for task in asyncio.all_tasks(self):  # tasks of steps, which create_task has not seen
                _close(task)
        finally:
            asyncio.events._set_running_loop(None)
        self.close()

    # --- methods that asyncio calls

    def time(self) -> float:
        return self._time

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._make_ready(handle)
        return handle

    call_soon_threadsafe = call_soon  # there is one thread

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._time + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = _Task(coro, loop=self, name=name, context=context, **options)
        self._tasks.append(task)
        if len(self._tasks) % 512 == 0:
            self._tasks = [pending for pending in self._tasks if not pending.done()]
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def next_number(self) -> int:
        self._numbered += 1
        return self._numbered

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: ``_move_time`` skips cancelled timers."""

    def _make_ready(self, handle: Any) -> None:
        process = handle._context.get(_current) or self._main
        if process.alive and not self._ending:
            process.ready.append(handle)

    def _run_once(self) -> None:
        """Run callbacks until the loop is stopped. asyncio calls this method once per batch of callbacks."""
        while not self._stopping:  # type: ignore[attr-defined]
            runnable = [process for process in self._processes if process.ready and not process.stopped]
            if not runnable:
                self._move_time()
                continue
            self.running = process = self._pick(runnable)
            handle = process.ready.popleft()
            if not handle._cancelled:
                self.callbacks += 1
                if self.callbacks > self._max_callbacks:
                    raise Livelock(f"more than {self._max_callbacks:,} callbacks, after {self._time:.3f} s")
                try:
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except (KeyboardInterrupt, SystemExit, Livelock):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"error in {handle!r}", "exception": error})

    def _pick(self, runnable: list[Process]) -> Process:
        if len(runnable) == 1:
            return runnable[0]
        probability = self._continue_probability
        if probability and self.running in runnable and self._order.random() < probability:
            return self.running
        return runnable[self._order.randrange(len(runnable))]

    def _move_time(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"nothing can run, and no timer is set, after {self._time:.3f} s")
        self._time = max(self._time, timers[0][0])
        while timers and timers[0][0] <= self._time:
            handle = heapq.heappop(timers)[2]
            if not handle._cancelled:
                self._make_ready(handle)

    def _note_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._ending:
            self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")


def _close(task: asyncio.Task[Any]) -> None:
    """Close the coroutine of a task, again for each ``await`` in its cleanup."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coro: Any = task.get_coro()
    for _ in range(_MAX_CLOSES):
        with suppress(BaseException):
            coro.close()
            return
