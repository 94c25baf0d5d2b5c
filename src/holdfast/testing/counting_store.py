"""The store of a harness: it counts commits, and can disconnect the worker after one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.store.protocol import Advance, Advanced, Claimant, Commit, Committed, Store, TaskRef

T = TypeVar("T")


class CountingStore:
    """A store that counts commits, and can disconnect the worker after one: the worker receives no reply to it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.commits = 0
        self.drop_after: int | None = None
        self.dropped = False
        self.disconnected = asyncio.Event()
        """Set when the worker is disconnected."""

    def reconnect(self) -> None:
        """End the disconnection, so that another worker can use the store."""
        self.dropped = False
        self.disconnected.clear()
        self.drop_after = None

    async def unless_disconnected(self, call: Coroutine[Any, Any, T]) -> T | None:
        """Await a call of the worker. A disconnected call never returns: it is cancelled, and the result is None."""
        calling = asyncio.ensure_future(call)
        disconnection = asyncio.ensure_future(self.disconnected.wait())
        await asyncio.wait((calling, disconnection), return_when=asyncio.FIRST_COMPLETED)
        disconnection.cancel()
        if calling.done():
            return calling.result()
        calling.cancel()
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        done = []
        for commit in commits:  # one at a time: the worker may be disconnected after each
            if not self.dropped:
                done.extend(await self._store.commit([commit]))
            await self._count()
        return done

    async def advance(self, advances: Sequence[Advance], claimant: Claimant, claim_limit: int) -> Advanced:
        applied: list[bool] = []
        claimed: list[TaskRef] = []
        due = False
        for advance in advances:
            if not self.dropped:
                advanced = await self._store.advance([advance], claimant, claim_limit - len(claimed))
                applied += advanced.applied
                claimed += advanced.claimed
                due |= advanced.due
            await self._count()
        return Advanced(applied, claimed, due)

    async def _count(self) -> None:
        if not self.dropped:
            self.commits += 1
            self.dropped = self.commits == self.drop_after
        if self.dropped:
            self.disconnected.set()
            await asyncio.get_running_loop().create_future()
