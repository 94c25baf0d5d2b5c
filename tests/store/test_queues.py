"""Queues: no task of a paused queue is claimed, whatever makes it due; moves of tasks to another queue."""

from __future__ import annotations

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    Audit,
    AuditQuery,
    Claimant,
    DeclareLimits,
    DeclareQueues,
    LimitKey,
    LimitValues,
    MoveQueue,
    NewEvent,
    NewRun,
    NewUnit,
    PauseQueue,
    PermitExchange,
    PermitRequest,
    PermitResult,
    PermitReturn,
    ReadLimits,
    ReadQueues,
    TaskRef,
    Verdict,
)
from store.world import FLOW, LEASE, World, done, unit, waiting

BULK = "bulk"
QUEUES = ("default", BULK)
ME = Claimant("w1", LEASE, QUEUES)


async def _pause(world: World, *, paused: bool = True) -> None:
    await world.store.queues(PauseQueue(BULK, paused))


async def test_a_paused_queue_is_not_claimed_from_until_it_is_resumed(world: World) -> None:
    await world.start("a", queue=BULK)
    await world.start("b")
    await _pause(world)

    assert await world.claimed_ids(queues=QUEUES) == ["b"]
    held = await world.claim(queues=QUEUES)
    assert (list(held.claims), held.next_due) == ([], None)
    await _pause(world, paused=False)
    assert await world.claimed_ids(queues=QUEUES) == ["a"]


async def test_a_run_that_is_started_in_a_paused_queue_is_created_without_an_owner(world: World) -> None:
    await _pause(world)

    plain = await world.create("a", queue=BULK, owner="w1", lease_ms=LEASE)
    other = await world.create("b", owner="w1", lease_ms=LEASE)
    many = await world.store.create([NewRun(FLOW, f"m{n}", queue=BULK, owner="w1", lease_ms=LEASE) for n in range(3)])

    for created in (plain, *many):
        assert (created.created, created.run.owner, created.epoch) == (True, None, 0)
        assert created.run == await world.find(created.run.instance_id)
    assert (other.run.owner, other.epoch) == ("w1", 1)


async def test_units_of_a_graph_in_a_paused_queue_are_created_without_an_owner(world: World) -> None:
    await _pause(world)
    units = [NewUnit(1, "x", 0), NewUnit(2, "y", 1)]

    created = await world.create("a", queue=BULK, owner="w1", lease_ms=LEASE, units=units, claim_limit=2)

    assert (created.created, list(created.units)) == (True, [])
    assert list((await world.claim(queues=QUEUES)).claims) == []
    assert list((await world.claim(run=created.run.run, queues=QUEUES)).claims) == []
    await _pause(world, paused=False)
    [claim] = (await world.claim(queues=QUEUES)).claims
    assert (claim.task.unit, claim.task.epoch) == (1, 1)


async def test_an_event_does_not_claim_a_run_of_a_paused_queue(world: World) -> None:
    await world.start("a", queue=BULK)
    claim = await world.claim_one(queues=QUEUES)
    await world.commit(claim.task, then=waiting("go"))
    await _pause(world)

    [sent] = await world.store.send([NewEvent(FLOW, "a", "go", claimant=ME)])

    assert (sent.accepted, sent.woken, sent.claim) == (True, True, None)
    assert await world.claimed_ids(queues=QUEUES) == []
    await _pause(world, paused=False)
    assert await world.claimed_ids(queues=QUEUES) == ["a"]


async def test_a_task_that_is_owned_keeps_its_owner_when_its_queue_is_paused(world: World) -> None:
    await world.start("a", queue=BULK)
    claim = await world.claim_one(queues=QUEUES)
    await _pause(world)

    committed = await world.commit(claim.task, then=waiting(run_at=world.now() + 10))

    assert committed.verdict is Verdict.APPLIED
    world.clock.advance(20)
    assert await world.claimed_ids(queues=QUEUES) == []


async def test_a_declared_queue_keeps_a_change_until_the_code_declares_another_value(world: World) -> None:
    await world.store.queues(DeclareQueues({BULK: True}))
    await _pause(world, paused=False)

    kept = await world.store.queues(DeclareQueues({BULK: True}))
    assert kept.paused == frozenset()
    await world.store.queues(DeclareQueues({BULK: False}))
    changed = await world.store.queues(DeclareQueues({BULK: True}))
    assert changed.paused == {BULK}
    assert (await world.store.queues(ReadQueues())).queues == changed.queues


