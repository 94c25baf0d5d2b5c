"""Eager start of coroutines: a coroutine runs at once until it first suspends, and needs a task only after that.

Most steps end without suspending, and a task for each of them would cost more than the step. Python 3.12 has eager
tasks (``eager_start``), which this module uses. In Python 3.11 the first part runs with an ``_EagerTask`` as
the current task. This task is not initialized until the coroutine suspends, or until code uses the task in a way that
requires it.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import tasks
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any

_Coro = Coroutine[Any, Any, Any]


def _start_eager_task(
    coro: _Coro, context: Context, loop: asyncio.AbstractEventLoop
) -> asyncio.Task[Any] | None:  # pragma: no cover  (Python 3.12)
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context, eager_start=True)  # type: ignore[call-arg]
    return None if task.done() and not task.cancelled() and task.exception() is None else task


def _start_in_placeholder(coro: _Coro, context: Context, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
    task = _EagerTask.__new__(_EagerTask)
    task.arguments = coro, context, loop
    task.started = None
    current = tasks._current_tasks  # type: ignore[attr-defined]  # noqa: SLF001  (as asyncio itself does)
    outer = current.get(loop)
    current[loop] = task
    try:
        awaited = context.run(coro.send, None)
    except StopIteration as stop:
        if task.started is not None:
            task.started.end(stop)
        return None
    except BaseException as error:  # the task raises it
        task.initialize().end(error)
        return task
    finally:
        if outer is None:
            del current[loop]
        else:
            current[loop] = outer
    task.initialize().awaited = awaited
    return task


class _Started(_Coro):
    """A coroutine whose first part ran outside of its task: the first ``send`` returns what the coroutine awaits."""

    __slots__ = ("_coro", "_end", "_resumed", "awaited")

    def __init__(self, coro: _Coro) -> None:
        self.awaited: Any = None
        """The object that the first part awaits; None: only the next iteration of the loop."""
        self._coro: Any = coro  # coroutines have attributes that ``Coroutine`` lacks
        self._end: BaseException | None = None
        """The error or ``StopIteration`` with which the first part ended the coroutine."""
        self._resumed = False

    def end(self, end: BaseException) -> None:
        self._end = end

    def send(self, value: Any) -> Any:
        if self._resumed or (self._end is None and self.awaited is None):
            self._resumed = True
            return self._coro.send(value)
        self._resumed = True
        if self._end is not None:
            raise self._end
        return self.awaited

    def throw(self, error: Any, *rest: Any) -> Any:
        first, self._resumed = not self._resumed, True
        if first and self._end is not None:
            raise self._end
        if first and self.awaited is not None and isinstance(error, asyncio.CancelledError) and self.awaited.cancel():
            return self.awaited  # as in any task: the awaited future is cancelled, which resumes the coroutine
        return self._coro.throw(error, *rest)

    def close(self) -> None:
        self._resumed = True
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        waiting: Generator[Any, Any, Any] = self._coro.__await__()
        return waiting

    # --- as coroutines have them, for stacks of suspended tasks

    @property
    def cr_frame(self) -> Any:
        return self._coro.cr_frame

    @property
    def cr_await(self) -> Any:
        return self._coro.cr_await

    @property
    def cr_running(self) -> bool:
        return bool(self._coro.cr_running)

    @property
    def cr_code(self) -> Any:
        return self._coro.cr_code


class _EagerTask(asyncio.Task[Any]):
    """The current task during the first part of a coroutine; initialized late, see the module docstring."""

    __slots__ = ("arguments", "started")
    arguments: tuple[_Coro, Context, asyncio.AbstractEventLoop]
    started: _Started | None

    def initialize(self) -> _Started:
        if self.started is None:
            coro, context, loop = self.arguments
            self.started = _Started(coro)
            super().__init__(self.started, loop=loop, context=context)
        return self.started


def _initializing(name: str) -> Callable[..., Any]:
    """A method of ``_EagerTask`` that initializes the task before it does what a task's method does."""
    method = getattr(asyncio.Task, name)

    def initialize_first(self: _EagerTask, *args: Any, **options: Any) -> Any:
        self.initialize()
        return method(self, *args, **options)

    return initialize_first


for _name in (
    "add_done_callback",
    "cancel",
    "exception",
    "get_coro",
    "get_loop",
    "get_name",
    "get_stack",
    "print_stack",
    "remove_done_callback",
    "result",
    "set_name",
    "__await__",
    "__iter__",
    "__repr__",
):
    setattr(_EagerTask, _name, _initializing(_name))


start: Callable[[_Coro, Context, asyncio.AbstractEventLoop], asyncio.Task[Any] | None]
"""Run a coroutine until it first suspends. Returns its task; None if the coroutine has ended without an error."""
start = _start_eager_task if sys.version_info >= (3, 12) else _start_in_placeholder
