"""The outbox: outbound events are delivered in order, at least once, one at a time per run."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    AffectedRuns,
    ClaimOutbox,
    ControlResult,
    Delivered,
    DeliveryFailure,
    Finish,
    Outbound,
    OutboxClaim,
    OutboxQuery,
    OutboxRow,
    RedeliverOutbox,
    SettleOutbox,
    TaskRef,
    Verdict,
)
from store.world import FLOW, LEASE, World, result, turn

pytestmark = pytest.mark.promise("outbox")

ERROR = "it did not answer"


async def with_outbox(world: World, id: str = "a", *types: str) -> TaskRef:
    """Create a run with outbound events of these types."""
    task = await world.start_claimed(id)
    await world.commit(task, outbox=[Outbound(type_, b"1", "step") for type_ in types])
    return task


async def claim(world: World, owner: str = "w1", *, lease_ms: int = LEASE, limit: int = 100) -> OutboxClaim:
    return await world.store.outbox(ClaimOutbox(owner, lease_ms, limit))


async def claimed(world: World, owner: str = "w1", **options: Any) -> list[str]:
    return [row.type for row in (await claim(world, owner, **options)).rows]


async def redeliver(world: World, id: str = "a", number: int | None = None) -> int:
    return (await world.store.control(RedeliverOutbox(FLOW, id, number))).redelivered


async def settle(world: World, *settled: Delivered | DeliveryFailure, owner: str = "w1") -> int:
    return await world.store.outbox(SettleOutbox(owner, settled))


# --- written


async def test_outbound_events_are_written_with_their_commit(world: World) -> None:
    task = await world.start_claimed("a")

    events = [Outbound("packed", b'{"n": 1}', "pack"), Outbound("sent", None, "send")]
    await world.commit(task, facts=[result("pack")], outbox=events)

    now = world.now()
    assert await world.store.read(OutboxQuery(task.run)) == [
        OutboxRow(task.run, 1, FLOW, "a", 0, "pack", "packed", b'{"n": 1}', now, 0, now),
        OutboxRow(task.run, 2, FLOW, "a", 0, "send", "sent", None, now, 0, now),
    ]


async def test_outbound_events_are_numbered_per_run_across_commits(world: World) -> None:
    task, other = await with_outbox(world, "a", "one"), await with_outbox(world, "b", "x")

    await world.store.commit([turn(one, outbox=[Outbound("more", None, "s")]) for one in (task, other)])

    assert [(row.n, row.type) for row in await world.store.read(OutboxQuery(task.run))] == [(1, "one"), (2, "more")]
    assert [(row.n, row.type) for row in await world.store.read(OutboxQuery(other.run))] == [(1, "x"), (2, "more")]


@pytest.mark.promise("fencing")
async def test_a_stale_turn_writes_no_outbound_events(world: World) -> None:
    task = await world.start_claimed("a")
    await world.store.release([task])

    answer = await world.commit(task, outbox=[Outbound("x", None, "s")])

    assert answer.verdict is Verdict.LOST
    assert await world.store.read(OutboxQuery(task.run)) == []


async def test_outbound_events_are_written_although_a_pause_was_requested(world: World) -> None:
    task = await world.start_claimed("a")
    await world.pause("a")

    answer = await world.commit(task, outbox=[Outbound("x", None, "s")], then=Finish(Status.COMPLETE))

    assert answer.verdict is Verdict.PAUSED
    assert await claimed(world) == ["x"]


async def test_an_outbound_event_can_have_any_text(world: World) -> None:
    odd = Outbound("ü", b"1", "\ud800")
    task = await world.start_claimed("a")
    await world.commit(task, outbox=[odd])
    [row] = (await claim(world)).rows

    await settle(world, DeliveryFailure(task.run, 1, "\udfff", world.now()))

    assert (row.type, row.step) == ("ü", "\ud800")
    assert [one.error for one in await world.store.read(OutboxQuery(task.run))] == ["\udfff"]


# --- claimed


async def test_an_outbox_claim_returns_the_first_event_of_each_run(world: World) -> None:
    one, two = await with_outbox(world, "a", "a1", "a2"), await with_outbox(world, "b", "b1")

    found = await claim(world)

    assert [(row.run, row.n, row.type, row.instance_id) for row in found.rows] == [
        (one.run, 1, "a1", "a"),
        (two.run, 1, "b1", "b"),
    ]


async def test_an_owned_event_and_the_events_after_it_are_not_claimed(world: World) -> None:
    await with_outbox(world, "a", "a1", "a2")
    await claim(world, "w1")

    again = await claim(world, "w2")

    assert (again.rows, again.next_due) == ([], world.now() + LEASE)


async def test_an_outbox_claim_is_limited_and_returns_the_longest_due_first(world: World) -> None:
    for name in "abc":
        await with_outbox(world, name, f"{name}1")
        world.clock.advance(1)

    first = await claim(world, limit=2)

    assert [row.type for row in first.rows] == ["a1", "b1"]
    assert first.next_due == world.now() - 1
    assert await claimed(world, "w2") == ["c1"]


async def test_an_empty_outbox_has_nothing_due(world: World) -> None:
    assert await claim(world) == OutboxClaim([], None)


async def test_an_event_whose_lease_expired_is_claimed_again_and_counts_an_attempt(world: World) -> None:
    task = await with_outbox(world, "a", "a1")
    await claim(world, "w1")
    world.clock.advance(LEASE)

    [row] = (await claim(world, "w2")).rows

    assert (row.n, row.attempts) == (1, 1)
    assert [one.attempts for one in await world.store.read(OutboxQuery(task.run))] == [1]
    assert await settle(world, Delivered(task.run, 1), owner="w1") == 0
    assert await settle(world, Delivered(task.run, 1), owner="w2") == 1


async def test_events_of_an_ended_run_are_still_delivered_with_its_name(world: World) -> None:
    task = await with_outbox(world, "a", "a1")
    await world.restart("a")

    [row] = (await claim(world)).rows

    assert (row.run, row.number) == (task.run, 0)


# --- settled


async def test_a_delivery_makes_the_next_event_due(world: World) -> None:
    task = await with_outbox(world, "a", "a1", "a2")
    await claim(world)
    world.clock.advance(5)

    assert await settle(world, Delivered(task.run, 1)) == 1

    assert await claimed(world) == ["a2"]
    assert [row.delivered_at for row in await world.store.read(OutboxQuery(task.run))] == [world.now(), None]


async def test_new_events_can_follow_after_all_were_delivered(world: World) -> None:
    task = await with_outbox(world, "a", "a1")
    await claim(world)
    await settle(world, Delivered(task.run, 1))

    empty = await claim(world)
    await world.commit(task, outbox=[Outbound("a2", None, "s")])

    assert empty == OutboxClaim([], None)
    assert await claimed(world) == ["a2"]


async def test_an_event_written_during_a_delivery_waits_for_its_turn(world: World) -> None:
    task = await with_outbox(world, "a", "a1")
    await claim(world)

    await world.commit(task, outbox=[Outbound("a2", None, "s")])

    assert await claimed(world, "w2") == []
    await settle(world, Delivered(task.run, 1))
    assert await claimed(world, "w2") == ["a2"]


async def test_a_failed_delivery_is_retried_before_the_next_event(world: World) -> None:
    task = await with_outbox(world, "a", "a1", "a2")
    await claim(world)
    later = world.now() + 500

    assert await settle(world, DeliveryFailure(task.run, 1, ERROR, later)) == 1

    early = await claim(world)
    world.clock.advance(500)
    [row] = (await claim(world)).rows
    assert (early.rows, early.next_due) == ([], later)
    assert (row.type, row.attempts, row.error, row.run_at) == ("a1", 1, ERROR, later)


async def test_a_parked_event_does_not_block_the_next_event(world: World) -> None:
    task = await with_outbox(world, "a", "a1", "a2")
    await claim(world)

    assert await settle(world, DeliveryFailure(task.run, 1, ERROR, None)) == 1

    assert await claimed(world) == ["a2"]
    first, second = await world.store.read(OutboxQuery(task.run))
    assert (first.parked_at, first.attempts, first.error) == (world.now(), 1, ERROR)
    assert (second.parked_at, second.error) == (None, None)


async def test_several_outcomes_are_recorded_in_one_call(world: World) -> None:
    tasks = [await with_outbox(world, name, f"{name}1", f"{name}2") for name in "abc"]
    await claim(world)

    held = await settle(
        world,
        Delivered(tasks[0].run, 1),
        DeliveryFailure(tasks[1].run, 1, ERROR, None),
        DeliveryFailure(tasks[2].run, 1, ERROR, world.now()),
    )

    assert held == 3
    assert sorted(await claimed(world)) == ["a2", "b2", "c1"]


@pytest.mark.parametrize(
    "again", [Delivered(1, 1), DeliveryFailure(1, 1, ERROR, 5), DeliveryFailure(1, 1, ERROR, None)]
)
async def test_outcomes_of_events_that_are_not_owned_are_ignored(
    world: World, again: Delivered | DeliveryFailure
) -> None:
    task = await with_outbox(world, "a", "a1", "a2")
    await claim(world)
    await settle(world, Delivered(task.run, 1))
    before = await world.store.read(OutboxQuery(task.run))

    assert await settle(world, again._replace(run=task.run)) == 0
    assert await settle(world, again._replace(run=task.run, n=2)) == 0
    assert await settle(world, again._replace(run=999)) == 0

    assert await world.store.read(OutboxQuery(task.run)) == before


async def test_the_same_outcome_twice_is_recorded_once(world: World) -> None:
    task = await with_outbox(world, "a", "a1", "a2")
    await claim(world)

    assert await settle(world, Delivered(task.run, 1), Delivered(task.run, 1)) == 1

    assert [row.delivered_at is not None for row in await world.store.read(OutboxQuery(task.run))] == [True, False]


async def test_an_owner_may_settle_after_its_lease_expired_if_the_event_was_not_claimed_again(world: World) -> None:
    task = await with_outbox(world, "a", "a1")
    await claim(world)
    world.clock.advance(10 * LEASE)

    assert await settle(world, Delivered(task.run, 1)) == 1


# --- retried


async def test_a_retry_makes_parked_events_due_with_no_attempts(world: World) -> None:
    task = await with_outbox(world, "a", "a1", "a2", "a3")
    for n in (1, 2):
        await claim(world)
        await settle(world, DeliveryFailure(task.run, n, ERROR, None))
    world.clock.advance(5)

    count = await redeliver(world)

    assert count == 2
    [row] = (await claim(world)).rows
    assert (row.type, row.attempts, row.run_at, row.parked_at) == ("a1", 0, world.now(), None)
    order = []
    for n, type_ in ((1, "a2"), (2, "a3")):
        await settle(world, Delivered(task.run, n))
        order.append(await claimed(world) == [type_])
    assert order == [True, True]


async def test_a_retried_event_does_not_overtake_one_that_is_being_delivered(world: World) -> None:
    task = await with_outbox(world, "a", "a1", "a2", "a3")
    await claim(world)
    await settle(world, DeliveryFailure(task.run, 1, ERROR, None))
    await claim(world)

    await redeliver(world)

    assert await claimed(world, "w2") == []
    assert await settle(world, Delivered(task.run, 2)) == 1
    assert await claimed(world, "w2") == ["a1"]


async def test_a_retry_without_parked_events_changes_nothing(world: World) -> None:
    task = await with_outbox(world, "a", "a1", "a2")
    later = world.now() + 500
    await claim(world)
    await settle(world, DeliveryFailure(task.run, 1, ERROR, later))

    assert await redeliver(world) == 0

    assert (await claim(world)).next_due == later
    assert [row.attempts for row in await world.store.read(OutboxQuery(task.run))] == [1, 0]


async def test_a_retry_addresses_the_current_run_or_the_one_with_the_number(world: World) -> None:
    first = await with_outbox(world, "a", "a1")
    await claim(world)
    await settle(world, DeliveryFailure(first.run, 1, ERROR, None))
    await world.finish(first)
    await world.restart("a")

    assert await redeliver(world) == 0
    assert await claimed(world) == []
    assert await redeliver(world, number=0) == 1
    assert await claimed(world) == ["a1"]


async def test_a_retry_of_a_run_that_does_not_exist_reports_no_run(world: World) -> None:
    await with_outbox(world, "a", "a1")

    for request in (RedeliverOutbox(FLOW, "b"), RedeliverOutbox(FLOW, "a", 7)):
        assert await world.store.control(request) == ControlResult(None, AffectedRuns(), 0)
