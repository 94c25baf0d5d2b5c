"""Mailbox pages: a bounded number of undelivered events, by topic, and claims by sending."""

from __future__ import annotations

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    CANCEL,
    EXIT,
    Claimant,
    Delivery,
    MailboxPage,
    MailboxQuery,
    NewEvent,
    Signal,
    TaskRef,
    Verdict,
    Watch,
    WatchRun,
)
from store.world import FLOW, LEASE, World, result, waiting

MANY = 1_200
CLAIMANT = Claimant("w9", LEASE, ["default", "slow"])


async def _fill(world: World, count: int, type: str = "go", id: str = "a") -> None:
    await world.store.send([NewEvent(FLOW, id, type, str(n).encode()) for n in range(count)])


def _numbers(page: MailboxPage) -> list[int]:
    return [event.n for event in page.events]


# --------------------------------------------------------------------------------------------------- contents


async def test_the_page_of_an_empty_mailbox_is_complete_and_has_no_last_event(world: World) -> None:
    run = await world.start("a")

    for page in (await world.store.read(MailboxQuery(run.run)), (await world.claim_one()).mailbox_page):
        assert (list(page.events), page.complete, page.last) == ([], True, 0)


async def test_a_page_tells_whether_it_is_complete_and_the_last_event_number(world: World) -> None:
    run = await world.start("a")
    await _fill(world, 3)

    for page in (await world.store.read(MailboxQuery(run.run)), (await world.claim_one()).mailbox_page):
        assert (_numbers(page), page.complete, page.last) == ([1, 2, 3], True, 3)


async def test_the_last_event_number_includes_delivered_events(world: World) -> None:
    task = await world.start_claimed("a")
    await _fill(world, 3)
    await world.commit(task, deliveries=[Delivery(n, f"s{n}", 1) for n in (1, 3)])

    page = await world.store.read(MailboxQuery(task.run))
    assert (_numbers(page), page.complete, page.last) == ([2], True, 3)

    await world.commit(task, deliveries=[Delivery(2, "s2", 1)], then=waiting(run_at=world.now()))
    page = (await world.claim_one()).mailbox_page
    assert (list(page.events), page.complete, page.last) == ([], True, 3)


@pytest.mark.promise("bounded-resources")
async def test_a_large_mailbox_is_read_page_by_page_the_oldest_first(world: World) -> None:
    await world.start("a")
    await _fill(world, MANY)
    claim = await world.claim_one()
    read: list[int] = []

    page = claim.mailbox_page
    while not page.complete:
        numbers = _numbers(page)
        assert 0 < len(numbers) < MANY
        assert page.last == MANY
        read += numbers
        await world.commit(claim.task, deliveries=[Delivery(n, f"s{n}", 1) for n in numbers])
        page = await world.store.read(MailboxQuery(claim.task.run))
    read += _numbers(page)

    assert read == list(range(1, MANY + 1))
    assert page.last == MANY


