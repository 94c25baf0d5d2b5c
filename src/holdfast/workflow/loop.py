"""The event loop that workflow code runs on: deterministic, nested, without I/O.

The loop has a queue of ready callbacks, and passes every timer to its machine, which makes the timer durable. Nothing
else makes progress on this loop, so the same history always runs the same code in the same order. Methods of the loop
for I/O (sockets, threads, processes, signals) raise an error that names the call and says what to do instead.

Tasks and futures hash by creation number, so that ``asyncio.wait``, ``TaskGroup`` and others iterate over sets of them
in the same order on every replay. ``asyncio.as_completed`` puts bare coroutines into a set; the wrapper at the end of
this module turns them into tasks first, in the order of its argument.

Libraries for asyncio run on this loop if they use only its tasks, futures and timers. The few that need more are in
``holdfast.workflow.libraries``.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from holdfast.errors import IOInWorkflowError, WorkflowStuckError
from holdfast.workflow.libraries import order_cancel_scopes, refuse_shared_cache, refuse_worker_thread
from holdfast.workflow.tasks import RunningTasks, WorkflowFuture, WorkflowTask, close_quietly

if TYPE_CHECKING:
    from holdfast.store.protocol import RunRecord

T = TypeVar("T")
_Outer: TypeAlias = tuple[asyncio.AbstractEventLoop | None, Any]
"""The running loop and the hooks for async generators before the workflow loop was entered."""

current_loop = events._get_running_loop
"""The event loop that runs in this thread, of any class; None if no loop runs."""
_set_running_loop = events._set_running_loop

NEVER = 250_000_000_000.0
"""A time of the loop that no timer reaches, in the year 9892: a datetime, and a store, cannot hold much later ones."""
MAX_CALLBACKS = 2_000_000
"""Maximum number of callbacks in one ``run_until_idle``; more are taken for an endless loop."""


class TimerHost(Protocol):
    """The part of the machine that the loop uses: the replayed time, timers and error reports."""

    @property
    def now_ms(self) -> int: ...

    def open_timer(self, handle: WorkflowTimer, due_ms: int) -> None: ...

    def close_timer(self, handle: WorkflowTimer) -> None: ...

    def report(self, context: dict[str, Any]) -> None: ...


class NullHost:
    """The host of a loop whose machine was dropped. It ignores what objects do when they are destroyed later."""

    now_ms = 0

    def open_timer(self, handle: WorkflowTimer, due_ms: int) -> None: ...

    def close_timer(self, handle: WorkflowTimer) -> None: ...

    def report(self, context: dict[str, Any]) -> None: ...


NO_HOST = NullHost()


class _ReadyCallback:
    """A callback in the ready queue: ``asyncio.Handle`` without its support for debugging."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class WorkflowTimer(asyncio.TimerHandle):
    """A durable timer. ``number`` counts the timers of a run in order of creation and identifies it on replay."""

    __slots__ = ("number",)
    number: int
    _callback: Callable[..., object]
    _context: contextvars.Context


_Ready = _ReadyCallback | WorkflowTimer


