"""Streams: offsets, chunks, the fence, repeated writes, and the items of attempts that succeed or fail."""

from __future__ import annotations

import asyncio

from holdfast.core.model import Status
from holdfast.store.protocol import (
    Commit,
    DeleteInstance,
    Following,
    PruneRuns,
    SnapshotQuery,
    StreamHeadsQuery,
    TaskRef,
)
from holdfast.store.protocol.streams import (
    CHUNK_ITEMS,
    PruneStreams,
    StreamQuery,
    StreamWrite,
    WriterState,
    WriteVerdict,
    pack,
    settlement,
)
from store.world import World, done, result, unit, waiting

SUCCEEDED, FAILED, UNDECIDED = WriterState.SUCCEEDED, WriterState.FAILED, WriterState.UNDECIDED


def items(*values: object) -> list[bytes]:
    return [pack(7, str(value).encode()) for value in values]


def by_step(
    task: TaskRef, start: int, *values: object, key: str = "s", attempt: int = 1, closes: bool = False
) -> StreamWrite:
    return StreamWrite(task, "out", key, attempt, start, items(*values), closes)


def by_code(task: TaskRef, start: int, *values: object, closes: bool = False) -> StreamWrite:
    return StreamWrite(task, "out", None, 0, start, items(*values), closes)


async def stored(world: World, run: int, after: int = 0) -> list[tuple[int, str, WriterState]]:
    """Offset, value and state of the writer of every item; a close marker has no value."""
    page = await world.store.read(StreamQuery(run, "out", after))
    found: list[tuple[int, str, WriterState]] = []
    for chunk in page.chunks:
        found += [(offset, value.decode(), chunk.state) for offset, _, value in chunk.items()]
        found += [(chunk.first, "", chunk.state)] if chunk.closes else []
    return [one for one in found if one[0] > after]


async def values(world: World, run: int) -> list[str]:
    return [value for _, value, _ in await stored(world, run)]


async def commit_code(world: World, task: TaskRef, following: Following, in_flight: int = 0) -> None:
    await world.store.commit([Commit(task, following=following, in_flight=in_flight)])


async def write(world: World, *writes: StreamWrite) -> list[WriteVerdict]:
    return [one.verdict for one in await world.store.write_streams(writes)]


async def test_the_store_assigns_offsets_in_the_order_of_the_writes(world: World) -> None:
    task = await world.start_claimed("a")

    await write(world, by_step(task, 0, "a", "b"), by_step(task, 0, "x", key="t"))
    await write(world, by_step(task, 2, "c"))

    offsets = [(offset, value) for offset, value, _ in await stored(world, task.run)]
    assert offsets == [(1, "a"), (2, "b"), (3, "x"), (4, "c")]


async def test_adjacent_items_of_a_writer_share_a_row_until_it_is_full(world: World) -> None:
    task = await world.start_claimed("a")

    for n in range(CHUNK_ITEMS + 5):
        await write(world, by_step(task, n, n))
    await write(world, by_step(task, CHUNK_ITEMS + 5, *range(2 * CHUNK_ITEMS)))

    assert await values(world, task.run) == [*map(str, range(CHUNK_ITEMS + 5)), *map(str, range(2 * CHUNK_ITEMS))]
    assert await world.count("holdfast_chunk") == 4


async def test_an_item_larger_than_a_chunk_is_stored(world: World) -> None:
    task = await world.start_claimed("a")
    large = '"' + "x" * 100_000 + '"'

    await write(world, by_step(task, 0, 1, large, 2))

    assert await values(world, task.run) == ["1", large, "2"]


async def test_a_repeated_write_adds_only_the_items_that_are_missing(world: World) -> None:
    task = await world.start_claimed("a")
    await write(world, by_step(task, 0, 1, 2), by_step(task, 0, "x", key="t"))

    await write(world, by_step(task, 0, 1, 2), by_step(task, 0, "x", key="t"))
    await write(world, by_step(task, 1, 2, 3, closes=True), by_step(task, 1, 2, 3, closes=True))

    assert await values(world, task.run) == ["1", "2", "x", "3", ""]


