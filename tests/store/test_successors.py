"""Successors: the run that follows one that ends, what it takes over, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    CANCEL,
    EXIT,
    REPLY,
    Attributes,
    Condition,
    CurrentRuns,
    Delivery,
    EventsQuery,
    Expiry,
    Finish,
    NewEvent,
    NewRun,
    NextRun,
    ParentClose,
    Relations,
    RelationsQuery,
    Reply,
    ReplyQuery,
    ReplyToEvent,
    RestartRun,
    SnapshotQuery,
    TaskRef,
    Term,
    Verdict,
    Watch,
    WatchRun,
)
from store.world import FLOW, World, affected, pid, result, turn

ATTRIBUTES = Attributes(b'{"m":1}', b'{"city":"Bonn"}', [Term("city", "Bonn")])


async def _start_with_attributes(world: World, **options: Any) -> TaskRef:
    return await world.start_claimed(
        "a",
        params=b"1",
        kind="chain",
        queue="slow",
        priority=4,
        seed=42,
        options=b'{"retries":3}',
        attributes=ATTRIBUTES,
        parent=pid("p"),
        **options,
    )


# --------------------------------------------------------------------------------------------------- the new run


async def test_a_successor_has_the_next_number_and_the_attributes_of_its_predecessor(world: World) -> None:
    task = await _start_with_attributes(world)
    before = await world.find("a")
    world.clock.advance(5)

    after = await world.continue_run(task, b"2", attempt=3)

    now = world.now()
    assert (after.instance_id, after.number, after.instance) == ("a", 1, before.instance)
    assert (after.run, after.current) == ((await world.find("a")).run, True)
    assert (after.params, after.attempt) == (b"2", 3)
    assert (after.kind, after.queue, after.priority, after.seed) == ("chain", "slow", 4, 42)
    assert (after.options, after.memo, after.search) == (b'{"retries":3}', ATTRIBUTES.memo, ATTRIBUTES.search)
    assert after.parent == pid("p")
    assert (after.status, after.run_at, after.owner, after.updated_at) == (Status.ACTIVE, now, None, now)
    assert (after.started_at, after.completed_at, after.output, after.error, after.note) == (None,) * 5
    assert (after.expires_at, after.expiry) == (None, None)


@pytest.mark.parametrize("status", [Status.COMPLETE, Status.ERRORED, Status.CANCELLED])
async def test_the_predecessor_ends_with_its_status_and_stays_readable(world: World, status: Status) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")])

    answer = await world.finish(task, status, output=b"1", error=b"2", note="n", next=NextRun(None))

    old = await world.find("a", 0)
    assert answer.verdict is Verdict.APPLIED
    assert (old.status, old.output, old.error, old.note) == (status, b"1", b"2", "n")
    assert (old.current, old.completed_at, old.owner, old.run_at) == (False, world.now(), None, None)
    assert await world.keys(old.run) == ["s"]
    assert (await world.commit(task)).verdict is Verdict.LOST


async def test_a_successor_can_have_options_of_its_own(world: World) -> None:
    task = await _start_with_attributes(world)

    after = await world.continue_run(task, options=b'{"retries":2}')
    again = await world.restart("a", options=b'{"retries":9}')

    assert (after.options, again.options) == (b'{"retries":2}', b'{"retries":9}')
    assert (await world.find("a", 0)).options == b'{"retries":3}'


async def test_a_successor_begins_as_a_fresh_run(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")], started_at=1)
    answer = await world.finish(task, next=NextRun(b"2"))

    claim = await world.claim_one("w2")

    assert affected(answer).work
    assert (claim.run.number, claim.kind, claim.task.epoch, claim.lost) == (1, TaskKind.RUN, 1, False)
    assert (await world.store.read(SnapshotQuery(claim.run.run))).facts == []


async def test_a_successor_waits_until_its_start_time(world: World) -> None:
    task = await world.start_claimed("a")
    later = world.now() + 500

    after = await world.continue_run(task, run_at=later)

    assert (after.status, after.run_at) == (Status.WAITING, later)
    assert (await world.claim("w2")).next_due == later
    world.clock.advance(500)
    claim = await world.claim_one("w2")
    assert (claim.run.status, claim.kind) == (Status.ACTIVE, TaskKind.RUN)


async def test_a_successor_with_a_past_start_time_is_active(world: World) -> None:
    task = await world.start_claimed("a")

    after = await world.continue_run(task, run_at=world.now())

    assert after.status is Status.ACTIVE
    assert await world.claimed_ids(owner="w2") == ["a"]


async def test_an_instance_can_have_many_successive_runs(world: World) -> None:
    await world.start("a")

    for n in range(20):
        claim = await world.claim_one()
        assert (claim.run.number, claim.run.params) == (n, None if n == 0 else str(n).encode())
        await world.finish(claim.task, next=NextRun(str(n + 1).encode()))

    assert await world.ids() == ["a"]
    assert (await world.find("a")).number == 20


async def test_a_successor_keeps_the_list_position_of_its_instance(world: World) -> None:
    task = await world.start_claimed("a")
    await world.start("b")

    await world.continue_run(task)

    assert await world.ids() == ["b", "a"]
    assert await world.ids(status=Status.COMPLETE) == []


async def test_a_successor_is_found_by_the_search_terms_of_its_predecessor(world: World) -> None:
    task = await _start_with_attributes(world)
    city = Condition("city", "=", "Bonn")

    await world.continue_run(task)

    found = await world.store.read(CurrentRuns(search=[city]))
    assert [(run.instance_id, run.number) for run in found] == [("a", 1)]


async def test_attributes_written_with_the_end_apply_to_the_successor(world: World) -> None:
    task = await _start_with_attributes(world)
    attributes = Attributes(None, b'{"city":"Rome"}', [Term("city", "Rome")])

    await world.commit(task, attributes=attributes, then=Finish(Status.COMPLETE, next=NextRun(None)))

    run = await world.find("a")
    assert (run.number, run.memo, run.search) == (1, ATTRIBUTES.memo, attributes.search)
    assert await world.ids(search=[Condition("city", "=", "Bonn")]) == []
    assert await world.ids(search=[Condition("city", "=", "Rome")]) == ["a"]


async def test_events_are_sent_to_the_successor(world: World) -> None:
    task = await world.start_claimed("a")
    after = await world.continue_run(task)

    await world.send("go")

    assert [event.type for event in await world.undelivered(after.run)] == ["go"]
    assert await world.undelivered(task.run) == []


async def test_a_batch_can_mix_ends_with_and_without_successors(world: World) -> None:
    tasks = [await world.start_claimed(f"r{n}") for n in range(4)]
    ends = [
        turn(task, then=Finish(Status.COMPLETE, next=NextRun(b"1") if n % 2 else None)) for n, task in enumerate(tasks)
    ]

    answers = await world.store.commit(ends)

    assert {answer.verdict for answer in answers} == {Verdict.APPLIED}
    assert [(await world.find(f"r{n}")).number for n in range(4)] == [0, 1, 0, 1]


@pytest.mark.promise("fencing")
async def test_a_stale_turn_creates_no_successor(world: World) -> None:
    task = await world.start_claimed("a")
    await world.terminate("a")

    answer = await world.finish(task, next=NextRun(None))

    assert answer.verdict is Verdict.LOST
    assert (await world.find("a")).number == 0


async def test_no_successor_is_created_when_a_pause_was_requested(world: World) -> None:
    task = await world.start_claimed("a")
    await world.pause("a")

    answer = await world.finish(task, next=NextRun(None))

    assert (answer.verdict, (await world.find("a")).number) == (Verdict.PAUSED, 0)


# --------------------------------------------------------------------------------------------------- expiry


@pytest.mark.parametrize("delay", [0, 500])
async def test_the_expiry_of_a_successor_counts_from_its_start_time(world: World, delay: int) -> None:
    task = await world.start_claimed("a", expires_ms=10, expiry=Expiry.EXECUTION)
    now = world.now()

    after = await world.continue_run(task, run_at=now + delay if delay else None, expires_ms=100, expiry=Expiry.RUN)

    assert (after.expires_at, after.expiry) == (now + delay + 100, Expiry.RUN)


@pytest.mark.parametrize("expiry", [Expiry.RUN, Expiry.EXECUTION])
async def test_a_successor_does_not_inherit_the_expiry_of_its_predecessor(world: World, expiry: Expiry) -> None:
    task = await world.start_claimed("a", expires_ms=10, expiry=expiry)

    after = await world.continue_run(task)

    assert (after.expires_at, after.expiry) == (None, None)


@pytest.mark.parametrize(
    ("own", "kept"), [(None, (50, Expiry.CANCEL)), (100, (50, Expiry.CANCEL)), (20, (20, Expiry.RUN))]
)
async def test_a_successor_does_not_extend_the_deadline_of_a_cancellation(
    world: World, own: int | None, kept: tuple[int, Expiry]
) -> None:
    task = await world.start_claimed("a")
    await world.cancel("a", deadline_ms=50)

    after = await world.continue_run(task, expires_ms=own, expiry=own and Expiry.RUN)

    now = world.now()
    assert (after.expires_at, after.expiry) == (now + kept[0], kept[1])


# --------------------------------------------------------------------------------------------------- events


@pytest.mark.promise("messages-once-in-order")
async def test_undelivered_events_are_moved_to_the_successor_in_order(world: World) -> None:
    task = await world.start_claimed("a")
    sent_at = world.now()
    await world.send("one", payload=b"1", sender="somebody")
    await world.send("two", payload=b"2")
    await world.send("three", payload=b"3", ask="q", dedup="k")
    await world.commit(task, deliveries=[Delivery(2, "wait", 7)])
    world.clock.advance(5)

    after = await world.continue_run(task)

    first, second = await world.undelivered(after.run)
    assert (first.n, first.type, first.payload, first.sender, first.created_at) == (1, "one", b"1", "somebody", sent_at)
    assert (second.n, second.type, second.payload, second.ask) == (2, "three", b"3", "q")
    assert [(event.type, event.consumed_by) for event in await world.store.read(EventsQuery(task.run))] == [
        ("two", "wait")
    ]
    assert (await world.send("again", dedup="k")).duplicate
    assert (await world.claim_one("w2")).mailbox_page.last == 2


async def test_later_events_continue_the_numbers_of_moved_events(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("one")
    await world.commit(task, deliveries=[Delivery(1, "wait", 7)])
    await world.send("two")
    after = await world.continue_run(task)

    await world.send("three")

    assert [(event.n, event.type) for event in await world.undelivered(after.run)] == [(1, "two"), (2, "three")]


async def test_a_moved_ask_can_be_replied_to(world: World) -> None:
    asker, task = await world.start_claimed("asker"), await world.start_claimed("a")
    await world.send("ask", dedup="k", ask="q", sender=pid("asker"))
    after = await world.continue_run(task)
    claim = await world.claim_one("w2")

    await world.operate(claim.task, ReplyToEvent(1, Reply(True, b"7")))

    assert await world.store.read(ReplyQuery(after.run, "k")) == Reply(True, b"7")
    assert [event.type for event in await world.undelivered(asker.run)] == [REPLY]


async def _send_engine_events(world: World, task: TaskRef) -> None:
    """Send one event of each engine topic, and one of a user."""
    other = await world.start_claimed("other")
    await world.send("ask", "other", ask="q", sender=pid("a"))
    await world.operate(task, WatchRun(FLOW, "other", Watch.MONITOR))
    await world.operate(other, ReplyToEvent(1, Reply(True, None)))
    await world.cancel("a")
    await world.send("go")
    await world.finish(other)


async def test_only_cancel_of_the_engine_events_is_moved_to_a_retry(world: World) -> None:
    task = await world.start_claimed("a")
    await _send_engine_events(world, task)

    after = await world.continue_run(task)

    assert [(event.n, event.type) for event in await world.undelivered(after.run)] == [(1, CANCEL), (2, "go")]


async def test_a_continuation_takes_over_all_undelivered_events(world: World) -> None:
    task = await world.start_claimed("a")
    await _send_engine_events(world, task)

    after = await world.continue_run(task, continues=True)

    assert [(event.n, event.type) for event in await world.undelivered(after.run)] == [
        (1, REPLY),
        (2, CANCEL),
        (3, "go"),
        (4, EXIT),
    ]
    assert await world.undelivered(task.run) == []


async def test_a_thousand_events_are_moved_to_the_successor(world: World) -> None:
    task = await world.start_claimed("a")
    await world.store.send([NewEvent(FLOW, "a", "go", str(n).encode()) for n in range(1_000)])

    after = await world.continue_run(task)

    event = await world.store.read(EventsQuery(after.run))
    assert [(one.n, one.payload) for one in event] == [(n + 1, str(n).encode()) for n in range(1_000)]


# --------------------------------------------------------------------------------------------------- watching


@pytest.mark.parametrize("continues", [False, True])
async def test_watchers_of_the_predecessor_watch_the_successor(world: World, continues: bool) -> None:
    watcher, task = await world.start_claimed("w"), await world.start_claimed("a")
    await world.operate(watcher, WatchRun(FLOW, "a", Watch.MONITOR))

    after = await world.continue_run(task, continues=continues)

    assert await world.undelivered(watcher.run) == []
    assert (await world.store.read(RelationsQuery(after.run))).watched_by == [(pid("w"), Watch.MONITOR)]
    await world.terminate("a")
    assert [(event.type, event.sender) for event in await world.undelivered(watcher.run)] == [(EXIT, pid("a"))]


async def test_a_continuation_takes_over_the_watches_of_its_predecessor(world: World) -> None:
    task, other = await world.start_claimed("a"), await world.start_claimed("other")
    await world.operate(task, WatchRun(FLOW, "other", Watch.MONITOR))

    after = await world.continue_run(task, continues=True)
    await world.finish(other)

    assert [(event.type, event.sender) for event in await world.undelivered(after.run)] == [(EXIT, pid("other"))]


async def test_a_retry_does_not_take_over_the_watches_of_its_predecessor(world: World) -> None:
    task, other = await world.start_claimed("a"), await world.start_claimed("other")
    await world.operate(task, WatchRun(FLOW, "other", Watch.MONITOR))

    after = await world.continue_run(task)

    assert (await world.store.read(RelationsQuery(other.run))).watched_by == []
    assert affected(await world.finish(other)).woken == []
    assert await world.undelivered(after.run) == []


@pytest.mark.parametrize("continues", [False, True])
async def test_a_link_to_a_successor_has_the_expected_directions(world: World, continues: bool) -> None:
    task = await world.start_claimed("a")
    await world.start_claimed("other")
    await world.operate(task, WatchRun(FLOW, "other", Watch.LINK))

    after = await world.continue_run(task, continues=continues)

    both = [(pid("other"), Watch.LINK)]
    assert await world.store.read(RelationsQuery(after.run)) == Relations([], both if continues else [], both)


# --------------------------------------------------------------------------------------------------- children


async def _children(world: World, task: TaskRef) -> None:
    for close in ParentClose:
        await world.start_claimed(close.value, parent=pid("a"), parent_run=task.run, parent_close=close)


async def test_a_continuation_takes_over_the_children(world: World) -> None:
    task = await world.start_claimed("a")
    await _children(world, task)
    before = [await world.find(close.value) for close in ParentClose]

    after = await world.continue_run(task, continues=True)

    assert [await world.find(close.value) for close in ParentClose] == before
    relations = await world.store.read(RelationsQuery(after.run))
    assert [child.pid for child in relations.children] == [pid(close.value) for close in ParentClose]
    assert len(relations.watches) == 3
    await world.terminate("a")
    assert (await world.find("terminate")).status is Status.TERMINATED
    assert [event.type for event in await world.undelivered(before[2].run)] == [CANCEL]


async def test_a_continuation_receives_the_exit_of_a_child(world: World) -> None:
    task = await world.start_claimed("a")
    child = await world.start_claimed("c", parent=pid("a"), parent_run=task.run)
    after = await world.continue_run(task, continues=True)

    await world.finish(child)

    assert [(event.type, event.sender) for event in await world.undelivered(after.run)] == [(EXIT, pid("c"))]


async def test_a_retry_starts_without_children(world: World) -> None:
    task = await world.start_claimed("a")
    await _children(world, task)

    answer = await world.finish(task, next=NextRun(None))

    after, asked = await world.find("a"), await world.find("request_cancel")
    ended = await world.find("terminate")
    assert (ended.status, affected(answer).ended) == (Status.TERMINATED, [ended.run])
    assert (await world.find("abandon")).status is Status.ACTIVE
    assert [event.type for event in await world.undelivered(asked.run)] == [CANCEL]
    assert await world.undelivered(after.run) == []
    assert await world.store.read(RelationsQuery(after.run)) == Relations([], [], [])


async def test_a_successor_stays_a_child_of_its_parent(world: World) -> None:
    parent = await world.start_claimed("p")
    child = await world.start_claimed("a", parent=pid("p"), parent_run=parent.run)
    after = await world.continue_run(child)
    assert await world.undelivered(parent.run) == []
    assert [one.pid for one in (await world.store.read(RelationsQuery(parent.run))).children] == [pid("a")]

    answer = await world.finish(parent)

    assert affected(answer).ended == [after.run]
    assert (await world.find("a")).status is Status.TERMINATED


@pytest.mark.parametrize("first", ["parent", "child"])
async def test_a_successor_does_not_outlive_a_parent_that_ends_in_the_same_batch(world: World, first: str) -> None:
    parent = await world.start_claimed("p")
    child = await world.start_claimed("a", parent=pid("p"), parent_run=parent.run)
    both = [turn(parent, then=Finish(Status.COMPLETE)), turn(child, then=Finish(Status.COMPLETE, next=NextRun(None)))]

    await world.store.commit(both if first == "parent" else both[::-1])

    assert (await world.find("a")).status is Status.TERMINATED
    assert (await world.claim("w2")).claims == ()


# --------------------------------------------------------------------------------------------------- restart


async def test_a_restart_keeps_params_options_and_attributes(world: World) -> None:
    await _start_with_attributes(world)
    world.clock.advance(5)

    after = await world.restart("a", expires_ms=100, expiry=Expiry.RUN)

    assert (after.number, after.params, after.attempt) == (1, b"1", 1)
    assert (after.options, after.memo, after.search) == (b'{"retries":3}', ATTRIBUTES.memo, ATTRIBUTES.search)
    assert after.parent == pid("p")
    assert (after.expires_at, after.expiry) == (world.now() + 100, Expiry.RUN)
    assert await world.ids(search=[Condition("city", "=", "Bonn")]) == ["a"]


async def test_a_restart_resets_the_attempt_and_the_expiry(world: World) -> None:
    task = await world.start_claimed("a")
    tried = await world.continue_run(task, b"2", attempt=7, expires_ms=100, expiry=Expiry.RUN)
    assert tried.attempt == 7

    again = await world.restart("a")

    assert (again.number, again.params, again.attempt) == (2, b"2", 1)
    assert (again.expires_at, again.expiry) == (None, None)


async def test_a_restart_leaves_undelivered_events_with_the_old_run(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go")
    await world.cancel("a")

    after = await world.restart("a")

    assert await world.undelivered(after.run) == []
    assert [event.type for event in await world.undelivered(task.run)] == ["go", CANCEL]


async def test_a_restart_keeps_the_watchers(world: World) -> None:
    watcher, task = await world.start_claimed("w"), await world.start_claimed("a")
    await world.operate(watcher, WatchRun(FLOW, "a", Watch.LINK))

    after = await world.restart("a")

    assert await world.undelivered(watcher.run) == []
    assert await world.store.read(RelationsQuery(task.run)) == Relations([], [], [])
    assert await world.store.read(RelationsQuery(after.run)) == Relations([], [], [(pid("w"), Watch.LINK)])


async def test_the_result_of_a_restart_names_the_ended_runs(world: World) -> None:
    task = await world.start_claimed("a")
    child = await world.start_claimed("c", parent=pid("a"), parent_run=task.run)

    steered = await world.store.control(RestartRun(FLOW, "a"))

    assert steered.run == await world.find("a", 1)
    assert sorted(steered.affected.ended) == [task.run, child.run]
    assert steered.affected.work


async def test_a_restart_of_an_ended_run_ends_no_run(world: World) -> None:
    task = await world.start_claimed("a")
    await world.start_claimed("c", parent=pid("a"), parent_run=task.run, parent_close=ParentClose.ABANDON)
    await world.finish(task)
    again = await world.restart("c")
    ended = await world.find("a")

    steered = await world.store.control(RestartRun(FLOW, "a"))

    assert (steered.affected.ended, await world.find("a", 0)) == ([], replace(ended, current=False))
    assert await world.find("c") == again


async def test_a_parents_restart_leaves_the_new_runs_children_alone(world: World) -> None:
    await world.start_claimed("a")
    after = await world.restart("a")
    await world.store.create([NewRun(FLOW, "c", parent=pid("a"), parent_run=after.run)])

    assert (await world.find("c")).status is Status.ACTIVE
    await world.terminate("a")
    assert (await world.find("c")).status is Status.TERMINATED


async def test_events_can_be_sent_to_a_waiting_successor(world: World) -> None:
    task = await world.start_claimed("a")
    after = await world.continue_run(task, run_at=world.now() + 500)

    assert not (await world.send("go")).woken
    assert (await world.cancel("a")).affected.woken == [after.run]
    assert (await world.claim_one("w2")).run.run == after.run
