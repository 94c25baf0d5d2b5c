"""Group advance: units that are ready at the same time share one transaction, as turns do with the committer.

What becomes due by it is partly taken at once, as far as the worker has room: the next node of a graph needs no look
for work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from holdfast.ports import Randomness
from holdfast.runner.patience import patiently
from holdfast.store.protocol import Advance, Claimant, Store, TaskRef

_LARGEST_BATCH = 256


class Advancer:
    """Hands advances to the store in batches."""

    def __init__(
        self,
        store: Store,
        random: Randomness,
        claimant: Claimant,
        reserve: Callable[[int], int],
        applied: Callable[[Advance], None],
        taken: Callable[[int, Sequence[TaskRef], bool], None],
    ) -> None:
        self._store = store
        self._random = random
        self._claimant = claimant
        self._reserve = reserve
        """Keeps places free for what is taken; answers how many of those asked for."""
        self._applied = applied
        """This was written."""
        self._taken = taken
        """So many places were kept, these units have come, and whether there are more."""
        self._queue: deque[tuple[Advance, asyncio.Future[bool]]] = deque()
        self._writer: asyncio.Task[None] | None = None

    async def advance(self, advance: Advance) -> bool:
        """Write it; returns once it is durable, or (False) refused because the unit is not held any more."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.append((advance, done))
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="holdfast-advancer")
        return await done

    def abandon(self) -> None:
        """Stop writing, whoever waits for it. For crash tests."""
        self._queue.clear()
        if self._writer is not None:
            self._writer.cancel()

    async def _write(self) -> None:
        try:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), _LARGEST_BATCH))]
                await self._write_batch(batch)
                await asyncio.sleep(0)  # let those who are done go on: their next may come along
        finally:
            self._writer = None

    async def _write_batch(self, batch: list[tuple[Advance, asyncio.Future[bool]]]) -> None:
        advances = [advance for advance, _ in batch]
        room = self._reserve(sum(len(one.opens) + len(one.adds) for one in advances))
        try:
            advanced = await patiently(
                lambda: self._store.advance(advances, self._claimant, room), "advance", self._random
            )
        except BaseException as error:
            self._taken(room, (), False)
            if not isinstance(error, Exception):
                raise
            await self._write_singly(batch, error)
            return
        for (advance, done), applied in zip(batch, advanced.applied, strict=True):
            if applied:
                self._applied(advance)
            if not done.done():
                done.set_result(applied)
        self._taken(room, advanced.taken, advanced.due)

    async def _write_singly(self, batch: list[tuple[Advance, asyncio.Future[bool]]], error: Exception) -> None:
        """One of them is at fault: only that one fails."""
        if len(batch) == 1:
            if not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        for item in batch:
            await self._write_batch([item])
