"""Leases: kept by heartbeats, lost by silence, given back without blame."""

from __future__ import annotations

import asyncio

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import SUSPECT_LOSSES, Claimant, Freed, Held, Lease, NewRun, Signal, TaskRef, Verdict
from store.world import FLOW, LEASE, World, failure, result, waiting


async def test_a_heartbeat_keeps_every_lease_of_its_owner(world: World) -> None:
    tasks = [await world.begin(name) for name in ("a", "b")]
    world.clock.advance(LEASE - 1)

    held = await world.store.heartbeat("w1", LEASE)
    world.clock.advance(LEASE - 1)

    assert sorted(held) == [Held(task.run, 0, 1, Signal.NONE) for task in tasks]
    assert await world.store.reap(3) == []


async def test_a_heartbeat_does_nothing_for_others(world: World) -> None:
    await world.begin("a", "w1")
    await world.begin("b", "w2")
    world.clock.advance(LEASE - 1)
    await world.store.heartbeat("w2", LEASE)
    world.clock.advance(1)

    freed = await world.store.reap(3)

    assert [one.run for one in freed] == [(await world.find("a")).run]


async def test_a_heartbeat_does_not_show_what_was_lost(world: World) -> None:
    await world.begin("a")
    world.clock.advance(LEASE)
    await world.store.reap(3)

    assert await world.store.heartbeat("w1", LEASE) == []


async def test_a_heartbeat_reads_signals_and_clears_mail(world: World) -> None:
    await world.begin("a")
    await world.send("go")

    first, second = await world.store.heartbeat("w1", LEASE), await world.store.heartbeat("w1", LEASE)

    assert [held.signal for held in first] == [Signal.MAIL]
    assert [held.signal for held in second] == [Signal.NONE]


async def test_signals_shows_only_tasks_that_somebody_wants_something_of(world: World) -> None:
    await world.begin("quiet")
    task = await world.begin("wanted")
    await world.begin("elsewhere", "w2")
    await world.send("go", "wanted")
    await world.send("go", "elsewhere")

    assert [held.run for held in await world.store.signals("w1")] == [task.run]


async def test_a_lease_is_good_until_its_end(world: World) -> None:
    await world.begin("a")
    world.clock.advance(LEASE - 1)
    early = await world.store.reap(3)
    world.clock.advance(1)

    assert (early, len(await world.store.reap(3))) == ([], 1)


async def test_a_lost_task_is_due_at_once_as_a_retry(world: World) -> None:
    run = (await world.begin("a")).run
    world.clock.advance(LEASE)

    freed = await world.store.reap(3)
    claim = await world.take("w2")

    assert freed == [Freed(run, 0, losses=1, parked=False)]
    assert (claim.kind, claim.lost, claim.run.losses) == (TaskKind.RETRY, True, 1)
    assert claim.run.status is Status.ACTIVE


async def test_a_lost_task_goes_before_what_starts(world: World) -> None:
    await world.start("new", priority=-1)
    await world.begin("lost")
    world.clock.advance(LEASE)
    await world.store.reap(3)

    assert await world.claimed_ids(owner="w2") == ["lost", "new"]


async def test_a_task_is_reaped_once(world: World) -> None:
    await world.begin("a")
    world.clock.advance(LEASE)

    both = await asyncio.gather(world.store.reap(3), world.store.reap(3))

    assert sorted(len(freed) for freed in both) == [0, 1]


async def test_lost_is_told_once(world: World) -> None:
    await world.begin("a")
    world.clock.advance(LEASE)
    await world.store.reap(3)
    claim = await world.take("w2")
    await world.commit(claim.task, then=waiting(run_at=await world.now()))

    assert not (await world.take("w3")).lost


async def test_a_loss_stays_news_until_somebody_has_committed(world: World) -> None:
    await world.begin("a")
    world.clock.advance(LEASE)
    await world.store.reap(3)
    claim = await world.take("w2")

    await world.store.release([claim.task])

    assert (await world.take("w3")).lost


async def test_a_loss_is_still_told_after_a_pause_and_a_claim_that_was_given_back(world: World) -> None:
    await world.begin("a")
    await world.store.pause(FLOW, "a")
    world.clock.advance(LEASE + 1)
    await world.store.reap(10)
    await world.store.resume(FLOW, "a")
    claim = await world.take("w2")
    assert claim.lost
    await world.store.release([claim.task])

    assert (await world.take("w3")).lost