async def test_a_write_of_a_lost_claim_writes_nothing(world: World) -> None:
    task, other = await world.start_claimed("a"), await world.start_claimed("b")
    stale = (task._replace(epoch=task.epoch + 1), task._replace(owner="another"), task._replace(unit=1))

    verdicts = await write(world, *(by_step(one, 0, 1) for one in (*stale, other)))

    assert verdicts == [WriteVerdict.LOST] * 3 + [WriteVerdict.WRITTEN]
    assert await values(world, task.run) == []
    assert await values(world, other.run) == ["1"]


async def test_the_items_of_an_attempt_are_undecided_until_its_outcome_is_committed(world: World) -> None:
    task = await world.start_claimed("a")
    await write(world, by_step(task, 0, 1), by_step(task, 0, 2, key="t"), by_step(task, 0, 3, key="u"))

    settled = [settlement(task, "s", 1, 9, succeeded=True), settlement(task, "t", 1, 9, succeeded=False)]
    await world.commit(task, facts=[result("s"), *settled])

    states = [state for _, _, state in await stored(world, task.run)]
    assert states == [SUCCEEDED, FAILED, UNDECIDED]


async def test_an_attempt_without_an_outcome_has_failed_when_its_claim_is_over(world: World) -> None:
    task = await world.start_claimed("a")
    await write(world, by_step(task, 0, 1))

    await world.store.release([task])
    released = await stored(world, task.run)
    again = (await world.claim_one("w2")).task
    await write(world, by_step(again, 0, 2))
    await world.commit(again, facts=[result("s"), settlement(again, "s", 1, 9, succeeded=True)])

    assert released == [(1, "1", FAILED)]
    assert await stored(world, task.run) == [(1, "1", FAILED), (2, "2", SUCCEEDED)]


async def test_a_commit_with_a_settlement_that_is_refused_decides_nothing(world: World) -> None:
    task = await world.start_claimed("a")
    await write(world, by_step(task, 0, 1))

    stale = task._replace(epoch=task.epoch + 1)
    await world.commit(stale, facts=[settlement(task, "s", 1, 9, succeeded=True)])

    assert await stored(world, task.run) == [(1, "1", UNDECIDED)]


async def test_settlements_are_not_read_with_the_other_facts(world: World) -> None:
    task = await world.start_claimed("a")

    await world.commit(task, facts=[result("s"), settlement(task, "s", 1, 9, succeeded=True)])

    assert [fact.key for fact in (await world.store.read(SnapshotQuery(task.run))).facts] == ["s"]
    assert [fact.state for fact in await world.facts(task.run)] == [0]


async def test_items_of_workflow_code_are_written_with_its_commit_and_only_once(world: World) -> None:
    task = await world.start_claimed("a")
    await write(world, by_step(task, 0, "s"))

    await commit_code(world, task, Following(streams=[by_code(task, 0, 1, 2)]))
    await commit_code(world, task, Following(streams=[by_code(task, 1, 2, 3)], next=waiting("go")))

    assert [(value, state) for _, value, state in await stored(world, task.run)] == [
        ("s", FAILED), ("1", SUCCEEDED), ("2", SUCCEEDED), ("3", SUCCEEDED),
    ]  # fmt: skip
    [head] = (await world.store.read(SnapshotQuery(task.run))).streams
    assert (head.name, head.items, head.code_items, head.closed_by) == ("out", 4, 3, ())


async def test_items_of_workflow_code_are_not_written_while_the_run_is_being_paused(world: World) -> None:
    task = await world.start_claimed("a")
    await world.pause("a")

    await commit_code(world, task, Following(streams=[by_code(task, 0, 1)]), 1)

    assert await stored(world, task.run) == []


async def test_a_stream_is_closed_when_the_attempt_that_closed_it_succeeds(world: World) -> None:
    task = await world.start_claimed("a")

    await write(world, by_step(task, 0, 1, closes=True))
    before = await write(world, by_step(task, 0, 2, key="t"))
    await world.commit(task, facts=[settlement(task, "s", 1, 9, succeeded=True)])
    after = await write(world, by_step(task, 0, 3, key="u"))

    assert (before, after) == ([WriteVerdict.WRITTEN], [WriteVerdict.CLOSED])
    assert [value for _, value, _ in await stored(world, task.run)] == ["1", "", "2"]
    assert [head.closed_by for head in await world.store.read(StreamHeadsQuery(task.run))] == [("s",)]


