"""Mailbags: undelivered events a bounded number at a time, by topic, and what is known of the rest."""

from __future__ import annotations

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    CANCEL,
    EXIT,
    Claimant,
    Delivery,
    Mailbag,
    NewEvent,
    Signal,
    TaskRef,
    Verdict,
    Watch,
    WatchRun,
)
from store.world import FLOW, LEASE, World, result, waiting

MANY = 1_200
HERE = Claimant("w9", LEASE, ["default", "slow"])


async def _fill(world: World, count: int, type: str = "go", id: str = "a") -> None:
    await world.store.send([NewEvent(FLOW, id, type, str(n).encode()) for n in range(count)])


def _numbers(bag: Mailbag) -> list[int]:
    return [mail.n for mail in bag.mail]


# --------------------------------------------------------------------------------------------------- what is in it


async def test_an_empty_mailbox(world: World) -> None:
    run = await world.start("a")

    for bag in (await world.store.undelivered(run.run), (await world.take()).mailbag):
        assert (list(bag.mail), bag.complete, bag.last) == ([], True, 0)


async def test_a_mailbag_says_that_it_is_all_and_which_was_the_last(world: World) -> None:
    run = await world.start("a")
    await _fill(world, 3)

    for bag in (await world.store.undelivered(run.run), (await world.take()).mailbag):
        assert (_numbers(bag), bag.complete, bag.last) == ([1, 2, 3], True, 3)


async def test_the_last_one_counts_also_if_it_was_delivered(world: World) -> None:
    task = await world.begin("a")
    await _fill(world, 3)
    await world.commit(task, deliveries=[Delivery(n, f"s{n}", 1) for n in (1, 3)])

    bag = await world.store.undelivered(task.run)
    assert (_numbers(bag), bag.complete, bag.last) == ([2], True, 3)

    await world.commit(task, deliveries=[Delivery(2, "s2", 1)], then=waiting(run_at=await world.now()))
    bag = (await world.take()).mailbag
    assert (list(bag.mail), bag.complete, bag.last) == ([], True, 3)


async def test_a_full_mailbox_is_read_bag_by_bag_the_oldest_first(world: World) -> None:
    await world.start("a")
    await _fill(world, MANY)
    claim = await world.take()
    read: list[int] = []

    bag = claim.mailbag
    while not bag.complete:
        numbers = _numbers(bag)
        assert 0 < len(numbers) < MANY
        assert bag.last == MANY
        read += numbers
        await world.commit(claim.task, deliveries=[Delivery(n, f"s{n}", 1) for n in numbers])
        bag = await world.store.undelivered(claim.task.run)
    read += _numbers(bag)

    assert read == list(range(1, MANY + 1))
    assert bag.last == MANY


async def test_mailbags_of_many_runs_are_kept_apart(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.start(name)
    await _fill(world, MANY, id="a")
    await _fill(world, 2, id="c")

    bags = {claim.run.instance_id: claim.mailbag for claim in (await world.claim()).claims}

    assert (bags["a"].complete, _numbers(bags["a"])[0], bags["a"].last) == (False, 1, MANY)
    assert (bags["b"].complete, list(bags["b"].mail), bags["b"].last) == (True, [], 0)
    assert (bags["c"].complete, _numbers(bags["c"]), bags["c"].last) == (True, [1, 2], 2)


# --------------------------------------------------------------------------------------------------- by topic


async def _mixed(world: World) -> TaskRef:
    """Events 1 to 6: x, y, an exit, x, z, a cancellation."""
    task, other = await world.begin("a"), await world.begin("other")
    await world.act(task, WatchRun(FLOW, "other", Watch.MONITOR))
    await world.send("x")
    await world.send("y")
    await world.finish(other)
    await world.send("x")
    await world.send("z")
    await world.cancel("a")
    return task


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (None, [1, 2, 3, 4, 5, 6]),
        ({"*"}, [1, 2, 3, 4, 5, 6]),
        ({"*", "x"}, [1, 2, 3, 4, 5, 6]),
        ({"x"}, [1, 3, 4, 6]),
        ({"y", "x"}, [1, 2, 3, 4, 6]),
        ({"none"}, [3, 6]),
        (set(), [3, 6]),
        ({EXIT, "z"}, [3, 5, 6]),
    ],
)
async def test_only_what_is_asked_for_and_the_engines_own(
    world: World, topics: set[str] | None, expected: list[int]
) -> None:
    task = await _mixed(world)

    bag = await world.store.undelivered(task.run, None if topics is None else frozenset(topics))

    assert (_numbers(bag), bag.complete, bag.last) == (expected, True, 6)