async def test_a_run_that_loses_its_workers_in_a_row_is_parked(world: World) -> None:
    run = (await world.begin("a")).run
    freed = []
    for n in range(3):
        world.clock.advance(LEASE)
        freed += await world.store.reap(3)
        await world.claim(f"w{n + 2}")

    assert freed == [Freed(run, 0, 1, False), Freed(run, 0, 2, False), Freed(run, 0, 3, True)]
    parked = await world.find("a")
    assert (parked.status, parked.owner, parked.run_at, parked.losses) == (Status.PAUSED, None, None, 3)
    assert parked.note is not None
    assert "3 times" in parked.note
    assert "resume" in parked.note


async def test_a_parked_run_does_not_hold_up_the_others(world: World) -> None:
    await world.begin("bad")
    await world.start("good", delay_ms=LEASE)
    world.clock.advance(LEASE)

    [freed] = await world.store.reap(1)

    assert freed.parked
    assert await world.claimed_ids() == ["good"]


async def test_a_resume_forgets_the_losses_but_for_one_that_nobody_has_heard_of(world: World) -> None:
    await world.begin("a")
    for _ in range(3):
        world.clock.advance(LEASE)
        await world.store.reap(3)
        if (await world.find("a")).status is not Status.PAUSED:
            await world.take("w2")

    await world.store.resume(FLOW, "a")

    run = await world.find("a")
    assert (run.losses, run.note, run.status) == (1, None, Status.ACTIVE)
    assert (await world.take()).kind is TaskKind.RESUME


async def test_a_commit_that_applies_forgets_the_losses(world: World) -> None:
    await world.begin("a")
    world.clock.advance(LEASE)
    await world.store.reap(9)
    claim = await world.take("w2")

    await world.commit(claim.task, facts=[result("s")])

    assert (await world.find("a")).losses == 0
    world.clock.advance(LEASE)
    assert [freed.losses for freed in await world.store.reap(9)] == [1]


async def test_a_commit_under_a_pause_forgets_the_losses_too(world: World) -> None:
    await world.begin("a")
    world.clock.advance(LEASE)
    await world.store.reap(9)
    claim = await world.take("w2")
    await world.store.pause(FLOW, "a")

    await world.commit(claim.task, facts=[result("s")], in_flight=1)

    run = await world.find("a")
    assert (run.losses, run.pausing) == (0, True)


async def test_a_lost_commit_does_not_forget_losses(world: World) -> None:
    task = await world.begin("a")
    world.clock.advance(LEASE)
    await world.store.reap(9)

    await world.commit(task, facts=[result("s")])

    assert (await world.find("a")).losses == 1


async def test_mail_that_came_before_a_loss_is_there_after_it(world: World) -> None:
    await world.begin("a")
    await world.send("go")
    world.clock.advance(LEASE)
    await world.store.reap(9)

    claim = await world.take("w2")

    assert len(claim.mailbag.mail) == 1
    assert await world.store.signals("w2") == []


async def test_a_task_given_back_is_due_without_a_loss(world: World) -> None:
    task = await world.begin("a")

    assert await world.store.release([task]) == 1

    claim = await world.take("w2")
    assert (claim.lost, claim.run.losses, claim.task.epoch) == (False, 0, 2)
    assert (await world.commit(task)).verdict is Verdict.LOST


async def test_stale_tasks_are_passed_over_when_given_back(world: World) -> None:
    task = await world.begin("a")
    other = await world.begin("b")
    stale = [task._replace(epoch=9), task._replace(owner="w9"), TaskRef(999, 0, "w1", 1)]

    assert await world.store.release([*stale, other]) == 1
    assert (await world.find("a")).owner == "w1"
    assert (await world.find("b")).owner is None


async def test_a_task_is_given_back_once(world: World) -> None:
    task = await world.begin("a")

    assert await world.store.release([task, task]) == 1


async def test_a_dead_worker_loses_all_its_tasks(world: World) -> None:
    await world.store.create([NewRun(FLOW, f"r{n}", owner="w1", lease_ms=LEASE) for n in range(200)])
    world.clock.advance(LEASE)

    assert len(await world.store.reap(9)) == 200
    assert len((await world.claim("w2", limit=500)).claims) == 200


async def test_a_commit_without_a_result_forgets_no_losses(world: World) -> None:
    await world.begin("a")
    world.clock.advance(LEASE)
    await world.store.reap(9)
    claim = await world.take("w2")

    await world.commit(claim.task, facts=[failure("s", 1)])

    assert (await world.find("a")).losses == 1


async def test_suspects_are_claimed_one_at_a_time_and_last(world: World) -> None:
    for name in ("a", "b"):
        await world.begin(name)
    await lose_holders(world, SUSPECT_LOSSES)
    await world.start("c")

    first = await world.claim(owner="w2")
    second = await world.claim(owner="w2", suspects=False)

    assert [claim.run.instance_id for claim in first.claims] == ["c", "a"]
    assert (first.next_due, len(second.claims)) == (None, 0)
    assert [claim.run.instance_id for claim in (await world.claim(owner="w3")).claims] == ["b"]


