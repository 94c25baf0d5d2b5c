"""Advances: the outcome of a unit is written under its fence, and makes the units that waited for it due."""

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
    MissingDecrement,
    NewUnit,
    TaskRef,
    UnitRelease,
    Verdict,
)
from store.world import LEASE, Database, FakeClock, World, done, failure, log_line, result, unit

CHAIN = (unit(1), unit(2, 1), unit(3, 1))
DIAMOND = (unit(1), unit(2, 1), unit(3, 1), unit(4, 2))
ITEM = Fact(FactState.ITEM, "a", 0, "item", 1, 1, value=b"1")


# --- results and decrements


async def test_a_result_makes_the_next_unit_due(world: World) -> None:
    [task] = await world.graph("a", *CHAIN)

    advanced = await world.advance(done(task, 2), claim_limit=5)

    assert list(advanced.applied) == [True]
    assert list(advanced.claimed) == [TaskRef(task.run, 2, "w1", 1)]
    assert not advanced.due
    assert await world.results(task.run) == ["a"]
    assert [held.unit for held in await world.store.heartbeat("w1", LEASE)] == [2]


async def test_a_unit_is_due_when_all_it_waits_for_are_done(world: World) -> None:
    [first] = await world.graph("a", *DIAMOND)
    left, right = (await world.advance(done(first, 2, 3), claim_limit=2)).claimed

    one = await world.advance(done(left, 4), claim_limit=5)
    both = await world.advance(done(right, 4), claim_limit=5)

    assert list(one.claimed) == []
    assert list(both.claimed) == [TaskRef(first.run, 4, "w1", 1)]


async def test_a_unit_is_due_when_all_it_waits_for_are_done_in_one_batch(world: World) -> None:
    [first] = await world.graph("a", *DIAMOND)
    left, right = (await world.advance(done(first, 2, 3), claim_limit=2)).claimed

    advanced = await world.advance(done(left, 4), done(right, 4), claim_limit=5)

    assert list(advanced.claimed) == [TaskRef(first.run, 4, "w1", 1)]


async def test_a_unit_is_due_after_decrements_of_several_advances(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 3))

    first = await world.advance(
        Advance(task, decrements=[MissingDecrement(2, 2)], release=UnitRelease(world.now())), claim_limit=5
    )
    second = await world.advance(Advance(first.claimed[0], decrements=[MissingDecrement(2)]), claim_limit=5)

    assert [one.unit for one in first.claimed] == [1]
    assert [one.unit for one in second.claimed] == [2]


async def test_units_beyond_the_claim_limit_are_due_for_all_workers(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1), unit(3, 1), unit(4, 1))

    advanced = await world.advance(done(task, 2, 3, 4), claim_limit=1)

    assert (len(advanced.claimed), advanced.due) == (1, True)
    claims = (await world.claim("w2")).claims
    assert {one.task.unit for one in claims} == {2, 3, 4} - {one.unit for one in advanced.claimed}
    assert {(one.kind, one.task.epoch) for one in claims} == {(TaskKind.RESUME, 1)}


async def test_units_made_due_by_an_advance_are_claimed_before_new_runs(world: World) -> None:
    await world.start("new", priority=-1)
    [task] = await world.graph("a", *CHAIN)

    await world.advance(done(task, 2))

    assert await world.claimed_ids() == ["a", "new"]


async def test_a_decrement_of_a_missing_unit_is_ignored(world: World) -> None:
    [task] = await world.graph("a", unit(1))

    advanced = await world.advance(done(task, 7), claim_limit=5)

    assert list(advanced.applied) == [True]
    assert [one.unit for one in advanced.claimed] == [0]