class WorkflowLoop(asyncio.AbstractEventLoop):
    """Runs ready callbacks until none is left, in the thread of an outer loop."""

    runs_workflow_code = True
    """Read by ``holdfast.core.workflow_code``."""

    run: RunRecord | None = None
    """The run whose code runs on this loop, for reports of code that blocks the worker."""

    def __init__(self, host: TimerHost, seed: int = 0) -> None:
        self.host: TimerHost = host
        self.salt = (seed & 0xFFFFFFF) << 32
        """High bits of the hashes of tasks, different for each run, because libraries keep tasks of all runs in one
        dictionary. They are the same on each replay, and do not change the order of small sets, which follows the
        low bits."""
        order_cancel_scopes(_in_workflow)
        self._latest_fired = 0.0
        """The latest due time of the timers that have fired."""
        self._ready: list[_Ready] = []
        """A list, because a deque takes 700 bytes when it is empty, and a process has many runs."""
        self._number = 0
        self._timers = 0
        self._closed = False
        self._finalizer: Callable[[AsyncGenerator[Any, Any]], None] | None = self._finalize_generator
        """The bound method, because binding it for each entry takes noticeable time; None after the loop is closed."""
        self.tasks = RunningTasks()

    # --- driven by the machine

    def run_until_idle(self) -> None:
        """Run ready callbacks until there are none. The outer loop, if any, is restored afterwards."""
        outer = self._enter()
        try:
            budget = self._run_ready(MAX_CALLBACKS)
            while self._ready and budget:  # a callback raised
                budget = self._run_ready(budget)
        finally:
            _leave(outer)
        if not budget:
            raise WorkflowStuckError(
                f"workflow code ran {MAX_CALLBACKS:,} callbacks without waiting for anything durable; "
                "a loop in it never ends"
            )

    def _run_ready(self, budget: int) -> int:
        """Run callbacks until none is left, the budget is spent, or one raised. Returns the remaining budget."""
        handle: _Ready | None = None
        left: Iterator[_Ready] = iter(())
        try:
            while self._ready and budget:
                left, self._ready = iter(self._ready), []
                for handle in left:
                    if not handle._cancelled:
                        handle._context.run(handle._callback, *handle._args)
                    budget -= 1
                    if not budget:
                        self._ready[:0] = left
                        break
        except BaseException as error:
            self._ready[:0] = left
            if isinstance(error, (SystemExit, KeyboardInterrupt)):
                raise
            budget -= 1
            self.call_exception_handler({"message": f"error in callback {handle!r}", "exception": error})
        finally:
            del handle, left  # a traceback refers to this frame: the frame must not refer to the error's task
        return budget

    def run_inside(self, work: Callable[[], None]) -> None:
        """Call a function as workflow code is called, with this loop as the running loop."""
        outer = self._enter()
        try:
            work()
        finally:
            _leave(outer)

    def fire(self, timer: WorkflowTimer) -> None:
        """Put a timer that is due into the ready queue."""
        self._latest_fired = max(self._latest_fired, timer.when())
        self._ready.append(timer)

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def close_coroutines(self) -> None:
        """Close suspended coroutines with this loop as the running loop, so that their cleanup code cannot do I/O."""
        self._ready.clear()
        self._closed = True
        self._finalizer = None  # a reference cycle
        if not self.tasks.all_done():
            self.run_inside(self.tasks.close_coroutines)
        self.tasks.clear()

    def _enter(self) -> _Outer:
        """Become the running loop, with hooks for async generators in place of the outer loop's."""
        outer = current_loop(), sys.get_asyncgen_hooks()
        _set_running_loop(self)
        sys.set_asyncgen_hooks(None, self._finalizer or self._finalize_generator)
        return outer

    def _finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an async generator that was not exhausted. Its cleanup is workflow code, and runs as a task."""
        closing = _aclose(generator)
        if not self._closed:
            self.create_task(closing)
            return
        outer = self._enter()
        try:
            with suppress(BaseException):
                closing.send(None)
            close_quietly(closing)
        finally:
            _leave(outer)

    # --- methods that asyncio calls

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        handle = _ReadyCallback(callback, args, context or contextvars.copy_context())
        self._ready.append(handle)
        return handle  # type: ignore[return-value]  # callers only cancel it

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> events.TimerHandle:
        return self.call_at(self._time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> events.TimerHandle:
        timer = WorkflowTimer(when, callback, args, self, context)
        if when >= NEVER:
            return timer  # never fires; anyio.sleep_forever() uses infinity, other code sys.maxsize
        # Rounded up, so that a timer never fires early. The subtrahend absorbs rounding errors of float seconds.
        due_ms = -int(-(when * 1000 - 0.01) // 1)
        if due_ms <= self.host.now_ms:
            # The replayed time is the same on every replay, so this needs no fact.
            self.fire(timer)
        else:
            self._open(timer, due_ms)
        return timer

    def call_with_fact(self, due_ms: int, callback: Callable[..., object], *args: Any) -> None:
        """Like ``call_at``, but a timer that is due already gets a fact too, after the events that have arrived."""
        self._open(WorkflowTimer(due_ms / 1000, callback, args, self, None), due_ms)

    def _open(self, timer: WorkflowTimer, due_ms: int) -> None:
        self._timers += 1
        timer.number = self._timers
        self.host.open_timer(timer, due_ms)

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        if isinstance(handle, WorkflowTimer) and hasattr(handle, "number"):
            self.host.close_timer(handle)

    def time(self) -> float:
        refuse_worker_thread(sys._getframe(1))
        return self._time()

    def _time(self) -> float:
        # At least the due time of every fired timer: code that computed a deadline which lies ahead by a rounding
        # error would set its timer again.
        return max(self.host.now_ms / 1000, self._latest_fired)

    def get_task_factory(self) -> None:
        return None

    def get_exception_handler(self) -> None:
        return None

    def create_future(self) -> asyncio.Future[Any]:
        return WorkflowFuture(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Any,
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **_options: Any,
    ) -> asyncio.Task[T]:
        try:
            refuse_shared_cache(sys._getframe(1))
            _refuse_unordered(coro)
        except IOInWorkflowError:
            coro.close()
            raise
        task: WorkflowTask[T] = WorkflowTask(coro, loop=self, name="task", context=context)
        task.set_name(name if name is not None else f"task-{task.number}")
        # Removed from asyncio's set of all tasks, where the tasks of thousands of runs would have colliding hashes.
        asyncio.tasks._unregister_task(task)
        self.tasks.add(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.host.report(context)


def _leave(outer: _Outer) -> None:
    loop, hooks = outer
    _set_running_loop(loop)
    sys.set_asyncgen_hooks(*hooks)


async def _aclose(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(_self: WorkflowLoop, *_args: Any, **_kwargs: Any) -> Any:
        raise IOInWorkflowError(
            f"workflow code called the event loop's {name}(): workflow code is replayed, "
            "so it may not do I/O or use threads and processes. Put this call into a step: "
            "`await ctx.do(name, function, ...)` or a function decorated with `@app.step`."
        )

    refuse.__name__ = name
    return refuse


for _name in sorted(vars(asyncio.AbstractEventLoop)):
    if _name.startswith("_") or _name in vars(WorkflowLoop):
        continue
    setattr(WorkflowLoop, _name, _refusal(_name))
WorkflowLoop.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


def _in_workflow() -> bool:
    return running_loop() is not None


def running_loop() -> WorkflowLoop | None:
    """The workflow loop this code runs on, or None outside workflow code."""
    loop = current_loop()
    return loop if isinstance(loop, WorkflowLoop) else None


# --- asyncio.as_completed: the only helper of asyncio whose order depends on the addresses of coroutines

_as_completed = asyncio.as_completed


@functools.wraps(_as_completed)
def _ordered_as_completed(fs: Iterable[Any], *, timeout: float | None = None) -> Any:
    loop = running_loop()
    if loop is not None:
        fs = [asyncio.ensure_future(f, loop=loop) for f in fs]
    return _as_completed(fs, timeout=timeout)


def _refuse_unordered(_coro: Any) -> None:
    """Refuse the original as_completed, which code may have imported before this module replaced it."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(6):
        if frame is None:
            return
        if frame.f_code is _as_completed.__code__:
            raise IOInWorkflowError(
                "asyncio.as_completed over bare coroutines starts them in no fixed order; call it as "
                "`asyncio.as_completed(...)` after importing holdfast, or pass tasks"
            )
        if frame.f_code.co_filename != asyncio.tasks.__file__:
            return
        frame = frame.f_back


asyncio.as_completed = _ordered_as_completed
asyncio.tasks.as_completed = _ordered_as_completed
