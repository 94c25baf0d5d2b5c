"""Claims: which tasks a worker receives, in which order, and when the next task is due."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import Finish, NewRun, Release, TaskRef
from store.world import FLOW, LEASE, World, result, waiting


async def test_a_claim_returns_the_run_record_and_its_mailbox(world: World) -> None:
    run = await world.start("a", params=b"[1]")

    claim = await world.claim_one("w1")

    assert claim.task == TaskRef(run.run, 0, "w1", 1)
    assert (claim.kind, claim.lost, list(claim.mailbox_page.events)) == (TaskKind.RUN, False, [])
    assert (claim.run.params, claim.run.owner, claim.run.status) == (b"[1]", "w1", Status.ACTIVE)
    assert claim.run == await world.find("a")


async def test_a_claimed_task_is_not_claimed_by_another_worker(world: World) -> None:
    await world.start("a")
    await world.claim("w1")

    other = await world.claim("w2")

    assert (list(other.claims), other.next_due) == ([], None)


async def test_concurrent_claims_share_the_tasks_out(world: World) -> None:
    await world.store.create([NewRun(FLOW, f"r{n}") for n in range(100)])

    results = await asyncio.gather(*(world.claim(f"w{n}", limit=10) for n in range(15)))

    taken = [claim.run.run for one in results for claim in one.claims]
    assert len(taken) == len(set(taken)) == 100


async def test_each_claim_raises_the_epoch(world: World) -> None:
    await world.start("a")

    epochs = []
    for _ in range(3):
        claim = await world.claim_one()
        epochs.append(claim.task.epoch)
        await world.store.release([claim.task])

    assert epochs == [1, 2, 3]


async def test_a_claim_returns_at_most_the_limit(world: World) -> None:
    await world.store.create([NewRun(FLOW, f"r{n}") for n in range(5)])

    first = await world.claim(limit=3)
    second = await world.claim(limit=3)

    assert (len(first.claims), len(second.claims)) == (3, 2)


async def test_a_claim_with_limit_zero_claims_nothing_and_returns_next_due(world: World) -> None:
    await world.start("a")

    none = await world.claim(limit=0)

    assert (list(none.claims), none.next_due) == ([], world.now())


async def test_tasks_of_other_workflows_are_not_claimed(world: World) -> None:
    await world.start("a", workflow="unknown")
    await world.start("b")

    assert await world.claimed_ids() == ["b"]
    assert await world.claimed_ids(workflows=["unknown"]) == ["a"]


async def test_tasks_of_other_queues_are_not_claimed(world: World) -> None:
    await world.start("a", queue="slow")
    await world.start("b")

    assert await world.claimed_ids() == ["b"]
    assert await world.claimed_ids(queues=["fast", "slow"]) == ["a"]


async def test_a_claim_without_queues_or_workflows_claims_nothing(world: World) -> None:
    await world.start("a")

    assert await world.claimed_ids(queues=[]) == []
    assert await world.claimed_ids(workflows=[]) == []


async def test_runs_that_continue_are_claimed_before_new_runs(world: World) -> None:
    await world.start("new", priority=-5)
    world.clock.advance(1)
    await world.start_waiting("woken", "go")
    await world.send("go", "woken")

    assert await world.claimed_ids() == ["woken", "new"]


async def test_a_lower_priority_number_is_claimed_first(world: World) -> None:
    for name, priority in (("c", 7), ("a", -3), ("b", 0)):
        await world.start(name, priority=priority)

    assert await world.claimed_ids() == ["a", "b", "c"]


async def test_the_longest_due_task_of_equal_priority_is_claimed_first(world: World) -> None:
    for name in ("first", "second", "third"):
        await world.start(name)
        world.clock.advance(1)

    assert await world.claimed_ids(limit=2) == ["first", "second"]


async def test_queues_and_workflows_of_one_priority_are_merged_by_time(world: World) -> None:
    for name, workflow, queue in (("1", "y", "q2"), ("2", "x", "q1"), ("3", "y", "q1"), ("4", "x", "q2")):
        await world.start(name, workflow=workflow, queue=queue)
        world.clock.advance(1)

    requested = {"queues": ["q1", "q2"], "workflows": ["x", "y"]}
    assert await world.claimed_ids(limit=3, **requested) == ["1", "2", "3"]
    assert await world.claimed_ids(limit=3, **requested) == ["4"]


async def test_tasks_of_many_priorities_are_claimed_in_order(world: World) -> None:
    await world.store.create([NewRun(FLOW, f"r{n:02}", priority=n) for n in range(40)])

    taken = await world.claimed_ids(limit=5)

    assert taken == [f"r{n:02}" for n in range(5)]


async def test_next_due_is_the_time_of_the_earliest_task_that_is_not_due_yet(world: World) -> None:
    now = world.now()
    for name, delay, priority in (("c", 300, 0), ("a", 100, 9), ("b", 200, 5)):
        await world.start(name, delay_ms=delay, priority=priority)

    assert (await world.claim()).next_due == now + 100


async def test_next_due_is_exact_after_a_claim_of_all_due_tasks(world: World) -> None:
    await world.start("now")
    await world.start("later", delay_ms=100)

    claimed = await world.claim(limit=1)

    assert len(claimed.claims) == 1
    assert claimed.next_due == world.now() + 100


async def test_next_due_is_not_later_than_now_while_due_tasks_remain(world: World) -> None:
    await world.store.create([NewRun(FLOW, f"r{n}") for n in range(3)])

    claimed = await world.claim(limit=2)

    assert claimed.next_due is not None
    assert claimed.next_due <= claimed.now == world.now()


async def test_next_due_ignores_queues_and_workflows_that_were_not_requested(world: World) -> None:
    await world.start("a", workflow="unknown")
    await world.start("b", queue="slow")

    assert (await world.claim()).next_due is None


async def test_a_waiting_run_is_active_once_claimed(world: World) -> None:
    waiting_since = (await world.start_waiting("a", run_at=world.now() + 10)).updated_at
    world.clock.advance(10)

    claim = await world.claim_one()

    assert claim.run.status is Status.ACTIVE
    assert claim.run.updated_at == waiting_since + 10


async def test_a_claim_returns_the_undelivered_events_in_order(world: World) -> None:
    await world.start("a")
    await world.start("b")
    for word in ("one", "two", "three"):
        await world.send(word, "a", payload=word.encode())

    claims = {claim.run.instance_id: claim for claim in (await world.claim()).claims}

    assert [(event.n, event.type, event.payload) for event in claims["a"].mailbox_page.events] == [
        (1, "one", b"one"),
        (2, "two", b"two"),
        (3, "three", b"three"),
    ]
    assert list(claims["b"].mailbox_page.events) == []


async def test_the_task_kind_tells_why_a_task_is_due(world: World) -> None:
    now = world.now()
    task = await world.start_claimed("retry")
    await world.commit(task, then=Release(now, TaskKind.RETRY))
    await world.start_waiting("timer", run_at=now)
    await world.start("paused")
    await world.pause("paused")
    await world.resume("paused")
    await world.start("new")

    kinds = {claim.run.instance_id: claim.kind for claim in (await world.claim()).claims}

    assert kinds == {
        "retry": TaskKind.RETRY,
        "timer": TaskKind.WAKE,
        "paused": TaskKind.RESUME,
        "new": TaskKind.RUN,
    }


@pytest.mark.promise("finality")
async def test_a_finished_run_is_never_claimed(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")], then=Finish(Status.COMPLETE))
    world.clock.advance(10 * LEASE)

    assert await world.store.reap(3) == []
    assert (await world.claim()).next_due is None


async def test_a_run_that_waits_for_an_event_is_not_due(world: World) -> None:
    await world.start_waiting("a", "go")
    world.clock.advance(10**9)

    claimed = await world.claim()

    assert (list(claimed.claims), claimed.next_due) == ([], None)


async def test_a_release_in_the_past_is_due_at_once(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, then=waiting(run_at=world.now() - 10**6))

    assert await world.claimed_ids() == ["a"]
