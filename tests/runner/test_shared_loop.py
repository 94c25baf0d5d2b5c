"""A worker that shares its event loop with requests writes small batches, and large ones when no requests come."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from holdfast.kernel.notify import Hub
from holdfast.ports import SystemRandomness
from holdfast.runner.committer import Committer
from holdfast.store.protocol import Commit, Committed, Store, TaskRef, Verdict

pytestmark = pytest.mark.kind_settings("counts the commits of each batch")


class CountingStore:
    def __init__(self) -> None:
        self.batches: list[int] = []

    async def commit(self, commits: list[Commit]) -> list[Committed]:
        self.batches.append(len(commits))
        return [Committed(Verdict.APPLIED) for _ in commits]


async def batch_sizes(store: CountingStore, hub: Hub, turns: int) -> list[int]:
    """Return the batch sizes in which the commits of simultaneous turns are written."""
    store.batches = []
    committer = Committer(cast("Store", cast("Any", store)), SystemRandomness(), hub.sharing_loop, lambda: False)
    await asyncio.gather(*(committer.commit([Commit(TaskRef(n, 0, "w", 1))]) for n in range(turns)))
    return store.batches


async def test_a_worker_alone_on_its_loop_writes_large_batches() -> None:
    assert await batch_sizes(CountingStore(), Hub(), 100) == [100]


async def test_a_worker_that_shares_its_loop_writes_small_batches_for_a_while() -> None:
    store, hub = CountingStore(), Hub()
    hub.request_served()
    assert max(await batch_sizes(store, hub, 100)) == 4
    while hub.sharing_loop():
        pass
    assert await batch_sizes(store, hub, 100) == [100]
