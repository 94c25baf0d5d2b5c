"""Merges concurrent calls into batches: one round trip, one transaction, one notification.

Batches matter because PostgreSQL lets only one transaction that notifies commit at a time, in the whole server. No call
waits for others: a call is made at once while a writer is free, and calls that arrive meanwhile form the next batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from holdfast.errors import StoreError

A = TypeVar("A")
R = TypeVar("R")

_WRITERS = 4
"""More than one, so that a call which waits for a lock does not delay the others."""
_MAX_ITEMS = 500


class _QueuedCall(NamedTuple, Generic[A, R]):
    items: Sequence[A]
    future: asyncio.Future[list[R]]


class CallBatcher(Generic[A, R]):
    """Wraps a function from a list to a list, and merges concurrent calls of it."""

    def __init__(self, write: Callable[[list[A]], Awaitable[list[R]]]) -> None:
        self._write = write
        self._queue: deque[_QueuedCall[A, R]] = deque()
        self._writing = 0
        self._tasks: set[asyncio.Task[None]] = set()
        """References that keep the tasks from being garbage collected."""
        self._drain_waiters: list[asyncio.Future[None]] = []

    def __call__(self, items: Sequence[A]) -> Awaitable[list[R]]:
        return self._write_now(list(items)) if self._writing < _WRITERS else self._enqueue(items)

    async def _enqueue(self, items: Sequence[A]) -> list[R]:
        future: asyncio.Future[list[R]] = asyncio.get_running_loop().create_future()
        self._queue.append(_QueuedCall(items, future))
        return await future

    async def drain(self) -> None:
        """Wait until all calls are done."""
        while self._writing:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drain_waiters.append(idle)
            await idle

    async def _write_now(self, items: list[A]) -> list[R]:
        """Write in the caller's task: starting another task would take longer than making the call."""
        self._writing += 1
        try:
            return await self._write(items)
        finally:
            if self._queue:
                task = asyncio.get_running_loop().create_task(self._write_queued())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._done()

    async def _write_queued(self) -> None:
        while self._queue:
            await self._write_batch(self._next_batch())
        self._done()

    def _done(self) -> None:
        self._writing -= 1
        while self._drain_waiters and not self._writing:
            idle = self._drain_waiters.pop()
            if not idle.done():
                idle.set_result(None)

    def _next_batch(self) -> list[_QueuedCall[A, R]]:
        batch = [self._queue.popleft()]
        size = len(batch[0].items)
        while self._queue and size + len(self._queue[0].items) <= _MAX_ITEMS:
            size += len(self._queue[0].items)
            batch.append(self._queue.popleft())
        return batch

    async def _write_batch(self, calls: list[_QueuedCall[A, R]]) -> None:
        try:
            results_of_all = iter(await self._write([item for call in calls for item in call.items]))
        except Exception as error:
            if len(calls) == 1 or isinstance(error, StoreError):
                _fail(calls, error)
            else:  # one by one, so that only the call that caused the error fails
                for call in calls:
                    await self._write_batch([call])
            return
        for call in calls:
            results = [next(results_of_all) for _ in call.items]
            if not call.future.done():
                call.future.set_result(results)


def _fail(calls: list[_QueuedCall[A, R]], error: Exception) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(error)
