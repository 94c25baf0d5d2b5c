"""Events: stored in order, never lost, and they wake the runs that wait for them."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import Delivery, EventsQuery, Finish, NewEvent, Signal, Verdict
from store.world import FLOW, LEASE, World, result, waiting


async def test_events_are_numbered_from_one_in_the_order_of_arrival(world: World) -> None:
    a, b = await world.start("a"), await world.start("b")
    await world.store.send([NewEvent(FLOW, "a", "x"), NewEvent(FLOW, "b", "x"), NewEvent(FLOW, "a", "y")])
    await world.send("z", "a")

    assert [(event.n, event.type) for event in await world.undelivered(a.run)] == [
        (1, "x"),
        (2, "y"),
        (3, "z"),
    ]
    assert [event.n for event in await world.undelivered(b.run)] == [1]


async def test_an_event_is_stored_as_it_was_sent(world: World) -> None:
    run = await world.start("a")
    world.clock.advance(5)

    await world.send("go", payload=b"[1]", sender="somebody")

    [event] = await world.undelivered(run.run)
    assert (event.type, event.payload, event.sender, event.created_at) == ("go", b"[1]", "somebody", world.now())
    assert (event.delivered_at, event.consumed_by) == (None, None)


async def test_an_event_to_a_missing_run_is_not_accepted(world: World) -> None:
    sent = await world.send("go", "nobody")

    assert (sent.run, sent.accepted, sent.woken) == (None, False, False)


@pytest.mark.promise("finality")
@pytest.mark.parametrize("status", [Status.COMPLETE, Status.ERRORED, Status.CANCELLED])
async def test_an_event_to_a_run_that_has_ended_is_not_written(world: World, status: Status) -> None:
    run = await world.start_ended("a", status)

    sent = await world.send("go")

    assert (sent.run, sent.accepted) == (run, False)
    assert await world.store.read(EventsQuery(run.run)) == []


async def test_a_send_returns_the_run_as_it_was_before(world: World) -> None:
    run = await world.start_waiting("a", "go")

    assert (await world.send("go")).run == run


async def test_an_event_wakes_a_run_that_waits_for_its_type(world: World) -> None:
    await world.start_waiting("a", "go", "stop", run_at=world.now() + 10**6)
    world.clock.advance(5)

    sent = await world.send("stop")
    claim = await world.claim_one()

    assert (sent.accepted, sent.woken) == (True, True)
    assert (claim.kind, [event.type for event in claim.mailbox_page.events]) == (TaskKind.WAKE, ["stop"])


@pytest.mark.parametrize("type", ["g", "go2", "o", "*"])
async def test_an_event_of_another_type_is_stored_and_does_not_wake_the_run(world: World, type: str) -> None:
    run = await world.start_waiting("a", "go", "stop")

    sent = await world.send(type)

    assert (sent.accepted, sent.woken) == (True, False)
    assert await world.claimed_ids() == []
    assert len(await world.undelivered(run.run)) == 1


async def test_a_run_that_waits_for_any_topic_is_woken_by_every_event(world: World) -> None:
    await world.start_waiting("a", "*")

    assert (await world.send("whatever")).woken
    assert await world.claimed_ids() == ["a"]


async def test_a_second_event_is_added_to_a_woken_run(world: World) -> None:
    await world.start_waiting("a", "go")
    await world.send("go")
    world.clock.advance(5)

    assert (await world.send("go")).woken
    assert len((await world.claim_one()).mailbox_page.events) == 2


async def test_an_event_to_a_delayed_run_does_not_wake_it(world: World) -> None:
    await world.start("a", delay_ms=100)

    sent = await world.send("go")

    assert (sent.accepted, sent.woken) == (True, False)
    assert await world.claimed_ids() == []


async def test_an_event_to_an_owned_run_signals_its_owner(world: World) -> None:
    task = await world.start_claimed("a", "w1")

    sent = await world.send("go")

    assert sent.woken
    [held] = await world.store.fetch_signals("w1")
    assert (held.run, held.unit, held.epoch, held.signal) == (task.run, 0, task.epoch, Signal.EVENTS)


async def test_the_events_signal_is_returned_once(world: World) -> None:
    await world.start_claimed("a", "w1")
    await world.send("go")

    first, second = await world.store.fetch_signals("w1"), await world.store.fetch_signals("w1")

    assert (len(first), len(second)) == (1, 0)


async def test_a_commit_returns_the_events_signal_and_clears_it(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go")

    first = await world.commit(task, facts=[result("s")])
    second = await world.commit(task)

    assert (first.signal, second.signal) == (Signal.EVENTS, Signal.NONE)


@pytest.mark.promise("no-lost-wakeup")
async def test_no_wake_up_is_lost_between_the_read_and_the_release(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go")

    answer = await world.commit(task, then=waiting("go"))

    assert (answer.verdict, answer.due_now) == (Verdict.APPLIED, True)
    claim = await world.claim_one()
    assert (claim.kind, len(claim.mailbox_page.events)) == (TaskKind.WAKE, 1)


async def test_an_event_that_was_seen_does_not_make_a_release_due(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go")

    answer = await world.commit(task, then=waiting("go"), seen=1)

    assert not answer.due_now
    assert await world.claimed_ids() == []


async def test_an_event_of_another_topic_does_not_make_a_release_due(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go")

    answer = await world.commit(task, then=waiting("other"))

    assert not answer.due_now


@pytest.mark.promise("no-lost-wakeup")
@pytest.mark.parametrize("call", ["fetch_signals", "heartbeat"])
async def test_an_event_whose_signal_was_read_still_makes_the_release_due(world: World, call: str) -> None:
    task = await world.start_claimed("a")
    await world.send("go")
    await (world.store.fetch_signals("w1") if call == "fetch_signals" else world.store.heartbeat("w1", LEASE))

    answer = await world.commit(task, then=waiting("go"))

    assert answer.due_now
    assert await world.claimed_ids() == ["a"]


async def test_a_run_can_finish_with_undelivered_events(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go")

    await world.commit(task, then=Finish(Status.COMPLETE))

    assert (await world.find("a")).status is Status.COMPLETE
    assert len(await world.undelivered(task.run)) == 1


@pytest.mark.promise("messages-once-in-order")
async def test_the_same_dedup_key_twice_is_one_event(world: World) -> None:
    run = await world.start("a")

    first = await world.send("go", payload=b"1", dedup="k")
    second = await world.send("other", payload=b"2", dedup="k")

    assert (first.accepted, first.duplicate) == (True, False)
    assert (second.accepted, second.duplicate, second.woken) == (True, True, False)
    assert [event.payload for event in await world.undelivered(run.run)] == [b"1"]


async def test_a_consumed_event_still_counts_for_its_dedup_key(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go", dedup="k")
    await world.commit(task, deliveries=[Delivery(1, "s", 1)])

    assert (await world.send("go", dedup="k")).duplicate


async def test_events_without_a_dedup_key_are_never_duplicates(world: World) -> None:
    await world.start("a")

    assert not any([(await world.send("go")).duplicate for _ in range(3)])


async def test_a_duplicate_does_not_wake_the_run(world: World) -> None:
    await world.start_waiting("a", "go")
    await world.send("go", dedup="k")
    claim = await world.claim_one()
    await world.commit(claim.task, then=waiting("go"), seen=1)

    assert (await world.send("go", dedup="k")).woken is False
    assert await world.claimed_ids() == []


async def test_events_are_sent_to_the_current_run(world: World) -> None:
    old = await world.start("a")
    new = await world.restart("a")

    await world.send("go")

    assert await world.undelivered(old.run) == []
    assert len(await world.undelivered(new.run)) == 1


@pytest.mark.promise("messages-once-in-order")
async def test_a_hundred_concurrent_events_are_all_kept(world: World) -> None:
    run = await world.start("a")

    await asyncio.gather(*(world.send("go", payload=str(n).encode()) for n in range(100)))

    event = await world.undelivered(run.run)
    assert [one.n for one in event] == list(range(1, 101))
    assert {one.payload for one in event} == {str(n).encode() for n in range(100)}