async def test_moving_a_queue_moves_the_runs_that_no_worker_owns(world: World) -> None:
    await world.start("owned", queue=BULK)
    await world.claim_one(queues=QUEUES)
    for id_, delay in (("due", 0), ("later", 50)):
        await world.start(id_, queue=BULK, delay_ms=delay)
    await world.start("other")

    moved = await world.store.queues(MoveQueue(BULK, "slow", Audit("queue_move", "ann", "too much")))

    assert moved.moved == 2
    found = {id_: (await world.find(id_)).queue for id_ in ("owned", "due", "later", "other")}
    assert found == {"owned": BULK, "due": "slow", "later": "slow", "other": "default"}
    assert await world.claimed_ids(queues=["slow"]) == ["due"]
    [record] = await world.store.read(AuditQuery(None, None, 10))
    assert (record.action, record.target, record.outcome) == ("queue_move", "queue bulk", "2 to slow")


async def _share_one_permit(world: World, *ids: str) -> list[TaskRef]:
    """Start runs in the queue under a limit of one; the first of them has the permit, the others wait for it."""
    await world.store.limits(DeclareLimits({"one": LimitValues(concurrency=1)}))
    tasks = [await world.start_claimed(id_, queue=BULK) for id_ in ids]
    assert [await _ask(world, task) for task in tasks] == [task is tasks[0] for task in tasks]
    return tasks


async def _ask(world: World, task: TaskRef) -> bool:
    request = PermitRequest(task, "", 0, [LimitKey("one")], park=True)
    reply = await world.store.exchange_permits(PermitExchange(task.owner, requests=[request]))
    return reply.results[0] is PermitResult.HELD


async def _use(world: World) -> tuple[int, int]:
    [record] = await world.store.limits(ReadLimits("one"))
    return record.used, record.waiting


async def test_a_run_that_is_moved_waits_no_longer_for_the_limits_of_its_queue(world: World) -> None:
    await _share_one_permit(world, "a", "b", "c")

    await world.store.queues(MoveQueue(BULK, "slow"))

    assert await world.claimed_ids(queues=["slow"]) == ["b", "c"]
    assert await _use(world) == (1, 0)


async def test_runs_of_a_paused_queue_keep_no_permit_from_others_and_ask_again_after_the_resume(world: World) -> None:
    [first, second] = await _share_one_permit(world, "a", "b")
    await world.store.exchange_permits(PermitExchange("w1", returns=[PermitReturn(first, "", 0)]))
    assert await _use(world) == (1, 0)  # granted to the second run, which no worker has claimed

    await _pause(world)

    other = await world.start_claimed("other")
    assert await _ask(world, other)
    await _pause(world, paused=False)
    again = (await world.claim_one(queues=QUEUES)).task
    assert again.run == second.run
    assert not await _ask(world, again)


async def test_a_run_that_has_to_wait_for_a_permit_in_a_paused_queue_asks_again_after_the_resume(world: World) -> None:
    await world.store.limits(DeclareLimits({"one": LimitValues(concurrency=1)}))
    first, late = [await world.start_claimed(id_, queue=BULK) for id_ in "ab"]
    assert await _ask(world, first)
    await _pause(world)

    assert not await _ask(world, late)

    assert await _use(world) == (1, 0)
    assert await world.claimed_ids(queues=QUEUES) == []
    await _pause(world, paused=False)
    assert await world.claimed_ids(queues=QUEUES) == ["b"]


async def test_a_run_of_a_paused_queue_is_ended_when_its_time_has_expired(world: World) -> None:
    await world.start("a", queue=BULK, expires_ms=10, expiry="run")
    await _pause(world)
    world.clock.advance(20)

    claims = await world.claim(queues=QUEUES)

    assert [claim.run.instance_id for claim in claims.overdue] == ["a"]
    assert claims.overdue[0].run.status is Status.ACTIVE


@pytest.mark.parametrize("paused", [True, False])
async def test_pausing_a_queue_twice_is_the_same_as_once(world: World, paused: bool) -> None:
    for _ in range(2):
        reply = await world.store.queues(PauseQueue(BULK, paused))

    assert (BULK in reply.paused) is paused


async def test_a_unit_that_becomes_due_in_a_paused_queue_is_not_claimed_by_the_advance(world: World) -> None:
    [first] = await world.graph("a", unit(1), unit(2, missing=1), queue=BULK)
    await _pause(world)

    advanced = await world.advance(done(first, 2), claim_limit=5)

    assert (list(advanced.applied), list(advanced.claimed)) == ([True], [])
    await _pause(world, paused=False)
    assert await world.claimed_units(queues=QUEUES) == [2]
