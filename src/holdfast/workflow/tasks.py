"""Tasks and futures of the workflow loop, and how the tasks of a run are closed when it is dropped from memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from holdfast.workflow.loop import WorkflowLoop

T = TypeVar("T")

_MAX_THROWS = 100
"""Maximum number of awaits in cleanup code while its run is being dropped."""


class WorkflowFuture(asyncio.Future[T]):
    """A future that hashes by creation number, so that a set of futures has the same order on every replay."""

    def __init__(self, *, loop: WorkflowLoop) -> None:
        super().__init__(loop=loop)
        self._hash = loop.next_number() + loop.salt

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other


class WorkflowTask(asyncio.Task[T]):
    """A task that hashes by creation number, so that a set of tasks has the same order on every replay."""

    # Set before Task.__init__ runs: it registers the task in a weak set, which hashes it.
    number: int
    _hash: int

    def __new__(cls, _coro: Any, *, loop: WorkflowLoop, **_options: Any) -> WorkflowTask[T]:
        task = super().__new__(cls)
        task.number = loop.next_number()
        task._hash = task.number + loop.salt
        return task

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other


class RunningTasks:
    """The tasks of one run by creation number, without most of those that are done."""

    __slots__ = ("_prune_at", "_tasks")

    def __init__(self) -> None:
        self._tasks: dict[int, WorkflowTask[Any]] = {}
        self._prune_at = 32

    def add(self, task: WorkflowTask[Any]) -> None:
        self._tasks[task.number] = task
        if len(self._tasks) > self._prune_at:
            self._tasks = {n: t for n, t in self._tasks.items() if not t.done()}
            self._prune_at = 32 + 2 * len(self._tasks)

    def __iter__(self) -> Iterator[WorkflowTask[Any]]:
        """The tasks that are not done, in the order of their creation."""
        return (task for _, task in sorted(self._tasks.items()) if not task.done())

    def report_unretrieved(self, report: Callable[[dict[str, Any]], None]) -> None:
        """Report task errors that no code retrieved, after the code has ended."""
        for _, task in sorted(self._tasks.items()):
            if task.done() and task._log_traceback:
                task._log_traceback = False
                report({"message": "Task exception was never retrieved", "exception": task.exception()})

    def all_done(self) -> bool:
        return all(task.done() for task in self._tasks.values())

    def close_coroutines(self) -> None:
        """End the tasks that are not done, and the tasks that their cleanup code creates, which never start."""
        last = -1
        while open_tasks := [task for task in self if task.number > last]:
            for task in open_tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                close_quietly(task.get_coro())
            last = open_tasks[-1].number

    def clear(self) -> None:
        """Break the reference cycles between tasks and futures, so that they are freed at once."""
        for task in self._tasks.values():
            _remove_callbacks(task)
            _remove_callbacks(task._fut_waiter)  # type: ignore[attr-defined]
        self._tasks.clear()


class RunDropped(BaseException):
    """Thrown into code that is dropped from memory, so that its cleanup code runs at once and on its loop.

    The run itself continues by a replay.
    """


def close_quietly(coro: Any) -> None:
    """End a coroutine now, even if its cleanup code awaits.

    ``close`` does not suffice: if nested coroutines await in their cleanup, it leaves the inner ones to the garbage
    collector.
    """
    for _ in range(_MAX_THROWS):  # each await of cleanup code needs another throw
        try:
            coro.throw(RunDropped())
        except BaseException:
            return  # the coroutine has ended


def _remove_callbacks(future: Any) -> None:
    if future is not None:
        for callback, _ in future._callbacks or ():
            future.remove_done_callback(callback)
