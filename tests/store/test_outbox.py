"""The outbox: what runs tell the world goes out in order, at least once, one at a time of each run."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    Delivered,
    Finish,
    Outbound,
    OutboxClaim,
    OutboxRow,
    TaskRef,
    Undelivered,
    Verdict,
)
from store.world import FLOW, LEASE, World, result, turn

NO = "it did not answer"


async def told(world: World, id: str = "a", *types: str) -> TaskRef:
    """A run that has put these into its outbox."""
    task = await world.begin(id)
    await world.commit(task, outbox=[Outbound(type_, b"1", "step") for type_ in types])
    return task


async def claim(world: World, owner: str = "w1", *, lease_ms: int = LEASE, limit: int = 100) -> OutboxClaim:
    return await world.store.outbox_claim(owner, lease_ms, limit)


async def claimed(world: World, owner: str = "w1", **options: Any) -> list[str]:
    return [row.type for row in (await claim(world, owner, **options)).rows]


async def settle(world: World, *settled: Delivered | Undelivered, owner: str = "w1") -> int:
    return await world.store.outbox_settle(owner, settled)


# --- written


async def test_what_a_turn_tells_the_world_is_written_with_it(world: World) -> None:
    task = await world.begin("a")

    events = [Outbound("packed", b'{"n": 1}', "pack"), Outbound("sent", None, "send")]
    await world.commit(task, facts=[result("pack")], outbox=events)

    now = await world.now()
    assert await world.store.outbox(task.run) == [
        OutboxRow(task.run, 1, FLOW, "a", 0, "pack", "packed", b'{"n": 1}', now, 0, now),
        OutboxRow(task.run, 2, FLOW, "a", 0, "send", "sent", None, now, 0, now),
    ]


async def test_numbers_go_on_from_commit_to_commit_and_each_run_has_its_own(world: World) -> None:
    task, other = await told(world, "a", "one"), await told(world, "b", "x")

    await world.store.commit([turn(one, outbox=[Outbound("more", None, "s")]) for one in (task, other)])

    assert [(row.n, row.type) for row in await world.store.outbox(task.run)] == [(1, "one"), (2, "more")]
    assert [(row.n, row.type) for row in await world.store.outbox(other.run)] == [(1, "x"), (2, "more")]


async def test_who_lost_its_task_tells_nothing(world: World) -> None:
    task = await world.begin("a")
    await world.store.release([task])

    answer = await world.commit(task, outbox=[Outbound("x", None, "s")])

    assert answer.verdict is Verdict.LOST
    assert await world.store.outbox(task.run) == []


async def test_what_was_observed_goes_out_although_a_pause_was_asked_for(world: World) -> None:
    task = await world.begin("a")
    await world.store.pause(FLOW, "a")

    answer = await world.commit(task, outbox=[Outbound("x", None, "s")], then=Finish(Status.COMPLETE))

    assert answer.verdict is Verdict.PAUSED
    assert await claimed(world) == ["x"]


async def test_what_it_says_can_be_any_text(world: World) -> None:
    odd = Outbound("ü", b"1", "\ud800")
    task = await world.begin("a")
    await world.commit(task, outbox=[odd])
    [row] = (await claim(world)).rows

    await settle(world, Undelivered(task.run, 1, "\udfff", await world.now()))

    assert (row.type, row.step) == ("ü", "\ud800")
    assert [one.error for one in await world.store.outbox(task.run)] == ["\udfff"]


# --- claimed


async def test_a_claim_has_the_first_of_each_run(world: World) -> None:
    one, two = await told(world, "a", "a1", "a2"), await told(world, "b", "b1")

    found = await claim(world)

    assert [(row.run, row.n, row.type, row.instance_id) for row in found.rows] == [
        (one.run, 1, "a1", "a"),
        (two.run, 1, "b1", "b"),
    ]


async def test_what_somebody_has_and_lives_is_not_claimed_nor_what_comes_after_it(world: World) -> None:
    await told(world, "a", "a1", "a2")
    await claim(world, "w1")

    again = await claim(world, "w2")

    assert (again.rows, again.next_due) == ([], await world.now() + LEASE)


async def test_a_claim_takes_no_more_than_asked_for_the_longest_due_first(world: World) -> None:
    for name in "abc":
        await told(world, name, f"{name}1")
        world.clock.advance(1)

    first = await claim(world, limit=2)

    assert [row.type for row in first.rows] == ["a1", "b1"]
    assert first.next_due == await world.now() - 1
    assert await claimed(world, "w2") == ["c1"]


async def test_an_empty_outbox_has_nothing_due(world: World) -> None:
    assert await claim(world) == OutboxClaim([], None)


async def test_one_whose_holder_is_gone_is_claimed_again_and_counts_an_attempt(world: World) -> None:
    task = await told(world, "a", "a1")
    await claim(world, "w1")
    world.clock.advance(LEASE)

    [row] = (await claim(world, "w2")).rows

    assert (row.n, row.attempts) == (1, 1)
    assert [one.attempts for one in await world.store.outbox(task.run)] == [1]
    assert await settle(world, Delivered(task.run, 1), owner="w1") == 0
    assert await settle(world, Delivered(task.run, 1), owner="w2") == 1


async def test_it_goes_out_after_the_run_has_ended_and_in_its_name(world: World) -> None:
    task = await told(world, "a", "a1")
    await world.restart("a")

    [row] = (await claim(world)).rows

    assert (row.run, row.number) == (task.run, 0)


# --- settled


async def test_what_was_delivered_lets_the_next_one_go(world: World) -> None:
    task = await told(world, "a", "a1", "a2")
    await claim(world)
    world.clock.advance(5)

    assert await settle(world, Delivered(task.run, 1)) == 1

    assert await claimed(world) == ["a2"]
    assert [row.delivered_at for row in await world.store.outbox(task.run)] == [await world.now(), None]


async def test_when_all_are_delivered_nothing_is_left_and_more_can_come(world: World) -> None:
    task = await told(world, "a", "a1")
    await claim(world)
    await settle(world, Delivered(task.run, 1))

    empty = await claim(world)
    await world.commit(task, outbox=[Outbound("a2", None, "s")])

    assert empty == OutboxClaim([], None)
    assert await claimed(world) == ["a2"]


async def test_what_comes_while_one_is_under_way_waits_for_its_turn(world: World) -> None:
    task = await told(world, "a", "a1")
    await claim(world)

    await world.commit(task, outbox=[Outbound("a2", None, "s")])

    assert await claimed(world, "w2") == []
    await settle(world, Delivered(task.run, 1))
    assert await claimed(world, "w2") == ["a2"]


async def test_what_was_not_delivered_is_tried_again_before_those_behind_it(world: World) -> None:
    task = await told(world, "a", "a1", "a2")
    await claim(world)
    later = await world.now() + 500

    assert await settle(world, Undelivered(task.run, 1, NO, later)) == 1

    early = await claim(world)
    world.clock.advance(500)
    [row] = (await claim(world)).rows
    assert (early.rows, early.next_due) == ([], later)
    assert (row.type, row.attempts, row.error, row.run_at) == ("a1", 1, NO, later)


async def test_what_is_given_up_holds_up_nobody(world: World) -> None:
    task = await told(world, "a", "a1", "a2")
    await claim(world)

    assert await settle(world, Undelivered(task.run, 1, NO, None)) == 1

    assert await claimed(world) == ["a2"]
    first, second = await world.store.outbox(task.run)
    assert (first.parked_at, first.attempts, first.error) == (await world.now(), 1, NO)
    assert (second.parked_at, second.error) == (None, None)


async def test_several_are_settled_at_once(world: World) -> None:
    tasks = [await told(world, name, f"{name}1", f"{name}2") for name in "abc"]
    await claim(world)

    held = await settle(
        world,
        Delivered(tasks[0].run, 1),
        Undelivered(tasks[1].run, 1, NO, None),
        Undelivered(tasks[2].run, 1, NO, await world.now()),
    )

    assert held == 3
    assert sorted(await claimed(world)) == ["a2", "b2", "c1"]


@pytest.mark.parametrize("again", [Delivered(1, 1), Undelivered(1, 1, NO, 5), Undelivered(1, 1, NO, None)])
async def test_what_is_not_held_any_more_is_passed_over(world: World, again: Delivered | Undelivered) -> None:
    task = await told(world, "a", "a1", "a2")
    await claim(world)
    await settle(world, Delivered(task.run, 1))
    before = await world.store.outbox(task.run)

    assert await settle(world, again._replace(run=task.run)) == 0
    assert await settle(world, again._replace(run=task.run, n=2)) == 0
    assert await settle(world, again._replace(run=999)) == 0

    assert await world.store.outbox(task.run) == before


async def test_the_same_one_twice_is_settled_once(world: World) -> None:
    task = await told(world, "a", "a1", "a2")
    await claim(world)

    assert await settle(world, Delivered(task.run, 1), Delivered(task.run, 1)) == 1

    assert [row.delivered_at is not None for row in await world.store.outbox(task.run)] == [True, False]


async def test_who_held_it_longer_than_its_lease_may_settle_it_if_nobody_else_has_it(world: World) -> None:
    task = await told(world, "a", "a1")
    await claim(world)
    world.clock.advance(10 * LEASE)

    assert await settle(world, Delivered(task.run, 1)) == 1


# --- tried again by hand


async def test_what_was_given_up_is_due_again_and_has_no_attempts(world: World) -> None:
    task = await told(world, "a", "a1", "a2", "a3")
    for n in (1, 2):
        await claim(world)
        await settle(world, Undelivered(task.run, n, NO, None))
    world.clock.advance(5)

    count = await world.store.outbox_retry(task.run)

    assert count == 2
    [row] = (await claim(world)).rows
    assert (row.type, row.attempts, row.run_at, row.parked_at) == ("a1", 0, await world.now(), None)
    order = []
    for n, type_ in ((1, "a2"), (2, "a3")):
        await settle(world, Delivered(task.run, n))
        order.append(await claimed(world) == [type_])
    assert order == [True, True]


async def test_one_that_is_under_way_is_not_overtaken(world: World) -> None:
    task = await told(world, "a", "a1", "a2", "a3")
    await claim(world)
    await settle(world, Undelivered(task.run, 1, NO, None))
    await claim(world)

    await world.store.outbox_retry(task.run)

    assert await claimed(world, "w2") == []
    assert await settle(world, Delivered(task.run, 2)) == 1
    assert await claimed(world, "w2") == ["a1"]


async def test_where_nothing_was_given_up_there_is_nothing_to_try_again(world: World) -> None:
    task = await told(world, "a", "a1", "a2")
    later = await world.now() + 500
    await claim(world)
    await settle(world, Undelivered(task.run, 1, NO, later))

    assert await world.store.outbox_retry(task.run) == 0

    assert (await claim(world)).next_due == later
    assert [row.attempts for row in await world.store.outbox(task.run)] == [1, 0]