async def test_a_decrement_does_not_claim_an_owned_unit_again(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    advanced = await world.advance(done(first, 2), claim_limit=5)

    assert (list(advanced.claimed), advanced.due) == ([], False)
    assert list((await world.advance(done(second), claim_limit=0)).applied) == [True]


async def test_a_batch_advances_units_of_many_runs(world: World) -> None:
    tasks = [task for name in "abc" for task in await world.graph(name, *CHAIN)]

    advanced = await world.advance(*(done(task, 2) for task in tasks), claim_limit=2)

    assert list(advanced.applied) == [True] * 3
    assert (len(advanced.claimed), advanced.due) == (2, True)
    assert len(await world.claimed_ids(owner="w2")) == 1


async def test_an_empty_batch_of_advances_changes_nothing(world: World) -> None:
    advanced = await world.advance(claim_limit=5)

    assert (list(advanced.applied), list(advanced.claimed), advanced.due) == ([], [], False)


async def test_an_advance_writes_facts_logs_and_started_at(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))

    await world.advance(
        Advance(
            task,
            facts=[failure("a", 1), ITEM],
            results=[result("a")],
            logs=[log_line("hello", step_key="a")],
            started_at=17,
        )
    )

    stored = await world.facts(task.run)
    assert [(fact.state, fact.key) for fact in stored] == [(0, "a"), (1, "a"), (2, "a"), (5, "a")]
    assert (await world.find("a")).started_at == 17


async def test_an_advance_sets_started_at_once(world: World) -> None:
    first, second, third = await world.graph("a", unit(1), unit(2), unit(3))

    await world.advance(done(first, started_at=1), done(second, started_at=2))
    await world.advance(done(third, started_at=3))

    assert (await world.find("a")).started_at == 1


# --- unit 0


async def test_the_last_result_makes_unit_0_due_and_claims_it_regardless_of_the_limit(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    one = await world.advance(done(first), claim_limit=0)
    last = await world.advance(done(second), claim_limit=0)

    assert list(one.claimed) == []
    assert list(last.claimed) == [TaskRef(first.run, 0, "w1", 1)]
    assert not last.due
    assert (await world.commit(last.claimed[0], then=Finish(Status.COMPLETE, b"7"))).verdict is Verdict.APPLIED
    assert (await world.find("a")).output == b"7"


async def test_all_results_in_one_batch_make_unit_0_due_once(world: World) -> None:
    tasks = await world.graph("a", unit(1), unit(2), unit(3))

    advanced = await world.advance(*map(done, tasks), claim_limit=5)

    assert list(advanced.claimed) == [TaskRef(tasks[0].run, 0, "w1", 1)]


@pytest.mark.promise("committed-results-never-change")
async def test_an_existing_result_is_ignored_and_not_counted(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))
    await world.advance(done(first))

    again = await world.advance(
        Advance(second, results=[result("a", value=b'"other"')], release=UnitRelease(world.now())), claim_limit=1
    )
    last = await world.advance(done(again.claimed[0]), claim_limit=1)

    assert [one.unit for one in again.claimed] == [2]
    assert [one.unit for one in last.claimed] == [0]
    stored = await world.facts(first.run, FactState.RESULT)
    assert [(fact.key, fact.value) for fact in stored] == [("a", b"1"), ("b", b"1")]


@pytest.mark.promise("committed-results-never-change")
async def test_the_same_result_twice_in_a_batch_counts_once(world: World) -> None:
    first, second, _ = await world.graph("a", unit(1), unit(2), unit(3))

    advanced = await world.advance(done(first), done(second, key="a"), claim_limit=5)

    assert (list(advanced.claimed), await world.results(first.run)) == ([], ["a"])


async def test_results_of_other_units_are_counted(world: World) -> None:
    [task] = await world.graph("a", *CHAIN)

    advanced = await world.advance(
        Advance(
            task, results=[result("a"), result("b", kind="skipped"), result("c", kind="skipped")], removed_units=[2, 3]
        )
    )

    assert [one.unit for one in advanced.claimed] == [0]
    assert await world.results(task.run) == ["a", "b", "c"]