async def test_what_was_delivered_is_not_among_them(world: World) -> None:
    task = await _mixed(world)
    await world.commit(task, deliveries=[Delivery(1, "s", 1), Delivery(3, "t", 1)])

    bag = await world.store.undelivered(task.run, frozenset({"x"}))

    assert (_numbers(bag), bag.complete, bag.last) == ([4, 6], True, 6)


async def test_a_few_are_found_among_many_that_are_not_asked_for(world: World) -> None:
    run = await world.start("a")
    await _fill(world, MANY, "noise")
    await world.send("go")
    await world.cancel("a")

    bag = await world.store.undelivered(run.run, frozenset({"go"}))

    assert (_numbers(bag), bag.complete, bag.last) == ([MANY + 1, MANY + 2], True, MANY + 2)


async def test_a_bag_of_some_topics_is_bounded_too(world: World) -> None:
    run = await world.start("a")
    for _ in range(3):
        await _fill(world, MANY // 3, "x")
        await _fill(world, MANY // 3, "y")
        await world.cancel("a")

    bag = await world.store.undelivered(run.run, frozenset({"x", "y"}))

    assert not bag.complete
    assert 0 < len(bag.mail) < 2 * MANY
    assert _numbers(bag) == list(range(1, len(bag.mail) + 1))


async def test_the_engines_mail_is_found_in_a_full_mailbox(world: World) -> None:
    run = await world.start("a")
    await _fill(world, MANY)
    await world.cancel("a")

    [mail] = (await world.store.undelivered(run.run, frozenset())).mail

    assert (mail.n, mail.type) == (MANY + 1, CANCEL)


# --------------------------------------------------------------------------------------------------- waking


async def test_anything_among_other_topics_is_anything(world: World) -> None:
    await world.wait("a", "*", "go")

    assert (await world.send("whatever")).woken
    assert await world.claimed_ids() == ["a"]


async def test_a_release_for_anything_looks_at_everything(world: World) -> None:
    task = await world.begin("a")
    await world.send("whatever")

    assert (await world.commit(task, then=waiting("*", "go"))).due_now


async def test_what_came_after_the_last_look_makes_a_release_due(world: World) -> None:
    task = await world.begin("a")
    await _fill(world, 3)
    bag = await world.store.undelivered(task.run)
    await world.send("other")

    due = await world.commit(task, then=waiting("other"), seen=bag.last)

    assert due.due_now


async def test_a_cancellation_that_was_not_seen_makes_any_release_due(world: World) -> None:
    task = await world.begin("a")
    await world.cancel("a")

    assert (await world.commit(task, then=waiting(run_at=await world.now() + 10**6))).due_now


# --------------------------------------------------------------------------------------------------- a claim by sending


async def test_who_sends_may_take_the_run_that_it_wakes(world: World) -> None:
    run = await world.wait("a", "go", run_at=await world.now() + 10**6)
    world.clock.advance(5)

    sent = await world.send("go", payload=b"1", claimant=HERE)

    claim = sent.claim
    assert claim is not None
    assert (sent.run, sent.accepted, sent.woken) == (run, True, True)
    assert claim.task == TaskRef(run.run, 0, "w9", 2)
    assert (claim.kind, claim.lost) == (TaskKind.WAKE, False)
    assert claim.run == await world.find("a")
    assert (claim.run.status, claim.run.owner) == (Status.ACTIVE, "w9")
    assert [(mail.type, mail.payload) for mail in claim.mailbag.mail] == [("go", b"1")]
    assert (claim.mailbag.complete, claim.mailbag.last) == (True, 1)
    assert (await world.claim("w2")).claims == ()
    assert (await world.commit(claim.task, facts=[result("s")])).verdict is Verdict.APPLIED


async def test_a_run_taken_by_sending_has_a_lease_like_any_other(world: World) -> None:
    await world.wait("a", "go")
    sent = await world.send("go", claimant=HERE)
    assert sent.claim is not None
    assert [held.run for held in await world.store.heartbeat("w9", LEASE)] == [sent.claim.task.run]

    world.clock.advance(LEASE)
    [freed] = await world.store.reap(5)

    assert (freed.run, freed.losses) == (sent.claim.task.run, 1)


async def test_all_unread_mail_comes_with_it(world: World) -> None:
    await world.wait("a", "go")
    await world.send("early")

    sent = await world.send("go", claimant=HERE)

    assert sent.claim is not None
    assert [mail.type for mail in sent.claim.mailbag.mail] == ["early", "go"]


async def test_nothing_is_taken_without_a_claimant(world: World) -> None:
    await world.wait("a", "go")

    assert (await world.send("go")).claim is None
    assert await world.claimed_ids() == ["a"]


async def test_a_run_that_the_event_does_not_wake_is_not_taken(world: World) -> None:
    await world.wait("other type", "go")
    held = await world.begin("held")
    await world.wait("paused", "go")
    await world.store.pause(FLOW, "paused")
    await world.start("not begun", delay_ms=10**6)
    await world.end("ended")

    names = ["other type", "held", "paused", "not begun", "ended", "nobody"]
    sent = [await world.send("no" if name == "other type" else "go", name, claimant=HERE) for name in names]

    assert [one.claim for one in sent] == [None] * 6
    assert [one.woken for one in sent] == [False, True, False, False, False, False]
    assert (await world.commit(held)).verdict is Verdict.APPLIED
    assert await world.store.heartbeat("w9", LEASE) == []


async def test_a_run_of_another_queue_is_woken_and_not_taken(world: World) -> None:
    task = await world.begin("a", queue="fast")
    await world.commit(task, then=waiting("go"))

    sent = await world.send("go", claimant=HERE)

    assert (sent.woken, sent.claim) == (True, None)
    assert await world.claimed_ids(queues=["fast"]) == ["a"]


async def test_a_duplicate_takes_nothing(world: World) -> None:
    task = await world.begin("a")
    await world.send("go", dedup="k")
    await world.commit(task, then=waiting("go"), seen=1)

    sent = await world.send("go", dedup="k", claimant=HERE)

    assert (sent.duplicate, sent.woken, sent.claim) == (True, False, None)


async def test_a_suspect_is_not_taken(world: World) -> None:
    await world.wait("a", "go")
    await world.send("go")
    for _ in range(2):
        await world.take("w1")
        world.clock.advance(LEASE)
        await world.store.reap(9)
    assert (await world.find("a")).losses == 2

    sent = await world.send("go", claimant=HERE)

    assert (sent.woken, sent.claim) == (True, None)
    assert await world.claimed_ids(owner="w2") == ["a"]


async def test_who_takes_a_run_that_was_lost_is_told_so(world: World) -> None:
    await world.wait("a", "go")
    await world.send("go")
    await world.take("w1")
    world.clock.advance(LEASE)
    await world.store.reap(9)

    sent = await world.send("go", claimant=HERE)

    assert sent.claim is not None
    assert (sent.claim.lost, sent.claim.kind, sent.claim.task.epoch) == (True, TaskKind.RETRY, 3)


async def test_the_second_event_of_a_batch_signals_who_took_the_run(world: World) -> None:
    await world.wait("a", "go")

    first, second = await world.store.send([NewEvent(FLOW, "a", "go", claimant=HERE) for _ in range(2)])

    assert first.claim is not None
    assert (second.woken, second.claim) == (True, None)
    assert [(held.run, held.signal) for held in await world.store.signals("w9")] == [
        (first.claim.task.run, Signal.MAIL)
    ]


async def test_a_commits_events_may_take_runs_too(world: World) -> None:
    task = await world.begin("a")
    run = await world.wait("b", "go")

    answer = await world.commit(task, sends=[NewEvent(FLOW, "b", "go", claimant=HERE)])

    [sent] = answer.sent
    assert sent.claim is not None
    assert sent.claim.task == TaskRef(run.run, 0, "w9", 2)


async def test_an_act_wakes_and_takes_nothing(world: World) -> None:
    """Its answer has no place for a claim."""
    task = await world.begin("a")
    await world.wait("b", "go")

    await world.act(task, NewEvent(FLOW, "b", "go", claimant=HERE))

    assert await world.claimed_ids(owner="w2") == ["b"]
