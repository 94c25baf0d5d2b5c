"""Policies for a start whose id is in use, and events that are sent with a start."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    FIRST_EPOCH,
    AffectedRuns,
    Attributes,
    Condition,
    Created,
    EventsQuery,
    Expiry,
    Finish,
    NewRun,
    OnConflict,
    OnReuse,
    ParentClose,
    Relations,
    RelationsQuery,
    RequestResult,
    RunsById,
    StartEvent,
    TaskRef,
    Term,
    Verdict,
    Watch,
    WatchRun,
)
from store.world import FLOW, LEASE, World, affected, pid, result

ENDED = [Status.COMPLETE, Status.ERRORED, Status.TERMINATED, Status.CANCELLED]
START_EVENTS = [StartEvent("one", b"1"), StartEvent("two", None)]


async def _again(world: World, **options: Any) -> Created:
    return await world.create("a", params=b"2", **options)


# --------------------------------------------------------------------------------------------------- not ended


@pytest.mark.parametrize("reuse", list(OnReuse))
async def test_use_existing_returns_the_run_that_has_not_ended(world: World, reuse: OnReuse) -> None:
    run = await world.start("a")

    again = await _again(world, on_reuse=reuse)

    assert (again.result, again.created, again.run) == (RequestResult.EXISTING, False, run)
    assert (again.epoch, list(again.events), affected(again)) == (0, [], AffectedRuns())


@pytest.mark.parametrize("reuse", list(OnReuse))
async def test_fail_rejects_a_start_while_a_run_has_not_ended(world: World, reuse: OnReuse) -> None:
    run = await world.start("a")

    again = await _again(world, on_conflict=OnConflict.FAIL, on_reuse=reuse, start_events=START_EVENTS)

    assert (again.result, again.run) == (RequestResult.EXISTS, run)
    assert await world.find("a") == run
    assert await world.undelivered(run.run) == []


@pytest.mark.parametrize("reuse", list(OnReuse))
@pytest.mark.parametrize("state", ["new", "held", "waiting", "paused"])
async def test_terminate_existing_replaces_the_run(world: World, state: str, reuse: OnReuse) -> None:
    match state:
        case "new":
            old = await world.start("a")
        case "held":
            old = (await world.store.read(RunsById([(await world.start_claimed("a")).run])))[0]
        case "waiting":
            old = await world.start_waiting("a", "go")
        case _:
            old = await world.start("a")
            await world.pause("a")
    world.clock.advance(5)

    again = await _again(world, on_conflict=OnConflict.TERMINATE_EXISTING, on_reuse=reuse)

    before, now = await world.find("a", 0), world.now()
    assert (again.result, again.run) == (RequestResult.DONE, await world.find("a"))
    assert (again.run.number, again.run.params, again.run.status) == (1, b"2", Status.ACTIVE)
    assert (again.run.run_at, again.run.updated_at) == (now, now)
    assert (before.status, before.completed_at, before.owner) == (Status.TERMINATED, now, None)
    assert affected(again).ended == [old.run]
    assert [run.run for run in await world.store.read(RunsById([old.run, again.run.run])) if run.current] == [
        again.run.run
    ]
    assert await world.claimed_ids(owner="w2") == ["a"]


async def test_the_owner_of_a_replaced_run_is_fenced(world: World) -> None:
    task = await world.start_claimed("a")

    await _again(world, on_conflict=OnConflict.TERMINATE_EXISTING)

    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.LOST


async def test_watchers_of_a_replaced_run_watch_the_new_run(world: World) -> None:
    watcher, task = await world.start_claimed("w"), await world.start_claimed("a")
    await world.start_claimed("other")
    await world.operate(watcher, WatchRun(FLOW, "a", Watch.MONITOR))
    await world.operate(task, WatchRun(FLOW, "other", Watch.MONITOR))

    again = await _again(world, on_conflict=OnConflict.TERMINATE_EXISTING)

    assert await world.undelivered(watcher.run) == []
    assert await world.store.read(RelationsQuery(again.run.run)) == Relations([], [], [(pid("w"), Watch.MONITOR)])
    await world.terminate("a")
    assert len(await world.undelivered(watcher.run)) == 1


async def test_the_children_of_a_replaced_run_end_with_it(world: World) -> None:
    task = await world.start_claimed("a")
    child = await world.start_claimed("c", parent=pid("a"), parent_run=task.run, parent_close=ParentClose.TERMINATE)

    again = await _again(world, on_conflict=OnConflict.TERMINATE_EXISTING)

    assert sorted(affected(again).ended) == [task.run, child.run]
    assert (await world.find("c")).status is Status.TERMINATED


# --------------------------------------------------------------------------------------------------- the run has ended


@pytest.mark.parametrize("conflict", list(OnConflict))
@pytest.mark.parametrize("status", ENDED)
async def test_use_existing_returns_the_ended_run(world: World, status: Status, conflict: OnConflict) -> None:
    ended = await world.start_ended("a", status)

    again = await _again(world, on_conflict=conflict)

    assert (again.result, again.run) == (RequestResult.EXISTING, ended)
    assert await world.find("a") == ended


@pytest.mark.parametrize("conflict", list(OnConflict))
@pytest.mark.parametrize("status", ENDED)
async def test_reject_refuses_a_start_after_the_run_has_ended(
    world: World, status: Status, conflict: OnConflict
) -> None:
    ended = await world.start_ended("a", status)

    again = await _again(world, on_conflict=conflict, on_reuse=OnReuse.REJECT)

    assert (again.result, again.run) == (RequestResult.EXISTS, ended)
    assert await world.find("a") == ended


@pytest.mark.parametrize("conflict", list(OnConflict))
@pytest.mark.parametrize("status", ENDED)
async def test_allow_starts_a_new_run_after_the_end(world: World, status: Status, conflict: OnConflict) -> None:
    ended = await world.start_ended("a", status)
    world.clock.advance(5)

    again = await _again(world, on_conflict=conflict, on_reuse=OnReuse.ALLOW)

    assert (again.result, again.run) == (RequestResult.DONE, await world.find("a"))
    assert (again.run.number, again.run.instance, again.run.params) == (1, ended.instance, b"2")
    assert (await world.find("a", 0)).status is status
    assert affected(again).ended == []
    assert await world.claimed_ids(owner="w2") == ["a"]


@pytest.mark.parametrize("status", ENDED)
async def test_allow_if_failed_starts_a_new_run_only_after_a_failure(world: World, status: Status) -> None:
    await world.start_ended("a", status)

    again = await _again(world, on_reuse=OnReuse.ALLOW_IF_FAILED)

    assert again.result is (RequestResult.EXISTS if status is Status.COMPLETE else RequestResult.DONE)
    assert (await world.find("a")).number == (0 if status is Status.COMPLETE else 1)


# --------------------------------------------------------------------------------------------------- the new run


REPLACING = pytest.mark.parametrize("running", [True, False], ids=["running", "ended"])


async def _replace(world: World, running: bool, old: TaskRef, **options: Any) -> Created:
    if not running:
        await world.finish(old)
    policies = {"on_conflict": OnConflict.TERMINATE_EXISTING, "on_reuse": OnReuse.ALLOW}
    return await _again(world, **policies, **options)


@REPLACING
async def test_a_replacing_run_takes_over_nothing(world: World, running: bool) -> None:
    said = Attributes(b"1", b'{"city":"Bonn"}', [Term("city", "Bonn")])
    old = await world.start_claimed(
        "a",
        params=b"1",
        kind="chain",
        queue="slow",
        priority=4,
        seed=42,
        options=b"{}",
        attributes=said,
        parent=pid("p"),
        expires_ms=10,
        expiry=Expiry.RUN,
    )
    await world.send("go")
    await world.cancel("a", deadline_ms=5)

    run = (await _replace(world, running, old)).run

    assert (run.kind, run.queue, run.priority, run.seed, run.params) == ("workflow", "default", 0, 0, b"2")
    assert (run.options, run.memo, run.search, run.parent, run.attempt) == (None, None, None, None, 1)
    assert (run.expires_at, run.expiry, run.note) == (None, None, None)
    assert await world.undelivered(run.run) == []
    assert await world.ids(search=[Condition("city", "=", "Bonn")]) == []
    assert run == await world.find("a")


@REPLACING
async def test_a_replacing_run_has_all_that_it_was_created_with(world: World, running: bool) -> None:
    old = await world.start_claimed("a")
    parent = await world.start_claimed("p")
    said = Attributes(b"1", b'{"city":"Rome"}', [Term("city", "Rome")])

    made = await _replace(
        world,
        running,
        old,
        queue="slow",
        priority=2,
        seed=7,
        options=b"{}",
        attributes=said,
        expires_ms=10,
        expiry=Expiry.RUN,
        start_events=START_EVENTS,
        parent=pid("p"),
        parent_run=parent.run,
    )

    run = made.run
    assert run == await world.find("a")
    assert (run.queue, run.priority, run.seed, run.options) == ("slow", 2, 7, b"{}")
    assert (run.memo, run.search, run.parent) == (b"1", b'{"city":"Rome"}', pid("p"))
    assert (run.expires_at, run.expiry) == (world.now() + 10, Expiry.RUN)
    assert await world.ids(search=[Condition("city", "=", "Rome")]) == ["a"]
    assert [(event.n, event.type) for event in await world.undelivered(run.run)] == [(1, "one"), (2, "two")]
    assert (await world.store.read(RelationsQuery(run.run))).watched_by == [(pid("p"), Watch.MONITOR)]


@REPLACING
async def test_a_replacing_run_can_be_created_claimed(world: World, running: bool) -> None:
    old = await world.start_claimed("a")

    made = await _replace(world, running, old, owner="w9", lease_ms=LEASE)

    assert (made.epoch, made.run.owner) == (FIRST_EPOCH, "w9")
    answer = await world.commit(TaskRef(made.run.run, 0, "w9", made.epoch), facts=[result("s")])
    assert answer.verdict is Verdict.APPLIED
    assert (await world.claim("w2")).claims == ()


@REPLACING
async def test_a_replacing_run_can_be_delayed(world: World, running: bool) -> None:
    old = await world.start_claimed("a")

    run = (await _replace(world, running, old, delay_ms=50)).run

    assert (run.status, run.run_at) == (Status.WAITING, world.now() + 50)


async def test_run_numbers_increase_with_each_replacement(world: World) -> None:
    for n in range(5):
        made = await world.create("a", on_conflict=OnConflict.TERMINATE_EXISTING)
        assert (made.result, made.run.number) == (RequestResult.DONE, n)

    assert await world.ids() == ["a"]
    assert len({(await world.find("a", n)).run for n in range(5)}) == 5


async def test_policies_apply_within_one_batch(world: World) -> None:
    def new(**options: Any) -> NewRun:
        return NewRun(FLOW, "a", **options)

    made = await world.store.create(
        [
            new(params=b"1"),
            new(on_conflict=OnConflict.FAIL),
            new(start_events=START_EVENTS),
            new(params=b"2", on_conflict=OnConflict.TERMINATE_EXISTING),
            NewRun(FLOW, "b"),
            new(),
        ]
    )

    assert [one.result for one in made] == [
        RequestResult.DONE,
        RequestResult.EXISTS,
        RequestResult.EXISTING,
        RequestResult.DONE,
        RequestResult.DONE,
        RequestResult.EXISTING,
    ]
    assert [one.run.number for one in made] == [0, 0, 0, 1, 0, 1]
    assert affected(made[3]).ended == [made[0].run.run]
    assert len(await world.undelivered(made[0].run.run)) == 2
    assert await world.undelivered(made[5].run.run) == []


async def test_a_delayed_run_waits_and_has_no_owner(world: World) -> None:
    made = await world.create("a", delay_ms=50, owner="w1", lease_ms=LEASE)

    assert (made.run.status, made.run.owner, made.epoch) == (Status.WAITING, None, 0)
    assert made.run == await world.find("a")
    assert await world.ids(status=Status.WAITING) == ["a"]
    world.clock.advance(50)
    assert (await world.claim_one("w2")).run.status is Status.ACTIVE


async def test_a_run_stores_the_options_of_the_engine(world: World) -> None:
    said = Attributes(b'{"m":1}', b'{"k":1}', [Term("k", 1)])

    made = await world.create("a", options=b'{"o":1}', attributes=said, parent=pid("p"))

    assert made.run == await world.find("a")
    assert (made.run.options, made.run.memo, made.run.search) == (b'{"o":1}', b'{"m":1}', b'{"k":1}')
    assert (made.run.parent, made.run.attempt, made.run.current) == (pid("p"), 1, True)


# --------------------------------------------------------------------------------------------------- start events


async def test_start_events_are_the_first_events_of_the_mailbox(world: World) -> None:
    made = await world.create("a", start_events=START_EVENTS, sender="somebody")
    await world.send("three")

    now = world.now()
    assert [(event.n, event.type, event.payload, event.sender, event.created_at) for event in made.events] == [
        (1, "one", b"1", "somebody", now),
        (2, "two", None, "somebody", now),
    ]
    stored = await world.undelivered(made.run.run)
    assert stored[:2] == list(made.events)
    assert [event.type for event in stored] == ["one", "two", "three"]


async def test_a_run_without_start_events_has_an_empty_mailbox(world: World) -> None:
    made = await world.create("a")

    assert list(made.events) == []
    assert (await world.claim_one()).mailbox_page.last == 0


async def test_a_run_created_claimed_returns_its_start_events(world: World) -> None:
    made = await world.create("a", start_events=START_EVENTS, owner="w1", lease_ms=LEASE)

    assert (made.epoch, [event.type for event in made.events]) == (FIRST_EPOCH, ["one", "two"])
    assert await world.undelivered(made.run.run) == list(made.events)


async def test_start_events_reach_an_existing_run_that_is_used(world: World) -> None:
    run = await world.start_waiting("a", "two")

    again = await world.create("a", start_events=START_EVENTS, sender="somebody")

    assert (again.result, again.run.run, list(again.events)) == (RequestResult.EXISTING, run.run, [])
    assert (set(affected(again).woken), affected(again).work) == ({run.run}, True)
    claim = await world.claim_one()
    assert [(event.n, event.type, event.sender) for event in claim.mailbox_page.events] == [
        (1, "one", "somebody"),
        (2, "two", "somebody"),
    ]


async def test_start_events_that_the_existing_run_does_not_wait_for_do_not_wake_it(world: World) -> None:
    run = await world.start_waiting("a", "other")

    again = await world.create("a", start_events=START_EVENTS)

    assert affected(again) == AffectedRuns()
    assert await world.claimed_ids() == []
    assert len(await world.undelivered(run.run)) == 2


async def test_start_events_do_not_reach_an_ended_run(world: World) -> None:
    ended = await world.start_ended("a")

    again = await world.create("a", start_events=START_EVENTS)

    assert (again.result, again.created, again.run) == (RequestResult.ENDED, False, ended)
    assert await world.store.read(EventsQuery(ended.run)) == []


async def test_start_events_of_a_rejected_start_are_not_written(world: World) -> None:
    ended = await world.start_ended("a")

    again = await world.create("a", start_events=START_EVENTS, on_reuse=OnReuse.REJECT)

    assert again.result is RequestResult.EXISTS
    assert await world.store.read(EventsQuery(ended.run)) == []


async def test_starts_of_a_commit_have_policies_and_start_events(world: World) -> None:
    task = await world.start_claimed("a")
    old = await world.start_claimed("b")

    answer = await world.commit(
        task, starts=[NewRun(FLOW, "b", on_conflict=OnConflict.TERMINATE_EXISTING, start_events=START_EVENTS)]
    )

    [started] = answer.started
    assert (started.result, started.run.number, len(started.events)) == (RequestResult.DONE, 1, 2)
    assert affected(started).ended == [old.run]


async def test_a_run_may_be_replaced_by_a_start_of_its_own_commit(world: World) -> None:
    task = await world.start_claimed("a")
    again = NewRun(FLOW, "a", b"2", on_conflict=OnConflict.TERMINATE_EXISTING)

    answer = await world.commit(task, facts=[result("s")], starts=[again], then=Finish(Status.COMPLETE, b"1"))

    old = await world.find("a", 0)
    assert (answer.verdict, [one.result for one in answer.started]) == (Verdict.APPLIED, [RequestResult.DONE])
    assert (old.status, old.output, await world.keys(old.run)) == (Status.TERMINATED, None, ["s"])
    assert (await world.claim_one("w2")).run.number == 1
