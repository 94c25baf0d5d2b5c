"""PLAN facts: written with the run and copied to its successors; facts by state and key; tombstones."""

from __future__ import annotations

import json

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    CancelRun,
    Fact,
    FactState,
    NewRun,
    NextRun,
    OnConflict,
    OnReuse,
    ParentClose,
    TerminateRun,
)
from store.world import FLOW, LEASE, World, done, failure, plan, recorded, result, unit

CANCELLATION = b'{"reason":"why","deadlineMs":null}'
STEPS = [plan("pack", 0, max_attempts=3, timeout_ms=1_000), plan("send", 1, value=b'{"to": "you"}')]


async def plans(world: World, run: int) -> list[Fact]:
    return await world.facts(run, FactState.PLAN)


# --- written and copied to successors


async def test_a_plan_is_written_with_the_run(world: World) -> None:
    run = await world.start("a", plan=STEPS)

    assert await world.facts(run.run) == STEPS


async def test_plans_of_a_batch_are_kept_apart(world: World) -> None:
    made = await world.store.create(
        [NewRun(FLOW, "a", plan=STEPS), NewRun(FLOW, "b"), NewRun(FLOW, "c", plan=STEPS[:1])]
    )

    assert [await plans(world, one.run.run) for one in made] == [STEPS, [], STEPS[:1]]


async def test_an_existing_run_that_is_used_keeps_its_own_plan(world: World) -> None:
    run = await world.start("a", plan=STEPS)

    again = await world.create("a", plan=[plan("other")])

    assert (again.created, await plans(world, run.run)) == (False, STEPS)


@pytest.mark.parametrize("policy", [{"on_conflict": OnConflict.TERMINATE_EXISTING}, {"on_reuse": OnReuse.ALLOW}])
async def test_a_replacing_run_has_its_own_plan(world: World, policy: dict[str, str]) -> None:
    await world.start("a", plan=STEPS)
    if "on_reuse" in policy:
        await world.terminate("a")

    new = await world.start("a", plan=[plan("other")], **policy)

    assert new.number == 1
    assert await plans(world, new.run) == [plan("other")]


async def test_a_successor_takes_over_the_plan_facts_only(world: World) -> None:
    task = await world.start_claimed("a", plan=STEPS)
    await world.commit(task, facts=[result("pack"), failure("send", 1)])

    new = await world.continue_run(task)

    assert await world.facts(new.run) == STEPS
    assert await plans(world, task.run) == STEPS


async def test_a_restart_and_its_successor_have_the_plan(world: World) -> None:
    task = await world.start_claimed("a", plan=STEPS)
    await world.commit(task, facts=[result("pack")])

    first = await world.restart("a")
    second = await world.restart("a")

    assert [await world.facts(run.run) for run in (first, second)] == [STEPS, STEPS]


async def test_a_restarted_graph_has_its_plan_and_units(world: World) -> None:
    shape = plan("meta", value=b'{"nodes": {}}')
    await world.graph("a", unit(1), plan=[shape])

    new = await world.restart("a", units=[unit(1)])

    assert await world.facts(new.run) == [shape]
    assert await world.claimed_units() == [1]


async def test_a_successor_with_units_has_the_plan(world: World) -> None:
    task = await world.start_claimed("a", plan=STEPS)

    await world.finish(task, next=NextRun(None, units=[unit(1)]))

    new = await world.find("a", 1)
    assert await plans(world, new.run) == STEPS


async def test_a_run_started_by_another_run_has_its_plan(world: World) -> None:
    task = await world.start_claimed("a")

    await world.commit(
        task, starts=[NewRun(FLOW, "b", plan=STEPS)], operations=[recorded("child", NewRun(FLOW, "c", plan=STEPS[:1]))]
    )

    assert await plans(world, (await world.find("b")).run) == STEPS
    assert await plans(world, (await world.find("c")).run) == STEPS[:1]


async def test_a_plan_key_can_be_any_text(world: World) -> None:
    odd = [plan("\ud800", 1), plan("ü\x00", 0)]

    run = await world.start("a", plan=odd)
    new = await world.restart("a")

    assert {(fact.key, fact.n) for fact in await plans(world, run.run)} == {("\ud800", 1), ("ü\x00", 0)}
    assert await plans(world, new.run) == await plans(world, run.run)


# --- facts by state and key


async def _varied(world: World) -> int:
    task = await world.start_claimed("a", plan=STEPS)
    await world.commit(task, facts=[result("b"), result("a"), failure("a", 2), failure("a", 1), failure("b", 1)])
    return task.run


async def test_facts_can_be_read_by_state(world: World) -> None:
    run = await _varied(world)

    assert [fact.key for fact in await world.facts(run, FactState.RESULT)] == ["a", "b"]
    assert [(fact.key, fact.n) for fact in await world.facts(run, FactState.FAILURE)] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
    ]
    assert await world.facts(run, FactState.PLAN) == STEPS
    assert await world.facts(run, FactState.ITEM) == []


async def test_facts_can_be_read_by_state_and_keys(world: World) -> None:
    run = await _varied(world)

    found = await world.facts(run, FactState.FAILURE, ["b", "none", "a", "a"])

    assert [(fact.state, fact.key, fact.n) for fact in found] == [(2, "a", 1), (2, "a", 2), (2, "b", 1)]
    assert await world.facts(run, FactState.RESULT, ["b"]) == [result("b")]
    assert await world.facts(run, FactState.RESULT, []) == []


