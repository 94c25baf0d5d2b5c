"""Group commit: turns of many runs that are ready at the same time share one transaction.

While one batch is being written the next one gathers, so a lone turn never waits and a thousand cost one fsync.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from holdfast.ports import Randomness
from holdfast.runner.patience import patiently
from holdfast.store.protocol import Commit, Committed, Store

# Batches that grow without bound get slower (and make everyone in them wait for the last).
_LARGEST_BATCH = 256
# While somebody else uses the event loop too: between two batches it is theirs.
_SMALL_BATCH = 4


class Committer:
    """Hands commits to the store in batches."""

    def __init__(self, store: Store, random: Randomness, in_company: Callable[[], bool]) -> None:
        self._store = store
        self._random = random
        self._in_company = in_company
        self._queue: deque[tuple[Commit, asyncio.Future[Committed]]] = deque()
        self._writer: asyncio.Task[None] | None = None

    async def commit(self, commit: Commit) -> Committed:
        """Write one turn; returns once it is durable or refused."""
        done: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        self._queue.append((commit, done))
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="holdfast-committer")
        return await done

    def abandon(self) -> None:
        """Stop writing, whoever waits for it. For crash tests."""
        self._queue.clear()
        if self._writer is not None:
            self._writer.cancel()

    async def _write(self) -> None:
        try:
            while self._queue:
                most = _SMALL_BATCH if self._in_company() else _LARGEST_BATCH
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), most))]
                await self._write_batch(batch)
                if self._queue:
                    await asyncio.sleep(0)  # the store may have answered at once: let those who are done go on
        finally:
            self._writer = None

    async def _write_batch(self, batch: list[tuple[Commit, asyncio.Future[Committed]]]) -> None:
        try:
            commits = [commit for commit, _ in batch]
            results = await patiently(lambda: self._store.commit(commits), "commit", self._random)
        except Exception as error:
            await self._write_singly(batch, error)
            return
        for (_, done), result in zip(batch, results, strict=True):
            if not done.done():
                done.set_result(result)

    async def _write_singly(self, batch: list[tuple[Commit, asyncio.Future[Committed]]], error: Exception) -> None:
        if len(batch) == 1:
            if not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        for item in batch:
            await self._write_batch([item])
