"""Batching of writes: items of many turns that are ready at the same time share one transaction.

While one batch is being written, the next one collects items. A single turn therefore never waits for others, and a
thousand turns cost one fsync. If there is only one turn, its own task calls the write function: starting a writer task
and waking the caller would take longer than parts of the call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")

# A batch is answered as a whole, so large batches delay every item in them.
_MAX_BATCH = 256
# While requests are served on the same event loop: they run between two batches.
_SMALL_BATCH = 4


class GroupWriter(Generic[A, R]):
    """Collects items and passes them in batches to a function that returns one answer per item."""

    def __init__(
        self,
        name: str,
        write: Callable[[list[A]], Awaitable[Sequence[R]]],
        sharing_loop: Callable[[], bool],
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """``sharing_loop`` tells whether the event loop also serves requests, ``is_alone`` whether one turn exists."""
        self._name = name
        self._write = write
        self._sharing_loop = sharing_loop
        self._is_alone = is_alone
        self._by_caller = False
        self._queue: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._writer: asyncio.Task[None] | None = None

    def put(self, item: A) -> Awaitable[R]:
        """Write an item; the answer is available once the item is durable or refused."""
        alone = not self.busy and self._is_alone()
        return self._write_by_caller(item) if alone else self._write_with_others(item)

    async def _write_with_others(self, item: A) -> R:
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.append((item, done))
        if not self.busy:
            self._start()
        return await done

    @property
    def busy(self) -> bool:
        return self._by_caller or self._writer is not None

    def abandon(self) -> None:
        """Stop writing; callers that wait are not answered. For crash tests."""
        self._queue.clear()
        if self._writer is not None:
            self._writer.cancel()

    async def _write_by_caller(self, item: A) -> R:
        self._by_caller = True
        try:
            [answer] = await self._write([item])
        finally:
            self._by_caller = False
            if self._queue:
                self._start()
        return answer

    def _start(self) -> None:
        self._writer = asyncio.get_running_loop().create_task(self._write_all(), name=self._name)

    async def _write_all(self) -> None:
        try:
            while self._queue:
                most = _SMALL_BATCH if self._sharing_loop() else _MAX_BATCH
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), most))]
                await self._write_batch(batch)
                if self._queue:
                    await asyncio.sleep(0)  # the store may answer without suspending: let finished callers run
        finally:
            self._writer = None

    async def _write_batch(self, batch: list[tuple[A, asyncio.Future[R]]]) -> None:
        try:
            answers = await self._write([item for item, _ in batch])
        except Exception as error:
            await self._write_singly(batch, error)
            return
        for (_, done), answer in zip(batch, answers, strict=True):
            if not done.done():
                done.set_result(answer)

    async def _write_singly(self, batch: list[tuple[A, asyncio.Future[R]]], error: Exception) -> None:
        """Write the items of a failed batch one by one, so that only the faulty item fails."""
        if len(batch) == 1:
            if not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        for item in batch:
            await self._write_batch([item])
