"""The views for users' queries: chains and graphs as tables, from the facts and the task alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import Advance, Fact, FactState, Finish, Lease, Release, TaskRef, UnitRelease
from store.world import FLOW, LEASE, World, done, failure, plan, result, unit

STEPS = [plan("pack", 0, max_attempts=3), plan("weigh", 1, max_attempts=5), plan("send", 2)]
STEP_COLUMNS = (
    "run instance_id step_seq step_type status attempts max_attempts next_run_at locked_by locked_until"
    " waiting_event_type deadline_at last_error"
)


async def chain(world: World, id: str = "a", **options: Any) -> TaskRef:
    return await world.start_claimed(id, kind="chain", plan=STEPS, **options)


async def steps(world: World, run: int) -> list[dict[str, Any]]:
    return await world.read_view("holdfast_chain_step", run, "step_seq")


async def step(world: World, run: int, seq: int) -> dict[str, Any]:
    return (await steps(world, run))[seq]


async def instance(world: World, run: int) -> dict[str, Any]:
    [row] = await world.read_view("holdfast_chain_instance", run, "run")
    return row


def error(message: str) -> bytes:
    return json.dumps({"name": "Error", "message": message}).encode()


def wait(key: str, n: int, wake_at: int | None) -> Fact:
    return Fact(FactState.START, key, n, "wait", 1, 1, wake_at=wake_at, event_type="go")


def woken(key: str, n: int) -> Fact:
    return Fact(FactState.WOKEN, key, n, "wait", 1, 1, event=1)


def later(run_at: int | None, kind: TaskKind = TaskKind.RETRY) -> Release:
    return Release(run_at, kind)


# --- chains


async def test_a_new_chain_has_its_first_step_ready_and_the_others_pending(world: World) -> None:
    now = world.now()
    run = await world.start("a", kind="chain", plan=STEPS, options=b'{"version": 7}')

    assert await instance(world, run.run) == {
        "run": run.run,
        "instance_id": "a",
        "workflow_type": FLOW,
        "workflow_version": 7,
        "status": "RUNNING",
        "current_step_seq": 0,
        "current_step_type": "pack",
        "created_at": now,
        "completed_at": None,
        "failed_at": None,
    }
    found = await steps(world, run.run)
    assert [set(row) for row in found] == [set(STEP_COLUMNS.split())] * 3
    assert [(row["step_type"], row["status"], row["next_run_at"]) for row in found] == [
        ("pack", "READY", now),
        ("weigh", "PENDING", None),
        ("send", "PENDING", None),
    ]
    assert [(row["attempts"], row["max_attempts"]) for row in found] == [(0, 3), (0, 5), (0, None)]


async def test_the_chain_views_show_only_chains(world: World) -> None:
    task = await world.start_claimed("a", plan=STEPS)

    assert await world.read_view("holdfast_chain_instance", task.run, "run") == []
    assert await steps(world, task.run) == []


async def test_a_chain_without_options_has_no_version(world: World) -> None:
    task = await chain(world)

    assert (await instance(world, task.run))["workflow_version"] is None


async def test_a_step_whose_task_is_owned_is_running(world: World) -> None:
    now = world.now()
    task = await chain(world)

    row = await step(world, task.run, 0)

    assert (row["status"], row["locked_by"], row["locked_until"]) == ("RUNNING", "w1", now + LEASE)
    assert row["next_run_at"] is None


async def test_a_step_with_its_own_lease_is_locked_for_that_long_after_each_heartbeat(world: World) -> None:
    task = await chain(world)
    await world.store.set_leases([Lease(task, 5 * LEASE)])
    first = (await step(world, task.run, 0))["locked_until"]
    world.clock.advance(LEASE)
    await world.store.heartbeat("w1", LEASE)

    second = (await step(world, task.run, 0))["locked_until"]

    assert (first, second) == (world.now() + 4 * LEASE, world.now() + 5 * LEASE)


async def test_a_done_step_is_followed_by_the_next(world: World) -> None:
    task = await chain(world)
    await world.commit(task, facts=[failure("pack", 1, value=error("full")), result("pack", attempts=2)])

    found = await steps(world, task.run)

    assert [(row["status"], row["attempts"]) for row in found] == [("DONE", 2), ("RUNNING", 0), ("PENDING", 0)]
    assert [row["last_error"] for row in found] == ["full", None, None]
    row = await instance(world, task.run)
    assert (row["current_step_seq"], row["current_step_type"]) == (1, "weigh")


async def test_a_failed_step_is_ready_again_at_its_retry_time(world: World) -> None:
    task = await chain(world)
    at = world.now() + 500
    facts = [failure("pack", 1, value=error("one"), wake_at=5), failure("pack", 2, value=error("two"), wake_at=at)]

    await world.commit(task, facts=facts, then=later(at))

    row = await step(world, task.run, 0)
    assert (row["status"], row["attempts"], row["next_run_at"], row["last_error"]) == ("READY", 2, at, "two")


async def test_a_step_that_lost_its_worker_shows_lease_expired(world: World) -> None:
    task = await chain(world)
    await world.commit(task, facts=[failure("pack", 1, value=error("one"))])
    world.clock.advance(LEASE)
    await world.store.reap(9)

    found = await steps(world, task.run)

    assert [(row["status"], row["attempts"], row["last_error"]) for row in found] == [
        ("READY", 2, "LEASE_EXPIRED"),
        ("PENDING", 0, None),
        ("PENDING", 0, None),
    ]
    await world.claim("w2")
    row = await step(world, task.run, 0)
    assert (row["status"], row["attempts"], row["last_error"]) == ("RUNNING", 1, "one")


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_waiting_step_shows_its_event_type_and_deadline(world: World, in_time: bool) -> None:
    task = await chain(world)
    deadline = world.now() + 500 if in_time else None

    await world.commit(task, facts=[wait("pack", 0, deadline)], then=later(deadline, TaskKind.WAKE))

    row = await step(world, task.run, 0)
    assert (row["status"], row["waiting_event_type"], row["deadline_at"]) == ("WAITING", "go", deadline)
    assert row["next_run_at"] is None


async def test_a_step_whose_wait_is_over_is_ready(world: World) -> None:
    task = await chain(world)
    now = world.now()
    await world.commit(task, facts=[wait("pack", 0, now + 500), woken("pack", 0)], then=later(now))

    row = await step(world, task.run, 0)

    assert (row["status"], row["waiting_event_type"], row["deadline_at"]) == ("READY", None, None)
    assert row["next_run_at"] == now


async def test_a_step_that_waits_again_shows_its_new_deadline(world: World) -> None:
    task = await chain(world)
    now = world.now()
    facts = [wait("pack", 0, now + 500), woken("pack", 0), wait("pack", 1, now + 900)]

    await world.commit(task, facts=facts, then=later(now + 900, TaskKind.WAKE))

    row = await step(world, task.run, 0)
    assert (row["status"], row["deadline_at"]) == ("WAITING", now + 900)


async def test_a_step_that_was_woken_before_its_deadline_is_ready(world: World) -> None:
    task = await chain(world)
    now = world.now()

    await world.commit(task, facts=[wait("pack", 0, now + 500)], then=later(now, TaskKind.WAKE))

    row = await step(world, task.run, 0)
    assert (row["status"], row["next_run_at"]) == ("READY", now)


async def test_a_failed_chain_shows_its_dead_step(world: World) -> None:
    task = await chain(world)
    world.clock.advance(5)
    dead = result("pack", ok=False, value=error("broken"), attempts=3)

    await world.commit(task, facts=[dead], then=Finish(Status.ERRORED, error=error("broken")))

    row = await step(world, task.run, 0)
    assert (row["status"], row["attempts"], row["last_error"]) == ("DEAD", 3, "broken")
    ended = await instance(world, task.run)
    assert (ended["status"], ended["completed_at"], ended["failed_at"]) == ("FAILED", None, world.now())
    assert (ended["current_step_seq"], ended["current_step_type"]) == (0, "pack")  # the current step is the dead one
    assert (await step(world, task.run, 1))["status"] == "PENDING"


async def test_a_complete_chain_shows_all_steps_done(world: World) -> None:
    task = await chain(world)
    world.clock.advance(5)
    facts = [result(name, attempts=1) for name in ("pack", "weigh", "send")]

    await world.commit(task, facts=facts, then=Finish(Status.COMPLETE))

    assert [row["status"] for row in await steps(world, task.run)] == ["DONE"] * 3
    ended = await instance(world, task.run)
    assert (ended["status"], ended["completed_at"], ended["failed_at"]) == ("COMPLETED", world.now(), None)
    assert (ended["current_step_seq"], ended["current_step_type"]) == (2, "send")


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.TERMINATED])
async def test_a_terminated_or_cancelled_chain_is_shown_as_canceled(world: World, status: Status) -> None:
    task = await chain(world)

    await world.commit(task, then=Finish(status))

    ended = await instance(world, task.run)
    assert (ended["status"], ended["completed_at"], ended["failed_at"]) == ("CANCELED", None, None)


async def test_a_chain_that_waits_or_is_paused_is_running(world: World) -> None:
    waits, paused = await chain(world, "a"), await chain(world, "b")
    await world.commit(waits, then=later(world.now() + 500))
    await world.store.release([paused])
    await world.pause("b")

    assert [(await instance(world, task.run))["status"] for task in (waits, paused)] == ["RUNNING", "RUNNING"]
    assert (await step(world, paused.run, 0))["status"] == "READY"


async def test_a_step_of_any_name_is_shown(world: World) -> None:
    run = await world.start("a", kind="chain", plan=[plan("\ud800", 0), plan("ü", 1)])

    found = await steps(world, run.run)

    assert [row["step_seq"] for row in found] == [0, 1]
    assert found[1]["step_type"] == "ü"
    assert isinstance(found[0]["step_type"], str)


# --- graphs


async def facts(world: World, run: int) -> dict[str, Any]:
    rows = await world.read_view("holdfast_graph_fact", run, "key")
    assert all(set(row) == {"run", "pid", "key", "value"} for row in rows)
    assert {(row["run"], row["pid"]) for row in rows} <= {(run, "flow/a")}
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: json.loads(row["value"]) for row in rows}


async def test_the_graph_view_shows_facts_with_keys_and_values(world: World) -> None:
    meta = plan("meta", value=b'{"nodes": {"a": []}}')
    first, second, third = await world.graph("a", unit(1), unit(2), unit(3), unit(4, 1), plan=[meta])
    at = world.now()
    bad = result("b", ok=False, value=b'{"message": "no"}', at=6)
    skipped = result("d", kind="skipped", value=None, at=7)
    item = Fact(FactState.ITEM, "c", 0, "item", 1, 1, value=b"1")

    await world.advance(
        Advance(first, results=[result("a", kind="node", value=b'{"x": [1, "\\u00fc"]}', at=5)]),
        Advance(second, facts=[failure("b", 1)], results=[bad, skipped], removed_units=[4]),
        Advance(third, facts=[item], release=UnitRelease(world.now())),
        claim_limit=1,
    )

    lease = {"owner": "w1", "lease": at + LEASE}
    assert await facts(world, first.run) == {
        "meta": {"nodes": {"a": []}},
        f"start/a/{at}": lease,
        f"start/b/{at}": lease,
        f"start/c/{at}": lease,
        f"start/c/{at + 1}": lease,
        "result/a": {"status": "ok", "data": {"x": [1, "ü"]}, "ts": 5},
        "result/b": {"status": "error", "data": {"message": "no"}, "ts": 6},
        "result/d": {"status": "skipped", "data": None, "ts": 7},
    }


async def test_a_graph_that_was_killed_has_a_tombstone(world: World) -> None:
    [task] = await world.graph("a", unit(1))
    at = world.now()

    await world.terminate("a", "enough")

    assert (await facts(world, task.run))["tombstone"] == {"reason": "enough", "ts": at}


async def test_the_graph_view_shows_only_graphs(world: World) -> None:
    task = await world.start_claimed("a", plan=[plan("meta", value=b"1")])
    await world.commit(task, facts=[result("s")])

    assert await facts(world, task.run) == {}


async def test_a_node_of_any_name_is_shown(world: World) -> None:
    [task] = await world.graph("a", unit(1)._replace(key="\ud800"))

    await world.advance(done(task, key="\ud800"))

    assert len(await facts(world, task.run)) == 2
