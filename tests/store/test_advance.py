"""Advancing: what became of a unit is written under its fence, and opens what waited for it."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    Advance,
    Delivery,
    Fact,
    FactState,
    Finish,
    GiveBack,
    NewUnit,
    Opening,
    TaskRef,
    Verdict,
)
from store.world import LEASE, Database, FakeClock, World, done, failure, line, result, unit

CHAIN = (unit(1), unit(2, 1), unit(3, 1))
DIAMOND = (unit(1), unit(2, 1), unit(3, 1), unit(4, 2))
ITEM = Fact(FactState.ITEM, "a", 0, "item", 1, 1, value=b"1")


# --- a result, and what follows


async def test_a_unit_that_is_done_opens_the_next(world: World) -> None:
    [task] = await world.graph("a", *CHAIN)

    advanced = await world.advance(done(task, 2), room=5)

    assert list(advanced.applied) == [True]
    assert list(advanced.taken) == [TaskRef(task.run, 2, "w1", 1)]
    assert not advanced.due
    assert await world.results(task.run) == ["a"]
    assert [held.unit for held in await world.store.heartbeat("w1", LEASE)] == [2]


async def test_a_unit_is_due_when_all_it_waits_for_are_done(world: World) -> None:
    [first] = await world.graph("a", *DIAMOND)
    left, right = (await world.advance(done(first, 2, 3), room=2)).taken

    one = await world.advance(done(left, 4), room=5)
    both = await world.advance(done(right, 4), room=5)

    assert list(one.taken) == []
    assert list(both.taken) == [TaskRef(first.run, 4, "w1", 1)]


async def test_a_unit_is_due_when_all_it_waits_for_are_done_in_one_batch(world: World) -> None:
    [first] = await world.graph("a", *DIAMOND)
    left, right = (await world.advance(done(first, 2, 3), room=2)).taken

    advanced = await world.advance(done(left, 4), done(right, 4), room=5)

    assert list(advanced.taken) == [TaskRef(first.run, 4, "w1", 1)]


async def test_a_unit_can_be_opened_by_several_at_once(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 3))

    first = await world.advance(Advance(task, opens=[Opening(2, 2)], then=GiveBack(await world.now())), room=5)
    second = await world.advance(Advance(first.taken[0], opens=[Opening(2)]), room=5)

    assert [one.unit for one in first.taken] == [1]
    assert [one.unit for one in second.taken] == [2]


async def test_what_there_is_no_room_for_is_due_for_all(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1), unit(3, 1), unit(4, 1))

    advanced = await world.advance(done(task, 2, 3, 4), room=1)

    assert (len(advanced.taken), advanced.due) == (1, True)
    claims = (await world.claim("w2")).claims
    assert {one.task.unit for one in claims} == {2, 3, 4} - {one.unit for one in advanced.taken}
    assert {(one.kind, one.task.epoch) for one in claims} == {(TaskKind.RESUME, 1)}


async def test_what_is_opened_goes_before_what_starts(world: World) -> None:
    await world.start("new", priority=-1)
    [task] = await world.graph("a", *CHAIN)

    await world.advance(done(task, 2))

    assert await world.claimed_ids() == ["a", "new"]


async def test_a_unit_that_is_not_there_is_not_opened(world: World) -> None:
    [task] = await world.graph("a", unit(1))

    advanced = await world.advance(done(task, 7), room=5)

    assert list(advanced.applied) == [True]
    assert [one.unit for one in advanced.taken] == [0]


async def test_a_unit_that_is_held_is_not_opened_again(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    advanced = await world.advance(done(first, 2), room=5)

    assert (list(advanced.taken), advanced.due) == ([], False)
    assert list((await world.advance(done(second), room=0)).applied) == [True]


async def test_a_batch_advances_units_of_many_runs(world: World) -> None:
    tasks = [task for name in "abc" for task in await world.graph(name, *CHAIN)]

    advanced = await world.advance(*(done(task, 2) for task in tasks), room=2)

    assert list(advanced.applied) == [True] * 3
    assert (len(advanced.taken), advanced.due) == (2, True)
    assert len(await world.claimed_ids(owner="w2")) == 1


async def test_nothing_to_advance_is_nothing(world: World) -> None:
    advanced = await world.advance(room=5)

    assert (list(advanced.applied), list(advanced.taken), advanced.due) == ([], [], False)


async def test_facts_logs_and_the_time_of_the_start_are_written(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))

    await world.advance(
        Advance(
            task,
            facts=[failure("a", 1), ITEM],
            results=[result("a")],
            logs=[line("hello", step_key="a")],
            started_at=17,
        )
    )

    stored = await world.store.facts(task.run)
    assert [(fact.state, fact.key) for fact in stored] == [(0, "a"), (1, "a"), (2, "a"), (5, "a")]
    assert (await world.find("a")).started_at == 17


async def test_the_time_of_the_start_is_set_once(world: World) -> None:
    first, second, third = await world.graph("a", unit(1), unit(2), unit(3))

    await world.advance(done(first, started_at=1), done(second, started_at=2))
    await world.advance(done(third, started_at=3))

    assert (await world.find("a")).started_at == 1


# --- the run itself


async def test_the_run_is_due_when_the_last_result_is_written_and_taken_whatever_the_room(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    one = await world.advance(done(first), room=0)
    last = await world.advance(done(second), room=0)

    assert list(one.taken) == []
    assert list(last.taken) == [TaskRef(first.run, 0, "w1", 1)]
    assert not last.due
    assert (await world.commit(last.taken[0], then=Finish(Status.COMPLETE, b"7"))).verdict is Verdict.APPLIED
    assert (await world.find("a")).output == b"7"


async def test_all_results_in_one_batch_make_the_run_due_once(world: World) -> None:
    tasks = await world.graph("a", unit(1), unit(2), unit(3))

    advanced = await world.advance(*map(done, tasks), room=5)

    assert list(advanced.taken) == [TaskRef(tasks[0].run, 0, "w1", 1)]


async def test_a_result_that_is_there_is_passed_over_and_not_counted(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))
    await world.advance(done(first))

    again = await world.advance(
        Advance(second, results=[result("a", value=b'"other"')], then=GiveBack(await world.now())), room=1
    )
    last = await world.advance(done(again.taken[0]), room=1)

    assert [one.unit for one in again.taken] == [2]
    assert [one.unit for one in last.taken] == [0]
    stored = await world.store.facts(first.run, FactState.RESULT)
    assert [(fact.key, fact.value) for fact in stored] == [("a", b"1"), ("b", b"1")]


async def test_the_same_result_twice_in_a_batch_counts_once(world: World) -> None:
    first, second, _ = await world.graph("a", unit(1), unit(2), unit(3))

    advanced = await world.advance(done(first), done(second, key="a"), room=5)

    assert (list(advanced.taken), await world.results(first.run)) == ([], ["a"])


async def test_results_of_others_count_too(world: World) -> None:
    [task] = await world.graph("a", *CHAIN)

    advanced = await world.advance(
        Advance(task, results=[result("a"), result("b", kind="skipped"), result("c", kind="skipped")], drops=[2, 3])
    )

    assert [one.unit for one in advanced.taken] == [0]
    assert await world.results(task.run) == ["a", "b", "c"]


async def test_a_run_that_somebody_holds_is_due_when_it_is_given_back(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.exit("a")
    [itself] = (await world.claim("w2")).claims

    last = await world.advance(done(task), room=5)
    given_back = await world.advance(Advance(itself.task, then=GiveBack(), seen=1), owner="w2")

    assert itself.task.unit == 0
    assert (list(last.taken), last.due) == ([], False)
    assert list(given_back.taken) == [TaskRef(task.run, 0, "w2", 2)]


async def test_a_run_that_expired_is_left_to_who_ends_it(world: World) -> None:
    [task] = await world.graph("a", unit(1), expires_ms=500)
    world.clock.advance(500)
    [overdue] = (await world.claim("w2")).overdue

    last = await world.advance(done(task), room=5)

    assert (list(last.applied), list(last.taken), last.due) == ([True], [], False)
    assert (await world.commit(overdue.task, then=Finish(Status.ERRORED))).verdict is Verdict.APPLIED


async def test_a_run_without_units_is_due_at_once(world: World) -> None:
    await world.start("a", kind="graph", units=[])

    assert await world.claimed_units() == [0]


async def test_a_run_that_ends_ends_its_units(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2), unit(3, 1))
    await world.exit("a")
    [itself] = (await world.claim("w2")).claims

    await world.commit(itself.task, then=Finish(Status.CANCELLED))

    assert list((await world.advance(done(first, 3), done(second), room=5)).applied) == [False, False]
    assert await world.results(first.run) == []
    assert await world.store.heartbeat("w1", LEASE) == []
    assert await world.claimed_units() == []


# --- given back


async def test_a_unit_can_be_tried_again_later(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    later = await world.now() + 500

    advanced = await world.advance(Advance(task, facts=[failure("a", 1)], then=GiveBack(later)), room=5)
    early = await world.claim()
    world.clock.advance(500)
    [claim] = (await world.claim("w2")).claims

    assert (list(advanced.applied), list(advanced.taken), advanced.due) == ([True], [], False)
    assert (list(early.claims), early.next_due) == ([], later)
    assert (claim.task, claim.kind) == (TaskRef(task.run, 1, "w2", 2), TaskKind.RETRY)


async def test_a_unit_given_back_due_now_may_be_taken_at_once(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    now = await world.now()

    kept = await world.advance(Advance(task, then=GiveBack(now)), room=1)
    left = await world.advance(Advance(kept.taken[0], then=GiveBack(now)), room=0)

    assert list(kept.taken) == [task._replace(epoch=2)]
    assert (list(left.taken), left.due) == ([], True)
    assert await world.claimed_units() == [1]


async def test_a_unit_given_back_until_others_are_done_is_due_then(world: World) -> None:
    [task] = await world.graph("a", unit(1))

    split = await world.advance(
        Advance(task, adds=[NewUnit(2, "a[0]"), NewUnit(3, "a[1]")], then=GiveBack(missing=2)), room=5
    )
    items = [Advance(one, facts=[ITEM._replace(n=one.unit)], opens=[Opening(1)]) for one in split.taken]
    first, second = await world.advance(items[0], room=5), await world.advance(items[1], room=5)

    assert sorted(one.unit for one in split.taken) == [2, 3]
    assert list(first.taken) == []
    assert list(second.taken) == [task._replace(epoch=2)]


async def test_what_is_given_back_for_good_waits_until_it_is_opened(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    await world.advance(Advance(first, then=GiveBack()), room=5)
    nothing = await world.claim()
    opened = await world.advance(done(second, 1), room=5)

    assert (list(nothing.claims), nothing.next_due) == ([], None)
    assert [one.unit for one in opened.taken] == [1]


async def test_a_unit_that_waits_for_others_is_due_at_its_time_whatever_they_do(world: World) -> None:
    first, _ = await world.graph("a", unit(1), unit(2))
    later = await world.now() + 500
    await world.advance(Advance(first, then=GiveBack(later, missing=1)))

    early = await world.claimed_units()
    world.clock.advance(500)

    assert (early, await world.claimed_units()) == ([], [1])


async def test_to_give_a_unit_back_forgets_its_losses(world: World) -> None:
    await world.graph("a", unit(1))
    world.clock.advance(LEASE)
    await world.store.reap(9)
    claim = await world.take("w2")

    await world.advance(Advance(claim.task, then=GiveBack(await world.now())), owner="w2")
    again = await world.take("w3")
    world.clock.advance(LEASE)

    assert (claim.lost, again.lost) == (True, False)
    assert [freed.losses for freed in await world.store.reap(9)] == [1]


async def test_the_run_given_back_misses_what_it_missed(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.exit("a")
    [itself] = (await world.claim("w2")).claims

    given_back = await world.advance(
        Advance(itself.task, deliveries=[Delivery(1, "exit", 5)], then=GiveBack(), seen=1), owner="w2", room=5
    )

    assert (list(given_back.taken), given_back.due) == ([], False)
    assert await world.unread(task.run) == []
    assert [one.unit for one in (await world.advance(done(task))).taken] == [0]


async def test_the_run_given_back_is_due_if_there_is_mail_of_the_engine_that_was_not_seen(world: World) -> None:
    await world.graph("a", unit(1))
    await world.exit("a")
    [itself] = (await world.claim("w2")).claims
    await world.send("go")
    users = await world.advance(Advance(itself.task, then=GiveBack(), seen=1), owner="w2")
    await world.exit("a")
    [again] = (await world.claim("w2")).claims

    engines = await world.advance(Advance(again.task, then=GiveBack(), seen=2), owner="w2")

    assert list(users.taken) == []
    assert list(engines.taken) == [again.task._replace(epoch=3)]


# --- dropped and added


async def test_a_unit_that_is_dropped_is_gone_whoever_holds_it(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2), unit(3, 1), unit(4, 1))

    await world.advance(done(first, 4, drops=[2, 3]))

    assert list((await world.advance(done(second, 3), room=5)).applied) == [False]
    assert await world.claimed_units("w2") == [4]


async def test_a_unit_dropped_earlier_in_a_batch_is_lost(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    advanced = await world.advance(done(first, drops=[2]), done(second))

    assert list(advanced.applied) == [True, False]
    assert await world.results(first.run) == ["a"]


async def test_units_are_added_due_or_waiting(world: World) -> None:
    [task] = await world.graph("a", unit(1))

    advanced = await world.advance(done(task, 4, adds=[unit(2), unit(3, 1), unit(4, 1)]), room=1)

    assert len([one for one in advanced.taken if one.unit]) == 1
    assert advanced.due
    taken = [one.unit for one in advanced.taken if one.unit]
    assert sorted(taken + await world.claimed_units("w2")) == [2, 4]


async def test_the_room_is_that_of_the_whole_batch(world: World) -> None:
    first, second, third = await world.graph("a", unit(1), unit(2), unit(3))

    advanced = await world.advance(
        done(first, adds=[unit(4)]), done(second, adds=[unit(5)]), Advance(third, then=GiveBack(1)), room=2
    )

    assert (len(advanced.taken), advanced.due) == (2, True)


async def test_units_that_are_added_are_not_counted_only_results_are(world: World) -> None:
    [task] = await world.graph("a", unit(1))

    advanced = await world.advance(done(task, adds=[unit(2, 1)]))

    assert [one.unit for one in advanced.taken] == [0]


async def test_a_unit_that_is_there_is_not_added(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    advanced = await world.advance(Advance(first, adds=[unit(2)], then=GiveBack()), room=5)

    assert (list(advanced.taken), advanced.due) == ([], False)
    assert list((await world.advance(done(second))).applied) == [True]


async def test_a_unit_that_comes_again_is_a_stranger_to_who_held_it(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    advanced = await world.advance(Advance(first, drops=[2], adds=[unit(2)], then=GiveBack()), room=1)

    assert list(advanced.taken) == [second._replace(epoch=2)]
    assert await world.starts(first.run) == [("a", 1), ("b", 1), ("b", 2)]
    before, after = await world.store.facts(first.run, FactState.START, ["b"])
    assert before.at < after.at
    assert list((await world.advance(done(second), room=0)).applied) == [False]


# --- the fence


@pytest.mark.parametrize(
    "write",
    [
        {"facts": [failure("a", 1)]},
        {"results": [result("a")]},
        {"logs": [line("hello")]},
        {"opens": [Opening(2)]},
        {"drops": [2]},
        {"adds": [unit(9)]},
        {"started_at": 5},
        {"then": GiveBack(1)},
        {},
    ],
    ids=lambda write: next(iter(write), "nothing"),
)
async def test_a_stale_holder_of_a_unit_writes_nothing(world: World, write: dict[str, object]) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))
    world.clock.advance(LEASE)
    await world.store.reap(9)
    [claim] = (await world.claim("w2")).claims
    before, facts = await world.find("a"), await world.store.facts(task.run)

    advanced = await world.advance(Advance(task, **write), room=5)  # type: ignore[arg-type]

    assert (list(advanced.applied), list(advanced.taken), advanced.due) == ([False], [], False)
    assert await world.find("a") == before
    assert await world.store.facts(task.run) == facts
    assert await world.claimed_units("w3") == []
    assert [one.unit for one in (await world.advance(done(claim.task, 2), owner="w2", room=5)).taken] == [2]


@pytest.mark.parametrize("wrong", [{"owner": "w2"}, {"epoch": 2}, {"unit": 7}, {"run": 999}])
async def test_only_this_very_claim_of_this_very_unit_may_write(world: World, wrong: dict[str, int]) -> None:
    [task] = await world.graph("a", unit(1))

    advanced = await world.advance(done(task._replace(**wrong)))  # type: ignore[arg-type]

    assert list(advanced.applied) == [False]
    assert await world.results(task.run) == []


async def test_one_that_is_lost_does_not_touch_the_others_of_its_batch(world: World) -> None:
    first, second, third = await world.graph("a", unit(1), unit(2), unit(3))
    await world.store.release([second])

    advanced = await world.advance(done(first), done(second), done(third), room=5)

    assert list(advanced.applied) == [True, False, True]
    assert await world.results(first.run) == ["a", "c"]


async def test_a_unit_advances_once_in_a_batch(world: World) -> None:
    task, _ = await world.graph("a", unit(1), unit(2))

    advanced = await world.advance(done(task), done(task, key="other"))

    assert list(advanced.applied) == [True, False]
    assert await world.results(task.run) == ["a"]


async def test_an_older_claim_of_a_unit_does_not_spoil_the_newer_one_in_its_batch(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))
    await world.store.release([task])
    newer = (await world.take()).task

    advanced = await world.advance(done(task, 2), done(newer, 2))

    assert list(advanced.applied) == [False, True]


async def test_a_unit_of_a_terminated_run_is_lost(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))
    await world.terminate("a")

    advanced = await world.advance(done(task, 2), room=5)

    assert (list(advanced.applied), list(advanced.taken)) == ([False], [])
    assert await world.store.heartbeat("w1", LEASE) == []
    assert (await world.claim()).next_due is None


# --- many at once


async def test_units_that_are_done_at_the_same_time_open_what_waits_for_all_of_them_once(
    database: Database, clock: FakeClock
) -> None:
    stores = [database() for _ in range(4)]
    for store in stores:
        await store.open()
    worlds = [World(store, clock) for store in stores]
    width = 40
    tasks = await worlds[0].graph("a", *(NewUnit(n, f"u{n}") for n in range(1, width + 1)), NewUnit(99, "last", width))

    answers = await asyncio.gather(
        *(worlds[n % 4].advance(done(task, 99, key=f"u{task.unit}"), room=5) for n, task in enumerate(tasks))
    )

    taken = [one for answer in answers for one in answer.taken]
    assert all(all(answer.applied) for answer in answers)
    assert taken == [TaskRef(tasks[0].run, 99, "w1", 1)]
    assert [one.unit for one in (await worlds[1].advance(done(taken[0], key="last"))).taken] == [0]
    for store in stores:
        await store.close()
