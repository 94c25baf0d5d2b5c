"""The event loop that workflow code runs on: deterministic, nested, without I/O.

It has a queue of ready callbacks and hands every timer to its machine, which makes it durable. Nothing else
can make progress here, so the same history always runs the same code in the same order. Whatever would reach outside
(sockets, threads, processes, signals) raises an error that names the call and says what to do instead.

Sets of tasks and futures hash by creation number, so ``asyncio.wait``, ``TaskGroup`` and friends iterate alike on
every replay. ``asyncio.as_completed`` puts bare coroutines into a set of its own; the wrapper at the end of this
module turns them into tasks first, in the order given.

Libraries for asyncio run here as well, if all that they ask of the loop is tasks, futures and timers. The few that
need more are in ``holdfast.workflow.libraries``.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, Protocol, TypeAlias, TypeVar

from holdfast.errors import IOInWorkflowError, WorkflowStuckError
from holdfast.workflow.libraries import order_cancel_scopes, refuse_shared_cache, refuse_worker_thread

T = TypeVar("T")
_Outer: TypeAlias = tuple[asyncio.AbstractEventLoop | None, Any]
"""The running loop and the hooks for async generators, as they were outside."""

MAX_CALLBACKS = 2_000_000
"""How many callbacks may run without a rest before the code is taken to spin forever."""


_MOST_THROWS = 100
"""How many times cleanup code may await while its run is being dropped."""


class TimerHost(Protocol):
    """What the loop needs of its machine: the replayed time, and someone who keeps its timers."""

    @property
    def now_ms(self) -> int: ...

    def open_timer(self, handle: WorkflowTimer, due_ms: int) -> None: ...

    def close_timer(self, handle: WorkflowTimer) -> None: ...

    def report(self, context: dict[str, Any]) -> None: ...


class Nobody:
    """The host of a loop whose machine is gone: what is destroyed late is nobody's concern."""

    now_ms = 0

    def open_timer(self, handle: WorkflowTimer, due_ms: int) -> None: ...

    def close_timer(self, handle: WorkflowTimer) -> None: ...

    def report(self, context: dict[str, Any]) -> None: ...


class _Ready:
    """A callback whose turn has come: what ``asyncio.Handle`` is, without what only debugging needs."""

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
    """A durable timer. ``number`` is its place in the order of creation: its identity on replay."""

    __slots__ = ("number",)
    number: int
    _callback: Callable[..., object]
    _context: contextvars.Context


class WorkflowFuture(asyncio.Future[T]):
    """A future that hashes by creation number: sets of them have one order."""

    def __init__(self, *, loop: WorkflowLoop) -> None:
        super().__init__(loop=loop)
        self._hash = loop.next_number() + loop.salt

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other


class WorkflowTask(asyncio.Task[T]):
    """A task that hashes by creation number: sets of them have one order."""

    # Set before Task.__init__ runs: it registers the task in a weak set, which hashes it.
    _number: int
    _hash: int

    def __new__(cls, _coro: Any, *, loop: WorkflowLoop, **_options: Any) -> WorkflowTask[T]:
        task = super().__new__(cls)
        task._number = loop.next_number()
        task._hash = task._number + loop.salt
        return task

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other


