"""Adaptations to asyncio libraries that run in workflow code.

Most libraries need none: they use the loop's tasks, futures and timers, which are durable in workflow code, or its
I/O, which is refused. The exceptions are in this module. anyio keeps nested cancel scopes in a set ordered by address,
cancels repeatedly until a scope is left, and starts threads without calling the loop; async_lru shares results between
runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, MutableSet
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, TypeVar

from holdfast.errors import IOInWorkflowError

T = TypeVar("T")

_ordered = False


class _OrderedSet(MutableSet[T]):
    """A set that iterates in the order of insertion."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: T) -> None:
        self._items[value] = None

    def discard(self, value: T) -> None:
        self._items.pop(value, None)


def order_cancel_scopes(in_workflow: Callable[[], bool]) -> None:
    """Make anyio's cancel scopes in workflow code cancel nested scopes in the same order on each replay."""
    global _ordered  # noqa: PLW0603  (once per process)
    if _ordered or "anyio" not in sys.modules:
        return
    _ordered = True
    from anyio._backends._asyncio import CancelScope  # noqa: PLC0415  (anyio is optional)

    make: Any = CancelScope.__init__

    def make_ordered(scope: Any, *args: Any, **kwargs: Any) -> None:
        make(scope, *args, **kwargs)
        if in_workflow() and hasattr(scope, "_child_scopes"):
            scope._child_scopes = _OrderedSet()  # noqa: SLF001

    CancelScope.__init__ = make_ordered  # type: ignore[assignment, method-assign]


def shielded() -> AbstractContextManager[object]:
    """Shield a block from the enclosing cancel scopes of anyio.

    A cancelled scope cancels its task in every iteration of the loop until the task has left the scope. A task that
    continues to wait would keep the workflow loop from ever becoming idle. Cancellations of asyncio are not affected;
    without anyio this has no effect.
    """
    anyio = sys.modules.get("anyio")
    scope: AbstractContextManager[object] = nullcontext() if anyio is None else anyio.CancelScope(shield=True)
    return scope


def refuse_worker_thread(caller: FrameType) -> None:
    """Refuse a worker thread of anyio, which reads the loop's time before it starts.

    ``caller`` is the frame that reads the time.
    """
    if caller.f_code.co_name != "current_time" or caller.f_back is None:
        return
    if caller.f_back.f_code.co_qualname == "WorkerThread.__init__":
        raise IOInWorkflowError(
            "workflow code called a function in a worker thread of anyio (anyio.to_thread, or a file of anyio): "
            "workflow code is replayed, so it may not use threads. Put this call into a step: "
            "`await ctx.do(name, function, ...)` or a function decorated with `@app.step`."
        )


def refuse_shared_cache(caller: FrameType) -> None:
    """Refuse a task of async_lru. ``caller`` is the frame that creates the task."""
    if caller.f_globals.get("__name__") == "async_lru":
        raise IOInWorkflowError(
            "workflow code called a function cached by async_lru: runs of this process share the cache, so a replay "
            "would find other results in it. Cache the function that a step calls, or keep the results in a variable "
            "of the workflow."
        )
