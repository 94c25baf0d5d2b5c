"""Events: buffered in order, never lost, and they wake who waits for them."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import Delivery, Finish, NewEvent, PageQuery, Signal, Verdict
from store.world import FLOW, LEASE, World, result, waiting


async def test_events_are_numbered_from_one_in_the_order_of_arrival(world: World) -> None:
    a, b = await world.start("a"), await world.start("b")
    await world.store.send([NewEvent(FLOW, "a", "x"), NewEvent(FLOW, "b", "x"), NewEvent(FLOW, "a", "y")])
    await world.send("z", "a")

    assert [(mail.n, mail.type) for mail in await world.unread(a.run)] == [
        (1, "x"),
        (2, "y"),
        (3, "z"),
    ]
    assert [mail.n for mail in await world.unread(b.run)] == [1]


async def test_an_event_keeps_what_it_was_sent_with(world: World) -> None:
    run = await world.start("a")
    world.clock.advance(5)

    await world.send("go", payload=b"[1]", sender="somebody")

    [mail] = await world.unread(run.run)
    assert (mail.type, mail.payload, mail.sender, mail.created_at) == ("go", b"[1]", "somebody", await world.now())
    assert (mail.delivered_at, mail.consumed_by) == (None, None)


async def test_an_event_to_nobody_is_not_accepted(world: World) -> None:
    sent = await world.send("go", "nobody")

    assert (sent.run, sent.accepted, sent.woken) == (None, False, False)


@pytest.mark.parametrize("status", [Status.COMPLETE, Status.ERRORED, Status.CANCELLED])
async def test_an_event_to_a_run_that_has_ended_is_not_written(world: World, status: Status) -> None:
    run = await world.end("a", status)

    sent = await world.send("go")

    assert (sent.run, sent.accepted) == (run, False)
    assert await world.store.events(PageQuery(run.run)) == []


async def test_the_answer_shows_the_run_as_it_was(world: World) -> None:
    run = await world.wait("a", "go")

    assert (await world.send("go")).run == run


async def test_an_event_wakes_a_run_that_waits_for_its_type(world: World) -> None:
    await world.wait("a", "go", "stop", run_at=await world.now() + 10**6)
    world.clock.advance(5)

    sent = await world.send("stop")
    claim = await world.take()

    assert (sent.accepted, sent.woken) == (True, True)
    assert (claim.kind, [mail.type for mail in claim.mailbag.mail]) == (TaskKind.WAKE, ["stop"])


@pytest.mark.parametrize("type", ["g", "go2", "o", "*"])
async def test_an_event_of_another_type_is_kept_and_wakes_nobody(world: World, type: str) -> None:
    run = await world.wait("a", "go", "stop")

    sent = await world.send(type)

    assert (sent.accepted, sent.woken) == (True, False)
    assert await world.claimed_ids() == []
    assert len(await world.unread(run.run)) == 1


async def test_a_run_that_waits_for_anything_is_woken_by_anything(world: World) -> None:
    await world.wait("a", "*")

    assert (await world.send("whatever")).woken
    assert await world.claimed_ids() == ["a"]


async def test_a_second_event_finds_the_run_awake(world: World) -> None:
    await world.wait("a", "go")
    await world.send("go")
    world.clock.advance(5)

    assert (await world.send("go")).woken
    assert len((await world.take()).mailbag.mail) == 2


async def test_an_event_to_a_run_that_has_not_begun_waits_for_it(world: World) -> None:
    await world.start("a", delay_ms=100)

    sent = await world.send("go")

    assert (sent.accepted, sent.woken) == (True, False)
    assert await world.claimed_ids() == []


async def test_an_event_to_a_held_run_signals_its_holder(world: World) -> None:
    task = await world.begin("a", "w1")

    sent = await world.send("go")

    assert sent.woken
    [held] = await world.store.signals("w1")
    assert (held.run, held.unit, held.epoch, held.signal) == (task.run, 0, task.epoch, Signal.MAIL)


async def test_mail_is_signalled_once(world: World) -> None:
    await world.begin("a", "w1")
    await world.send("go")

    first, second = await world.store.signals("w1"), await world.store.signals("w1")

    assert (len(first), len(second)) == (1, 0)


async def test_a_commit_reports_mail_and_clears_it(world: World) -> None:
    task = await world.begin("a")
    await world.send("go")

    first = await world.commit(task, facts=[result("s")])
    second = await world.commit(task)

    assert (first.signal, second.signal) == (Signal.MAIL, Signal.NONE)


async def test_no_wake_up_is_lost_between_the_look_and_the_release(world: World) -> None:
    task = await world.begin("a")
    await world.send("go")

    answer = await world.commit(task, then=waiting("go"))

    assert (answer.verdict, answer.due_now) == (Verdict.APPLIED, True)
    claim = await world.take()
    assert (claim.kind, len(claim.mailbag.mail)) == (TaskKind.WAKE, 1)


async def test_mail_that_was_seen_before_does_not_make_a_release_due(world: World) -> None:
    task = await world.begin("a")
    await world.send("go")

    answer = await world.commit(task, then=waiting("go"), seen=1)

    assert not answer.due_now
    assert await world.claimed_ids() == []


async def test_mail_that_nobody_waits_for_does_not_make_a_release_due(world: World) -> None:
    task = await world.begin("a")
    await world.send("go")

    answer = await world.commit(task, then=waiting("other"))

    assert not answer.due_now


@pytest.mark.parametrize("look", ["signals", "heartbeat"])
async def test_a_signal_that_was_read_but_not_acted_on_still_wakes_at_the_release(world: World, look: str) -> None:
    task = await world.begin("a")
    await world.send("go")
    await (world.store.signals("w1") if look == "signals" else world.store.heartbeat("w1", LEASE))

    answer = await world.commit(task, then=waiting("go"))

    assert answer.due_now
    assert await world.claimed_ids() == ["a"]


async def test_a_run_can_finish_with_mail_unread(world: World) -> None:
    task = await world.begin("a")
    await world.send("go")

    await world.commit(task, then=Finish(Status.COMPLETE))

    assert (await world.find("a")).status is Status.COMPLETE
    assert len(await world.unread(task.run)) == 1


async def test_the_same_dedup_key_twice_is_one_event(world: World) -> None:
    run = await world.start("a")

    first = await world.send("go", payload=b"1", dedup="k")
    second = await world.send("other", payload=b"2", dedup="k")

    assert (first.accepted, first.duplicate) == (True, False)
    assert (second.accepted, second.duplicate, second.woken) == (True, True, False)
    assert [mail.payload for mail in await world.unread(run.run)] == [b"1"]


async def test_a_consumed_event_still_counts_for_its_dedup_key(world: World) -> None:
    task = await world.begin("a")
    await world.send("go", dedup="k")
    await world.commit(task, deliveries=[Delivery(1, "s", 1)])

    assert (await world.send("go", dedup="k")).duplicate


async def test_events_without_a_dedup_key_are_never_duplicates(world: World) -> None:
    await world.start("a")

    assert not any([(await world.send("go")).duplicate for _ in range(3)])


async def test_a_duplicate_wakes_nobody(world: World) -> None:
    await world.wait("a", "go")
    await world.send("go", dedup="k")
    claim = await world.take()
    await world.commit(claim.task, then=waiting("go"), seen=1)

    assert (await world.send("go", dedup="k")).woken is False
    assert await world.claimed_ids() == []


async def test_events_go_to_the_current_run(world: World) -> None:
    old = await world.start("a")
    new = await world.restart("a")

    await world.send("go")

    assert await world.unread(old.run) == []
    assert len(await world.unread(new.run)) == 1


async def test_a_hundred_concurrent_events_are_all_kept(world: World) -> None:
    run = await world.start("a")

    await asyncio.gather(*(world.send("go", payload=str(n).encode()) for n in range(100)))

    mail = await world.unread(run.run)
    assert [one.n for one in mail] == list(range(1, 101))
    assert {one.payload for one in mail} == {str(n).encode() for n in range(100)}
