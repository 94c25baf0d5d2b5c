"""Units: parts of a run that are claimed by themselves, wait for each other, and open each other."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    SUSPECT_LOSSES,
    Advance,
    Delivery,
    Fact,
    FactState,
    Finish,
    Freed,
    GiveBack,
    Held,
    NewRun,
    NewUnit,
    NextRun,
    OnReuse,
    Opening,
    Signal,
    TaskRef,
    Verdict,
)
from store.world import FLOW, LEASE, Database, World, act, done, failure, line, result, unit

CHAIN = (unit(1), unit(2, 1), unit(3, 1))
DIAMOND = (unit(1), unit(2, 1), unit(3, 1), unit(4, 2))
ITEM = Fact(FactState.ITEM, "a", 0, "item", 1, 1, value=b"1")


# --- made


async def test_units_that_miss_nothing_are_due_and_the_run_itself_is_not(world: World) -> None:
    await world.graph("a", unit(1), unit(2), unit(3, 2), owner=None)

    claims = (await world.claim()).claims

    assert [claim.task.unit for claim in claims] == [1, 2]
    assert {claim.run.instance_id for claim in claims} == {"a"}
    assert [(claim.kind, claim.lost, list(claim.mailbag.mail)) for claim in claims] == [(TaskKind.RUN, False, [])] * 2


async def test_a_run_with_units_is_as_a_read_finds_it(world: World) -> None:
    created = await world.create("a", kind="graph", units=[unit(1)], owner="w1", lease_ms=LEASE, room=1)

    assert await world.find("a") == created.run
    assert (created.run.status, created.run.run_at, created.run.owner) == (Status.ACTIVE, None, None)


async def test_units_are_born_claimed_as_far_as_there_is_room_and_the_run_is_not(world: World) -> None:
    created = await world.create("a", units=[unit(3), unit(2), unit(1, 1), unit(4)], owner="w1", lease_ms=LEASE, room=2)

    assert (created.epoch, created.run.owner, list(created.units)) == (0, None, [2, 3])
    run = created.run.run
    assert sorted(await world.store.heartbeat("w1", LEASE)) == [Held(run, n, 1, Signal.NONE) for n in (2, 3)]
    assert await world.claimed_units("w2") == [4]


async def test_without_an_owner_or_room_no_unit_is_born_claimed(world: World) -> None:
    nobody = await world.create("a", units=[unit(1)], room=1)
    no_room = await world.create("b", units=[unit(1)], owner="w1", lease_ms=LEASE)

    assert (list(nobody.units), list(no_room.units)) == ([], [])
    assert await world.claimed_units() == [1, 1]


async def test_units_of_a_run_with_a_delay_are_due_after_it_and_not_held_before(world: World) -> None:
    created = await world.create("a", units=[unit(1)], delay_ms=500, owner="w1", lease_ms=LEASE, room=1)

    early = await world.claim()
    world.clock.advance(500)
    late = await world.claim()

    assert (created.run.status, list(created.units)) == (Status.WAITING, [])
    assert (list(early.claims), early.next_due) == ([], late.now)
    assert [(claim.task.unit, claim.run.status) for claim in late.claims] == [(1, Status.ACTIVE)]


async def test_units_of_many_runs_in_one_batch_keep_apart(world: World) -> None:
    new = [NewRun(FLOW, f"r{n}", units=CHAIN[: n + 1], owner="w1", lease_ms=LEASE, room=n) for n in range(3)]

    made = await world.store.create([*new, NewRun(FLOW, "plain"), new[2]])

    assert [list(one.units) for one in made] == [[], [1], [1], [], []]
    assert sorted(await world.claimed_ids()) == ["plain", "r0"]


async def test_a_run_that_takes_the_place_of_an_ended_one_has_its_units(world: World) -> None:
    await world.end("a")

    [task] = await world.graph("a", *CHAIN, on_reuse=OnReuse.ALLOW)

    assert task == TaskRef((await world.find("a", 1)).run, 1, "w1", 1)
    assert list((await world.advance(done(task, 2), room=1)).taken) == [TaskRef(task.run, 2, "w1", 1)]


async def test_a_run_with_units_is_started_by_a_turn(world: World) -> None:
    task = await world.begin("a")

    answer = await world.commit(task, starts=[NewRun(FLOW, "b", units=CHAIN, owner="w1", lease_ms=LEASE, room=1)])

    assert [list(one.units) for one in answer.started] == [[1]]


async def test_a_run_with_units_is_started_by_an_act_and_told_of_among_the_births(world: World) -> None:
    task = await world.begin("a")
    new = NewRun(FLOW, "b", units=[unit(1), unit(2)], owner="w1", lease_ms=LEASE, room=1)

    answer = await world.commit(task, acts=[act("child", new)])

    assert [list(one.units) for one in answer.births] == [[1]]
    assert answer.touched is not None
    assert answer.touched.work
    assert await world.claimed_units("w2") == [2]


# --- claimed: each claim is a START


async def test_every_claim_of_a_unit_writes_a_start(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))
    at_birth = await world.now()
    world.clock.advance(5)
    at_opening = await world.now()
    await world.advance(done(task, 2), room=1)
    world.clock.advance(LEASE)
    await world.store.reap(9)
    [claim] = (await world.claim("w2")).claims

    facts = await world.store.facts(task.run, FactState.START)

    assert [(fact.key, fact.n, fact.kind, fact.ok) for fact in facts] == [
        ("a", 1, "node", True),
        ("b", 1, "node", True),
        ("b", 2, "node", True),
    ]
    times = [at_birth, at_opening, await world.now()]
    assert [(fact.at, fact.started_at) for fact in facts] == [(at, at) for at in times]
    assert [json.loads(fact.value or b"") for fact in facts] == [
        {"owner": owner, "lease": at + LEASE} for owner, at in zip(("w1", "w1", "w2"), times, strict=True)
    ]
    assert claim.task.epoch == 2


async def test_the_run_itself_has_no_starts(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.advance(done(task), room=1)
    plain = await world.begin("b")

    assert await world.starts(task.run) == [("a", 1)]
    assert await world.starts(plain.run) == []


async def test_starts_of_a_unit_have_times_of_their_own(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.store.release([task])
    [again] = (await world.claim()).claims
    await world.advance(Advance(again.task, then=GiveBack(await world.now())))
    await world.claim("w2")

    times = [fact.at for fact in await world.store.facts(task.run, FactState.START)]

    assert len(times) == 3
    assert times == sorted(set(times))


async def test_the_key_of_a_unit_can_be_any_text(world: World) -> None:
    key = "lonely \ud800 ü"
    [task] = await world.graph("a", NewUnit(1, key))
    await world.store.release([task])
    await world.claim("w2")

    assert await world.starts(task.run) == [(key, 1), (key, 2)]


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
    await world.cancel("a")
    [itself] = (await world.claim("w2")).claims

    last = await world.advance(done(task), room=5)
    given_back = await world.advance(Advance(itself.task, then=GiveBack(), seen=1), owner="w2")

    assert itself.task.unit == 0
    assert (list(last.taken), last.due) == ([], False)
    assert list(given_back.taken) == [TaskRef(task.run, 0, "w2", 2)]


async def test_a_run_without_units_is_due_at_once(world: World) -> None:
    await world.start("a", kind="graph", units=[])

    assert await world.claimed_units() == [0]


async def test_a_run_that_ends_ends_its_units(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2), unit(3, 1))
    await world.cancel("a")
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

    assert [one.unit for one in split.taken] == [2, 3]
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
    await world.cancel("a")
    [itself] = (await world.claim("w2")).claims

    given_back = await world.advance(
        Advance(itself.task, deliveries=[Delivery(1, "cancel", 5)], then=GiveBack(), seen=1), owner="w2", room=5
    )

    assert (list(given_back.taken), given_back.due) == ([], False)
    assert await world.unread(task.run) == []
    assert [one.unit for one in (await world.advance(done(task))).taken] == [0]


async def test_the_run_given_back_is_due_if_there_is_mail_of_the_engine_that_was_not_seen(world: World) -> None:
    await world.graph("a", unit(1))
    await world.cancel("a")
    [itself] = (await world.claim("w2")).claims
    await world.send("go")
    users = await world.advance(Advance(itself.task, then=GiveBack(), seen=1), owner="w2")
    await world.cancel("a")
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


async def test_a_unit_of_a_terminated_run_is_lost(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))
    await world.terminate("a")

    advanced = await world.advance(done(task, 2), room=5)

    assert (list(advanced.applied), list(advanced.taken)) == ([False], [])
    assert await world.store.heartbeat("w1", LEASE) == []
    assert (await world.claim()).next_due is None


# --- many at once


async def test_units_that_are_done_at_the_same_time_open_what_waits_for_all_of_them_once(database: Database) -> None:
    stores = [database() for _ in range(4)]
    for store in stores:
        await store.open()
    worlds = [World(store, store.clock) for store in stores]  # type: ignore[arg-type]
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


# --- paused


async def test_of_a_paused_run_no_unit_is_due(world: World) -> None:
    await world.graph("a", unit(1), unit(2), owner=None)

    await world.store.pause(FLOW, "a")

    found = await world.claim()
    assert (list(found.claims), found.next_due) == ([], None)
    assert (await world.find("a")).status is Status.PAUSED


async def test_a_held_unit_of_a_paused_run_goes_on_and_opens_nothing(world: World) -> None:
    [task] = await world.graph("a", *CHAIN)
    await world.store.pause(FLOW, "a")

    advanced = await world.advance(done(task, 2), room=5)

    assert list(advanced.applied) == [True]
    assert (list(advanced.taken), advanced.due) == ([], False)
    assert await world.claimed_units("w2") == []


async def test_a_resume_makes_due_what_misses_nothing(world: World) -> None:
    first, held = await world.graph("a", unit(1), unit(2), unit(3, 1), unit(4, 2))
    await world.store.pause(FLOW, "a")
    await world.advance(done(first, 3, 4))

    await world.store.resume(FLOW, "a")

    claims = (await world.claim("w2")).claims
    assert [(one.task.unit, one.kind) for one in claims] == [(0, TaskKind.RESUME), (3, TaskKind.RESUME)]
    assert list((await world.advance(done(held))).applied) == [True]


async def test_a_unit_of_a_paused_run_that_is_given_back_is_due_after_the_resume(world: World) -> None:
    tasks = await world.graph("a", unit(1), unit(2), unit(3))
    await world.store.pause(FLOW, "a")

    later = await world.now() + 500
    advanced = await world.advance(Advance(tasks[0], then=GiveBack(later)), Advance(tasks[1], then=GiveBack(1)), room=5)
    await world.store.release([tasks[2]])
    world.clock.advance(500)
    paused = await world.claim("w2")
    await world.store.resume(FLOW, "a")

    assert list(advanced.taken) == []
    assert (list(paused.claims), paused.next_due) == ([], None)
    assert await world.claimed_units("w2") == [0, 1, 2, 3]


async def test_a_unit_of_a_paused_run_that_is_lost_is_due_after_the_resume(world: World) -> None:
    await world.graph("a", unit(1))
    await world.store.pause(FLOW, "a")
    world.clock.advance(LEASE)

    freed = await world.store.reap(9)
    paused = await world.claim("w2")
    await world.store.resume(FLOW, "a")

    assert [(one.unit, one.losses) for one in freed] == [(1, 1)]
    assert (list(paused.claims), paused.next_due) == ([], None)
    assert await world.claimed_units("w2") == [0, 1]


async def test_units_added_to_a_paused_run_are_due_after_the_resume(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.store.pause(FLOW, "a")

    added = await world.advance(Advance(task, adds=[unit(2)], then=GiveBack(missing=1)), room=5)
    paused = await world.claimed_units("w2")
    await world.store.resume(FLOW, "a")

    assert (list(added.taken), paused) == ([], [])
    assert await world.claimed_units("w2") == [0, 2]


async def test_the_last_result_of_a_paused_run_makes_it_due_after_the_resume(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.store.pause(FLOW, "a")

    last = await world.advance(done(task), room=5)
    paused = await world.claimed_units("w2")
    await world.store.resume(FLOW, "a")
    [itself] = (await world.claim("w2")).claims
    given_back = await world.advance(Advance(itself.task, then=GiveBack()), owner="w2")

    assert (list(last.taken), paused, itself.task.unit) == ([], [], 0)
    assert [one.unit for one in given_back.taken] == [0]


async def test_a_pause_asked_for_while_the_run_is_held_takes_effect_when_it_is_given_back(world: World) -> None:
    await world.graph("a", unit(1), unit(2, 1), owner=None)
    await world.cancel("a")
    claims = {claim.task.unit: claim.task for claim in (await world.claim()).claims}
    await world.store.pause(FLOW, "a")
    asked = await world.store.signals("w1")

    await world.advance(done(claims[1], 2), room=0)
    advanced = await world.advance(Advance(claims[0], results=[result("x")], then=GiveBack(1), seen=1), room=5)

    assert [(held.unit, held.signal) for held in asked] == [(0, Signal.PAUSE)]
    assert (list(advanced.applied), list(advanced.taken), advanced.due) == ([True], [], False)
    assert ((await world.find("a")).status, (await world.find("a")).owner) == (Status.PAUSED, None)
    assert await world.claimed_units() == []


# --- leases


async def test_a_lost_unit_is_due_and_the_others_are_not_touched(world: World) -> None:
    await world.graph("a", unit(1), unit(2), room=1)
    kept = await world.take("w2", lease_ms=10 * LEASE)
    world.clock.advance(LEASE)

    freed = await world.store.reap(9)
    claim = await world.take("w3")

    assert freed == [Freed(kept.task.run, 1, losses=1, parked=False)]
    assert (claim.task.unit, claim.task.epoch, claim.lost, claim.kind) == (1, 2, True, TaskKind.RETRY)
    assert list((await world.advance(done(kept.task), owner="w2")).applied) == [True]


async def test_a_unit_that_loses_its_workers_in_a_row_parks_the_run(world: World) -> None:
    tasks = await world.graph("a", unit(1), unit(2), unit(3))
    await world.store.release([tasks[2]])
    world.clock.advance(LEASE)

    freed = await world.store.reap(1)

    assert [(one.unit, one.parked) for one in sorted(freed)] == [(1, True), (2, True)]
    run = await world.find("a")
    assert run.status is Status.PAUSED
    assert "resume" in (run.note or "")
    assert await world.claimed_units() == []
    await world.store.resume(FLOW, "a")
    assert [one.lost for one in (await world.claim("w2")).claims if one.task.unit == 3] == [False]


async def test_a_unit_that_is_a_suspect_is_held_alone(world: World) -> None:
    await world.graph("a", unit(1), unit(2))
    for n in range(SUSPECT_LOSSES):
        world.clock.advance(LEASE)
        await world.store.reap(99)
        if n + 1 < SUSPECT_LOSSES:
            await world.claim(f"dying-{n}")

    assert await world.claimed_units("careful", suspects=False) == []
    assert len(await world.claimed_units("w2")) == 1
    assert len(await world.claimed_units("w3")) == 1


async def test_a_unit_is_released_alone(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    assert await world.store.release([first, first]) == 1

    assert [held.unit for held in await world.store.heartbeat("w1", LEASE)] == [second.unit]
    assert await world.claimed_units("w2") == [1]


async def test_mail_signals_the_run_and_no_unit(world: World) -> None:
    await world.graph("a", unit(1))

    await world.send("go")
    await world.cancel("a")

    assert await world.store.signals("w1") == []
    [claim] = (await world.claim("w2")).claims
    assert (claim.task.unit, [mail.type for mail in claim.mailbag.mail]) == (0, ["go", "@cancel"])


async def test_a_claim_of_a_unit_has_no_mail(world: World) -> None:
    await world.graph("a", unit(1), owner=None)
    await world.cancel("a")

    bags = {claim.task.unit: len(claim.mailbag.mail) for claim in (await world.claim()).claims}

    assert bags == {0: 1, 1: 0}


# --- a run by itself


async def test_units_of_one_run_are_claimed_in_their_order(world: World) -> None:
    await world.graph("other", unit(1), owner=None)
    run = (await world.start("a", units=[unit(4), unit(2), unit(3, 1), unit(1)])).run
    await world.start("plain")

    two = await world.claim(run=run, limit=2)
    rest = await world.claim(run=run)
    none = await world.claim(run=run)

    assert [claim.task.unit for claim in two.claims] == [1, 2]
    assert two.next_due is not None
    assert two.next_due <= two.now
    assert [(claim.task.unit, claim.run.run) for claim in rest.claims] == [(4, run)]
    assert (list(none.claims), none.next_due) == ([], None)
    assert await world.starts(run) == [("a", 1), ("b", 1), ("d", 1)]


async def test_a_claim_of_one_run_does_not_take_the_run_itself_or_what_is_overdue(world: World) -> None:
    await world.start("late", expires_ms=1)
    [task] = await world.graph("a", unit(1))
    await world.cancel("a")
    world.clock.advance(10)

    found = await world.claim(run=task.run)

    assert (list(found.claims), list(found.overdue), found.next_due) == ([], [], None)


async def test_a_claim_of_one_run_says_when_its_next_unit_is_due(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.start("b")
    later = await world.now() + 500
    await world.advance(Advance(task, then=GiveBack(later)))

    early = await world.claim(run=task.run)
    world.clock.advance(500)
    late = await world.claim(run=task.run)

    assert (list(early.claims), early.next_due) == ([], later)
    assert [claim.task.unit for claim in late.claims] == [1]


async def test_a_claim_of_one_run_makes_it_active(world: World) -> None:
    run = await world.start("a", units=[unit(1)], delay_ms=5)
    world.clock.advance(5)

    [claim] = (await world.claim(run=run.run)).claims

    assert claim.run.status is Status.ACTIVE


# --- what comes after


async def test_a_restart_gives_the_new_run_its_units(world: World) -> None:
    [task] = await world.graph("a", *CHAIN)

    new = await world.restart("a", units=CHAIN)

    assert list((await world.advance(done(task, 2), room=5)).applied) == [False]
    assert (new.run_at, new.owner) == (None, None)
    [claim] = (await world.claim()).claims
    assert claim.task == TaskRef(new.run, 1, "w1", 1)
    assert [one.unit for one in (await world.advance(done(claim.task, 2), room=5)).taken] == [2]


async def test_the_next_run_has_the_units_it_is_given_and_not_before_its_time(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    [itself] = (await world.advance(done(task))).taken

    later = await world.now() + 500
    await world.finish(itself, next=NextRun(None, run_at=later, units=[unit(1), unit(2, 1)]))
    early = await world.claim()
    world.clock.advance(500)
    [claim] = (await world.claim()).claims

    new = await world.find("a", 1)
    assert (list(early.claims), early.next_due) == ([], later)
    assert (claim.task, claim.run.status) == (TaskRef(new.run, 1, "w1", 1), Status.ACTIVE)
    advanced = await world.advance(done(claim.task), room=5)
    assert list(advanced.taken) == []


async def test_a_graph_that_expired_is_handed_out_as_itself(world: World) -> None:
    [task] = await world.graph("a", unit(1), expires_ms=500)
    world.clock.advance(500)

    found = await world.claim("w2")

    assert [claim.task.unit for claim in found.overdue] == [0]
    await world.commit(found.overdue[0].task, then=Finish(Status.ERRORED))
    assert list((await world.advance(done(task))).applied) == [False]