async def test_an_owned_unit_0_is_due_at_its_release(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.send_exit("a")
    [itself] = (await world.claim("w2")).claims

    last = await world.advance(done(task), claim_limit=5)
    released = await world.advance(Advance(itself.task, release=UnitRelease(), seen=1), owner="w2")

    assert itself.task.unit == 0
    assert (list(last.claimed), last.due) == ([], False)
    assert list(released.claimed) == [TaskRef(task.run, 0, "w2", 2)]


async def test_an_expired_run_is_not_claimed_by_an_advance(world: World) -> None:
    [task] = await world.graph("a", unit(1), expires_ms=500)
    world.clock.advance(500)
    [overdue] = (await world.claim("w2")).overdue

    last = await world.advance(done(task), claim_limit=5)

    assert (list(last.applied), list(last.claimed), last.due) == ([True], [], False)
    assert (await world.commit(overdue.task, then=Finish(Status.ERRORED))).verdict is Verdict.APPLIED


async def test_a_graph_without_units_is_due_at_once(world: World) -> None:
    await world.start("a", kind="graph", units=[])

    assert await world.claimed_units() == [0]


async def test_the_end_of_a_run_deletes_its_units(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2), unit(3, 1))
    await world.send_exit("a")
    [itself] = (await world.claim("w2")).claims

    await world.commit(itself.task, then=Finish(Status.CANCELLED))

    assert list((await world.advance(done(first, 3), done(second), claim_limit=5)).applied) == [False, False]
    assert await world.results(first.run) == []
    assert await world.store.heartbeat("w1", LEASE) == []
    assert await world.claimed_units() == []


# --- released


