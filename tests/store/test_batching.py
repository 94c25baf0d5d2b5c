"""Calls of a store that are made while others are under way share one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast.errors import StoreUnavailableError
from holdfast.store.batching import Batcher


class Writer:
    """Doubles its items. A batch is written when ``go`` is set; an item below 0 fails its batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None

    async def write(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        if min(items) < 0:
            raise ValueError(min(items))
        return [item * 2 for item in items]

    def batcher(
        self, *, max_items: int = 10, writers: int = 1, by_caller: Callable[[], bool] = lambda: True
    ) -> Batcher[int, int]:
        return Batcher("test-writer", self.write, max_items=lambda: max_items, writers=writers, by_caller=by_caller)


async def call_while_busy(
    writer: Writer, batcher: Batcher[int, int], *calls: list[int]
) -> list[asyncio.Task[list[int]]]:
    """Make the first call, the others while it is under way, and wait for all."""
    writer.go.clear()

    async def call(items: list[int]) -> list[int]:
        return await batcher(items)

    tasks = [asyncio.ensure_future(call(items)) for items in calls]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    writer.go.set()
    await asyncio.wait(tasks)
    return tasks


async def test_calls_that_arrive_during_a_write_form_the_next_batch() -> None:
    writer = Writer()
    tasks = await call_while_busy(writer, writer.batcher(), [1], [2, 3], [4])

    assert writer.batches == [[1], [2, 3, 4]]
    assert [task.result() for task in tasks] == [[2], [4, 6], [8]]


async def test_a_batch_holds_no_more_than_max_items_unless_one_call_has_more() -> None:
    writer = Writer()
    await call_while_busy(writer, writer.batcher(max_items=3), [0], [1, 2], [3], [4], [5, 6, 7, 8])

    assert writer.batches == [[0], [1, 2, 3], [4], [5, 6, 7, 8]]


async def test_several_writers_write_at_the_same_time() -> None:
    writer = Writer()
    await call_while_busy(writer, writer.batcher(writers=2), [1], [2], [3], [4])

    assert writer.batches == [[1], [2], [3, 4]]


async def test_without_by_caller_the_calls_of_one_iteration_share_a_batch() -> None:
    writer = Writer()
    batcher = writer.batcher(by_caller=lambda: False)

    assert await asyncio.gather(batcher([1]), batcher([2])) == [[2], [4]]
    assert writer.batches == [[1, 2]]


async def test_only_the_call_that_caused_an_error_fails() -> None:
    writer = Writer()
    first, good, bad = await call_while_busy(writer, writer.batcher(), [1], [2], [-1])

    assert (first.result(), good.result()) == ([2], [4])
    assert isinstance(bad.exception(), ValueError)
    assert writer.batches == [[1], [2, -1], [2], [-1]]


async def test_an_error_of_the_store_fails_all_calls_of_the_batch_without_another_attempt() -> None:
    writer = Writer()
    writer.error = StoreUnavailableError("gone")
    tasks = await call_while_busy(writer, writer.batcher(), [1], [2], [3])

    assert [task.exception() for task in tasks] == [writer.error] * 3
    assert writer.batches == [[1], [2, 3]]


async def test_calls_that_wait_are_written_when_the_caller_that_writes_is_cancelled() -> None:
    writer = Writer()
    writer.go.clear()
    batcher = writer.batcher()
    first = asyncio.ensure_future(batcher([1]))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(batcher([2]))
    await asyncio.sleep(0)

    first.cancel()
    writer.go.set()

    assert await second == [4]


async def test_drain_waits_for_calls_under_way_and_in_the_queue() -> None:
    writer = Writer()
    writer.go.clear()
    batcher = writer.batcher()
    calls = [asyncio.ensure_future(batcher([n])) for n in range(3)]
    await asyncio.sleep(0)
    drained = asyncio.ensure_future(batcher.drain())
    await asyncio.sleep(0)
    assert batcher.busy
    assert not drained.done()

    writer.go.set()
    await drained

    assert not batcher.busy
    assert await asyncio.gather(*calls) == [[0], [2], [4]]


async def test_an_abandoned_batcher_answers_no_waiting_caller() -> None:
    writer = Writer()
    writer.go.clear()
    batcher = writer.batcher(by_caller=lambda: False)
    waiting = asyncio.ensure_future(batcher([1]))
    for _ in range(3):
        await asyncio.sleep(0)

    batcher.abandon()
    writer.go.set()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, 0.02)
    assert not batcher.busy
