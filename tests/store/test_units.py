"""Units: parts of a run that are created with it, claimed, owned and lost individually, and paused with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    SUSPECT_LOSSES,
    Advance,
    Audit,
    ExpiredTask,
    Fact,
    FactsQuery,
    FactState,
    Finish,
    HeldTask,
    NewRun,
    NewUnit,
    NextRun,
    OnReuse,
    PauseRun,
    ResolveUnit,
    ResumeRun,
    Signal,
    TaskRef,
    TerminateRun,
    UnitRelease,
    Verdict,
)
from store.world import FLOW, LEASE, World, done, recorded, result, unit

CHAIN = (unit(1), unit(2, 1), unit(3, 1))
DIAMOND = (unit(1), unit(2, 1), unit(3, 1), unit(4, 2))
ITEM = Fact(FactState.ITEM, "a", 0, "item", 1, 1, value=b"1")


# --- created


async def test_units_that_miss_nothing_are_due_and_unit_0_is_not(world: World) -> None:
    await world.graph("a", unit(1), unit(2), unit(3, 2), owner=None)

    claims = (await world.claim()).claims

    assert sorted(claim.task.unit for claim in claims) == [1, 2]
    assert {claim.run.instance_id for claim in claims} == {"a"}
    assert [(claim.kind, claim.lost, list(claim.mailbox_page.events)) for claim in claims] == [
        (TaskKind.RUN, False, [])
    ] * 2


async def test_the_created_record_of_a_run_with_units_equals_the_stored_one(world: World) -> None:
    created = await world.create("a", kind="graph", units=[unit(1)], owner="w1", lease_ms=LEASE, claim_limit=1)

    assert await world.find("a") == created.run
    assert (created.run.status, created.run.run_at, created.run.owner) == (Status.ACTIVE, None, None)


async def test_units_are_created_claimed_up_to_the_limit_and_unit_0_is_not(world: World) -> None:
    created = await world.create(
        "a", units=[unit(3), unit(2), unit(1, 1), unit(4)], owner="w1", lease_ms=LEASE, claim_limit=2
    )

    assert (created.epoch, created.run.owner, list(created.units)) == (0, None, [2, 3])
    run = created.run.run
    assert sorted(await world.store.heartbeat("w1", LEASE)) == [HeldTask(run, n, 1, Signal.NONE) for n in (2, 3)]
    assert await world.claimed_units("w2") == [4]


async def test_no_unit_is_created_claimed_without_an_owner_or_limit(world: World) -> None:
    no_owner = await world.create("a", units=[unit(1)], claim_limit=1)
    no_limit = await world.create("b", units=[unit(1)], owner="w1", lease_ms=LEASE)

    assert (list(no_owner.units), list(no_limit.units)) == ([], [])
    assert await world.claimed_units() == [1, 1]


async def test_units_of_a_delayed_run_are_due_after_the_delay_and_not_created_claimed(world: World) -> None:
    created = await world.create("a", units=[unit(1)], delay_ms=500, owner="w1", lease_ms=LEASE, claim_limit=1)

    early = await world.claim()
    world.clock.advance(500)
    late = await world.claim()

    assert (created.run.status, list(created.units)) == (Status.WAITING, [])
    assert (list(early.claims), early.next_due) == ([], late.now)
    assert [(claim.task.unit, claim.run.status) for claim in late.claims] == [(1, Status.ACTIVE)]


async def test_units_of_many_runs_in_one_batch_are_kept_apart(world: World) -> None:
    new = [NewRun(FLOW, f"r{n}", units=CHAIN[: n + 1], owner="w1", lease_ms=LEASE, claim_limit=n) for n in range(3)]

    made = await world.store.create([*new, NewRun(FLOW, "plain"), new[2]])

    assert [list(one.units) for one in made] == [[], [1], [1], [], []]
    assert sorted(await world.claimed_ids()) == ["plain", "r0"]


async def test_a_run_that_replaces_an_ended_one_has_its_own_units(world: World) -> None:
    await world.start_ended("a")

    [task] = await world.graph("a", *CHAIN, on_reuse=OnReuse.ALLOW)

    assert task == TaskRef((await world.find("a", 1)).run, 1, "w1", 1)
    assert list((await world.advance(done(task, 2), claim_limit=1)).claimed) == [TaskRef(task.run, 2, "w1", 1)]


async def test_a_commit_can_start_a_run_with_units(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.commit(
        task, starts=[NewRun(FLOW, "b", units=CHAIN, owner="w1", lease_ms=LEASE, claim_limit=1)]
    )

    assert [list(one.units) for one in answer.started] == [[1]]


async def test_an_operation_that_starts_a_run_with_units_reports_it_as_a_claimed_child(world: World) -> None:
    task = await world.start_claimed("a")
    new = NewRun(FLOW, "b", units=[unit(1), unit(2)], owner="w1", lease_ms=LEASE, claim_limit=1)

    answer = await world.commit(task, operations=[recorded("child", new)])

    assert [list(one.units) for one in answer.claimed_children] == [[1]]
    assert answer.affected is not None
    assert answer.affected.work
    assert await world.claimed_units("w2") == [2]


# --- claimed: each claim is a START


async def test_every_claim_of_a_unit_writes_a_start(world: World) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))
    created_at = world.now()
    world.clock.advance(5)
    claimed_at = world.now()
    await world.advance(done(task, 2), claim_limit=1)
    world.clock.advance(LEASE)
    await world.store.reap(9)
    [claim] = (await world.claim("w2")).claims

    facts = await world.facts(task.run, FactState.START)

    assert [(fact.key, fact.n, fact.kind, fact.ok) for fact in facts] == [
        ("a", 1, "node", True),
        ("b", 1, "node", True),
        ("b", 2, "node", True),
    ]
    times = [created_at, claimed_at, world.now()]
    assert [(fact.at, fact.started_at) for fact in facts] == [(at, at) for at in times]
    assert [json.loads(fact.value or b"") for fact in facts] == [
        {"owner": owner, "lease": at + LEASE} for owner, at in zip(("w1", "w1", "w2"), times, strict=True)
    ]
    assert claim.task.epoch == 2


async def test_a_claim_of_unit_0_writes_no_start(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.advance(done(task), claim_limit=1)
    plain = await world.start_claimed("b")

    assert await world.starts(task.run) == [("a", 1)]
    assert await world.starts(plain.run) == []


async def test_starts_of_a_unit_have_distinct_times(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.store.release([task])
    [again] = (await world.claim()).claims
    advanced = await world.advance(Advance(again.task, release=UnitRelease(world.now())), claim_limit=1)
    await world.store.release(advanced.claimed)
    await world.claim("w2")

    times = [fact.at for fact in await world.facts(task.run, FactState.START)]

    assert len(times) == 4
    assert times == sorted(set(times))


async def test_the_key_of_a_unit_can_be_any_text(world: World) -> None:
    key = "lonely \ud800 ü"
    [task] = await world.graph("a", NewUnit(1, key))
    await world.store.release([task])
    await world.claim("w2")

    assert await world.starts(task.run) == [(key, 1), (key, 2)]


# --- paused


async def test_no_unit_of_a_paused_run_is_due(world: World) -> None:
    await world.graph("a", unit(1), unit(2), owner=None)

    await world.pause("a")

    found = await world.claim()
    assert (list(found.claims), found.next_due) == ([], None)
    assert (await world.find("a")).status is Status.PAUSED


async def test_an_owned_unit_of_a_paused_run_finishes_and_makes_no_unit_due(world: World) -> None:
    [task] = await world.graph("a", *CHAIN)
    await world.pause("a")

    advanced = await world.advance(done(task, 2), claim_limit=5)

    assert list(advanced.applied) == [True]
    assert (list(advanced.claimed), advanced.due) == ([], False)
    assert await world.claimed_units("w2") == []


async def test_a_resume_makes_units_that_miss_nothing_due(world: World) -> None:
    first, held = await world.graph("a", unit(1), unit(2), unit(3, 1), unit(4, 2))
    await world.pause("a")
    await world.advance(done(first, 3, 4))

    await world.resume("a")

    claims = (await world.claim("w2")).claims
    assert sorted((one.task.unit, one.kind) for one in claims) == [(0, TaskKind.RESUME), (3, TaskKind.RESUME)]
    assert list((await world.advance(done(held))).applied) == [True]


async def test_a_unit_released_during_a_pause_is_due_after_the_resume(world: World) -> None:
    tasks = await world.graph("a", unit(1), unit(2), unit(3))
    await world.pause("a")

    later = world.now() + 500
    advanced = await world.advance(
        Advance(tasks[0], release=UnitRelease(later)), Advance(tasks[1], release=UnitRelease(1)), claim_limit=5
    )
    await world.store.release([tasks[2]])
    world.clock.advance(500)
    paused = await world.claim("w2")
    await world.resume("a")

    assert list(advanced.claimed) == []
    assert (list(paused.claims), paused.next_due) == ([], None)
    assert await world.claimed_units("w2") == [0, 1, 2, 3]


async def test_a_unit_lost_during_a_pause_is_due_after_the_resume(world: World) -> None:
    await world.graph("a", unit(1))
    await world.pause("a")
    world.clock.advance(LEASE)

    expired = await world.store.reap(9)
    paused = await world.claim("w2")
    await world.resume("a")

    assert [(one.unit, one.losses) for one in expired] == [(1, 1)]
    assert (list(paused.claims), paused.next_due) == ([], None)
    assert await world.claimed_units("w2") == [0, 1]


async def test_units_added_to_a_paused_run_are_due_after_the_resume(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.pause("a")

    added = await world.advance(Advance(task, new_units=[unit(2)], release=UnitRelease(missing=1)), claim_limit=5)
    paused = await world.claimed_units("w2")
    await world.resume("a")

    assert (list(added.claimed), paused) == ([], [])
    assert await world.claimed_units("w2") == [0, 2]


async def test_the_last_result_during_a_pause_makes_unit_0_due_after_the_resume(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.pause("a")

    last = await world.advance(done(task), claim_limit=5)
    paused = await world.claimed_units("w2")
    await world.resume("a")
    [itself] = (await world.claim("w2")).claims
    given_back = await world.advance(Advance(itself.task, release=UnitRelease()), owner="w2")

    assert (list(last.claimed), paused, itself.task.unit) == ([], [], 0)
    assert [one.unit for one in given_back.claimed] == [0]


async def test_a_pause_requested_while_unit_0_is_owned_takes_effect_at_its_release(world: World) -> None:
    await world.graph("a", unit(1), unit(2, 1), owner=None)
    await world.send_exit("a")
    claims = {claim.task.unit: claim.task for claim in (await world.claim()).claims}
    await world.pause("a")
    signalled = await world.store.fetch_signals("w1")

    await world.advance(done(claims[1], 2), claim_limit=0)
    advanced = await world.advance(
        Advance(claims[0], results=[result("x")], release=UnitRelease(1), seen=1), claim_limit=5
    )

    assert [(held.unit, held.signal) for held in signalled] == [(0, Signal.PAUSE)]
    assert (list(advanced.applied), list(advanced.claimed), advanced.due) == ([True], [], False)
    assert ((await world.find("a")).status, (await world.find("a")).owner) == (Status.PAUSED, None)
    assert await world.claimed_units() == []


# --- leases


@pytest.mark.promise("liveness")
async def test_a_lost_unit_is_due_and_the_other_units_are_unchanged(world: World) -> None:
    await world.graph("a", unit(1), unit(2), claim_limit=1)
    kept = await world.claim_one("w2", lease_ms=10 * LEASE)
    world.clock.advance(LEASE)

    expired = await world.store.reap(9)
    claim = await world.claim_one("w3")

    assert expired == [ExpiredTask(kept.task.run, 1, losses=1, parked=False)]
    assert (claim.task.unit, claim.task.epoch, claim.lost, claim.kind) == (1, 2, True, TaskKind.RETRY)
    assert list((await world.advance(done(kept.task), owner="w2")).applied) == [True]


async def test_a_unit_that_loses_its_workers_in_a_row_parks_the_run(world: World) -> None:
    tasks = await world.graph("a", unit(1), unit(2), unit(3))
    await world.store.release([tasks[2]])
    world.clock.advance(LEASE)

    expired = await world.store.reap(1)

    assert [(one.unit, one.parked) for one in sorted(expired)] == [(1, True), (2, True)]
    run = await world.find("a")
    assert run.status is Status.PAUSED
    assert "resume" in (run.note or "")
    assert await world.claimed_units() == []
    await world.resume("a")
    assert [one.lost for one in (await world.claim("w2")).claims if one.task.unit == 3] == [False]


async def test_a_worker_claims_one_suspect_unit_at_a_time(world: World) -> None:
    await world.graph("a", unit(1), unit(2))
    await _lose_owners(world, SUSPECT_LOSSES)

    assert await world.claimed_units("careful", suspects=False) == []
    assert len(await world.claimed_units("w2")) == 1
    assert len(await world.claimed_units("w3")) == 1


async def test_a_unit_keeps_its_losses_when_unit_0_commits(world: World) -> None:
    await world.graph("a", unit(1))
    await _lose_owners(world, 1)
    await world.claim("w2")
    await world.send_exit("a")
    itself = (await world.claim_one("w3")).task
    await world.pause("a")

    answer = await world.commit(itself, facts=[result("x")])
    world.clock.advance(LEASE)

    assert answer.verdict is Verdict.PAUSED
    assert [(expired.unit, expired.losses) for expired in await world.store.reap(9)] == [(1, 2)]


async def test_releasing_a_unit_does_not_release_the_others(world: World) -> None:
    first, second = await world.graph("a", unit(1), unit(2))

    assert await world.store.release([first, first]) == 1

    assert [held.unit for held in await world.store.heartbeat("w1", LEASE)] == [second.unit]
    assert await world.claimed_units("w2") == [1]


async def test_an_event_signals_unit_0_and_no_other_unit(world: World) -> None:
    await world.graph("a", unit(1))

    await world.send("go")
    await world.send_exit("a")

    assert await world.store.fetch_signals("w1") == []
    [claim] = (await world.claim("w2")).claims
    assert (claim.task.unit, [event.type for event in claim.mailbox_page.events]) == (0, ["go", "@exit"])


async def test_a_claim_of_a_unit_has_an_empty_mailbox_page(world: World) -> None:
    await world.graph("a", unit(1), owner=None)
    await world.send_exit("a")

    pages = {claim.task.unit: len(claim.mailbox_page.events) for claim in (await world.claim()).claims}

    assert pages == {0: 1, 1: 0}


# --- claims of one run


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


async def test_a_claim_of_one_run_claims_unit_0_with_its_events_and_no_overdue_runs(world: World) -> None:
    await world.start("late", expires_ms=1)
    task, _ = await world.graph("a", unit(1), unit(2))
    await world.store.release([task])
    await world.send_exit("a")
    world.clock.advance(10)

    found = await world.claim(run=task.run)
    none = await world.claim(run=task.run, limit=0)

    assert [(claim.task.unit, len(claim.mailbox_page.events)) for claim in found.claims] == [(0, 1), (1, 0)]
    assert (list(found.overdue), found.next_due, list(none.claims)) == ([], None, [])


async def test_a_claim_of_one_run_claims_at_most_one_suspect(world: World) -> None:
    run = (await world.graph("a", unit(1), unit(2), unit(3)))[0].run
    await _lose_owners(world, SUSPECT_LOSSES)

    careful = await world.claim("w1", run=run, suspects=False)
    one = await world.claim("w2", run=run)

    assert (list(careful.claims), careful.next_due) == ([], None)
    assert ([claim.task.unit for claim in one.claims], one.next_due) == ([1], None)


async def test_a_claim_of_one_run_returns_when_its_next_unit_is_due(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    await world.start("b")
    later = world.now() + 500
    await world.advance(Advance(task, release=UnitRelease(later)))

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


# --- successors


async def test_a_restart_gives_the_new_run_its_units(world: World) -> None:
    [task] = await world.graph("a", *CHAIN)

    new = await world.restart("a", units=CHAIN)

    assert list((await world.advance(done(task, 2), claim_limit=5)).applied) == [False]
    assert (new.run_at, new.owner) == (None, None)
    [claim] = (await world.claim()).claims
    assert claim.task == TaskRef(new.run, 1, "w1", 1)
    assert [one.unit for one in (await world.advance(done(claim.task, 2), claim_limit=5)).claimed] == [2]


async def test_a_successor_has_its_units_and_they_are_due_at_its_start_time(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    [itself] = (await world.advance(done(task))).claimed

    later = world.now() + 500
    await world.finish(itself, next=NextRun(None, run_at=later, units=[unit(1), unit(2, 1)]))
    early = await world.claim()
    world.clock.advance(500)
    [claim] = (await world.claim()).claims

    new = await world.find("a", 1)
    assert (list(early.claims), early.next_due) == ([], later)
    assert (claim.task, claim.run.status) == (TaskRef(new.run, 1, "w1", 1), Status.ACTIVE)
    advanced = await world.advance(done(claim.task), claim_limit=5)
    assert list(advanced.claimed) == []


async def test_an_expired_graph_is_claimed_as_unit_0(world: World) -> None:
    [task] = await world.graph("a", unit(1), expires_ms=500)
    world.clock.advance(500)

    found = await world.claim("w2")

    assert [claim.task.unit for claim in found.overdue] == [0]
    await world.commit(found.overdue[0].task, then=Finish(Status.ERRORED))
    assert list((await world.advance(done(task))).applied) == [False]


async def _lose_owners(world: World, times: int) -> None:
    """Let the lease of every owner of every unit expire, ``times`` times in a row."""
    for n in range(times):
        world.clock.advance(LEASE)
        await world.store.reap(99)
        if n + 1 < times:
            await world.claim(f"dying-{n}")


# --- resolved by hand


def _resolution(task: TaskRef, *decremented: int, **fields: Any) -> ResolveUnit:
    return ResolveUnit(FLOW, "a", done(task, *decremented, **fields))


async def _results(world: World, task: TaskRef) -> list[str]:
    return [fact.key for fact in await world.store.read(FactsQuery(task.run, FactState.RESULT))]


async def test_a_resolved_unit_loses_its_owner_and_the_next_units_are_due(world: World) -> None:
    [owned] = await world.graph("a", *CHAIN)

    resolved = await world.store.control(_resolution(owned, 2, 3), Audit("resolve", "ann"))

    assert (resolved.refused, resolved.affected.work) == (False, True)
    assert (await world.advance(done(owned, 2, 3))).applied == [False]
    assert await _results(world, owned) == ["a"]
    assert await world.claimed_units() == [2, 3]


async def test_a_unit_that_has_ended_is_not_resolved(world: World) -> None:
    [first] = await world.graph("a", *DIAMOND)
    await world.advance(done(first, 2, 3))

    again = await world.store.control(_resolution(first, 2, 3, key="other"))

    assert again.refused
    assert await world.claimed_units() == [2, 3]
    assert await _results(world, first) == ["a"]


async def test_the_last_resolved_unit_makes_the_run_due(world: World) -> None:
    [only] = await world.graph("a", unit(1))

    await world.store.control(_resolution(only))

    assert await world.claimed_units() == [0]


async def test_units_after_a_resolved_unit_of_a_paused_run_are_due_when_it_is_resumed(world: World) -> None:
    [first] = await world.graph("a", *CHAIN)
    await world.store.control(PauseRun(FLOW, "a"))

    await world.store.control(_resolution(first, 2))

    assert await world.claimed_units() == []
    await world.store.control(ResumeRun(FLOW, "a"))
    assert 2 in await world.claimed_units()


async def test_a_resolution_removes_the_units_of_items(world: World) -> None:
    tasks = await world.graph("a", unit(1), unit(2), unit(3))

    await world.store.control(_resolution(tasks[0], removed_units=[2]))

    assert (await world.advance(done(tasks[1]), done(tasks[2]))).applied == [False, True]


async def test_a_unit_of_a_run_that_has_ended_is_not_resolved(world: World) -> None:
    [first] = await world.graph("a", unit(1))
    await world.store.control(TerminateRun(FLOW, "a", None))

    assert (await world.store.control(_resolution(first))).refused