async def test_pages_of_many_runs_are_kept_apart(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.start(name)
    await _fill(world, MANY, id="a")
    await _fill(world, 2, id="c")

    pages = {claim.run.instance_id: claim.mailbox_page for claim in (await world.claim()).claims}

    assert (pages["a"].complete, _numbers(pages["a"])[0], pages["a"].last) == (False, 1, MANY)
    assert (pages["b"].complete, list(pages["b"].events), pages["b"].last) == (True, [], 0)
    assert (pages["c"].complete, _numbers(pages["c"]), pages["c"].last) == (True, [1, 2], 2)


# --------------------------------------------------------------------------------------------------- by topic


async def _mixed(world: World) -> TaskRef:
    """A run with events 1 to 6: x, y, an exit, x, z, a cancellation."""
    task, other = await world.start_claimed("a"), await world.start_claimed("other")
    await world.operate(task, WatchRun(FLOW, "other", Watch.MONITOR))
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
async def test_a_page_has_the_requested_topics_and_the_engines_own_events(
    world: World, topics: set[str] | None, expected: list[int]
) -> None:
    task = await _mixed(world)

    page = await world.store.read(MailboxQuery(task.run, None if topics is None else frozenset(topics)))

    assert (_numbers(page), page.complete, page.last) == (expected, True, 6)


async def test_a_page_has_no_delivered_events(world: World) -> None:
    task = await _mixed(world)
    await world.commit(task, deliveries=[Delivery(1, "s", 1), Delivery(3, "t", 1)])

    page = await world.store.read(MailboxQuery(task.run, frozenset({"x"})))

    assert (_numbers(page), page.complete, page.last) == ([4, 6], True, 6)


async def test_events_of_a_topic_are_found_among_many_of_other_topics(world: World) -> None:
    run = await world.start("a")
    await _fill(world, MANY, "noise")
    await world.send("go")
    await world.cancel("a")

    page = await world.store.read(MailboxQuery(run.run, frozenset({"go"})))

    assert (_numbers(page), page.complete, page.last) == ([MANY + 1, MANY + 2], True, MANY + 2)


@pytest.mark.promise("bounded-resources")
async def test_a_page_of_some_topics_is_bounded_too(world: World) -> None:
    run = await world.start("a")
    for _ in range(3):
        await _fill(world, MANY // 3, "x")
        await _fill(world, MANY // 3, "y")
        await world.cancel("a")

    page = await world.store.read(MailboxQuery(run.run, frozenset({"x", "y"})))

    assert not page.complete
    assert 0 < len(page.events) < 2 * MANY
    assert _numbers(page) == list(range(1, len(page.events) + 1))


async def test_engine_events_are_found_in_a_large_mailbox(world: World) -> None:
    run = await world.start("a")
    await _fill(world, MANY)
    await world.cancel("a")

    [event] = (await world.store.read(MailboxQuery(run.run, frozenset()))).events

    assert (event.n, event.type) == (MANY + 1, CANCEL)


# --------------------------------------------------------------------------------------------------- waking


async def test_the_any_topic_matches_also_among_other_topics(world: World) -> None:
    await world.start_waiting("a", "*", "go")

    assert (await world.send("whatever")).woken
    assert await world.claimed_ids() == ["a"]


async def test_a_release_for_any_topic_checks_all_events(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("whatever")

    assert (await world.commit(task, then=waiting("*", "go"))).due_now


@pytest.mark.promise("no-lost-wakeup")
async def test_an_event_after_the_last_read_makes_a_release_due(world: World) -> None:
    task = await world.start_claimed("a")
    await _fill(world, 3)
    page = await world.store.read(MailboxQuery(task.run))
    await world.send("other")

    due = await world.commit(task, then=waiting("other"), seen=page.last)

    assert due.due_now


@pytest.mark.promise("no-lost-wakeup")
async def test_an_unseen_cancellation_makes_any_release_due(world: World) -> None:
    task = await world.start_claimed("a")
    await world.cancel("a")

    assert (await world.commit(task, then=waiting(run_at=world.now() + 10**6))).due_now


# --------------------------------------------------------------------------------------------------- a claim by sending


async def test_a_sender_may_claim_the_run_that_it_wakes(world: World) -> None:
    run = await world.start_waiting("a", "go", run_at=world.now() + 10**6)
    world.clock.advance(5)

    sent = await world.send("go", payload=b"1", claimant=CLAIMANT)

    claim = sent.claim
    assert claim is not None
    assert (sent.run, sent.accepted, sent.woken) == (run, True, True)
    assert claim.task == TaskRef(run.run, 0, "w9", 2)
    assert (claim.kind, claim.lost) == (TaskKind.WAKE, False)
    assert claim.run == await world.find("a")
    assert (claim.run.status, claim.run.owner) == (Status.ACTIVE, "w9")
    assert [(event.type, event.payload) for event in claim.mailbox_page.events] == [("go", b"1")]
    assert (claim.mailbox_page.complete, claim.mailbox_page.last) == (True, 1)
    assert (await world.claim("w2")).claims == ()
    assert (await world.commit(claim.task, facts=[result("s")])).verdict is Verdict.APPLIED


async def test_a_run_claimed_by_a_send_has_an_ordinary_lease(world: World) -> None:
    await world.start_waiting("a", "go")
    sent = await world.send("go", claimant=CLAIMANT)
    assert sent.claim is not None
    assert [held.run for held in await world.store.heartbeat("w9", LEASE)] == [sent.claim.task.run]

    world.clock.advance(LEASE)
    [expired] = await world.store.reap(5)

    assert (expired.run, expired.losses) == (sent.claim.task.run, 1)


async def test_a_claim_by_a_send_has_all_undelivered_events(world: World) -> None:
    await world.start_waiting("a", "go")
    await world.send("early")

    sent = await world.send("go", claimant=CLAIMANT)

    assert sent.claim is not None
    assert [event.type for event in sent.claim.mailbox_page.events] == ["early", "go"]


async def test_a_send_without_a_claimant_claims_nothing(world: World) -> None:
    await world.start_waiting("a", "go")

    assert (await world.send("go")).claim is None
    assert await world.claimed_ids() == ["a"]


async def test_a_run_that_the_event_does_not_wake_is_not_claimed(world: World) -> None:
    await world.start_waiting("other type", "go")
    held = await world.start_claimed("held")
    await world.start_waiting("paused", "go")
    await world.pause("paused")
    await world.start("not begun", delay_ms=10**6)
    await world.start_ended("ended")

    names = ["other type", "held", "paused", "not begun", "ended", "nobody"]
    sent = [await world.send("no" if name == "other type" else "go", name, claimant=CLAIMANT) for name in names]

    assert [one.claim for one in sent] == [None] * 6
    assert [one.woken for one in sent] == [False, True, False, False, False, False]
    assert (await world.commit(held)).verdict is Verdict.APPLIED
    assert await world.store.heartbeat("w9", LEASE) == []


async def test_a_run_of_another_queue_is_woken_and_not_claimed(world: World) -> None:
    task = await world.start_claimed("a", queue="fast")
    await world.commit(task, then=waiting("go"))

    sent = await world.send("go", claimant=CLAIMANT)

    assert (sent.woken, sent.claim) == (True, None)
    assert await world.claimed_ids(queues=["fast"]) == ["a"]


async def test_a_duplicate_claims_nothing(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go", dedup="k")
    await world.commit(task, then=waiting("go"), seen=1)

    sent = await world.send("go", dedup="k", claimant=CLAIMANT)

    assert (sent.duplicate, sent.woken, sent.claim) == (True, False, None)


async def test_a_suspect_is_not_claimed_by_a_send(world: World) -> None:
    await world.start_waiting("a", "go")
    await world.send("go")
    for _ in range(2):
        await world.claim_one("w1")
        world.clock.advance(LEASE)
        await world.store.reap(9)
    assert (await world.find("a")).losses == 2

    sent = await world.send("go", claimant=CLAIMANT)

    assert (sent.woken, sent.claim) == (True, None)
    assert await world.claimed_ids(owner="w2") == ["a"]


async def test_a_claim_by_a_send_reports_a_loss(world: World) -> None:
    await world.start_waiting("a", "go")
    await world.send("go")
    await world.claim_one("w1")
    world.clock.advance(LEASE)
    await world.store.reap(9)

    sent = await world.send("go", claimant=CLAIMANT)

    assert sent.claim is not None
    assert (sent.claim.lost, sent.claim.kind, sent.claim.task.epoch) == (True, TaskKind.RETRY, 3)


async def test_the_second_event_of_a_batch_signals_the_new_owner(world: World) -> None:
    await world.start_waiting("a", "go")

    first, second = await world.store.send([NewEvent(FLOW, "a", "go", claimant=CLAIMANT) for _ in range(2)])

    assert first.claim is not None
    assert (second.woken, second.claim) == (True, None)
    assert [(held.run, held.signal) for held in await world.store.fetch_signals("w9")] == [
        (first.claim.task.run, Signal.EVENTS)
    ]


async def test_the_runs_that_one_call_wakes_are_claimed_with_their_own_mailboxes(world: World) -> None:
    for name in ("a", "b", "other type"):
        await world.start_waiting(name, "go")
    await world.send("earlier", "b", payload=b"0")
    sending = [("go", "a"), ("go", "b"), ("no", "other type"), ("go", "a")]

    sent = await world.store.send(
        [NewEvent(FLOW, name, topic, payload=name.encode(), claimant=CLAIMANT) for topic, name in sending]
    )

    claims = [one.claim for one in sent]
    assert [None if one is None else one.run.instance_id for one in claims] == ["a", "b", None, None]
    assert [[event.payload for event in one.mailbox_page.events] for one in claims if one is not None] == [
        [b"a"],
        [b"0", b"b"],
    ]
    assert [one.woken for one in sent] == [True, True, False, True]


async def test_events_sent_by_a_commit_may_claim_runs(world: World) -> None:
    task = await world.start_claimed("a")
    run = await world.start_waiting("b", "go")

    answer = await world.commit(task, sends=[NewEvent(FLOW, "b", "go", claimant=CLAIMANT)])

    [sent] = answer.sent
    assert sent.claim is not None
    assert sent.claim.task == TaskRef(run.run, 0, "w9", 2)


async def test_an_operation_wakes_a_run_and_does_not_claim_it(world: World) -> None:
    """The result of an operation cannot report a claim."""
    task = await world.start_claimed("a")
    await world.start_waiting("b", "go")

    await world.operate(task, NewEvent(FLOW, "b", "go", claimant=CLAIMANT))

    assert await world.claimed_ids(owner="w2") == ["b"]
