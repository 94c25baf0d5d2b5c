"""Activity of steps in flight: which of them are working, so that the harness waits for these and for no others.

A step is working while a plain function runs in its thread, while it awaits a thread, a process or a socket, and while
it waits for a timer of the real loop. It is idle while it awaits something inside the event loop (an event, a lock, a
queue, a future that its own code created): only the test, or a timeout on the virtual clock, can end such a wait.

Three sources decide. Calls of ``loop.run_in_executor`` by a step in flight count as work, and so do the timers and the
sockets that it registered with the loop. For every task of a step, the innermost suspended coroutine shows what it
awaits: library code other than the primitives of asyncio and anyio counts as work.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import sysconfig
from collections.abc import Iterator
from contextvars import Context
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, ClassVar

from holdfast.kernel.attempt import Attempt, current_attempt
from holdfast.ports import LocalSpawn, WatchCallback

# The harness does not wait for timers of the real loop that are further away: no test takes that long.
_DISTANT_SECONDS = 60

_HOLDFAST = str(Path(__file__).parents[1])
_STORE = str(Path(__file__).parents[1] / "store")
_ASYNCIO = str(Path(asyncio.__file__).parent)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_WAITS_FOR_TASKS = ("tasks.py", "taskgroups.py")  # of asyncio; the awaited tasks are examined separately
_PRIMITIVES = ("locks.py", "queues.py", "futures.py", "timeouts.py")  # of asyncio


class TrackingSpawn(LocalSpawn):
    """Runs steps in this process and keeps track of which are working."""

    def __init__(self) -> None:
        super().__init__()
        self._in_threads: dict[asyncio.Future[Any], Attempt] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, check: WatchCallback, seconds: float) -> None:
        """Do nothing. Blocking calls are not reported, because virtual time does not pass during them."""

    def track_steps(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start tracking."""
        self._loop = loop
        _LoopActivity.of(loop).join()

    def close(self) -> None:
        super().close()
        if self._loop is not None:
            _LoopActivity.of(self._loop).leave()

    def function(self, call: Any, context: Context) -> asyncio.Future[Any]:
        future = super().function(call, context)
        attempt = context.get(current_attempt)
        if attempt is not None:
            self._in_threads[future] = attempt
            future.add_done_callback(self._in_threads.pop)
        return future

    def working(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return True if a step in flight can end without an action of the test and without virtual time."""
        return bool(self._in_threads) or _LoopActivity.of(loop).working()

    def in_flight(self, loop: asyncio.AbstractEventLoop) -> Iterator[tuple[Attempt, str]]:
        """Yield the attempts in flight, each with the source line at which it waits, or an empty string."""
        yield from ((attempt, "") for attempt in self._in_threads.values())
        yield from _LoopActivity.of(loop).in_flight()


class _LoopActivity:
    """The tasks and executor calls of steps on one loop, shared by all harnesses of that loop."""

    _all: ClassVar[dict[asyncio.AbstractEventLoop, _LoopActivity]] = {}
    """The activity of each loop on which a harness is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Any = loop
        self._harnesses = 0
        self._tasks: dict[asyncio.Task[Any], Attempt] = {}
        self._executing: dict[asyncio.Future[Any], Attempt] = {}
        self._factory: Any = None

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _LoopActivity:
        activity = cls._all.get(loop)
        if activity is None:
            activity = cls._all[loop] = cls(loop)
        return activity

    def join(self) -> None:
        self._harnesses += 1
        if self._harnesses == 1:
            self._factory = self._loop.get_task_factory()
            self._loop.set_task_factory(self._create_task)
            self._loop.run_in_executor = self._run_in_executor

    def leave(self) -> None:
        self._harnesses -= 1
        if self._harnesses == 0:
            self._loop.set_task_factory(self._factory)
            del self._loop.run_in_executor
            del self._all[self._loop]

    def working(self) -> bool:
        if self._executing or any(_is_working(task) for task in self._tasks):
            return True
        in_flight = {id(attempt) for attempt in self._tasks.values()}
        return any(id(attempt) in in_flight for attempt in _owners_of_timers_and_sockets(self._loop))

    def in_flight(self) -> Iterator[tuple[Attempt, str]]:
        for task, attempt in self._tasks.items():
            frames = [frame for frame in _suspended_frames(task) if not _is_library(frame.f_code)]
            yield attempt, f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else ""

    def _create_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Future[Any]:
        make = self._factory or (lambda loop, coro, **options: asyncio.Task(coro, loop=loop, **options))
        task: asyncio.Task[Any] = make(loop, coro, **options)
        context = options.get("context")
        attempt = current_attempt.get() if context is None else context.get(current_attempt)
        if attempt is not None and not task.done():
            self._tasks[task] = attempt
            task.add_done_callback(self._tasks.pop)
        return task

    def _run_in_executor(self, executor: Any, call: Any, *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = type(self._loop).run_in_executor(self._loop, executor, call, *args)
        attempt = current_attempt.get()
        if attempt is not None:
            self._executing[future] = attempt
            future.add_done_callback(self._executing.pop)
        return future


def _is_working(task: asyncio.Task[Any]) -> bool:
    """Examine the innermost code of a suspended task that is not a primitive of asyncio or anyio."""
    for frame in reversed([*_suspended_frames(task)]):
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path.startswith(_ASYNCIO):
            if path.endswith(_WAITS_FOR_TASKS):
                return False
            if not path.endswith(_PRIMITIVES):
                return True  # a stream, a socket, a process
        elif _is_anyio(path):
            if name == "__aexit__":  # of a task group, whose tasks are examined separately
                return False
            if name == "run_sync_in_worker_thread":
                return True
        else:
            return path.startswith(_STORE) or _is_library(frame.f_code)
    return False


def _suspended_frames(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """Yield the frames of a suspended task, the outermost first."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        match awaited:
            case CoroutineType():
                frame, following = awaited.cr_frame, awaited.cr_await
            case AsyncGeneratorType():
                frame, following = awaited.ag_frame, awaited.ag_await
            case GeneratorType():
                frame, following = awaited.gi_frame, awaited.gi_yieldfrom
            case _:  # a wrapper such as that of `async for`: only the garbage collector can find its generator
                inner = (CoroutineType, AsyncGeneratorType, GeneratorType)
                frame, following = None, next((o for o in gc.get_referents(awaited) if isinstance(o, inner)), None)
        if frame is not None:
            yield frame
        awaited = following


@functools.lru_cache(maxsize=1024)
def _is_library(code: CodeType) -> bool:
    path = code.co_filename
    return path.startswith(_LIBRARIES) and not path.startswith(_HOLDFAST)


def _is_anyio(path: str) -> bool:
    return path.startswith(_LIBRARIES) and "anyio" in Path(path).parts


def _owners_of_timers_and_sockets(loop: asyncio.AbstractEventLoop) -> Iterator[Attempt | None]:
    """Yield the attempt in whose context each timer and each callback of a socket was registered, ended ones too."""
    for handle in getattr(loop, "_scheduled", ()):
        if not handle.cancelled() and handle.when() < loop.time() + _DISTANT_SECONDS:
            yield handle._context.get(current_attempt)
    selector = getattr(loop, "_selector", None)
    for registered in (selector.get_map() or {}).values() if selector is not None else ():
        yield from (handle._context.get(current_attempt) for handle in registered.data if handle is not None)
