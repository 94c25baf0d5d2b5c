"""Batching of store calls: calls that are made while others are under way share one transaction.

While a writer is free, a call is written at once. Calls that arrive while all writers are busy form the next batch. A
single caller therefore pays nothing, and a thousand callers share one fsync and one round trip. PostgreSQL moreover
lets only one transaction that notifies commit at a time, in the whole server.

SQLite's group commit (``sqlite/database.py``) is not built on this module: its queue is served by a thread and mixes
calls of all intents in one transaction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from holdfast.errors import StoreError

A = TypeVar("A")
R = TypeVar("R")

# A turn waits for such a future after each step: the loop's own method would be one more call.
_Future = asyncio.Future
_get_running_loop = asyncio.get_running_loop

_Call = tuple[list[A], asyncio.Future[list[R]]]
"""The items of a queued call, and the future of their results."""


class Batcher(Generic[A, R]):
    """Wraps a function that maps a list of items to the list of their results, and merges concurrent calls of it.

    ``max_items`` returns the largest size of the next batch. All calls of a batch return at its end, so large
    batches delay every call in them.

    ``writers``: the number of batches under way at the same time. With more than one, a call that waits for a lock does
    not delay the others.

    ``by_caller`` is asked before a call is written while a writer is free. True: the caller's own task writes, because
    starting another task and waking the caller would add noticeable time to the write. False: a new task writes in
    the next iteration of the event loop, together with the other calls of this iteration.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[A]], Awaitable[list[R]]],
        *,
        max_items: Callable[[], int],
        writers: int = 1,
        by_caller: Callable[[], bool] = lambda: True,
    ) -> None:
        """``name``: the name of the tasks that write batches."""
        self._name = name
        self._write = write
        self._max_items = max_items
        self._writers = writers
        self._by_caller = by_caller
        self._writing = 0
        """Number of busy writers: callers and tasks."""
        self._queue: deque[_Call[A, R]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._drain_waiters: list[asyncio.Future[None]] = []

    def __call__(self, items: list[A]) -> Awaitable[list[R]]:
        """Write the items; the results are available once the items are durable or refused."""
        by_caller = self._writing < self._writers and self._by_caller()
        return self._write_by_caller(items) if by_caller else self._enqueue(items)

    @property
    def busy(self) -> bool:
        return self._writing > 0

    async def drain(self) -> None:
        """Wait until all calls are done."""
        while self._writing:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drain_waiters.append(idle)
            await idle

    def abandon(self) -> None:
        """Stop writing; callers that wait get no result. For crash tests."""
        self._queue.clear()
        for task in self._tasks:
            task.cancel()

    async def _write_by_caller(self, items: list[A]) -> list[R]:
        self._writing += 1
        try:
            return await self._write(items)
        finally:
            if self._queue:
                self._start_task()
            else:
                self._done()

    def _enqueue(self, items: list[A]) -> asyncio.Future[list[R]]:
        future: asyncio.Future[list[R]] = _Future(loop=_get_running_loop())
        self._queue.append((items, future))
        if self._writing < self._writers:
            self._writing += 1
            self._start_task()
        return future

    def _start_task(self) -> None:
        task = asyncio.get_running_loop().create_task(self._write_queued(), name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_queued(self) -> None:
        try:
            while self._queue:
                await self._write_batch(self._next_batch())
                if self._queue:
                    await asyncio.sleep(0)  # the store may return without suspending: let the callers run
        finally:
            self._done()

    def _done(self) -> None:
        self._writing -= 1
        while self._drain_waiters and not self._writing:
            idle = self._drain_waiters.pop()
            if not idle.done():
                idle.set_result(None)

    def _next_batch(self) -> list[_Call[A, R]]:
        most = self._max_items()
        batch = [self._queue.popleft()]
        size = len(batch[0][0])
        while self._queue and size + len(self._queue[0][0]) <= most:
            size += len(self._queue[0][0])
            batch.append(self._queue.popleft())
        return batch

    async def _write_batch(self, calls: list[_Call[A, R]]) -> None:
        try:
            results = await self._write([item for items, _ in calls for item in items])
        except Exception as error:
            if len(calls) == 1 or isinstance(error, StoreError):
                _fail(calls, error)
            else:  # one by one, so that only the call that caused the error fails
                for call in calls:
                    await self._write_batch([call])
            return
        _set_results(calls, results)


def _set_results(calls: list[_Call[A, R]], results: list[R]) -> None:
    start = 0
    for items, future in calls:
        end = start + len(items)
        if not future.done():
            future.set_result(results[start:end])
        start = end


def _fail(calls: list[_Call[A, R]], error: Exception) -> None:
    for _, future in calls:
        if not future.done():
            future.set_exception(error)