class WorkflowLoop(asyncio.AbstractEventLoop):
    """Runs callbacks to rest inside the thread of an outer loop."""

    def __init__(self, host: TimerHost, seed: int = 0) -> None:
        self.host: TimerHost = host
        self.salt = (seed & 0xFFFFFFF) << 32
        """Part of the hashes of tasks: libraries keep tasks of all runs in one dictionary. Equal on each replay, and
        without effect on the order of small sets, which goes by the low bits."""
        order_cancel_scopes(_in_workflow)
        self._fired = 0.0
        """The latest time that a timer which has fired was set for."""
        self._ready: deque[_Ready | WorkflowTimer] = deque()
        self._number = 0
        self._timers = 0
        self._closed = False
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._prune_at = 32

    # --- driven by the machine

    def run_to_rest(self) -> None:
        """Run ready callbacks until there are none. The outer loop, if any, is restored afterwards."""
        outer = self._enter()
        try:
            budget = MAX_CALLBACKS
            while self._ready and budget:
                budget = self._run_ready(budget)
        finally:
            _leave(outer)

        if not budget:
            raise WorkflowStuckError(
                f"workflow code ran {MAX_CALLBACKS:,} callbacks without waiting for anything durable; "
                "a loop in it never ends"
            )

    def _run_ready(self, budget: int) -> int:
        """Run callbacks until there are none, the budget is spent, or one raised; the budget that is left."""
        ready = self._ready
        handle = None
        try:
            while ready and budget:
                budget -= 1
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"error in callback {handle!r}", "exception": error})
        finally:
            handle = None  # a traceback leads here, and must not lead back to the task and its error
        return budget

    def run_inside(self, work: Callable[[], None]) -> None:
        """Call a function as workflow code is called, with this loop as the running one."""
        outer = self._enter()
        try:
            work()
        finally:
            _leave(outer)

    def fire(self, timer: WorkflowTimer) -> None:
        """A timer's time has come."""
        self._fired = max(self._fired, timer.when())
        self._ready.append(timer)

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def report_unseen(self) -> None:
        """Tell the host of errors that nobody awaited: the code has ended, and nobody will."""
        for _, task in sorted(self._tasks.items()):
            if task.done() and task._log_traceback:
                task._log_traceback = False
                self.host.report({"message": "Task exception was never retrieved", "exception": task.exception()})

    def close_coroutines(self) -> None:
        """Close what is suspended, as from inside this loop: cleanup code in it cannot reach the outside."""
        self._ready.clear()
        self._closed = True
        outer = self._enter()
        try:
            for _, task in sorted(self._tasks.items()):
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close_quietly(task.get_coro())
        finally:
            _leave(outer)
        # Or these would keep each other until the next garbage collection.
        for task in self._tasks.values():
            _wake_nobody(task)
            _wake_nobody(task._fut_waiter)  # type: ignore[attr-defined]
        self._tasks.clear()

    def _enter(self) -> _Outer:
        """Be the running loop, also for async generators: their hooks would otherwise be those of the outer loop."""
        outer = events._get_running_loop(), sys.get_asyncgen_hooks()
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._clean_up)
        return outer

    def _clean_up(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An async generator was left behind in the middle. Its cleanup is workflow code like any other."""
        closing = _closed(generator)
        if not self._closed:
            self.create_task(closing)
            return
        outer = self._enter()
        try:
            with suppress(BaseException):
                closing.send(None)
            _close_quietly(closing)
        finally:
            _leave(outer)

    # --- what asyncio needs

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        handle = _Ready(callback, args, context or contextvars.copy_context())
        self._ready.append(handle)
        return handle  # type: ignore[return-value]  # all that anybody does with it is to cancel it

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
        if when == math.inf:
            return timer  # it never fires: sleep_forever() of anyio
        # Rounded up: a timer never fires early. The subtrahend absorbs the noise of float seconds.
        due_ms = -int(-(when * 1000 - 0.01) // 1)
        if due_ms <= self.host.now_ms:
            # The replayed time is the same each time, so this needs no fact.
            self.fire(timer)
        else:
            self._open(timer, due_ms)
        return timer

    def call_with_fact(self, due_ms: int, callback: Callable[..., object], *args: Any) -> None:
        """As ``call_at``, but also what is due already is a fact: mail that is there comes before it."""
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
        # Not before what has fired: code that finds its deadline ahead by a rounding error would set the timer again.
        return max(self.host.now_ms / 1000, self._fired)

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
        number = task._number
        task.set_name(name if name is not None else f"task-{number}")
        # Out of asyncio's set of all tasks: there, thousands of runs would have tasks with the same small hashes.
        asyncio.tasks._unregister_task(task)
        self._tasks[number] = task
        if len(self._tasks) > self._prune_at:
            self._tasks = {n: t for n, t in self._tasks.items() if not t.done()}
            self._prune_at = 32 + 2 * len(self._tasks)
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
    events._set_running_loop(loop)
    sys.set_asyncgen_hooks(*hooks)


async def _closed(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


class RunDropped(BaseException):
    """Thrown into code that is dropped from memory, so that its cleanup runs now and in here.

    The run itself goes on, replayed.
    """


def _close_quietly(coro: Any) -> None:
    """End a coroutine here and now, however often its cleanup awaits.

    ``close`` would not do: of nested coroutines that await in their cleanup it leaves the inner ones to the garbage
    collector.
    """
    for _ in range(_MOST_THROWS):  # cleanup code may await
        try:
            coro.throw(RunDropped())
        except BaseException:
            return  # it has ended, one way or another


def _wake_nobody(future: Any) -> None:
    """What waits for it is gone."""
    if future is not None:
        for callback, _ in future._callbacks or ():
            future.remove_done_callback(callback)


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


current_loop = events._get_running_loop
"""The event loop that runs in this thread, of whatever kind; None without one."""


def _in_workflow() -> bool:
    return running_loop() is not None


def running_loop() -> WorkflowLoop | None:
    """The workflow loop this code runs on, or None outside workflow code."""
    loop = events._get_running_loop()
    return loop if isinstance(loop, WorkflowLoop) else None


# --- asyncio.as_completed: the one helper whose order depends on the addresses of coroutines

_as_completed = asyncio.as_completed


@functools.wraps(_as_completed)
def _ordered_as_completed(fs: Iterable[Any], *, timeout: float | None = None) -> Any:
    loop = running_loop()
    if loop is not None:
        fs = [asyncio.ensure_future(f, loop=loop) for f in fs]
    return _as_completed(fs, timeout=timeout)


def _refuse_unordered(_coro: Any) -> None:
    """Someone holds the original as_completed (``from asyncio import as_completed`` before this module was loaded)."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(6):
        if frame is None:
            return
        if frame.f_code is _as_completed.__code__:
            raise IOInWorkflowError(
                "asyncio.as_completed over bare coroutines starts them in no fixed order; call it as "
                "`asyncio.as_completed(...)` after importing holdfast, or give it tasks"
            )
        if frame.f_code.co_filename != asyncio.tasks.__file__:
            return
        frame = frame.f_back


asyncio.as_completed = _ordered_as_completed
asyncio.tasks.as_completed = _ordered_as_completed
