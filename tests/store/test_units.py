"""Units: parts of a run that are made with it, claimed, held and lost by themselves, and paused with it."""

from __future__ import annotations

import json

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    SUSPECT_LOSSES,
    Advance,
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
    Signal,
    TaskRef,
    Verdict,
)
from store.world import FLOW, LEASE, World, act, done, result, unit

CHAIN = (unit(1), unit(2, 1), unit(3, 1))
DIAMOND = (unit(1), unit(2, 1), unit(3, 1), unit(4, 2))
ITEM = Fact(FactState.ITEM, "a", 0, "item", 1, 1, value=b"1")


# --- made


async def test_units_that_miss_nothing_are_due_and_the_run_itself_is_not(world: World) -> None:
    await world.graph("a", unit(1), unit(2), unit(3, 2), owner=None)

    claims = (await world.claim()).claims

    assert sorted(claim.task.unit for claim in claims) == [1, 2]
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
    advanced = await world.advance(Advance(again.task, then=GiveBack(await world.now())), room=1)
    await world.store.release(advanced.taken)
    await world.claim("w2")

    times = [fact.at for fact in await world.store.facts(task.run, FactState.START)]

    assert len(times) == 4
    assert times == sorted(set(times))


async def test_the_key_of_a_unit_can_be_any_text(world: World) -> None:
    key = "lonely \ud800 ü"
    [task] = await world.graph("a", NewUnit(1, key))
    await world.store.release([task])
    await world.claim("w2")

    assert await world.starts(task.run) == [(key, 1), (key, 2)]


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
    assert sorted((one.task.unit, one.kind) for one in claims) == [(0, TaskKind.RESUME), (3, TaskKind.RESUME)]
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
    await world.exit("a")
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
    await _lose_holders(world, SUSPECT_LOSSES)

    assert await world.claimed_units("careful", suspects=False) == []
    assert len(await world.claimed_units("w2")) == 1
    assert len(await world.claimed_units("w3")) == 1


async def test_a_unit_keeps_its_losses_whatever_the_run_itself_does(world: World) -> None:
    await world.graph("a", unit(1))
    await _lose_holders(world, 1)
    await world.claim("w2")
    await world.exit("a")
    itself = (await world.take("w3")).task
    await world.store.pause(FLOW, "a")

    answer = await world.commit(itself, facts=[result("x")])
    world.clock.advance(LEASE)

    assert answer.verdict is Verdict.PAUSED
    assert [(freed.unit, freed.losses) for freed in await world.store.reap(9)] == [(1, 2)]


async def test_a_unit_is_released_alone(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    assert await world.store.release([first, first]) == 1

    assert [held.unit for held in await world.store.heartbeat("w1", LEASE)] == [second.unit]
    assert await world.claimed_units("w2") == [1]


async def test_mail_signals_the_run_and_no_unit(world: World) -> None:
    await world.graph("a", unit(1))

    await world.send("go")
    await world.exit("a")

    assert await world.store.signals("w1") == []
    [claim] = (await world.claim("w2")).claims
    assert (claim.task.unit, [mail.type for mail in claim.mailbag.mail]) == (0, ["go", "@exit"])


async def test_a_claim_of_a_unit_has_no_mail(world: World) -> None:
    await world.graph("a", unit(1), owner=None)
    await world.exit("a")

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


async def test_a_claim_of_one_run_takes_the_run_itself_with_its_mail_and_nothing_that_is_overdue(world: World) -> None:
    await world.start("late", expires_ms=1)
    task, _ = await world.graph("a", unit(1), unit(2))
    await world.store.release([task])
    await world.exit("a")
    world.clock.advance(10)

    found = await world.claim(run=task.run)
    none = await world.claim(run=task.run, limit=0)

    assert [(claim.task.unit, len(claim.mailbag.mail)) for claim in found.claims] == [(0, 1), (1, 0)]
    assert (list(found.overdue), found.next_due, list(none.claims)) == ([], None, [])


async def test_a_claim_of_one_run_takes_no_more_than_one_suspect(world: World) -> None:
    run = (await world.graph("a", unit(1), unit(2), unit(3)))[0].run
    await _lose_holders(world, SUSPECT_LOSSES)

    careful = await world.claim("w1", run=run, suspects=False)
    one = await world.claim("w2", run=run)

    assert (list(careful.claims), careful.next_due) == ([], None)
    assert ([claim.task.unit for claim in one.claims], one.next_due) == ([1], None)


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


async def _lose_holders(world: World, times: int) -> None:
    """Let every holder of every unit die, so many times in a row."""
    for n in range(times):
        world.clock.advance(LEASE)
        await world.store.reap(99)
        if n + 1 < times:
            await world.claim(f"dying-{n}")