async def test_a_suspect_that_gets_further_is_one_no_more(world: World) -> None:
    await world.begin("a")
    await lose_holders(world, SUSPECT_LOSSES)
    claim = await world.take("w2")

    await world.commit(claim.task, facts=[result("s")], then=waiting(run_at=await world.now()))

    assert [c.run.instance_id for c in (await world.claim(owner="w3", suspects=False)).claims] == ["a"]


async def lose_holders(world: World, times: int) -> None:
    """Let every holder of every task die, so many times in a row."""
    for n in range(times):
        world.clock.advance(LEASE)
        await world.store.reap(99)
        if n + 1 < times:
            await world.claim(owner=f"dying-{n}")


# --- a task with a lease of its own


async def test_a_shorter_lease_of_a_task_runs_out_before_its_workers(world: World) -> None:
    other, task = await world.begin("other"), await world.begin("a")
    await world.store.heartbeat("w1", LEASE)

    assert await world.store.set_leases([Lease(task, 100)]) == [True]

    world.clock.advance(99)
    early = await world.store.reap(9)
    world.clock.advance(1)
    assert (early, [freed.run for freed in await world.store.reap(9)]) == ([], [task.run])
    assert await world.store.heartbeat("w1", LEASE) == [Held(other.run, 0, 1, Signal.NONE)]


async def test_a_longer_lease_of_a_task_outlasts_its_workers(world: World) -> None:
    other, task = await world.begin("other"), await world.begin("a")
    await world.store.set_leases([Lease(task, 3 * LEASE)])
    await world.store.heartbeat("w1", LEASE)

    world.clock.advance(LEASE)
    assert [freed.run for freed in await world.store.reap(9)] == [other.run]
    world.clock.advance(2 * LEASE - 1)
    assert await world.store.reap(9) == []
    world.clock.advance(1)
    assert [freed.run for freed in await world.store.reap(9)] == [task.run]


async def test_a_heartbeat_renews_the_lease_of_a_task_by_its_own_length(world: World) -> None:
    task = await world.begin("a")
    await world.store.set_leases([Lease(task, 100)])
    for _ in range(3):
        world.clock.advance(99)
        await world.store.heartbeat("w1", LEASE)
        assert await world.store.reap(9) == []

    world.clock.advance(100)

    assert [freed.run for freed in await world.store.reap(9)] == [task.run]


async def test_a_lease_of_a_task_can_be_changed_again(world: World) -> None:
    task = await world.begin("a")
    await world.store.set_leases([Lease(task, 100)])
    await world.store.set_leases([Lease(task, LEASE)])

    world.clock.advance(LEASE - 1)
    early = await world.store.reap(9)
    world.clock.advance(1)

    assert (early, len(await world.store.reap(9))) == ([], 1)


async def test_only_the_holder_sets_the_lease_of_a_task(world: World) -> None:
    task, other = await world.begin("a"), await world.begin("b")
    stale = [task._replace(epoch=9), task._replace(owner="w9"), TaskRef(999, 0, "w1", 1)]

    wanted = [Lease(stale[0], 1), Lease(other, 5 * LEASE), Lease(stale[1], 1), Lease(stale[2], 1)]
    assert await world.store.set_leases(wanted) == [False, True, False, False]

    world.clock.advance(LEASE - 1)
    early = await world.store.reap(9)
    world.clock.advance(1)
    assert (early, [freed.run for freed in await world.store.reap(9)]) == ([], [task.run])


async def test_a_claim_has_the_lease_of_its_claimant(world: World) -> None:
    task = await world.begin("a")
    await world.store.set_leases([Lease(task, 5 * LEASE)])
    await world.store.release([task])
    await world.take("w2")

    world.clock.advance(LEASE)

    assert len(await world.store.reap(9)) == 1


async def test_a_run_taken_by_sending_has_the_lease_of_its_claimant(world: World) -> None:
    task = await world.begin("a")
    await world.store.set_leases([Lease(task, 5 * LEASE)])
    await world.commit(task, then=waiting("go"))
    sent = await world.send("go", claimant=Claimant("w2", LEASE, ["default"]))
    assert sent.claim is not None

    world.clock.advance(LEASE)

    assert len(await world.store.reap(9)) == 1


async def test_a_task_whose_own_lease_ran_out_is_lost_to_its_holder(world: World) -> None:
    task = await world.begin("a")
    await world.store.set_leases([Lease(task, 100)])
    world.clock.advance(100)
    await world.store.reap(9)

    claim = await world.take("w2")

    assert (claim.lost, claim.run.losses) == (True, 1)
    assert await world.store.set_leases([Lease(task, 100)]) == [False]
    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.LOST
