"""What becomes of a start whose id is taken, and of the letters that come with a start."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    FIRST_EPOCH,
    Answer,
    Attributes,
    Condition,
    Created,
    Expiry,
    Finish,
    Letter,
    NewRun,
    OnConflict,
    OnReuse,
    PageQuery,
    ParentClose,
    Relations,
    TaskRef,
    Term,
    Touched,
    Verdict,
    Watch,
    WatchRun,
)
from store.world import FLOW, LEASE, World, pid, result, touched

ENDED = [Status.COMPLETE, Status.ERRORED, Status.TERMINATED, Status.CANCELLED]
LETTERS = [Letter("one", b"1"), Letter("two", None)]


async def _again(world: World, **options: Any) -> Created:
    return await world.create("a", params=b"2", **options)


# --------------------------------------------------------------------------------------------------- it lives


@pytest.mark.parametrize("reuse", list(OnReuse))
async def test_a_living_run_is_used(world: World, reuse: OnReuse) -> None:
    run = await world.start("a")

    again = await _again(world, on_reuse=reuse)

    assert (again.answer, again.created, again.run) == (Answer.EXISTING, False, run)
    assert (again.epoch, list(again.mail), touched(again)) == (0, [], Touched())


@pytest.mark.parametrize("reuse", list(OnReuse))
async def test_a_living_run_is_in_the_way(world: World, reuse: OnReuse) -> None:
    run = await world.start("a")

    again = await _again(world, on_conflict=OnConflict.FAIL, on_reuse=reuse, letters=LETTERS)

    assert (again.answer, again.run) == (Answer.EXISTS, run)
    assert await world.find("a") == run
    assert await world.unread(run.run) == []


@pytest.mark.parametrize("reuse", list(OnReuse))
@pytest.mark.parametrize("state", ["new", "held", "waiting", "paused"])
async def test_a_living_run_makes_room(world: World, state: str, reuse: OnReuse) -> None:
    match state:
        case "new":
            old = await world.start("a")
        case "held":
            old = (await world.store.get([(await world.begin("a")).run]))[0]
        case "waiting":
            old = await world.wait("a", "go")
        case _:
            old = await world.start("a")
            await world.store.pause(FLOW, "a")
    world.clock.advance(5)

    again = await _again(world, on_conflict=OnConflict.TERMINATE_EXISTING, on_reuse=reuse)

    before, now = await world.find("a", 0), await world.now()
    assert (again.answer, again.run) == (Answer.DONE, await world.find("a"))
    assert (again.run.number, again.run.params, again.run.status) == (1, b"2", Status.ACTIVE)
    assert (again.run.run_at, again.run.updated_at) == (now, now)
    assert (before.status, before.completed_at, before.owner) == (Status.TERMINATED, now, None)
    assert touched(again).ended == [old.run]
    assert [run.run for run in await world.store.get([old.run, again.run.run]) if run.current] == [again.run.run]
    assert await world.claimed_ids(owner="w2") == ["a"]


async def test_who_held_the_run_that_made_room_can_write_no_more(world: World) -> None:
    task = await world.begin("a")

    await _again(world, on_conflict=OnConflict.TERMINATE_EXISTING)

    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.LOST


async def test_a_run_that_makes_room_is_watched_no_more_but_its_successor_is(world: World) -> None:
    watcher, task = await world.begin("w"), await world.begin("a")
    await world.begin("other")
    await world.act(watcher, WatchRun(FLOW, "a", Watch.MONITOR))
    await world.act(task, WatchRun(FLOW, "other", Watch.MONITOR))

    again = await _again(world, on_conflict=OnConflict.TERMINATE_EXISTING)

    assert await world.unread(watcher.run) == []
    assert await world.store.relations(again.run.run) == Relations([], [], [(pid("w"), Watch.MONITOR)])
    await world.terminate("a")
    assert len(await world.unread(watcher.run)) == 1


async def test_the_children_of_a_run_that_makes_room_end_with_it(world: World) -> None:
    task = await world.begin("a")
    child = await world.begin("c", parent=pid("a"), parent_run=task.run, parent_close=ParentClose.TERMINATE)

    again = await _again(world, on_conflict=OnConflict.TERMINATE_EXISTING)

    assert sorted(touched(again).ended) == [task.run, child.run]
    assert (await world.find("c")).status is Status.TERMINATED


# --------------------------------------------------------------------------------------------------- it has ended


@pytest.mark.parametrize("conflict", list(OnConflict))
@pytest.mark.parametrize("status", ENDED)
async def test_a_run_that_has_ended_is_used(world: World, status: Status, conflict: OnConflict) -> None:
    ended = await world.end("a", status)

    again = await _again(world, on_conflict=conflict)

    assert (again.answer, again.run) == (Answer.EXISTING, ended)
    assert await world.find("a") == ended


@pytest.mark.parametrize("conflict", list(OnConflict))
@pytest.mark.parametrize("status", ENDED)
async def test_a_run_that_has_ended_is_in_the_way(world: World, status: Status, conflict: OnConflict) -> None:
    ended = await world.end("a", status)

    again = await _again(world, on_conflict=conflict, on_reuse=OnReuse.REJECT)

    assert (again.answer, again.run) == (Answer.EXISTS, ended)
    assert await world.find("a") == ended


@pytest.mark.parametrize("conflict", list(OnConflict))
@pytest.mark.parametrize("status", ENDED)
async def test_an_id_can_be_used_again(world: World, status: Status, conflict: OnConflict) -> None:
    ended = await world.end("a", status)
    world.clock.advance(5)

    again = await _again(world, on_conflict=conflict, on_reuse=OnReuse.ALLOW)

    assert (again.answer, again.run) == (Answer.DONE, await world.find("a"))
    assert (again.run.number, again.run.instance, again.run.params) == (1, ended.instance, b"2")
    assert (await world.find("a", 0)).status is status
    assert touched(again).ended == []
    assert await world.claimed_ids(owner="w2") == ["a"]


@pytest.mark.parametrize("status", ENDED)
async def test_an_id_can_be_used_again_after_a_failure(world: World, status: Status) -> None:
    await world.end("a", status)

    again = await _again(world, on_reuse=OnReuse.ALLOW_IF_FAILED)

    assert again.answer is (Answer.EXISTS if status is Status.COMPLETE else Answer.DONE)
    assert (await world.find("a")).number == (0 if status is Status.COMPLETE else 1)


# --------------------------------------------------------------------------------------------------- the new run


REPLACING = pytest.mark.parametrize("lives", [True, False], ids=["living", "ended"])


async def _replace(world: World, lives: bool, old: TaskRef, **options: Any) -> Created:
    if not lives:
        await world.finish(old)
    policies = {"on_conflict": OnConflict.TERMINATE_EXISTING, "on_reuse": OnReuse.ALLOW}
    return await _again(world, **policies, **options)


@REPLACING
async def test_a_run_that_comes_after_another_has_nothing_of_it(world: World, lives: bool) -> None:
    said = Attributes(b"1", b'{"city":"Bonn"}', [Term("city", "Bonn")])
    old = await world.begin(
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

    run = (await _replace(world, lives, old)).run

    assert (run.kind, run.queue, run.priority, run.seed, run.params) == ("workflow", "default", 0, 0, b"2")
    assert (run.options, run.memo, run.search, run.parent, run.attempt) == (None, None, None, None, 1)
    assert (run.expires_at, run.expiry, run.note) == (None, None, None)
    assert await world.unread(run.run) == []
    assert await world.ids(search=[Condition("city", "=", "Bonn")]) == []
    assert run == await world.find("a")


@REPLACING
async def test_a_run_that_comes_after_another_has_all_it_was_made_with(world: World, lives: bool) -> None:
    old = await world.begin("a")
    parent = await world.begin("p")
    said = Attributes(b"1", b'{"city":"Rome"}', [Term("city", "Rome")])

    made = await _replace(
        world,
        lives,
        old,
        queue="slow",
        priority=2,
        seed=7,
        options=b"{}",
        attributes=said,
        expires_ms=10,
        expiry=Expiry.RUN,
        letters=LETTERS,
        parent=pid("p"),
        parent_run=parent.run,
    )

    run = made.run
    assert run == await world.find("a")
    assert (run.queue, run.priority, run.seed, run.options) == ("slow", 2, 7, b"{}")
    assert (run.memo, run.search, run.parent) == (b"1", b'{"city":"Rome"}', pid("p"))
    assert (run.expires_at, run.expiry) == (await world.now() + 10, Expiry.RUN)
    assert await world.ids(search=[Condition("city", "=", "Rome")]) == ["a"]
    assert [(mail.n, mail.type) for mail in await world.unread(run.run)] == [(1, "one"), (2, "two")]
    assert (await world.store.relations(run.run)).watched_by == [(pid("p"), Watch.MONITOR)]


@REPLACING
async def test_a_run_that_comes_after_another_can_be_born_claimed(world: World, lives: bool) -> None:
    old = await world.begin("a")

    made = await _replace(world, lives, old, owner="w9", lease_ms=LEASE)

    assert (made.epoch, made.run.owner) == (FIRST_EPOCH, "w9")
    answer = await world.commit(TaskRef(made.run.run, 0, "w9", made.epoch), facts=[result("s")])
    assert answer.verdict is Verdict.APPLIED
    assert (await world.claim("w2")).claims == ()


@REPLACING
async def test_a_run_that_comes_after_another_can_be_delayed(world: World, lives: bool) -> None:
    old = await world.begin("a")

    run = (await _replace(world, lives, old, delay_ms=50)).run

    assert (run.status, run.run_at) == (Status.WAITING, await world.now() + 50)


async def test_numbers_go_on(world: World) -> None:
    for n in range(5):
        made = await world.create("a", on_conflict=OnConflict.TERMINATE_EXISTING)
        assert (made.answer, made.run.number) == (Answer.DONE, n)

    assert await world.ids() == ["a"]
    assert len({(await world.find("a", n)).run for n in range(5)}) == 5


async def test_the_policies_hold_in_one_batch(world: World) -> None:
    def new(**options: Any) -> NewRun:
        return NewRun(FLOW, "a", **options)

    made = await world.store.create(
        [
            new(params=b"1"),
            new(on_conflict=OnConflict.FAIL),
            new(letters=LETTERS),
            new(params=b"2", on_conflict=OnConflict.TERMINATE_EXISTING),
            NewRun(FLOW, "b"),
            new(),
        ]
    )

    assert [one.answer for one in made] == [
        Answer.DONE,
        Answer.EXISTS,
        Answer.EXISTING,
        Answer.DONE,
        Answer.DONE,
        Answer.EXISTING,
    ]
    assert [one.run.number for one in made] == [0, 0, 0, 1, 0, 1]
    assert touched(made[3]).ended == [made[0].run.run]
    assert len(await world.unread(made[0].run.run)) == 2
    assert await world.unread(made[5].run.run) == []


async def test_a_delayed_run_waits_and_nobody_holds_it(world: World) -> None:
    made = await world.create("a", delay_ms=50, owner="w1", lease_ms=LEASE)

    assert (made.run.status, made.run.owner, made.epoch) == (Status.WAITING, None, 0)
    assert made.run == await world.find("a")
    assert await world.ids(status=Status.WAITING) == ["a"]
    world.clock.advance(50)
    assert (await world.take("w2")).run.status is Status.ACTIVE


async def test_a_run_has_what_only_the_engine_reads(world: World) -> None:
    said = Attributes(b'{"m":1}', b'{"k":1}', [Term("k", 1)])

    made = await world.create("a", options=b'{"o":1}', attributes=said, parent=pid("p"))

    assert made.run == await world.find("a")
    assert (made.run.options, made.run.memo, made.run.search) == (b'{"o":1}', b'{"m":1}', b'{"k":1}')
    assert (made.run.parent, made.run.attempt, made.run.current) == (pid("p"), 1, True)


# --------------------------------------------------------------------------------------------------- letters


async def test_letters_are_there_before_anything_else(world: World) -> None:
    made = await world.create("a", letters=LETTERS, sender="somebody")
    await world.send("three")

    now = await world.now()
    assert [(mail.n, mail.type, mail.payload, mail.sender, mail.created_at) for mail in made.mail] == [
        (1, "one", b"1", "somebody", now),
        (2, "two", None, "somebody", now),
    ]
    stored = await world.unread(made.run.run)
    assert stored[:2] == list(made.mail)
    assert [mail.type for mail in stored] == ["one", "two", "three"]


async def test_a_run_without_letters_has_no_mail(world: World) -> None:
    made = await world.create("a")

    assert list(made.mail) == []
    assert (await world.take()).mailbag.last == 0


async def test_letters_of_a_run_that_is_born_claimed_come_with_it(world: World) -> None:
    made = await world.create("a", letters=LETTERS, owner="w1", lease_ms=LEASE)

    assert (made.epoch, [mail.type for mail in made.mail]) == (FIRST_EPOCH, ["one", "two"])
    assert await world.unread(made.run.run) == list(made.mail)


async def test_letters_reach_a_living_run_that_is_used(world: World) -> None:
    run = await world.wait("a", "two")

    again = await world.create("a", letters=LETTERS, sender="somebody")

    assert (again.answer, again.run.run, list(again.mail)) == (Answer.EXISTING, run.run, [])
    assert (set(touched(again).woken), touched(again).work) == ({run.run}, True)
    claim = await world.take()
    assert [(mail.n, mail.type, mail.sender) for mail in claim.mailbag.mail] == [
        (1, "one", "somebody"),
        (2, "two", "somebody"),
    ]


async def test_letters_that_nobody_waits_for_wake_nobody(world: World) -> None:
    run = await world.wait("a", "other")

    again = await world.create("a", letters=LETTERS)

    assert touched(again) == Touched()
    assert await world.claimed_ids() == []
    assert len(await world.unread(run.run)) == 2


async def test_letters_do_not_reach_a_run_that_has_ended(world: World) -> None:
    ended = await world.end("a")

    again = await world.create("a", letters=LETTERS)

    assert (again.answer, again.created, again.run) == (Answer.ENDED, False, ended)
    assert await world.store.events(PageQuery(ended.run)) == []


async def test_letters_that_may_not_come_are_not_written(world: World) -> None:
    ended = await world.end("a")

    again = await world.create("a", letters=LETTERS, on_reuse=OnReuse.REJECT)

    assert again.answer is Answer.EXISTS
    assert await world.store.events(PageQuery(ended.run)) == []


async def test_a_commits_starts_have_policies_and_letters_too(world: World) -> None:
    task = await world.begin("a")
    old = await world.begin("b")

    answer = await world.commit(
        task, starts=[NewRun(FLOW, "b", on_conflict=OnConflict.TERMINATE_EXISTING, letters=LETTERS)]
    )

    [started] = answer.started
    assert (started.answer, started.run.number, len(started.mail)) == (Answer.DONE, 1, 2)
    assert touched(started).ended == [old.run]


async def test_a_run_may_make_room_for_one_that_it_starts_itself(world: World) -> None:
    task = await world.begin("a")
    again = NewRun(FLOW, "a", b"2", on_conflict=OnConflict.TERMINATE_EXISTING)

    answer = await world.commit(task, facts=[result("s")], starts=[again], then=Finish(Status.COMPLETE, b"1"))

    old = await world.find("a", 0)
    assert (answer.verdict, [one.answer for one in answer.started]) == (Verdict.APPLIED, [Answer.DONE])
    assert (old.status, old.output, await world.keys(old.run)) == (Status.TERMINATED, None, ["s"])
    assert (await world.take("w2")).run.number == 1