async def test_facts_can_be_read_by_a_key_of_any_text(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("\ud800"), result("ü")])

    found = await world.facts(task.run, FactState.RESULT, ["\ud800", "ü"])

    assert {fact.key for fact in found} == {"\ud800", "ü"}


async def test_facts_of_other_runs_are_not_returned(world: World) -> None:
    run = await _varied(world)
    other = await world.start("b", plan=STEPS[:1])

    assert await world.facts(other.run, FactState.PLAN) == STEPS[:1]
    assert await world.facts(other.run, FactState.RESULT, ["a"]) == []
    assert len(await world.facts(run)) == 7


# --- tombstones


@pytest.mark.parametrize("reason", ["enough", None, 'a "quoted" \x00 \ud800 ü'])
async def test_a_terminated_graph_has_a_tombstone_with_the_reason(world: World, reason: str | None) -> None:
    [task] = await world.graph("a", unit(1))

    steered = await world.terminate("a", reason)

    run = await world.find("a")
    assert steered.run is not None
    assert (steered.run.status, steered.affected.ended) == (Status.ACTIVE, [task.run])
    assert (run.status, run.note) == (Status.TERMINATED, reason)
    assert await _reasons(world, task.run) == [reason]


@pytest.mark.parametrize(
    ("reason", "message"),
    [("enough", "enough"), (None, "no reason given"), ('a "quoted" \x00 \ud800 ü', 'a "quoted" \x00 \ud800 ü')],
)
async def test_a_cancelled_graph_ends_at_once_with_a_tombstone(world: World, reason: str | None, message: str) -> None:
    [task] = await world.graph("a", unit(1), unit(2, 1))

    payload = json.dumps({"reason": reason, "deadlineMs": 5}).encode()
    steered = await world.cancel("a", payload=payload, deadline_ms=5)

    run = await world.find("a")
    assert (run.status, run.output, run.note, steered.affected.ended) == (Status.CANCELLED, None, None, [task.run])
    assert json.loads(run.error or b"") == {
        "name": "CancelledError", "message": message, "kind": "Cancelled", "retryable": False,
    }  # fmt: skip
    assert await _reasons(world, task.run) == [reason]
    assert list((await world.advance(done(task), claim_limit=5)).applied) == [False]
    assert await world.claimed_units() == []


async def test_a_paused_graph_can_be_cancelled(world: World) -> None:
    await world.graph("a", unit(1), owner=None)
    await world.pause("a")

    await world.cancel("a", payload=CANCELLATION)

    assert (await world.find("a")).status is Status.CANCELLED


@pytest.mark.parametrize("verb", ["terminate", "cancel"])
async def test_a_graph_ended_by_an_operation_has_a_tombstone(world: World, verb: str) -> None:
    [task] = await world.graph("a", unit(1))
    other = await world.start_claimed("b", "w2")

    operation = TerminateRun(FLOW, "a", "why") if verb == "terminate" else CancelRun(FLOW, "a", CANCELLATION, None)
    committed = await world.operate(other, operation)

    assert (await world.find("a")).status == ("terminated" if verb == "terminate" else "cancelled")
    assert committed.affected is not None
    assert committed.affected.ended == [task.run]
    assert await _reasons(world, task.run) == ["why"]


@pytest.mark.parametrize(
    ("parent_close", "status"), [("terminate", Status.TERMINATED), ("request_cancel", Status.CANCELLED)]
)
async def test_graphs_that_end_with_their_parent_have_tombstones(
    world: World, parent_close: str, status: Status
) -> None:
    parent = await world.start_claimed("p")
    made = {"parent": f"{FLOW}/p", "parent_run": parent.run, "parent_close": ParentClose(parent_close)}
    [task] = await world.graph("a", unit(1), **made)
    [below] = await world.graph("b", unit(1), parent=f"{FLOW}/a", parent_run=task.run)

    await world.finish(parent)

    assert [(await world.find(name)).status for name in ("a", "b")] == [status, Status.TERMINATED]
    assert await _reasons(world, task.run) == [f"its parent {FLOW}/p has ended"]
    assert await _reasons(world, below.run) == [f"its parent {FLOW}/a has ended"]
    assert await world.store.heartbeat("w1", LEASE) == []


async def test_the_tombstone_of_a_restarted_graph_stays_with_the_old_run(world: World) -> None:
    [task] = await world.graph("a", unit(1))

    new = await world.restart("a", units=[unit(1)])

    assert await _reasons(world, task.run) == ["restarted"]
    assert await _reasons(world, new.run) == []


async def test_other_runs_and_finished_graphs_have_no_tombstone(world: World) -> None:
    task = await world.start_claimed("a")
    [node] = await world.graph("g", unit(1))
    [itself] = (await world.advance(done(node))).claimed

    await world.terminate("a")
    await world.finish(itself)
    await world.terminate("g")
    await world.cancel("g", payload=CANCELLATION)

    assert await world.facts(task.run, FactState.TOMBSTONE) == []
    assert await world.facts(node.run, FactState.TOMBSTONE) == []


async def _reasons(world: World, run: int) -> list[str | None]:
    """The reasons in the tombstones of a run."""
    return [json.loads(fact.value or b"") for fact in await world.facts(run, FactState.TOMBSTONE)]


async def test_units_of_a_run_ended_by_an_operation_are_deleted(world: World) -> None:
    await world.graph("a", unit(1), unit(2, 1))
    task = await world.start_claimed("b", "w2")

    await world.operate(task, TerminateRun(FLOW, "a", None))

    assert await world.store.heartbeat("w1", LEASE) == []
    assert await world.claimed_units() == []
