"""Fair keys: runs of a workflow with a fair limit are claimed key by key, however many runs of one key wait."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from holdfast.store.protocol import (
    DeclareLimits,
    LimitKey,
    LimitValues,
    MoveQueue,
    NewRun,
    PauseQueue,
    PermitExchange,
    PermitRequest,
    PermitReturn,
)
from store.world import FLOW, Database, World, waiting

_numbers = count()


def _new(key: str, **options: object) -> NewRun:
    new = NewRun(FLOW, f"{key}{next(_numbers)}", fair_key=LimitKey("fair", key))
    for name, value in options.items():
        setattr(new, name, value)
    return new


async def _start(world: World, keys: str, **options: object) -> list[str]:
    created = await world.store.create([_new(key, **options) for key in keys])
    return [one.run.instance_id for one in created]


async def _claimed(world: World, times: int, **options: object) -> str:
    """The keys of the runs that a worker with one slot claims."""
    found = [await world.claimed_ids(limit=1, **options) for _ in range(times)]
    return "".join(name[0] for names in found for name in names)


async def test_a_key_with_one_run_waits_for_one_service_of_a_key_with_many(world: World) -> None:
    await _start(world, "a" * 50)
    assert await _claimed(world, 5) == "aaaaa"

    await _start(world, "b")
    await _start(world, "c")

    assert sorted(await _claimed(world, 3)) == ["a", "b", "c"]
    assert await _claimed(world, 3) == "aaa"


async def test_keys_with_many_runs_are_claimed_in_turn(world: World) -> None:
    await _start(world, "aaaaabbbbb")

    order = await _claimed(world, 8)

    assert sorted(order[:2]) == sorted(order[2:4]) == sorted(order[4:6]) == sorted(order[6:]) == ["a", "b"]


async def test_a_key_that_comes_back_after_each_claim_does_not_starve_the_others(world: World) -> None:
    await _start(world, "bbbbbbbb")
    order = ""
    for _ in range(8):
        await _start(world, "a")
        order += await _claimed(world, 1)

    assert order.count("b") >= 3


async def test_a_claim_with_room_takes_equal_parts_of_the_keys(world: World) -> None:
    await _start(world, "a" * 20 + "b" * 20 + "cc")

    claimed = "".join(name[0] for name in await world.claimed_ids(limit=12))

    assert len(claimed) == 12
    assert claimed.count("c") == 2
    assert abs(claimed.count("a") - claimed.count("b")) <= 2


async def test_weights_are_shares_of_the_claims(world: World) -> None:
    await world.store.limits(DeclareLimits({"fair": LimitValues(fair=True, weights={"a": 3.0})}))
    await _start(world, "a" * 20 + "b" * 20)

    order = await _claimed(world, 16)

    assert 11 <= order.count("a") <= 13


async def test_priorities_order_the_runs_of_one_key(world: World) -> None:
    await _start(world, "a")
    [urgent] = await _start(world, "a", priority=-1)

    assert await world.claimed_ids(limit=1) == [urgent]


async def test_other_workflows_of_the_queue_have_half_of_a_claim(world: World) -> None:
    await _start(world, "a" * 10)
    for n in range(10):
        await world.start(f"plain{n}", workflow="other")

    claimed = await world.claimed_ids(limit=6, workflows=(FLOW, "other"))

    assert [name[0] for name in claimed].count("a") == 3
    assert len(claimed) == 6


async def test_a_run_that_is_created_with_an_owner_waits_for_its_turn(world: World) -> None:
    [created] = await world.store.create([_new("a", owner="w1", lease_ms=1000)])

    assert (created.epoch, created.run.owner) == (0, None)
    assert await _claimed(world, 1) == "a"


async def test_paused_terminated_and_delayed_runs_do_not_stop_their_key(world: World) -> None:
    paused, ended, last = await _start(world, "aaa")
    await world.pause(paused)
    await world.terminate(ended)

    assert await world.claimed_ids(limit=1) == [last]
    assert await world.claimed_ids() == []
    await world.resume(paused)
    assert await world.claimed_ids() == [paused]


async def test_a_run_that_was_claimed_is_not_claimed_again_in_turn(world: World) -> None:
    [name] = await _start(world, "a")
    claim = await world.claim_one()

    await world.commit(claim.task, then=waiting("go"))

    assert await world.claimed_ids() == []
    assert claim.run.instance_id == name


async def test_a_run_that_is_released_for_its_permit_is_claimed_when_the_permit_is_granted(world: World) -> None:
    await world.store.limits(DeclareLimits({"bank": LimitValues(concurrency=1)}))
    await _start(world, "aa")
    first, second = [claim.task for claim in (await world.claim()).claims]
    asked = [PermitRequest(task, "", 0, [LimitKey("bank")], park=True) for task in (first, second)]
    await world.store.exchange_permits(PermitExchange("w1", requests=asked))
    assert await world.claimed_ids() == []

    await world.store.exchange_permits(PermitExchange("w1", returns=[PermitReturn(first, "", 0)]))

    assert [claim.task.run for claim in (await world.claim()).claims] == [second.run]


async def test_a_paused_queue_and_another_workflow_are_left_out(world: World) -> None:
    await _start(world, "a")
    await world.store.queues(PauseQueue("default", True))
    held = await world.claim()
    assert (list(held.claims), held.next_due) == ([], None)
    await world.store.queues(PauseQueue("default", False))

    assert await world.claimed_ids(workflows=("other",)) == []
    assert await _claimed(world, 1) == "a"


async def test_moved_runs_are_claimed_in_turn_from_the_other_queue(world: World) -> None:
    await _start(world, "aaaab")

    await world.store.queues(MoveQueue("default", "bulk"))

    assert await world.claimed_ids() == []
    assert "b" in await _claimed(world, 2, queues=["bulk"])
    assert await _claimed(world, 5, queues=["bulk"]) == "aaa"


@pytest.mark.parametrize("keys", ["a", "abc"])
async def test_concurrent_starts_and_claims_lose_no_run_and_claim_none_twice(
    world: World, database: Database, keys: str
) -> None:
    other = database()
    await other.open()
    expected: set[str] = set()
    found: list[str] = []

    async def start() -> None:
        for n in range(20):
            expected.update(await _start(world, keys[n % len(keys)]))

    async def claim(store: World, owner: str) -> None:
        for _ in range(40):
            found.extend(await store.claimed_ids(owner=owner, limit=2))

    try:
        await asyncio.gather(start(), start(), claim(world, "w1"), claim(World(other, world.clock), "w2"))
        found += await world.claimed_ids()
    finally:
        await other.close()

    assert sorted(found) == sorted(expected)
