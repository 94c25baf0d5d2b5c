"""The event loop of a simulation: several processes in one thread, virtual time, an order drawn from the seed.

A callback belongs to the process in whose context it was made. Within a process callbacks run in their order, as in
asyncio; which process runs next is drawn. Time stands still while anything can run, and then moves to the next timer.
There is no I/O. A process that is stopped keeps its callbacks; one that is killed loses them, and none of its code
runs again, no ``finally`` either.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

R = TypeVar("R")

_MOST_CLOSINGS = 100
_PATIENCE = (0.0, 0.6, 0.95)
"""How likely a process is to go on rather than another: from one callback at a time to long bursts."""


class Deadlock(AssertionError):  # noqa: N818  (reads like the assertion it is)
    """Nothing can run, and no timer will change that."""


class Livelock(AssertionError):  # noqa: N818
    """Callbacks run on and on."""


class Process:
    """What would be a process of its own: its callbacks, in their order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        self.left = False
        """It was, or is being, ended in order."""
        self.ready: deque[asyncio.Handle] = deque()
        self._context = contextvars.copy_context()
        self._context.run(_current.set, self)

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def context(self) -> contextvars.Context:
        """For what is to run in this process."""
        return self._context.copy()

    def kill(self) -> None:
        self.alive = False
        self.ready.clear()


_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("holdfast_process", default=None)


class _Future(asyncio.Future[R]):
    """Hashes by its number: sets of them have one order, wherever they are in memory."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        super().__init__(loop=loop)
        self._number = loop.next_number()

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Task(asyncio.Task[R]):
    """As ``_Future``."""

    _number: int  # set before Task.__init__, which puts it into a set

    def __new__(cls, _coro: Any, *, loop: SimulatedLoop, **_options: Any) -> _Task[R]:
        task = super().__new__(cls)
        task._number = loop.next_number()
        return task

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Handle(asyncio.Handle):
    """As asyncio's, without what is only for debugging: there are thousands of them in each second."""

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
    """``order`` picks among the processes that can go on; ``most_callbacks`` is what is taken for no end."""

    def __init__(self, order: Random, most_callbacks: int) -> None:
        super().__init__()
        self.callbacks = 0
        self.running: Process | None = None
        """Whose callback is running."""
        self.unhandled: list[str] = []
        """Errors that nobody caught."""
        self._order = order
        self._patience = order.choice(_PATIENCE)
        self._most = most_callbacks
        self._time = 0.0
        self._deaf = False
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
        """Where what belongs to no other process runs."""
        return self._main

    def start_process(self, name: str) -> Process:
        self._processes = [one for one in self._processes if one.alive]
        process = Process(name)
        self._processes.append(process)
        return process

    def spawn(self, process: Process, coro: Coroutine[Any, Any, R], name: str | None = None) -> asyncio.Task[R]:
        return self.create_task(coro, name=name, context=process.context())

    def end(self) -> None:
        """Close what is left, quietly: nothing that it does in its cleanup is heard any more."""
        self._deaf = True
        asyncio.events._set_running_loop(self)
        try:
            while self._tasks:  # cleanup may start more
                task = self._tasks.pop(0)
                if not task.done():
                    _close(task)
        finally:
            asyncio.events._set_running_loop(None)
        self.close()

    # --- what asyncio needs

    def time(self) -> float:
        return self._time

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._make_ready(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._time + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = _Task(coro, loop=self, name=name, context=context, **options)
        self._tasks.append(task)
        if len(self._tasks) % 512 == 0:
            self._tasks = [one for one in self._tasks if not one.done()]
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def next_number(self) -> int:
        self._numbered += 1
        return self._numbered

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def _make_ready(self, handle: Any) -> None:
        process = handle._context.get(_current) or self._main
        if process.alive and not self._deaf:
            process.ready.append(handle)

    def _run_once(self) -> None:
        """Until it is stopped: asyncio would look for that after each callback."""
        while not self._stopping:  # type: ignore[attr-defined]
            able = [process for process in self._processes if process.ready and not process.stopped]
            if not able:
                self._move_time()
                continue
            self.running = process = self._pick(able)
            handle = process.ready.popleft()
            if not handle._cancelled:
                self.callbacks += 1
                if self.callbacks > self._most:
                    raise Livelock(f"{self._most:,} callbacks, and no end, after {self._time:.3f} s")
                try:
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except (KeyboardInterrupt, SystemExit, Livelock):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"error in {handle!r}", "exception": error})

    def _pick(self, able: list[Process]) -> Process:
        if len(able) == 1:
            return able[0]
        if self._patience and self.running in able and self._order.random() < self._patience:
            return self.running
        return able[self._order.randrange(len(able))]

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
        if not self._deaf:
            self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")


def _close(task: asyncio.Task[Any]) -> None:
    """As often as its cleanup awaits."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coro: Any = task.get_coro()
    for _ in range(_MOST_CLOSINGS):
        with suppress(BaseException):
            coro.close()
        if coro.cr_frame is None:
            return
