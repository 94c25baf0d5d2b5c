"""Successors: the run that takes the place of one that ends, what it takes over, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    CANCEL,
    EXIT,
    REPLY,
    AnswerEvent,
    Attributes,
    Condition,
    Delivery,
    Expiry,
    Finish,
    ListQuery,
    NewEvent,
    NewRun,
    NextRun,
    PageQuery,
    ParentClose,
    Relations,
    Reply,
    TaskRef,
    Term,
    Verdict,
    Watch,
    WatchRun,
)
from store.world import FLOW, World, pid, result, touched, turn

SAID = Attributes(b'{"m":1}', b'{"city":"Bonn"}', [Term("city", "Bonn")])


async def _full(world: World, **options: Any) -> TaskRef:
    return await world.begin(
        "a",
        params=b"1",
        kind="chain",
        queue="slow",
        priority=4,
        seed=42,
        options=b'{"retries":3}',
        attributes=SAID,
        parent=pid("p"),
        **options,
    )


# --------------------------------------------------------------------------------------------------- the new run


async def test_a_successor_has_the_next_number_and_what_the_one_before_had(world: World) -> None:
    task = await _full(world)
    before = await world.find("a")
    world.clock.advance(5)

    after = await world.go_on(task, b"2", attempt=3)

    now = await world.now()
    assert (after.instance_id, after.number, after.instance) == ("a", 1, before.instance)
    assert (after.run, after.current) == ((await world.find("a")).run, True)
    assert (after.params, after.attempt) == (b"2", 3)
    assert (after.kind, after.queue, after.priority, after.seed) == ("chain", "slow", 4, 42)
    assert (after.options, after.memo, after.search) == (b'{"retries":3}', SAID.memo, SAID.search)
    assert after.parent == pid("p")
    assert (after.status, after.run_at, after.owner, after.updated_at) == (Status.ACTIVE, now, None, now)
    assert (after.started_at, after.completed_at, after.output, after.error, after.note) == (None,) * 5
    assert (after.expires_at, after.expiry) == (None, None)


@pytest.mark.parametrize("status", [Status.COMPLETE, Status.ERRORED, Status.CANCELLED])
async def test_the_one_before_ends_as_it_says_and_stays_readable(world: World, status: Status) -> None:
    task = await world.begin("a")
    await world.commit(task, facts=[result("s")])

    answer = await world.finish(task, status, output=b"1", error=b"2", note="n", next=NextRun(None))

    old = await world.find("a", 0)
    assert answer.verdict is Verdict.APPLIED
    assert (old.status, old.output, old.error, old.note) == (status, b"1", b"2", "n")
    assert (old.current, old.completed_at, old.owner, old.run_at) == (False, await world.now(), None, None)
    assert await world.keys(old.run) == ["s"]
    assert (await world.commit(task)).verdict is Verdict.LOST


async def test_a_successor_can_have_options_of_its_own(world: World) -> None:
    task = await _full(world)

    after = await world.go_on(task, options=b'{"retries":2}')
    again = await world.restart("a", options=b'{"retries":9}')

    assert (after.options, again.options) == (b'{"retries":2}', b'{"retries":9}')
    assert (await world.find("a", 0)).options == b'{"retries":3}'


async def test_a_successor_begins_as_a_fresh_run(world: World) -> None:
    task = await world.begin("a")
    await world.commit(task, facts=[result("s")], started_at=1)
    answer = await world.finish(task, next=NextRun(b"2"))

    claim = await world.take("w2")

    assert touched(answer).work
    assert (claim.run.number, claim.kind, claim.task.epoch, claim.lost) == (1, TaskKind.RUN, 1, False)
    assert (await world.store.load(claim.run.run)).facts == []


async def test_a_successor_can_wait_for_its_time(world: World) -> None:
    task = await world.begin("a")
    later = await world.now() + 500

    after = await world.go_on(task, run_at=later)

    assert (after.status, after.run_at) == (Status.WAITING, later)
    assert (await world.claim("w2")).next_due == later
    world.clock.advance(500)
    claim = await world.take("w2")
    assert (claim.run.status, claim.kind) == (Status.ACTIVE, TaskKind.RUN)


async def test_a_successor_whose_time_has_come_is_active(world: World) -> None:
    task = await world.begin("a")

    after = await world.go_on(task, run_at=await world.now())

    assert after.status is Status.ACTIVE
    assert await world.claimed_ids(owner="w2") == ["a"]


async def test_runs_can_follow_each_other_for_long(world: World) -> None:
    await world.start("a")

    for n in range(20):
        claim = await world.take()
        assert (claim.run.number, claim.run.params) == (n, None if n == 0 else str(n).encode())
        await world.finish(claim.task, next=NextRun(str(n + 1).encode()))

    assert await world.ids() == ["a"]
    assert (await world.find("a")).number == 20


async def test_a_successor_is_listed_in_the_place_of_its_instance(world: World) -> None:
    task = await world.begin("a")
    await world.start("b")

    await world.go_on(task)

    assert await world.ids() == ["b", "a"]
    assert await world.ids(status=Status.COMPLETE) == []


async def test_a_successor_is_found_by_what_was_said(world: World) -> None:
    task = await _full(world)
    city = Condition("city", "=", "Bonn")

    await world.go_on(task)

    found = await world.store.list(ListQuery(search=[city]))
    assert [(run.instance_id, run.number) for run in found] == [("a", 1)]


async def test_what_is_said_with_the_end_goes_to_the_successor(world: World) -> None:
    task = await _full(world)
    said = Attributes(None, b'{"city":"Rome"}', [Term("city", "Rome")])

    await world.commit(task, attributes=said, then=Finish(Status.COMPLETE, next=NextRun(None)))

    run = await world.find("a")
    assert (run.number, run.memo, run.search) == (1, SAID.memo, said.search)
    assert await world.ids(search=[Condition("city", "=", "Bonn")]) == []
    assert await world.ids(search=[Condition("city", "=", "Rome")]) == ["a"]


async def test_events_go_to_the_successor(world: World) -> None:
    task = await world.begin("a")
    after = await world.go_on(task)

    await world.send("go")

    assert [mail.type for mail in await world.unread(after.run)] == ["go"]
    assert await world.unread(task.run) == []


async def test_a_batch_has_ends_with_successors_and_without(world: World) -> None:
    tasks = [await world.begin(f"r{n}") for n in range(4)]
    ends = [
        turn(task, then=Finish(Status.COMPLETE, next=NextRun(b"1") if n % 2 else None)) for n, task in enumerate(tasks)
    ]

    answers = await world.store.commit(ends)

    assert {answer.verdict for answer in answers} == {Verdict.APPLIED}
    assert [(await world.find(f"r{n}")).number for n in range(4)] == [0, 1, 0, 1]


async def test_a_turn_that_lost_its_task_has_no_successor(world: World) -> None:
    task = await world.begin("a")
    await world.terminate("a")

    answer = await world.finish(task, next=NextRun(None))

    assert answer.verdict is Verdict.LOST
    assert (await world.find("a")).number == 0


async def test_a_pause_comes_before_a_successor(world: World) -> None:
    task = await world.begin("a")
    await world.store.pause(FLOW, "a")

    answer = await world.finish(task, next=NextRun(None))

    assert (answer.verdict, (await world.find("a")).number) == (Verdict.PAUSED, 0)


# --------------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize("delay", [0, 500])
async def test_a_successors_time_runs_from_when_it_may_begin(world: World, delay: int) -> None:
    task = await world.begin("a", expires_ms=10, expiry=Expiry.EXECUTION)
    now = await world.now()

    after = await world.go_on(task, run_at=now + delay if delay else None, expires_ms=100, expiry=Expiry.RUN)

    assert (after.expires_at, after.expiry) == (now + delay + 100, Expiry.RUN)


@pytest.mark.parametrize("expiry", [Expiry.RUN, Expiry.EXECUTION])
async def test_the_time_of_the_one_before_is_not_the_successors(world: World, expiry: Expiry) -> None:
    task = await world.begin("a", expires_ms=10, expiry=expiry)

    after = await world.go_on(task)

    assert (after.expires_at, after.expiry) == (None, None)


@pytest.mark.parametrize(
    ("own", "kept"), [(None, (50, Expiry.CANCEL)), (100, (50, Expiry.CANCEL)), (20, (20, Expiry.RUN))]
)
async def test_who_is_to_cancel_does_not_get_more_time(world: World, own: int | None, kept: tuple[int, Expiry]) -> None:
    task = await world.begin("a")
    await world.cancel("a", deadline_ms=50)

    after = await world.go_on(task, expires_ms=own, expiry=own and Expiry.RUN)

    now = await world.now()
    assert (after.expires_at, after.expiry) == (now + kept[0], kept[1])


# --------------------------------------------------------------------------------------------------- mail


async def test_mail_that_was_not_consumed_goes_along_in_order(world: World) -> None:
    task = await world.begin("a")
    sent_at = await world.now()
    await world.send("one", payload=b"1", sender="somebody")
    await world.send("two", payload=b"2")
    await world.send("three", payload=b"3", ask="q", dedup="k")
    await world.commit(task, deliveries=[Delivery(2, "wait", 7)])
    world.clock.advance(5)

    after = await world.go_on(task)

    first, second = await world.unread(after.run)
    assert (first.n, first.type, first.payload, first.sender, first.created_at) == (1, "one", b"1", "somebody", sent_at)
    assert (second.n, second.type, second.payload, second.ask) == (2, "three", b"3", "q")
    assert [(mail.type, mail.consumed_by) for mail in await world.store.events(PageQuery(task.run))] == [
        ("two", "wait")
    ]
    assert (await world.send("again", dedup="k")).duplicate
    assert (await world.take("w2")).mailbag.last == 2


async def test_mail_that_comes_later_is_numbered_on(world: World) -> None:
    task = await world.begin("a")
    await world.send("one")
    await world.commit(task, deliveries=[Delivery(1, "wait", 7)])
    await world.send("two")
    after = await world.go_on(task)

    await world.send("three")

    assert [(mail.n, mail.type) for mail in await world.unread(after.run)] == [(1, "two"), (2, "three")]


async def test_a_question_that_was_moved_can_be_answered(world: World) -> None:
    asker, task = await world.begin("asker"), await world.begin("a")
    await world.send("ask", dedup="k", ask="q", sender=pid("asker"))
    after = await world.go_on(task)
    claim = await world.take("w2")

    await world.act(claim.task, AnswerEvent(1, Reply(True, b"7")))

    assert await world.store.reply(after.run, "k") == Reply(True, b"7")
    assert [mail.type for mail in await world.unread(asker.run)] == [REPLY]


async def _engines_mail(world: World, task: TaskRef) -> None:
    """One of each, and one of a user."""
    other = await world.begin("other")
    await world.send("ask", "other", ask="q", sender=pid("a"))
    await world.act(task, WatchRun(FLOW, "other", Watch.MONITOR))
    await world.act(other, AnswerEvent(1, Reply(True, None)))
    await world.cancel("a")
    await world.send("go")
    await world.finish(other)


async def test_of_the_engines_mail_only_a_cancellation_goes_along(world: World) -> None:
    task = await world.begin("a")
    await _engines_mail(world, task)

    after = await world.go_on(task)

    assert [(mail.n, mail.type) for mail in await world.unread(after.run)] == [(1, CANCEL), (2, "go")]


async def test_all_mail_goes_along_with_a_continuation(world: World) -> None:
    task = await world.begin("a")
    await _engines_mail(world, task)

    after = await world.go_on(task, continues=True)

    assert [(mail.n, mail.type) for mail in await world.unread(after.run)] == [
        (1, REPLY),
        (2, CANCEL),
        (3, "go"),
        (4, EXIT),
    ]
    assert await world.unread(task.run) == []


async def test_a_thousand_events_go_along(world: World) -> None:
    task = await world.begin("a")
    await world.store.send([NewEvent(FLOW, "a", "go", str(n).encode()) for n in range(1_000)])

    after = await world.go_on(task)

    mail = await world.store.events(PageQuery(after.run))
    assert [(one.n, one.payload) for one in mail] == [(n + 1, str(n).encode()) for n in range(1_000)]


# --------------------------------------------------------------------------------------------------- watching


@pytest.mark.parametrize("continues", [False, True])
async def test_who_watched_the_one_before_watches_the_successor(world: World, continues: bool) -> None:
    watcher, task = await world.begin("w"), await world.begin("a")
    await world.act(watcher, WatchRun(FLOW, "a", Watch.MONITOR))

    after = await world.go_on(task, continues=continues)

    assert await world.unread(watcher.run) == []
    assert (await world.store.relations(after.run)).watched_by == [(pid("w"), Watch.MONITOR)]
    await world.terminate("a")
    assert [(mail.type, mail.sender) for mail in await world.unread(watcher.run)] == [(EXIT, pid("a"))]


async def test_a_continuation_watches_what_the_one_before_did(world: World) -> None:
    task, other = await world.begin("a"), await world.begin("other")
    await world.act(task, WatchRun(FLOW, "other", Watch.MONITOR))

    after = await world.go_on(task, continues=True)
    await world.finish(other)

    assert [(mail.type, mail.sender) for mail in await world.unread(after.run)] == [(EXIT, pid("other"))]


async def test_another_attempt_does_not_watch_what_the_one_before_did(world: World) -> None:
    task, other = await world.begin("a"), await world.begin("other")
    await world.act(task, WatchRun(FLOW, "other", Watch.MONITOR))

    after = await world.go_on(task)

    assert (await world.store.relations(other.run)).watched_by == []
    assert touched(await world.finish(other)).woken == []
    assert await world.unread(after.run) == []


@pytest.mark.parametrize("continues", [False, True])
async def test_a_link_to_a_successor_has_the_sides_it_says(world: World, continues: bool) -> None:
    task = await world.begin("a")
    await world.begin("other")
    await world.act(task, WatchRun(FLOW, "other", Watch.LINK))

    after = await world.go_on(task, continues=continues)

    both = [(pid("other"), Watch.LINK)]
    assert await world.store.relations(after.run) == Relations([], both if continues else [], both)


# --------------------------------------------------------------------------------------------------- children


async def _children(world: World, task: TaskRef) -> None:
    for close in ParentClose:
        await world.begin(close.value, parent=pid("a"), parent_run=task.run, parent_close=close)


async def test_a_continuation_has_the_children(world: World) -> None:
    task = await world.begin("a")
    await _children(world, task)
    before = [await world.find(close.value) for close in ParentClose]

    after = await world.go_on(task, continues=True)

    assert [await world.find(close.value) for close in ParentClose] == before
    relations = await world.store.relations(after.run)
    assert [child.pid for child in relations.children] == [pid(close.value) for close in ParentClose]
    assert len(relations.watches) == 3
    await world.terminate("a")
    assert (await world.find("terminate")).status is Status.TERMINATED
    assert [mail.type for mail in await world.unread(before[2].run)] == [CANCEL]


async def test_a_child_tells_the_continuation_of_its_end(world: World) -> None:
    task = await world.begin("a")
    child = await world.begin("c", parent=pid("a"), parent_run=task.run)
    after = await world.go_on(task, continues=True)

    await world.finish(child)

    assert [(mail.type, mail.sender) for mail in await world.unread(after.run)] == [(EXIT, pid("c"))]


async def test_another_attempt_begins_without_children(world: World) -> None:
    task = await world.begin("a")
    await _children(world, task)

    answer = await world.finish(task, next=NextRun(None))

    after, asked = await world.find("a"), await world.find("request_cancel")
    ended = await world.find("terminate")
    assert (ended.status, touched(answer).ended) == (Status.TERMINATED, [ended.run])
    assert (await world.find("abandon")).status is Status.ACTIVE
    assert [mail.type for mail in await world.unread(asked.run)] == [CANCEL]
    assert await world.unread(after.run) == []
    assert await world.store.relations(after.run) == Relations([], [], [])


async def test_a_successor_is_its_parents_child(world: World) -> None:
    parent = await world.begin("p")
    child = await world.begin("a", parent=pid("p"), parent_run=parent.run)
    after = await world.go_on(child)
    assert await world.unread(parent.run) == []
    assert [one.pid for one in (await world.store.relations(parent.run)).children] == [pid("a")]

    answer = await world.finish(parent)

    assert touched(answer).ended == [after.run]
    assert (await world.find("a")).status is Status.TERMINATED


@pytest.mark.parametrize("first", ["parent", "child"])
async def test_a_successor_does_not_outlive_a_parent_that_ends_in_the_same_batch(world: World, first: str) -> None:
    parent = await world.begin("p")
    child = await world.begin("a", parent=pid("p"), parent_run=parent.run)
    both = [turn(parent, then=Finish(Status.COMPLETE)), turn(child, then=Finish(Status.COMPLETE, next=NextRun(None)))]

    await world.store.commit(both if first == "parent" else both[::-1])

    assert (await world.find("a")).status is Status.TERMINATED
    assert (await world.claim("w2")).claims == ()


# --------------------------------------------------------------------------------------------------- restart


async def test_a_restart_has_what_the_one_before_had(world: World) -> None:
    await _full(world)
    world.clock.advance(5)

    after = await world.restart("a", expires_ms=100, expiry=Expiry.RUN)

    assert (after.number, after.params, after.attempt) == (1, b"1", 1)
    assert (after.options, after.memo, after.search) == (b'{"retries":3}', SAID.memo, SAID.search)
    assert after.parent == pid("p")
    assert (after.expires_at, after.expiry) == (await world.now() + 100, Expiry.RUN)
    assert await world.ids(search=[Condition("city", "=", "Bonn")]) == ["a"]


async def test_a_restart_counts_attempts_anew_and_has_no_time_of_before(world: World) -> None:
    task = await world.begin("a")
    tried = await world.go_on(task, b"2", attempt=7, expires_ms=100, expiry=Expiry.RUN)
    assert tried.attempt == 7

    again = await world.restart("a")

    assert (again.number, again.params, again.attempt) == (2, b"2", 1)
    assert (again.expires_at, again.expiry) == (None, None)


async def test_a_restart_leaves_the_mail_where_it_is(world: World) -> None:
    task = await world.begin("a")
    await world.send("go")
    await world.cancel("a")

    after = await world.restart("a")

    assert await world.unread(after.run) == []
    assert [mail.type for mail in await world.unread(task.run)] == ["go", CANCEL]


async def test_a_restart_keeps_those_who_watch(world: World) -> None:
    watcher, task = await world.begin("w"), await world.begin("a")
    await world.act(watcher, WatchRun(FLOW, "a", Watch.LINK))

    after = await world.restart("a")

    assert await world.unread(watcher.run) == []
    assert await world.store.relations(task.run) == Relations([], [], [])
    assert await world.store.relations(after.run) == Relations([], [], [(pid("w"), Watch.LINK)])


async def test_the_answer_to_a_restart_names_who_ended(world: World) -> None:
    task = await world.begin("a")
    child = await world.begin("c", parent=pid("a"), parent_run=task.run)

    steered = await world.store.restart(FLOW, "a")

    assert steered.run == await world.find("a", 1)
    assert sorted(steered.touched.ended) == [task.run, child.run]
    assert steered.touched.work


async def test_a_restart_of_what_has_ended_ends_nothing(world: World) -> None:
    task = await world.begin("a")
    await world.begin("c", parent=pid("a"), parent_run=task.run, parent_close=ParentClose.ABANDON)
    await world.finish(task)
    again = await world.restart("c")
    ended = await world.find("a")

    steered = await world.store.restart(FLOW, "a")

    assert (steered.touched.ended, await world.find("a", 0)) == ([], replace(ended, current=False))
    assert await world.find("c") == again


async def test_a_parents_restart_leaves_the_new_runs_children_alone(world: World) -> None:
    await world.begin("a")
    after = await world.restart("a")
    await world.store.create([NewRun(FLOW, "c", parent=pid("a"), parent_run=after.run)])

    assert (await world.find("c")).status is Status.ACTIVE
    await world.terminate("a")
    assert (await world.find("c")).status is Status.TERMINATED


async def test_waiting_successors_can_be_sent_to(world: World) -> None:
    task = await world.begin("a")
    after = await world.go_on(task, run_at=await world.now() + 500)

    assert not (await world.send("go")).woken
    assert (await world.cancel("a")).touched.woken == [after.run]
    assert (await world.take("w2")).run.run == after.run