async def test_a_stream_that_a_failed_attempt_closed_is_open(world: World) -> None:
    task = await world.start_claimed("a")

    await write(world, by_step(task, 0, closes=True))
    await world.commit(task, facts=[settlement(task, "s", 1, 9, succeeded=False)])

    assert await write(world, by_step(task, 0, 3, attempt=2)) == [WriteVerdict.WRITTEN]
    assert [head.closed_by for head in await world.store.read(StreamHeadsQuery(task.run))] == [()]


async def test_workflow_code_closes_a_stream_with_its_commit(world: World) -> None:
    task = await world.start_claimed("a")

    await commit_code(world, task, Following(streams=[by_code(task, 0, 1, closes=True)]))

    assert await write(world, by_step(task, 0, 2)) == [WriteVerdict.CLOSED]
    assert [head.closed_by for head in await world.store.read(StreamHeadsQuery(task.run))] == [(None,)]


async def test_a_page_begins_with_the_chunk_of_the_next_offset(world: World) -> None:
    task = await world.start_claimed("a")
    for n in range(4):
        await write(world, by_step(task, 0, 2 * n, 2 * n + 1, key=f"s{n}"))

    page = await world.store.read(StreamQuery(task.run, "out", 3, 2))

    assert [chunk.first for chunk in page.chunks] == [3, 5]
    assert [offset for offset, _, _ in await stored(world, task.run, 5)] == [6, 7, 8]
    assert await stored(world, task.run, 8) == []


async def test_a_page_states_whether_the_run_has_ended(world: World) -> None:
    task = await world.start_claimed("a")
    open_page = await world.store.read(StreamQuery(task.run, "out"))

    await world.finish(task, Status.COMPLETE)

    assert not open_page.ended
    assert (await world.store.read(StreamQuery(task.run, "out"))).ended
    assert (await world.store.read(StreamQuery(task.run + 1, "out"))).ended


async def test_units_of_a_run_write_to_one_stream_and_settle_with_their_advances(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))
    await write(world, by_step(first, 0, 1, key="n1"), by_step(second, 0, 2, key="n2"))

    await world.advance(done(first, facts=[settlement(first, "n1", 1, 9, succeeded=True)]))

    assert [(value, state) for _, value, state in await stored(world, first.run)] == [
        ("1", SUCCEEDED),
        ("2", UNDECIDED),
    ]


async def test_concurrent_writes_to_one_stream_are_all_stored(world: World) -> None:
    task = await world.start_claimed("a")

    await asyncio.gather(*(write(world, by_step(task, 0, n, -n, key=f"s{n}")) for n in range(10)))

    found = await stored(world, task.run)
    assert [offset for offset, _, _ in found] == list(range(1, 21))
    assert {int(value) for _, value, _ in found} == {*range(10), *range(-9, 1)}


async def test_streams_are_deleted_when_their_run_ended_long_enough_ago(world: World) -> None:
    old, new = await world.start_claimed("a"), await world.start_claimed("b")
    await write(world, by_step(old, 0, 1), by_step(new, 0, 1))
    await world.finish(old)

    early = await world.store.maintain(PruneStreams("flow", 1000))
    world.clock.advance(1000)
    late = await world.store.maintain(PruneStreams("flow", 1000))

    assert (early, late) == (0, 1)
    assert await world.store.read(StreamHeadsQuery(old.run)) == []
    assert await stored(world, old.run) == []
    assert await values(world, new.run) == ["1"]


async def test_streams_are_deleted_with_their_run(world: World) -> None:
    pruned, deleted = await world.start_claimed("a"), await world.start_claimed("b")
    await write(world, by_step(pruned, 0, 1), by_step(deleted, 0, *range(300)))
    await world.finish(pruned)
    await world.finish(deleted)

    await world.store.control(DeleteInstance("flow", "b"))
    await world.store.maintain(PruneRuns("flow", Status.COMPLETE, 0))

    assert await world.count("holdfast_chunk") == 0
    assert await world.count("holdfast_stream") == 0
