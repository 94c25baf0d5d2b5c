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
    def __init__(self, writers: int = 1) -> None:
        self.writers = writers
        self.batches: list[int] = []
        self.under_way = 0
        self.most_under_way = 0

    async def commit(self, commits: list[Commit]) -> list[Committed]:
        self.batches.append(len(commits))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
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


async def test_a_store_with_two_writers_gets_two_batches_at_the_same_time() -> None:
    one, two = CountingStore(), CountingStore(writers=2)

    assert await batch_sizes(one, Hub(), 300) == [256, 44]
    assert await batch_sizes(two, Hub(), 300) == [128, 128, 44]

    assert (one.most_under_way, two.most_under_way) == (1, 2)