async def test_a_unit_can_be_released_until_a_time(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    later = world.now() + 500

    advanced = await world.advance(Advance(task, facts=[failure("a", 1)], release=UnitRelease(later)), claim_limit=5)
    early = await world.claim()
    world.clock.advance(500)
    [claim] = (await world.claim("w2")).claims

    assert (list(advanced.applied), list(advanced.claimed), advanced.due) == ([True], [], False)
    assert (list(early.claims), early.next_due) == ([], later)
    assert (claim.task, claim.kind) == (TaskRef(task.run, 1, "w2", 2), TaskKind.RETRY)


async def test_a_unit_released_due_now_may_be_claimed_at_once(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    now = world.now()

    kept = await world.advance(Advance(task, release=UnitRelease(now)), claim_limit=1)
    left = await world.advance(Advance(kept.claimed[0], release=UnitRelease(now)), claim_limit=0)

    assert list(kept.claimed) == [task._replace(epoch=2)]
    assert (list(left.claimed), left.due) == ([], True)
    assert await world.claimed_units() == [1]


async def test_a_unit_released_until_others_are_done_is_due_then(world: World) -> None:
    [task] = await world.graph("a", unit(1))

    split = await world.advance(
        Advance(task, new_units=[NewUnit(2, "a[0]"), NewUnit(3, "a[1]")], release=UnitRelease(missing=2)), claim_limit=5
    )
    items = [Advance(one, facts=[ITEM._replace(n=one.unit)], decrements=[MissingDecrement(1)]) for one in split.claimed]
    first, second = await world.advance(items[0], claim_limit=5), await world.advance(items[1], claim_limit=5)

    assert sorted(one.unit for one in split.claimed) == [2, 3]
    assert list(first.claimed) == []
    assert list(second.claimed) == [task._replace(epoch=2)]


async def test_a_unit_released_without_a_time_waits_for_a_decrement(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    await world.advance(Advance(first, release=UnitRelease()), claim_limit=5)
    nothing = await world.claim()
    opened = await world.advance(done(second, 1), claim_limit=5)

    assert (list(nothing.claims), nothing.next_due) == ([], None)
    assert [one.unit for one in opened.claimed] == [1]


async def test_a_unit_that_misses_others_is_due_at_its_time_regardless(world: World) -> None:
    first, _ = await world.graph("a", unit(1), unit(2))
    later = world.now() + 500
    await world.advance(Advance(first, release=UnitRelease(later, missing=1)))

    early = await world.claimed_units()
    world.clock.advance(500)

    assert (early, await world.claimed_units()) == ([], [1])


async def test_releasing_a_unit_resets_its_losses(world: World) -> None:
    await world.graph("a", unit(1))
    world.clock.advance(LEASE)
    await world.store.reap(9)
    claim = await world.claim_one("w2")

    await world.advance(Advance(claim.task, release=UnitRelease(world.now())), owner="w2")
    again = await world.claim_one("w3")
    world.clock.advance(LEASE)

    assert (claim.lost, again.lost) == (True, False)
    assert [expired.losses for expired in await world.store.reap(9)] == [1]


async def test_a_released_unit_0_keeps_its_missing_count(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.send_exit("a")
    [itself] = (await world.claim("w2")).claims

    released = await world.advance(
        Advance(itself.task, deliveries=[Delivery(1, "exit", 5)], release=UnitRelease(), seen=1),
        owner="w2",
        claim_limit=5,
    )

    assert (list(released.claimed), released.due) == ([], False)
    assert await world.undelivered(task.run) == []
    assert [one.unit for one in (await world.advance(done(task))).claimed] == [0]


async def test_a_released_unit_0_is_due_if_an_engine_event_was_not_seen(world: World) -> None:
    await world.graph("a", unit(1))
    await world.send_exit("a")
    [itself] = (await world.claim("w2")).claims
    await world.send("go")
    users = await world.advance(Advance(itself.task, release=UnitRelease(), seen=1), owner="w2")
    await world.send_exit("a")
    [again] = (await world.claim("w2")).claims

    engines = await world.advance(Advance(again.task, release=UnitRelease(), seen=2), owner="w2")

    assert list(users.claimed) == []
    assert list(engines.claimed) == [again.task._replace(epoch=3)]


# --- removed and added units


async def test_a_removed_unit_is_deleted_also_if_it_is_owned(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2), unit(3, 1), unit(4, 1))

    await world.advance(done(first, 4, removed_units=[2, 3]))

    assert list((await world.advance(done(second, 3), claim_limit=5)).applied) == [False]
    assert await world.claimed_units("w2") == [4]


async def test_an_advance_of_a_unit_removed_earlier_in_the_batch_is_lost(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    advanced = await world.advance(done(first, removed_units=[2]), done(second))

    assert list(advanced.applied) == [True, False]
    assert await world.results(first.run) == ["a"]


async def test_new_units_are_due_or_waiting(world: World) -> None:
    [task] = await world.graph("a", unit(1))

    advanced = await world.advance(done(task, 4, new_units=[unit(2), unit(3, 1), unit(4, 1)]), claim_limit=1)

    assert len([one for one in advanced.claimed if one.unit]) == 1
    assert advanced.due
    taken = [one.unit for one in advanced.claimed if one.unit]
    assert sorted(taken + await world.claimed_units("w2")) == [2, 4]


async def test_the_claim_limit_applies_to_the_whole_batch(world: World) -> None:
    first, second, third = await world.graph("a", unit(1), unit(2), unit(3))

    advanced = await world.advance(
        done(first, new_units=[unit(4)]),
        done(second, new_units=[unit(5)]),
        Advance(third, release=UnitRelease(1)),
        claim_limit=2,
    )

    assert (len(advanced.claimed), advanced.due) == (2, True)


async def test_new_units_do_not_change_the_missing_count_of_unit_0(world: World) -> None:
    [task] = await world.graph("a", unit(1))

    advanced = await world.advance(done(task, new_units=[unit(2, 1)]))

    assert [one.unit for one in advanced.claimed] == [0]


async def test_an_existing_unit_is_not_added_again(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    advanced = await world.advance(Advance(first, new_units=[unit(2)], release=UnitRelease()), claim_limit=5)

    assert (list(advanced.claimed), advanced.due) == ([], False)
    assert list((await world.advance(done(second))).applied) == [True]


@pytest.mark.promise("fencing")
async def test_a_unit_that_is_added_again_fences_its_previous_owner(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    advanced = await world.advance(
        Advance(first, removed_units=[2], new_units=[unit(2)], release=UnitRelease()), claim_limit=1
    )

    assert list(advanced.claimed) == [second._replace(epoch=2)]
    assert await world.starts(first.run) == [("a", 1), ("b", 1), ("b", 2)]
    before, after = await world.facts(first.run, FactState.START, ["b"])
    assert before.at < after.at
    assert list((await world.advance(done(second), claim_limit=0)).applied) == [False]


# --- the fence


@pytest.mark.promise("fencing")
@pytest.mark.parametrize(
    "write",
    [
        {"facts": [failure("a", 1)]},
        {"results": [result("a")]},
        {"logs": [log_line("hello")]},
        {"decrements": [MissingDecrement(2)]},
        {"removed_units": [2]},
        {"new_units": [unit(9)]},
        {"started_at": 5},
        {"release": UnitRelease(1)},
        {},
    ],
    ids=lambda write: next(iter(write), "nothing"),
)
async def test_a_stale_owner_of_a_unit_writes_nothing(world: World, write: dict[str, object]) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))
    world.clock.advance(LEASE)
    await world.store.reap(9)
    [claim] = (await world.claim("w2")).claims
    before, facts = await world.find("a"), await world.facts(task.run)

    advanced = await world.advance(Advance(task, **write), claim_limit=5)  # type: ignore[arg-type]

    assert (list(advanced.applied), list(advanced.claimed), advanced.due) == ([False], [], False)
    assert await world.find("a") == before
    assert await world.facts(task.run) == facts
    assert await world.claimed_units("w3") == []
    assert [one.unit for one in (await world.advance(done(claim.task, 2), owner="w2", claim_limit=5)).claimed] == [2]


@pytest.mark.promise("fencing")
@pytest.mark.parametrize("wrong", [{"owner": "w2"}, {"epoch": 2}, {"unit": 7}, {"run": 999}])
async def test_only_the_current_claim_of_a_unit_may_write(world: World, wrong: dict[str, int]) -> None:
    [task] = await world.graph("a", unit(1))

    advanced = await world.advance(done(task._replace(**wrong)))  # type: ignore[arg-type]

    assert list(advanced.applied) == [False]
    assert await world.results(task.run) == []


async def test_a_lost_advance_does_not_affect_the_others_of_its_batch(world: World) -> None:
    first, second, third = await world.graph("a", unit(1), unit(2), unit(3))
    await world.store.release([second])

    advanced = await world.advance(done(first), done(second), done(third), claim_limit=5)

    assert list(advanced.applied) == [True, False, True]
    assert await world.results(first.run) == ["a", "c"]


async def test_a_unit_advances_once_in_a_batch(world: World) -> None:
    task, _ = await world.graph("a", unit(1), unit(2))

    advanced = await world.advance(done(task), done(task, key="other"))

    assert list(advanced.applied) == [True, False]
    assert await world.results(task.run) == ["a"]


async def test_a_stale_advance_does_not_affect_the_current_one_in_its_batch(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))
    await world.store.release([task])
    newer = (await world.claim_one()).task

    advanced = await world.advance(done(task, 2), done(newer, 2))

    assert list(advanced.applied) == [False, True]


async def test_a_unit_of_a_terminated_run_is_lost(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))
    await world.terminate("a")

    advanced = await world.advance(done(task, 2), claim_limit=5)

    assert (list(advanced.applied), list(advanced.claimed)) == ([False], [])
    assert await world.store.heartbeat("w1", LEASE) == []
    assert (await world.claim()).next_due is None


# --- concurrency


async def test_concurrent_results_make_a_unit_that_misses_all_of_them_due_once(
    database: Database, clock: FakeClock
) -> None:
    stores = [database() for _ in range(4)]
    for store in stores:
        await store.open()
    worlds = [World(store, clock) for store in stores]
    width = 40
    tasks = await worlds[0].graph("a", *(NewUnit(n, f"u{n}") for n in range(1, width + 1)), NewUnit(99, "last", width))

    answers = await asyncio.gather(
        *(worlds[n % 4].advance(done(task, 99, key=f"u{task.unit}"), claim_limit=5) for n, task in enumerate(tasks))
    )

    taken = [one for answer in answers for one in answer.claimed]
    assert all(all(answer.applied) for answer in answers)
    assert taken == [TaskRef(tasks[0].run, 99, "w1", 1)]
    assert [one.unit for one in (await worlds[1].advance(done(taken[0], key="last"))).claimed] == [0]
    for store in stores:
        await store.close()
