"""Leases: extended by heartbeats, lost without them, released without a loss."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    SUSPECT_LOSSES,
    Claimant,
    ExpiredTask,
    HeldTask,
    Lease,
    NewRun,
    Signal,
    TaskRef,
    Verdict,
)
from store.world import FLOW, LEASE, World, failure, result, waiting


async def test_a_heartbeat_extends_every_lease_of_its_owner(world: World) -> None:
    tasks = [await world.start_claimed(name) for name in ("a", "b")]
    world.clock.advance(LEASE - 1)

    held = await world.store.heartbeat("w1", LEASE)
    world.clock.advance(LEASE - 1)

    assert sorted(held) == [HeldTask(task.run, 0, 1, Signal.NONE) for task in tasks]
    assert await world.store.reap(3) == []


async def test_a_heartbeat_does_not_extend_leases_of_others(world: World) -> None:
    await world.start_claimed("a", "w1")
    await world.start_claimed("b", "w2")
    world.clock.advance(LEASE - 1)
    await world.store.heartbeat("w2", LEASE)
    world.clock.advance(1)

    expired = await world.store.reap(3)

    assert [one.run for one in expired] == [(await world.find("a")).run]


async def test_a_heartbeat_does_not_return_lost_tasks(world: World) -> None:
    await world.start_claimed("a")
    world.clock.advance(LEASE)
    await world.store.reap(3)

    assert await world.store.heartbeat("w1", LEASE) == []


async def test_a_heartbeat_returns_signals_and_clears_the_events_signal(world: World) -> None:
    await world.start_claimed("a")
    await world.send("go")

    first, second = await world.store.heartbeat("w1", LEASE), await world.store.heartbeat("w1", LEASE)

    assert [held.signal for held in first] == [Signal.EVENTS]
    assert [held.signal for held in second] == [Signal.NONE]


async def test_fetch_signals_returns_only_tasks_with_a_signal(world: World) -> None:
    await world.start_claimed("quiet")
    task = await world.start_claimed("wanted")
    await world.start_claimed("elsewhere", "w2")
    await world.send("go", "wanted")
    await world.send("go", "elsewhere")

    assert [held.run for held in await world.store.fetch_signals("w1")] == [task.run]


async def test_a_lease_is_valid_until_its_end(world: World) -> None:
    await world.start_claimed("a")
    world.clock.advance(LEASE - 1)
    early = await world.store.reap(3)
    world.clock.advance(1)

    assert (early, len(await world.store.reap(3))) == ([], 1)


@pytest.mark.promise("liveness")
async def test_a_lost_task_is_due_at_once_as_a_retry(world: World) -> None:
    run = (await world.start_claimed("a")).run
    world.clock.advance(LEASE)

    expired = await world.store.reap(3)
    claim = await world.claim_one("w2")

    assert expired == [ExpiredTask(run, 0, losses=1, parked=False)]
    assert (claim.kind, claim.lost, claim.run.losses) == (TaskKind.RETRY, True, 1)
    assert claim.run.status is Status.ACTIVE


async def test_a_lost_task_is_claimed_before_new_runs(world: World) -> None:
    await world.start("new", priority=-1)
    await world.start_claimed("lost")
    world.clock.advance(LEASE)
    await world.store.reap(3)

    assert await world.claimed_ids(owner="w2") == ["lost", "new"]


async def test_a_task_is_reaped_once(world: World) -> None:
    await world.start_claimed("a")
    world.clock.advance(LEASE)

    both = await asyncio.gather(world.store.reap(3), world.store.reap(3))

    assert sorted(len(expired) for expired in both) == [0, 1]


async def test_a_loss_is_reported_once(world: World) -> None:
    await world.start_claimed("a")
    world.clock.advance(LEASE)
    await world.store.reap(3)
    claim = await world.claim_one("w2")
    await world.commit(claim.task, then=waiting(run_at=world.now()))

    assert not (await world.claim_one("w3")).lost


async def test_a_loss_is_reported_until_a_commit_follows(world: World) -> None:
    await world.start_claimed("a")
    world.clock.advance(LEASE)
    await world.store.reap(3)
    claim = await world.claim_one("w2")

    await world.store.release([claim.task])

    assert (await world.claim_one("w3")).lost


async def test_a_loss_is_reported_after_a_pause_and_a_released_claim(world: World) -> None:
    await world.start_claimed("a")
    await world.pause("a")
    world.clock.advance(LEASE + 1)
    await world.store.reap(10)
    await world.resume("a")
    claim = await world.claim_one("w2")
    assert claim.lost
    await world.store.release([claim.task])

    assert (await world.claim_one("w3")).lost


async def test_a_run_is_parked_after_too_many_losses_in_a_row(world: World) -> None:
    run = (await world.start_claimed("a")).run
    expired = []
    for n in range(3):
        world.clock.advance(LEASE)
        expired += await world.store.reap(3)
        await world.claim(f"w{n + 2}")

    assert expired == [ExpiredTask(run, 0, 1, False), ExpiredTask(run, 0, 2, False), ExpiredTask(run, 0, 3, True)]
    parked = await world.find("a")
    assert (parked.status, parked.owner, parked.run_at, parked.losses) == (Status.PAUSED, None, None, 3)
    assert parked.note is not None
    assert "3 times" in parked.note
    assert "resume" in parked.note


@pytest.mark.promise("isolation-of-runs")
async def test_a_parked_run_does_not_block_other_runs(world: World) -> None:
    await world.start_claimed("bad")
    await world.start("good", delay_ms=LEASE)
    world.clock.advance(LEASE)

    [expired] = await world.store.reap(1)

    assert expired.parked
    assert await world.claimed_ids() == ["good"]


async def test_a_resume_resets_the_losses_except_an_unreported_one(world: World) -> None:
    await world.start_claimed("a")
    for _ in range(3):
        world.clock.advance(LEASE)
        await world.store.reap(3)
        if (await world.find("a")).status is not Status.PAUSED:
            await world.claim_one("w2")

    await world.resume("a")

    run = await world.find("a")
    assert (run.losses, run.note, run.status) == (1, None, Status.ACTIVE)
    assert (await world.claim_one()).kind is TaskKind.RESUME


async def test_an_applied_commit_resets_the_losses(world: World) -> None:
    await world.start_claimed("a")
    world.clock.advance(LEASE)
    await world.store.reap(9)
    claim = await world.claim_one("w2")

    await world.commit(claim.task, facts=[result("s")])

    assert (await world.find("a")).losses == 0
    world.clock.advance(LEASE)
    assert [expired.losses for expired in await world.store.reap(9)] == [1]


async def test_a_commit_during_a_pause_resets_the_losses(world: World) -> None:
    await world.start_claimed("a")
    world.clock.advance(LEASE)
    await world.store.reap(9)
    claim = await world.claim_one("w2")
    await world.pause("a")

    await world.commit(claim.task, facts=[result("s")], in_flight=1)

    run = await world.find("a")
    assert (run.losses, run.pausing) == (0, True)


async def test_a_lost_commit_does_not_reset_the_losses(world: World) -> None:
    task = await world.start_claimed("a")
    world.clock.advance(LEASE)
    await world.store.reap(9)

    await world.commit(task, facts=[result("s")])

    assert (await world.find("a")).losses == 1


@pytest.mark.promise("no-lost-wakeup")
async def test_events_sent_before_a_loss_are_claimed_after_it(world: World) -> None:
    await world.start_claimed("a")
    await world.send("go")
    world.clock.advance(LEASE)
    await world.store.reap(9)

    claim = await world.claim_one("w2")

    assert len(claim.mailbox_page.events) == 1
    assert await world.store.fetch_signals("w2") == []


async def test_a_released_task_is_due_without_a_loss(world: World) -> None:
    task = await world.start_claimed("a")

    assert await world.store.release([task]) == 1

    claim = await world.claim_one("w2")
    assert (claim.lost, claim.run.losses, claim.task.epoch) == (False, 0, 2)
    assert (await world.commit(task)).verdict is Verdict.LOST


async def test_releasing_a_stale_claim_is_ignored(world: World) -> None:
    task = await world.start_claimed("a")
    other = await world.start_claimed("b")
    stale = [task._replace(epoch=9), task._replace(owner="w9"), TaskRef(999, 0, "w1", 1)]

    assert await world.store.release([*stale, other]) == 1
    assert (await world.find("a")).owner == "w1"
    assert (await world.find("b")).owner is None


async def test_a_task_is_released_once(world: World) -> None:
    task = await world.start_claimed("a")

    assert await world.store.release([task, task]) == 1


@pytest.mark.promise("liveness")
async def test_a_dead_worker_loses_all_its_tasks(world: World) -> None:
    await world.store.create([NewRun(FLOW, f"r{n}", owner="w1", lease_ms=LEASE) for n in range(200)])
    world.clock.advance(LEASE)

    assert len(await world.store.reap(9)) == 200
    assert len((await world.claim("w2", limit=500)).claims) == 200


async def test_a_commit_without_a_result_does_not_reset_the_losses(world: World) -> None:
    await world.start_claimed("a")
    world.clock.advance(LEASE)
    await world.store.reap(9)
    claim = await world.claim_one("w2")

    await world.commit(claim.task, facts=[failure("s", 1)])

    assert (await world.find("a")).losses == 1


@pytest.mark.promise("isolation-of-runs")
async def test_suspects_are_claimed_one_at_a_time_and_last(world: World) -> None:
    for name in ("a", "b"):
        await world.start_claimed(name)
    await lose_owners(world, SUSPECT_LOSSES)
    await world.start("c")

    first = await world.claim(owner="w2")
    second = await world.claim(owner="w2", suspects=False)

    assert [claim.run.instance_id for claim in first.claims] == ["c", "a"]
    assert (first.next_due, len(second.claims)) == (None, 0)
    assert [claim.run.instance_id for claim in (await world.claim(owner="w3")).claims] == ["b"]


async def test_a_suspect_that_makes_progress_is_no_longer_a_suspect(world: World) -> None:
    await world.start_claimed("a")
    await lose_owners(world, SUSPECT_LOSSES)
    claim = await world.claim_one("w2")

    await world.commit(claim.task, facts=[result("s")], then=waiting(run_at=world.now()))

    assert [c.run.instance_id for c in (await world.claim(owner="w3", suspects=False)).claims] == ["a"]


async def lose_owners(world: World, times: int) -> None:
    """Let the lease of every owner of every task expire, ``times`` times in a row."""
    for n in range(times):
        world.clock.advance(LEASE)
        await world.store.reap(99)
        if n + 1 < times:
            await world.claim(owner=f"dying-{n}")


# --- a task with a lease of its own


async def test_a_shorter_task_lease_expires_before_the_workers_lease(world: World) -> None:
    other, task = await world.start_claimed("other"), await world.start_claimed("a")
    await world.store.heartbeat("w1", LEASE)

    assert await world.store.set_leases([Lease(task, 100)]) == [True]

    world.clock.advance(99)
    early = await world.store.reap(9)
    world.clock.advance(1)
    assert (early, [expired.run for expired in await world.store.reap(9)]) == ([], [task.run])
    assert await world.store.heartbeat("w1", LEASE) == [HeldTask(other.run, 0, 1, Signal.NONE)]


async def test_a_longer_task_lease_outlasts_the_workers_lease(world: World) -> None:
    other, task = await world.start_claimed("other"), await world.start_claimed("a")
    await world.store.set_leases([Lease(task, 3 * LEASE)])
    await world.store.heartbeat("w1", LEASE)

    world.clock.advance(LEASE)
    assert [expired.run for expired in await world.store.reap(9)] == [other.run]
    world.clock.advance(2 * LEASE - 1)
    assert await world.store.reap(9) == []
    world.clock.advance(1)
    assert [expired.run for expired in await world.store.reap(9)] == [task.run]


async def test_a_heartbeat_renews_a_task_lease_by_its_own_duration(world: World) -> None:
    task = await world.start_claimed("a")
    await world.store.set_leases([Lease(task, 100)])
    for _ in range(3):
        world.clock.advance(99)
        await world.store.heartbeat("w1", LEASE)
        assert await world.store.reap(9) == []

    world.clock.advance(100)

    assert [expired.run for expired in await world.store.reap(9)] == [task.run]


async def test_a_task_lease_can_be_changed_again(world: World) -> None:
    task = await world.start_claimed("a")
    await world.store.set_leases([Lease(task, 100)])
    await world.store.set_leases([Lease(task, LEASE)])

    world.clock.advance(LEASE - 1)
    early = await world.store.reap(9)
    world.clock.advance(1)

    assert (early, len(await world.store.reap(9))) == ([], 1)


async def test_only_the_owner_sets_a_task_lease(world: World) -> None:
    task, other = await world.start_claimed("a"), await world.start_claimed("b")
    stale = [task._replace(epoch=9), task._replace(owner="w9"), TaskRef(999, 0, "w1", 1)]

    wanted = [Lease(stale[0], 1), Lease(other, 5 * LEASE), Lease(stale[1], 1), Lease(stale[2], 1)]
    assert await world.store.set_leases(wanted) == [False, True, False, False]

    world.clock.advance(LEASE - 1)
    early = await world.store.reap(9)
    world.clock.advance(1)
    assert (early, [expired.run for expired in await world.store.reap(9)]) == ([], [task.run])


async def test_a_claim_uses_the_lease_of_its_claimant(world: World) -> None:
    task = await world.start_claimed("a")
    await world.store.set_leases([Lease(task, 5 * LEASE)])
    await world.store.release([task])
    await world.claim_one("w2")

    world.clock.advance(LEASE)

    assert len(await world.store.reap(9)) == 1


async def test_a_run_claimed_by_a_send_has_the_lease_of_its_claimant(world: World) -> None:
    task = await world.start_claimed("a")
    await world.store.set_leases([Lease(task, 5 * LEASE)])
    await world.commit(task, then=waiting("go"))
    sent = await world.send("go", claimant=Claimant("w2", LEASE, ["default"]))
    assert sent.claim is not None

    world.clock.advance(LEASE)

    assert len(await world.store.reap(9)) == 1


async def test_a_task_whose_own_lease_expired_is_lost(world: World) -> None:
    task = await world.start_claimed("a")
    await world.store.set_leases([Lease(task, 100)])
    world.clock.advance(100)
    await world.store.reap(9)

    claim = await world.claim_one("w2")

    assert (claim.lost, claim.run.losses) == (True, 1)
    assert await world.store.set_leases([Lease(task, 100)]) == [False]
    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.LOST
