"""The fence: only the owner of the current claim writes; a stale turn writes nothing and receives LOST."""

from __future__ import annotations

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    Delivery,
    Finish,
    NewEvent,
    NewRun,
    Park,
    RunByName,
    SnapshotQuery,
    Statement,
    TaskRef,
    Verdict,
)
from store.world import FLOW, LEASE, World, log_line, result, turn, waiting

pytestmark = pytest.mark.promise("fencing")


async def _lost_to_another(world: World) -> TaskRef:
    """The claim of w1 of a task that w2 owns now."""
    task = await world.start_claimed("a", "w1")
    world.clock.advance(LEASE)
    await world.store.reap(9)
    await world.claim_one("w2")
    return task


@pytest.mark.parametrize(
    "write",
    [
        {"facts": [result("s")]},
        {"logs": [log_line("hello")]},
        {"deliveries": [Delivery(1, "s", 1)]},
        {"starts": [NewRun(FLOW, "child")]},
        {"sends": [NewEvent(FLOW, "b", "go")]},
        {"statements": [Statement("CREATE TABLE mine (a)", ())]},
        {"started_at": 5},
        {"then": Finish(Status.COMPLETE, b"1")},
        {"then": Park("stuck")},
        {"then": waiting("go")},
        {"then_facts": [result("t")]},
        {},
    ],
    ids=lambda write: next(iter(write), "nothing"),
)
async def test_a_stale_turn_writes_nothing(world: World, write: dict[str, object]) -> None:
    task = await _lost_to_another(world)
    await world.start("b")
    await world.send("go", "a")
    before = await world.find("a"), await world.find("b")

    answer = await world.commit(task, **write)

    assert answer.verdict is Verdict.LOST
    assert (await world.find("a"), await world.find("b")) == before
    assert await world.keys(task.run) == []
    assert [event.n for event in await world.undelivered(task.run)] == [1]
    assert (await world.store.read(SnapshotQuery(task.run))).log_count == 0
    assert not await world.store.read(RunByName(FLOW, "child"))
    assert await world.undelivered(before[1].run) == []


async def test_an_owner_may_write_after_its_lease_expired_until_the_task_is_reaped_or_claimed(world: World) -> None:
    task = await world.start_claimed("a")
    world.clock.advance(10 * LEASE)

    answer = await world.commit(task, facts=[result("s")])

    assert answer.verdict is Verdict.APPLIED
    assert await world.keys(task.run) == ["s"]


async def test_a_reaped_task_is_lost_before_it_is_claimed_again(world: World) -> None:
    task = await world.start_claimed("a")
    world.clock.advance(LEASE)
    await world.store.reap(9)

    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.LOST


async def test_the_same_owner_under_an_older_epoch_is_lost(world: World) -> None:
    task = await world.start_claimed("a", "w1")
    await world.store.release([task])
    newer = (await world.claim_one("w1")).task

    assert (await world.commit(task, facts=[result("old")])).verdict is Verdict.LOST
    assert (await world.commit(newer, facts=[result("new")])).verdict is Verdict.APPLIED
    assert await world.keys(task.run) == ["new"]


async def test_another_owner_under_the_right_epoch_is_lost(world: World) -> None:
    task = await world.start_claimed("a", "w1")

    assert (await world.commit(task._replace(owner="w2"))).verdict is Verdict.LOST


async def test_a_turn_that_released_its_task_is_fenced(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, then=waiting("go"))

    assert (await world.commit(task, facts=[result("late")])).verdict is Verdict.LOST


async def test_a_run_that_does_not_exist_is_lost(world: World) -> None:
    assert (await world.commit(TaskRef(999, 0, "w1", 1))).verdict is Verdict.LOST


@pytest.mark.promise("finality")
async def test_a_turn_of_a_terminated_run_is_lost(world: World) -> None:
    task = await world.start_claimed("a")
    await world.terminate("a")

    answer = await world.commit(task, facts=[result("s")], then=Finish(Status.COMPLETE, b"1"))

    assert answer.verdict is Verdict.LOST
    assert (await world.find("a")).status is Status.TERMINATED


async def test_a_turn_of_a_restarted_run_is_lost(world: World) -> None:
    task = await world.start_claimed("a")
    await world.restart("a")

    answer = await world.commit(task, facts=[result("s")])

    assert answer.verdict is Verdict.LOST
    assert await world.keys((await world.find("a")).run) == []


async def test_one_lost_commit_of_a_batch_does_not_affect_the_others(world: World) -> None:
    stale = await _lost_to_another(world)
    good = [await world.start_claimed(name) for name in ("b", "c")]

    answers = await world.store.commit([turn(task, facts=[result("s")]) for task in (good[0], stale, good[1])])

    assert [answer.verdict for answer in answers] == [Verdict.APPLIED, Verdict.LOST, Verdict.APPLIED]
    assert await world.keys(good[0].run) == await world.keys(good[1].run) == ["s"]
    assert await world.keys(stale.run) == []


async def test_two_commits_of_one_task_in_a_batch_are_applied_in_order(world: World) -> None:
    task = await world.start_claimed("a")

    answers = await world.store.commit(
        [turn(task, facts=[result("s")]), turn(task, then=waiting("go")), turn(task, facts=[result("late")])]
    )

    assert [answer.verdict for answer in answers] == [Verdict.APPLIED, Verdict.APPLIED, Verdict.LOST]
    assert await world.keys(task.run) == ["s"]
