"""What the engine knows of other asyncio libraries that run in workflow code.

Nearly all of them need nothing: they ask the loop for tasks, futures and timers, which are durable here, or for I/O,
which is refused. This module has the exceptions. anyio keeps nested cancel scopes in a set ordered by address, cancels
again until a scope is left, and starts threads without asking the loop; async_lru shares results between runs.
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
    """Let the cancel scopes of anyio that workflow code makes cancel nested scopes in one order on each replay."""
    global _ordered  # noqa: PLW0603  (once per process)
    if _ordered or "anyio" not in sys.modules:
        return
    _ordered = True
    from anyio._backends._asyncio import CancelScope  # noqa: PLC0415  (only where it is used)

    make: Any = CancelScope.__init__

    def make_ordered(scope: Any, *args: Any, **kwargs: Any) -> None:
        make(scope, *args, **kwargs)
        if in_workflow() and hasattr(scope, "_child_scopes"):
            scope._child_scopes = _OrderedSet()  # noqa: SLF001

    CancelScope.__init__ = make_ordered  # type: ignore[assignment, method-assign]


def shielded() -> AbstractContextManager[object]:
    """A block that the cancel scopes of anyio around it leave alone.

    A cancelled scope cancels its task in every turn of the loop until the task has left the scope. A task that goes on
    waiting all the same would keep the workflow loop from ever coming to rest. Cancellations of asyncio are not
    affected, and without anyio nothing happens.
    """
    anyio = sys.modules.get("anyio")
    scope: AbstractContextManager[object] = nullcontext() if anyio is None else anyio.CancelScope(shield=True)
    return scope


def refuse_worker_thread(asking: FrameType) -> None:
    """Refuse a thread of anyio. It notes the time of the loop before it starts; ``asking`` is who asks for the time."""
    if asking.f_code.co_name != "current_time" or asking.f_back is None:
        return
    if asking.f_back.f_code.co_qualname == "WorkerThread.__init__":
        raise IOInWorkflowError(
            "workflow code called a function in a worker thread of anyio (anyio.to_thread, or a file of anyio): "
            "workflow code is replayed, so it may not use threads. Put this call into a step: "
            "`await ctx.do(name, function, ...)` or a function decorated with `@app.step`."
        )


def refuse_shared_cache(asking: FrameType) -> None:
    """Refuse a task of async_lru; ``asking`` is who makes the task."""
    if asking.f_globals.get("__name__") == "async_lru":
        raise IOInWorkflowError(
            "workflow code called a function cached by async_lru: runs of this process share the cache, so a replay "
            "would find other results in it. Cache the function that a step calls, or keep the results in a variable "
            "of the workflow."
        )
