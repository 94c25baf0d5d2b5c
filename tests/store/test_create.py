"""Creating runs: an id is one run, whichever call is first."""

from __future__ import annotations

import asyncio

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import NewRun
from store.world import FLOW, LEASE, World


async def test_a_new_run_has_the_values_of_its_request(world: World) -> None:
    made = await world.create("a", params=b"[1]", kind="chain", queue="slow", priority=3, seed=-(2**63))

    now = world.now()
    run = made.run
    assert made.created
    assert made.epoch == 0
    assert (run.workflow, run.instance_id, run.number, run.kind) == (FLOW, "a", 0, "chain")
    assert (run.params, run.queue, run.priority, run.seed) == (b"[1]", "slow", 3, -(2**63))
    assert (run.status, run.output, run.error, run.note) == (Status.ACTIVE, None, None, None)
    assert (run.created_at, run.updated_at, run.started_at, run.completed_at) == (now, now, None, None)
    assert (run.instance, run.run_at, run.owner) == (run.run, now, None)


async def test_the_created_record_equals_the_stored_one(world: World) -> None:
    plain = await world.create("a", params=b"1", delay_ms=5)
    claimed = await world.create("b", owner="w1", lease_ms=LEASE)

    assert await world.find("a") == plain.run
    assert await world.find("b") == claimed.run


async def test_creating_an_existing_id_returns_its_run_and_changes_nothing(world: World) -> None:
    first = await world.start("a", params=b"1")

    again = await world.create("a", params=b"2", queue="other")

    assert not again.created
    assert again.run == first
    assert await world.find("a") == first


async def test_the_same_id_twice_in_a_batch_is_one_run(world: World) -> None:
    new = [NewRun(FLOW, "a", b"1"), NewRun(FLOW, "b"), NewRun(FLOW, "a", b"2")]

    first, other, again = await world.store.create(new)

    assert (first.created, other.created, again.created) == (True, True, False)
    assert again.run.run == first.run.run
    assert again.run.params == b"1"


async def test_the_same_id_in_two_workflows_is_two_runs(world: World) -> None:
    one = await world.create("a", workflow="one")
    two = await world.create("a", workflow="two")

    assert (one.created, two.created) == (True, True)
    assert one.run.run != two.run.run


async def test_concurrent_creates_of_one_id_make_one_run(world: World) -> None:
    answers = await asyncio.gather(*(world.create("a", params=str(n).encode()) for n in range(50)))

    assert sum(answer.created for answer in answers) == 1
    assert len({answer.run.run for answer in answers}) == 1


async def test_creating_an_existing_id_returns_the_current_run_after_a_restart(world: World) -> None:
    await world.start("a")
    await world.restart("a")

    again = await world.create("a")

    assert not again.created
    assert again.run.number == 1


async def test_creating_an_empty_batch_returns_nothing(world: World) -> None:
    assert await world.store.create([]) == []
    assert await world.ids() == []


async def test_a_run_created_with_an_owner_is_claimed(world: World) -> None:
    made = await world.create("a", owner="w1", lease_ms=LEASE)

    assert made.epoch == 1
    assert made.run.owner == "w1"
    assert await world.claimed_ids(owner="w2") == []
    assert [held.run for held in await world.store.heartbeat("w1", LEASE)] == [made.run.run]


async def test_a_run_created_claimed_can_be_claimed_by_another_worker_after_its_lease(world: World) -> None:
    await world.create("a", owner="w1", lease_ms=LEASE)
    world.clock.advance(LEASE)

    await world.store.reap(5)
    claim = await world.claim_one("w2")

    assert claim.task.epoch == 2
    assert claim.lost


async def test_a_delayed_run_is_due_after_its_delay(world: World) -> None:
    run = await world.start("a", delay_ms=500)
    assert run.run_at == world.now() + 500

    early = await world.claim()
    world.clock.advance(500)
    late = await world.claim()

    assert (early.claims, early.next_due) == ((), run.run_at)
    assert [claim.kind for claim in late.claims] == [TaskKind.RUN]


async def test_a_thousand_runs_in_one_batch_are_created_in_order(world: World) -> None:
    made = await world.store.create([NewRun(FLOW, f"r{n}") for n in range(1_000)])

    assert all(one.created for one in made)
    assert [one.run.instance_id for one in made] == [f"r{n}" for n in range(1_000)]
    assert [one.run.run for one in made] == sorted({one.run.run for one in made})
