"""A worker that shares its loop with requests takes small bites, and large ones when it is alone again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from holdfast.kernel.notify import Hub
from holdfast.ports import SystemRandomness
from holdfast.runner.committer import Committer
from holdfast.store.protocol import Commit, Committed, Store, TaskRef, Verdict

pytestmark = pytest.mark.kind_settings("counts what is written at once")


class CountingStore:
    def __init__(self) -> None:
        self.batches: list[int] = []

    async def commit(self, commits: list[Commit]) -> list[Committed]:
        self.batches.append(len(commits))
        return [Committed(Verdict.APPLIED) for _ in commits]


async def written(store: CountingStore, hub: Hub, turns: int) -> list[int]:
    """The sizes of the batches in which so many turns are written that are ready at the same time."""
    store.batches = []
    committer = Committer(cast("Store", cast("Any", store)), SystemRandomness(), hub.in_company, lambda: False)
    await asyncio.gather(*(committer.commit(Commit(TaskRef(n, 0, "w", 1))) for n in range(turns)))
    return store.batches


async def test_alone_it_writes_large_batches() -> None:
    assert await written(CountingStore(), Hub(), 100) == [100]


async def test_in_company_it_writes_small_ones_and_forgets_after_a_while() -> None:
    store, hub = CountingStore(), Hub()
    hub.visit()
    assert max(await written(store, hub, 100)) == 4
    while hub.in_company():
        pass
    assert await written(store, hub, 100) == [100]
