"""Limits and permits: what a store grants, to which task, and when a permit comes back."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import (
    ChangeLimit,
    DeclareLimits,
    Finish,
    LimitKey,
    LimitKeysQuery,
    LimitKeyUse,
    LimitValues,
    NewUnit,
    Pace,
    PermitExchange,
    PermitPositionsQuery,
    PermitReply,
    PermitRequest,
    PermitResult,
    PermitReturn,
    ReadLimits,
    TaskRef,
)
from holdfast.store.sqlite import SqliteStore
from store.sqlite.internals import on_writer
from store.world import LEASE, Database, FakeClock, World, waiting

HELD, WAITING, LOST = PermitResult.HELD, PermitResult.WAITING, PermitResult.LOST
BANK = LimitKey("bank")


class Desk:
    """Short forms of the calls of a worker about permits."""

    def __init__(self, world: World, **limits: LimitValues) -> None:
        self.world = world
        self._limits = limits

    async def declare(self) -> Desk:
        await self.world.store.limits(DeclareLimits(self._limits))
        return self

    async def ask(self, task: TaskRef, step: str = "s", *limits: LimitKey, **options: Any) -> PermitResult:
        attempt = options.pop("attempt", 1)
        request = PermitRequest(task, step, attempt, limits or (BANK,), **options)
        return (await self.world.store.exchange_permits(PermitExchange(task.owner, requests=[request]))).results[0]

    async def give_back(self, task: TaskRef, step: str = "s", attempt: int = 1) -> PermitReply:
        returned = PermitReturn(task, step, attempt)
        return await self.world.store.exchange_permits(PermitExchange(task.owner, returns=[returned]))

    async def look(self, owner: str = "w1") -> PermitReply:
        return await self.world.store.exchange_permits(PermitExchange(owner))

    async def granted(self, owner: str = "w1") -> list[str]:
        return [permit.step for permit in (await self.look(owner)).granted]

    async def used(self, name: str = "bank", key: str | None = None) -> int:
        [record] = await self.world.store.limits(ReadLimits(name, key))
        return record.used


async def desk(world: World, **limits: LimitValues) -> Desk:
    return await Desk(world, **(limits or {"bank": LimitValues(concurrency=1)})).declare()


async def test_a_request_above_a_limit_waits_until_a_permit_is_returned(world: World) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b")

    assert [await limited.ask(first), await limited.ask(second)] == [HELD, WAITING]
    reply = await limited.give_back(first)

    assert [(permit.run, permit.step) for permit in reply.granted] == [(second.run, "s")]
    assert await limited.used() == 1


async def test_a_repeated_request_returns_the_same_permit(world: World) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b")

    assert [await limited.ask(first), await limited.ask(first)] == [HELD, HELD]
    assert [await limited.ask(second), await limited.ask(second)] == [WAITING, WAITING]
    await limited.give_back(first)

    assert await limited.ask(second) is HELD
    assert await limited.used() == 1


async def test_a_stale_claim_gets_no_permit_and_returns_none(world: World) -> None:
    limited = await desk(world)
    task = await world.start_claimed("a")
    await limited.ask(task)
    stale = task._replace(epoch=task.epoch - 1)

    assert await limited.ask(stale) is LOST
    await limited.give_back(stale)

    assert await limited.used() == 1


async def test_a_second_attempt_needs_a_permit_of_its_own_while_the_first_still_runs(world: World) -> None:
    limited = await desk(world, bank=LimitValues(concurrency=2))
    task = await world.start_claimed("a")

    await limited.ask(task, attempt=1)
    await limited.ask(task, attempt=2)

    assert await limited.used() == 2


async def test_a_lost_lease_returns_the_permits_of_the_task(world: World) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b", owner="w2")
    await limited.ask(first)
    await limited.ask(second)
    await world.store.heartbeat("w2", 10 * LEASE)
    world.clock.advance(LEASE)

    await world.store.reap(10)

    assert await limited.granted("w2") == ["s"]
    assert await limited.used() == 1


async def test_the_end_of_a_run_returns_its_permits(world: World) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b")
    await limited.ask(first)
    await limited.ask(second)

    await world.commit(first, then=Finish(Status.COMPLETE))

    assert await limited.granted() == ["s"]


async def test_a_terminated_run_returns_its_permits_and_leaves_the_queue(world: World) -> None:
    limited = await desk(world)
    tasks = [await world.start_claimed(name) for name in "abc"]
    for task in tasks:
        await limited.ask(task, f"of {task.run}")

    await world.terminate("b")
    await world.terminate("a")

    assert await limited.granted() == [f"of {tasks[2].run}"]
    assert await limited.used() == 1


async def test_a_suspended_run_keeps_no_permit(world: World) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b")
    await limited.ask(first)
    await limited.ask(second)

    await world.commit(first, then=waiting("go"))

    assert await limited.granted() == ["s"]


async def test_a_permit_until_the_end_survives_a_suspension_and_a_lost_lease(world: World) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b", owner="w2")
    await limited.ask(first, "", until_end=True)
    await limited.ask(second, "", park=True)

    await world.commit(first, then=waiting(run_at=world.now()))
    again = await world.claim_one()
    assert again.task.run == first.run
    assert await limited.ask(again.task, "", until_end=True) is HELD
    world.clock.advance(LEASE)
    await world.store.reap(10)
    assert await limited.used() == 1
    await world.terminate("a")

    assert (await limited.look("w2")).due
    assert [claim.task.run for claim in (await world.claim("w2")).claims] == [second.run]


async def test_a_task_that_has_to_wait_is_released_and_due_when_its_permit_is_granted(world: World) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b")
    await limited.ask(first, "", park=True)
    await limited.ask(second, "", park=True)
    assert await world.claimed_ids() == []

    reply = await limited.give_back(first, "")

    assert reply.due
    claim = await world.claim_one("w2")
    assert claim.run.instance_id == "b"
    assert await limited.ask(claim.task, "", park=True) is HELD


@pytest.mark.parametrize("owner", ["w1", "w2"])
async def test_a_waiting_permit_that_is_parked_by_a_later_request_makes_the_task_due(world: World, owner: str) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b", owner=owner)
    await limited.ask(first)
    assert [await limited.ask(second), await limited.ask(second, park=True)] == [WAITING, WAITING]
    assert await world.claimed_ids() == []

    reply = await limited.give_back(first)

    assert (reply.due, reply.granted, await limited.granted(owner)) == (True, [], [])
    claim = await world.claim_one(owner)
    assert await limited.ask(claim.task) is HELD


async def test_a_parked_permit_is_granted_if_the_release_of_its_task_returns_the_permit_that_blocks_it(
    world: World,
) -> None:
    limited = await desk(world)
    task = await world.start_claimed("a")

    assert [await limited.ask(task), await limited.ask(task, "", park=True)] == [HELD, WAITING]
    reply = await limited.look()

    assert (reply.due, reply.granted) == (True, [])
    claim = await world.claim_one()
    assert await limited.ask(claim.task, "", park=True) is HELD
    assert await limited.used() == 1


async def test_a_permit_that_a_release_returns_is_for_waiting_permits_before_a_later_request(world: World) -> None:
    limited = await desk(world, bank=LimitValues(concurrency=1), till=LimitValues(concurrency=1))
    first, second = await world.start_claimed("a"), await world.start_claimed("b")
    await limited.ask(first)

    requests = [
        PermitRequest(first, "", 0, [BANK], park=True),
        PermitRequest(second, "", 0, [BANK, LimitKey("till")]),
    ]
    reply = await world.store.exchange_permits(PermitExchange("w1", requests=requests))
    await limited.look()

    assert reply.results == [WAITING, WAITING]
    claim = await world.claim_one()
    assert (claim.task.run, await limited.ask(claim.task, "", attempt=0, park=True)) == (first.run, HELD)
    assert await limited.used() == 1


async def test_a_task_whose_two_permits_have_to_wait_is_released_once(world: World) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b")
    await limited.ask(first)

    requests = [PermitRequest(second, step, 0, [BANK], park=True) for step in ("", "t")]
    reply = await world.store.exchange_permits(PermitExchange("w1", requests=requests))
    await limited.give_back(first)
    await limited.look()

    assert reply.results == [WAITING, WAITING]
    claim = await world.claim_one()
    assert (claim.task.run, claim.task.epoch) == (second.run, second.epoch + 1)


@pytest.mark.parametrize("granted", [False, True])
async def test_a_parked_permit_that_the_next_turn_does_not_request_is_withdrawn(world: World, granted: bool) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b")
    await limited.ask(first)
    await limited.ask(second, "", park=True)
    if granted:
        await limited.give_back(first)
    else:
        await world.send_exit("b")

    again = await world.claim_one()
    await world.commit(again.task, then=waiting("go"))
    await limited.give_back(first)

    assert again.task.run == second.run
    assert await world.store.read(PermitPositionsQuery(second.run)) == []
    assert await limited.used() == 0


async def test_a_paused_run_neither_waits_nor_keeps_a_grant(world: World) -> None:
    limited = await desk(world)
    tasks = [await world.start_claimed(name) for name in "abc"]
    for task in tasks:
        await limited.ask(task, "", park=True)

    await world.pause("b")
    await limited.give_back(tasks[0], "")

    assert await world.claimed_ids() == ["c"]


async def test_a_paused_run_asks_again_after_the_resume(world: World) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b")
    await limited.ask(first, "", park=True)
    await limited.ask(second, "", park=True)
    await world.pause("b")
    await world.resume("b")

    claim = await world.claim_one()
    assert await limited.ask(claim.task, "", park=True) is WAITING
    await limited.give_back(first, "")

    assert await world.claimed_ids() == ["b"]


async def test_all_limits_of_an_attempt_are_taken_together_or_none(world: World) -> None:
    one = LimitValues(concurrency=1)
    limited = await desk(world, bank=one, post=one)
    tasks = [await world.start_claimed(name) for name in "abc"]
    await limited.ask(tasks[0], "s", BANK)

    assert await limited.ask(tasks[1], "s", BANK, LimitKey("post")) is WAITING
    assert await limited.used("post") == 0
    assert await limited.ask(tasks[2], "t", LimitKey("post")) is HELD
    await limited.give_back(tasks[0])
    assert await limited.used() == 0
    await limited.give_back(tasks[2], "t")

    assert await limited.used() == await limited.used("post") == 1


async def test_the_limit_of_a_key_does_not_hold_back_other_keys(world: World) -> None:
    limited = await desk(world, tenants=LimitValues(concurrency=1))
    tasks = [await world.start_claimed(name) for name in "abc"]

    acme, other = LimitKey("tenants", "acme"), LimitKey("tenants", "ötzi")
    results = [await limited.ask(task, "s", key) for task, key in zip(tasks, (acme, acme, other), strict=True)]

    assert results == [HELD, WAITING, HELD]
    assert [await limited.used("tenants", key) for key in ("acme", "ötzi", None)] == [1, 1, 2]


async def test_lower_priority_numbers_are_granted_first_within_a_key(world: World) -> None:
    limited = await desk(world)
    tasks = [await world.start_claimed(name) for name in "abcd"]
    for task, priority in zip(tasks, (0, 5, 0, -1), strict=True):
        await limited.ask(task, str(priority) + f"-{task.run}", priority=priority)

    order = []
    holder, step = tasks[0], f"0-{tasks[0].run}"
    for _ in tasks[1:]:
        [permit] = (await limited.give_back(holder, step)).granted
        order.append(permit.run)
        holder, step = TaskRef(permit.run, 0, "w1", permit.epoch), permit.step

    assert order == [tasks[3].run, tasks[2].run, tasks[1].run]


async def test_permits_that_are_granted_together_follow_their_priorities_and_the_order_of_the_requests(
    world: World,
) -> None:
    at = await desk(world, bank=LimitValues(concurrency=3))
    task = await world.start_claimed("a")

    def requests(*priorities: int) -> list[PermitRequest]:
        return [PermitRequest(task, f"{priority}-{n}", 1, [BANK], priority) for n, priority in enumerate(priorities)]

    async def exchange(**parts: Any) -> PermitReply:
        return await world.store.exchange_permits(PermitExchange(task.owner, **parts))

    first = await exchange(requests=requests(9, 9, 9, 5, 7, 1, 5, 3))
    assert first.results == [HELD] * 3 + [WAITING] * 5
    back = await exchange(returns=[PermitReturn(task, "9-0", 1)])
    assert [permit.step for permit in back.granted] == ["1-5"]
    await exchange(requests=[PermitRequest(task, "0-late", 1, [BANK], 0)])
    [position] = [one for one in await world.store.read(PermitPositionsQuery(task.run)) if one.step == "7-4"]
    assert (position.used, position.waiting, position.before) == (3, 5, 4)
    back = await exchange(returns=[PermitReturn(task, step, 1) for step in ("9-1", "9-2", "1-5")])
    assert sorted(permit.step for permit in back.granted) == ["0-late", "3-7", "5-3"]
    assert await at.used() == 3
    back = await exchange(returns=[PermitReturn(task, step, 1) for step in ("0-late", "3-7", "5-3")])
    assert sorted(permit.step for permit in back.granted) == ["5-6", "7-4"]
    assert await at.used() == 2


async def test_a_pause_among_requests_of_one_group_withdraws_its_permit_only(world: World) -> None:
    await desk(world, bank=LimitValues(concurrency=1))
    tasks = [await world.start_claimed(name) for name in "acb"]
    await world.pause("b")

    asked = [
        PermitRequest(task, "", 0, [BANK], priority, park=True) for task, priority in zip(tasks, (5, 5, 0), strict=True)
    ]
    reply = await world.store.exchange_permits(PermitExchange(tasks[0].owner, requests=asked))
    assert reply.results == [HELD, WAITING, WAITING]
    [record] = await world.store.limits(ReadLimits("bank"))
    assert (record.used, record.waiting) == (1, 1)
    await world.terminate("a")
    await world.store.exchange_permits(PermitExchange(tasks[0].owner))
    assert await world.claimed_ids() == ["c"]


async def test_a_fair_limit_serves_a_key_with_one_run_after_one_service_of_a_key_with_many(world: World) -> None:
    values = LimitValues(fair=True)
    limited = await desk(world, bank=LimitValues(concurrency=1), tenants=values)
    many = [await world.start_claimed(f"many{n}") for n in range(20)]
    few = await world.start_claimed("few")
    for task in many:
        await limited.ask(task, f"{task.run}", BANK, LimitKey("tenants", "many"))
    await limited.ask(few, f"{few.run}", BANK, LimitKey("tenants", "few"))

    served = [many[0].run]
    while few.run not in served:
        [permit] = (await limited.give_back(TaskRef(served[-1], 0, "w1", 1), f"{served[-1]}")).granted
        served.append(permit.run)

    assert len(served) <= 3


async def test_weights_set_the_shares_of_keys(world: World) -> None:
    tenants = LimitValues(fair=True, weights={"big": 3.0})
    limited = await desk(world, bank=LimitValues(concurrency=1), tenants=tenants)
    keys = {}
    for n in range(24):
        task = await world.start_claimed(f"r{n}")
        keys[task.run] = "big" if n % 2 else "small"
        await limited.ask(task, "s", BANK, LimitKey("tenants", keys[task.run]))

    run, served = min(keys), []
    for _ in range(12):
        [permit] = (await limited.give_back(TaskRef(run, 0, "w1", 1))).granted
        run = permit.run
        served.append(keys[run])

    assert 8 <= served.count("big") <= 10


async def _grant_together(
    world: World, holders: int, queued: list[tuple[str, int]], **limits: LimitValues
) -> list[str]:
    """Steps that are granted when ``holders`` permits are returned at once; ``queued``: key and priority of each."""
    limited = await desk(world, bank=LimitValues(concurrency=holders), **limits)
    task = await world.start_claimed("r")
    held = [PermitRequest(task, f"held{n}", 1, [BANK]) for n in range(holders)]
    requests = [
        PermitRequest(task, f"{key}{n}", 1, [BANK, LimitKey("tenants", key)], priority)
        for n, (key, priority) in enumerate(queued)
    ]
    first = await world.store.exchange_permits(PermitExchange(task.owner, requests=[*held, *requests]))
    assert first.results == [HELD] * holders + [WAITING] * len(queued)
    returns = [PermitReturn(task, one.step, 1) for one in held]
    reply = await world.store.exchange_permits(PermitExchange(task.owner, returns))
    assert await limited.used() == len(reply.granted)
    return sorted(permit.step for permit in reply.granted)


async def test_permits_that_are_granted_together_follow_the_weights_of_their_keys(world: World) -> None:
    queued = [("big" if n % 2 else "small", 0) for n in range(40)]

    tenants = LimitValues(fair=True, weights={"big": 3.0})
    granted = await _grant_together(world, 12, queued, tenants=tenants)

    assert 8 <= sum(step.startswith("big") for step in granted) <= 10
    assert len(granted) == 12


async def test_a_key_with_a_high_weight_is_granted_many_permits_before_the_second_ones_of_other_keys(
    world: World,
) -> None:
    queued = [(f"k{n % 30}-", 0) for n in range(60)] + [("big", 0)] * 60

    tenants = LimitValues(fair=True, weights={"big": 100.0})
    granted = await _grant_together(world, 40, queued, tenants=tenants)

    assert sum(step.startswith("big") for step in granted) == 10
    assert len({step.split("-")[0] for step in granted if step.startswith("k")}) == 30


async def test_groups_that_share_a_fair_key_get_together_what_another_key_gets(world: World) -> None:
    limited = await desk(
        world, bank=LimitValues(concurrency=2), tenants=LimitValues(fair=True), post=LimitValues(concurrency=5)
    )
    task = await world.start_claimed("a")
    one, other = LimitKey("tenants", "one"), LimitKey("tenants", "other")
    assert [await limited.ask(task, step) for step in ("held0", "held1")] == [HELD, HELD]
    await limited.ask(task, "one", BANK, one)
    await limited.ask(task, "one with post", BANK, one, LimitKey("post"))
    await limited.ask(task, "other", BANK, other)

    returns = [PermitReturn(task, step, 1) for step in ("held0", "held1")]
    reply = await world.store.exchange_permits(PermitExchange("w1", returns))

    assert sorted(permit.step for permit in reply.granted) == ["one", "other"]


async def test_a_permit_whose_key_is_free_again_queues_behind_earlier_ones_of_the_shared_limit(world: World) -> None:
    limited = await desk(world, bank=LimitValues(concurrency=1), tenants=LimitValues(concurrency=1))
    task = await world.start_claimed("a")
    acme, other = LimitKey("tenants", "acme"), LimitKey("tenants", "other")
    assert await limited.ask(task, "held", BANK, acme) is HELD
    await limited.ask(task, "first", BANK, other)
    await limited.ask(task, "second", BANK, acme)

    reply = await limited.give_back(task, "held")

    assert [permit.step for permit in reply.granted] == ["first"]


async def test_a_grant_to_a_worker_of_another_process_is_a_change_for_that_process(
    database: Database, clock: FakeClock
) -> None:
    own, others = database(), database()
    await own.open()
    await others.open()
    limited = await desk(World(own, clock))
    first, second = await limited.world.start_claimed("a"), await limited.world.start_claimed("b", owner="w2")
    assert await limited.ask(first) is HELD
    request = PermitRequest(second, "s", 1, [BANK])
    assert (await others.exchange_permits(PermitExchange("w2", requests=[request]))).results == [WAITING]
    seen, before = await others.wait_for_change(None), -1
    while seen != before:  # until no earlier change is left
        before, seen = seen, await others.wait_for_change(seen)

    await limited.give_back(first)

    assert await others.wait_for_change(seen) != seen
    assert [permit.step for permit in (await others.exchange_permits(PermitExchange("w2"))).granted] == ["s"]
    await own.close()
    await others.close()


async def test_groups_without_a_fair_limit_are_granted_together_in_the_order_of_their_requests(world: World) -> None:
    priorities = [5, 5, 1, 5, 9, 1, 5, 5]
    queued = [("abc"[n % 3], priority) for n, priority in enumerate(priorities)]

    granted = await _grant_together(world, 4, queued, tenants=LimitValues())

    assert granted == sorted(["c2", "c5", "a0", "b1"])


async def test_permits_that_are_granted_together_take_no_key_above_its_limit(world: World) -> None:
    queued = [("abc"[n % 3], 0) for n in range(12)]

    granted = await _grant_together(world, 9, queued, tenants=LimitValues(concurrency=2))

    assert granted == sorted(["a0", "b1", "c2", "a3", "b4", "c5"])


async def test_tasks_that_have_to_wait_are_released_together_and_due_with_their_permits(world: World) -> None:
    limited = await desk(world, bank=LimitValues(concurrency=2))
    tasks = [await world.start_claimed(name) for name in "abcdef"]
    requests = [PermitRequest(task, "", 0, [BANK], park=True) for task in tasks]
    reply = await world.store.exchange_permits(PermitExchange("w1", requests=requests))
    assert reply.results == [HELD] * 2 + [WAITING] * 4
    assert await world.claimed_ids() == []

    reply = await world.store.exchange_permits(PermitExchange("w1", [PermitReturn(task, "", 0) for task in tasks[:2]]))

    assert (reply.due, reply.granted) == (True, [])
    claims = (await world.claim("w2")).claims
    assert [claim.run.instance_id for claim in claims] == ["c", "d"]
    again = [PermitRequest(claim.task, "", 0, [BANK], park=True) for claim in claims]
    assert (await world.store.exchange_permits(PermitExchange("w2", requests=again))).results == [HELD] * 2
    assert await limited.used() == 2


async def test_a_full_key_does_not_hold_back_other_keys_under_a_shared_limit(world: World) -> None:
    limited = await desk(world, bank=LimitValues(concurrency=2), tenants=LimitValues(concurrency=1, fair=True))
    tasks = [await world.start_claimed(name) for name in "abcd"]
    keys = [LimitKey("tenants", name) for name in ("acme", "acme", "acme", "other")]
    results = [await limited.ask(task, "s", BANK, key) for task, key in zip(tasks, keys, strict=True)]

    assert results == [HELD, WAITING, WAITING, HELD]


async def test_a_rate_lets_the_burst_start_at_once_and_the_rest_at_its_interval(world: World) -> None:
    limited = await desk(world, bank=LimitValues(rate=Pace(10, 1000, 2)))
    tasks = [await world.start_claimed(name) for name in "abcd"]
    results = [await limited.ask(task, str(n)) for n, task in enumerate(tasks)]
    assert results == [HELD, HELD, WAITING, WAITING]

    reply = await limited.look()
    assert reply.next_at == world.now() + 100
    granted = []
    for _ in range(3):
        world.clock.advance(100)
        granted.append(await limited.granted())

    assert granted == [["2"], ["3"], []]


async def test_a_rate_that_divides_no_microsecond_is_not_exceeded(world: World) -> None:
    limited = await desk(world, bank=LimitValues(rate=Pace(700_000, 1000, 1400)))  # 1.43 microseconds between two
    task = await world.start_claimed()
    requests = [PermitRequest(task, f"s{n}", 1, [LimitKey("bank")]) for n in range(3000)]

    reply = await world.store.exchange_permits(PermitExchange("w1", requests=requests))
    held = reply.results.count(HELD)
    world.clock.advance(1)
    held += len((await limited.look()).granted)

    assert held == 1400 + 500
    [record] = await world.store.limits(ReadLimits())
    assert record.tokens == 1400


async def test_a_rate_counts_attempts_and_not_permits_in_use(world: World) -> None:
    limited = await desk(world, bank=LimitValues(rate=Pace(1, 1000, 1)))
    first, second = await world.start_claimed("a"), await world.start_claimed("b")
    await limited.ask(first)
    await limited.give_back(first)

    assert await limited.ask(second) is WAITING


async def test_a_run_that_continues_takes_no_further_token_and_does_not_wait_for_the_rate(world: World) -> None:
    limited = await desk(world, bank=LimitValues(concurrency=1, rate=Pace(1, 1000, 1)))
    first, second = await world.start_claimed("a"), await world.start_claimed("b")
    assert await limited.ask(first, "", park=True) is HELD
    assert await limited.ask(second, "", park=True) is WAITING

    await world.commit(first, then=waiting(run_at=world.now() + 10))
    world.clock.advance(10)
    again = (await world.claim_one()).task

    assert again.run == first.run
    assert await limited.ask(again, "", park=True) is HELD
    assert not (await limited.look()).due


async def test_a_run_that_continues_is_granted_its_permit_before_runs_that_wait_for_the_rate(world: World) -> None:
    limited = await desk(world, bank=LimitValues(concurrency=1, rate=Pace(1, 100, 1)))
    first, second, third = [await world.start_claimed(name) for name in "abc"]
    assert await limited.ask(first, "", park=True) is HELD
    await limited.ask(third, "", park=True)
    await world.commit(first, then=waiting(run_at=world.now() + 150))
    world.clock.advance(100)
    assert await limited.ask(second, "", park=True) is WAITING  # the third run was before it
    third = (await world.claim_one("w3")).task
    assert await limited.ask(third, "", park=True) is HELD
    world.clock.advance(50)
    again = (await world.claim_one()).task
    assert await limited.ask(again, "", park=True) is WAITING

    await limited.give_back(third, "")
    await limited.look("w3")

    assert (await world.claim_one()).task.run == first.run
    world.clock.advance(1000)
    await limited.look()
    assert await world.claimed_ids() == []


async def _count(world: World, table: str) -> int:
    store, sql = world.store, f"SELECT count(*) FROM {table}"
    if isinstance(store, PostgresStore):
        named = sql.replace("holdfast_", "holdfast.holdfast_")
        return int(await store._call(lambda tx, text: tx.connection.fetchval(text), named))
    assert isinstance(store, SqliteStore)
    return int(await on_writer(store, lambda connection: connection.execute(sql).get))


async def test_keys_that_are_used_once_leave_no_rows(world: World) -> None:
    limited = await desk(world, bank=LimitValues(concurrency=3), one=LimitValues(concurrency=1))
    task = await world.start_claimed("a")
    kept = await limited.ask(task, "kept", BANK, LimitKey("one", "kept"))

    for n in range(100):
        assert await limited.ask(task, f"s{n}", BANK, LimitKey("one", f"k{n}")) is HELD
        await limited.give_back(task, f"s{n}")
        world.clock.advance(7)

    assert await _count(world, "holdfast_permit_group") < 20
    assert await _count(world, "holdfast_limit_use") < 20
    assert kept is HELD
    assert (await limited.used("one", "kept"), await limited.used("bank")) == (1, 1)


async def test_a_higher_limit_grants_waiting_permits(world: World) -> None:
    limited = await desk(world)
    tasks = [await world.start_claimed(name) for name in "abc"]
    for task in tasks:
        await limited.ask(task, f"{task.run}")

    [record] = await world.store.limits(ChangeLimit("bank", LimitValues(concurrency=2)))

    assert (record.values.concurrency, record.used, record.waiting) == (2, 1, 2)
    assert await limited.granted() == [f"{tasks[1].run}"]


async def test_a_limit_of_zero_that_is_raised_grants_waiting_permits(world: World) -> None:
    limited = await desk(world, bank=LimitValues(concurrency=0))
    task = await world.start_claimed("a")
    assert await limited.ask(task) is WAITING

    await world.store.limits(ChangeLimit("bank", LimitValues(concurrency=1)))

    assert await limited.granted() == ["s"]


async def test_a_faster_rate_holds_at_once_and_not_after_the_interval_of_the_slower_one(world: World) -> None:
    limited = await desk(world, bank=LimitValues(rate=Pace(1, 3_600_000, 1)))
    tasks = [await world.start_claimed(name) for name in "ab"]
    assert [await limited.ask(task, f"{task.run}") for task in tasks] == [HELD, WAITING]

    await world.store.limits(ChangeLimit("bank", LimitValues(rate=Pace(10, 1000, 1))))
    assert (await limited.look()).next_at == world.now() + 100
    world.clock.advance(100)

    assert await limited.granted() == [f"{tasks[1].run}"]


async def test_a_clock_that_was_set_back_delays_a_rate_by_one_interval(world: World) -> None:
    limited = await desk(world, bank=LimitValues(rate=Pace(1, 1000, 1)))
    first, second = await world.start_claimed("a"), await world.start_claimed("b")
    await limited.ask(first)

    world.clock.advance(-3_600_000)

    assert await limited.ask(second) is WAITING
    assert (await limited.look()).next_at == world.now() + 1000
    world.clock.advance(1000)
    assert await limited.granted() == ["s"]


async def test_a_lower_limit_takes_no_permit_away_and_grants_none_above_it(world: World) -> None:
    limited = await desk(world, bank=LimitValues(concurrency=2))
    tasks = [await world.start_claimed(name) for name in "abc"]
    for task in tasks:
        await limited.ask(task)
    await world.store.limits(ChangeLimit("bank", LimitValues(concurrency=1)))

    await limited.give_back(tasks[0])

    assert await limited.used() == 1
    assert await limited.granted() == []


async def test_a_value_set_at_run_time_stays_until_the_code_declares_another(world: World) -> None:
    limited = await desk(world)
    await world.store.limits(ChangeLimit("bank", LimitValues(concurrency=7)))

    await limited.declare()
    [kept] = await world.store.limits(ReadLimits())
    await (await desk(world, bank=LimitValues(concurrency=3))).declare()
    [replaced] = await world.store.limits(ReadLimits())

    assert (kept.values.concurrency, kept.declared) == (7, LimitValues(concurrency=1))
    assert replaced.values.concurrency == 3


async def test_the_position_of_a_waiting_permit_names_its_limit(world: World) -> None:
    limited = await desk(world)
    tasks = [await world.start_claimed(name) for name in "abc"]
    for task in tasks:
        await limited.ask(task)

    [position] = await world.store.read(PermitPositionsQuery(tasks[2].run))

    assert position.limit == BANK
    assert (position.used, position.concurrency, position.before, position.waiting) == (1, 1, 1, 2)


async def test_a_withdrawn_request_leaves_its_place_to_the_next(world: World) -> None:
    limited = await desk(world)
    tasks = [await world.start_claimed(name) for name in "abc"]
    for task in tasks:
        await limited.ask(task, f"{task.run}")

    await limited.give_back(tasks[1], f"{tasks[1].run}")
    reply = await limited.give_back(tasks[0], f"{tasks[0].run}")

    assert [permit.run for permit in reply.granted] == [tasks[2].run]


async def test_units_of_a_graph_have_permits_of_their_own(world: World) -> None:
    limited = await desk(world)
    first, second = await world.graph("g", NewUnit(1, "x"), NewUnit(2, "y"))

    assert [await limited.ask(first, ""), await limited.ask(second, "", park=True)] == [HELD, WAITING]
    await world.store.release([first])
    await limited.look()

    assert await world.claimed_units() == [1, 2]


async def test_a_node_that_was_claimed_before_the_pause_requests_its_permit_after_the_resume(world: World) -> None:
    limited = await desk(world)
    first, second = await world.graph("g", NewUnit(1, "x"), NewUnit(2, "y"))
    await limited.ask(first, "")
    await world.pause("g")

    assert await limited.ask(second, "", park=True) is WAITING
    await limited.give_back(first, "")

    assert await world.claimed_units() == []
    assert await limited.used() == 0
    await world.resume("g")
    assert 2 in await world.claimed_units()


async def test_the_use_of_a_limit_by_key_counts_permits_in_use_and_waiting(world: World) -> None:
    desk_ = await desk(world, tenants=LimitValues(concurrency=1))
    for key, count in (("acme", 3), ("globex", 1), ("initech", 2)):
        for n in range(count):
            task = await world.start_claimed(f"{key}-{n}")
            await desk_.ask(task, "s", LimitKey("tenants", key))

    found = await world.store.read(LimitKeysQuery("tenants", 2))

    now = world.now()
    assert found == (3, [LimitKeyUse("acme", 1, 2, now), LimitKeyUse("initech", 1, 1, now)])
    assert await world.store.read(LimitKeysQuery("none", 2)) == (0, [])


async def oldest(world: World, name: str = "bank") -> int | None:
    """How long ago the oldest request was made that waits at a limit."""
    [record] = await world.store.limits(ReadLimits(name))
    return None if record.oldest_waiting is None else world.now() - record.oldest_waiting


async def test_a_limit_shows_the_time_of_the_oldest_request_that_waits(world: World) -> None:
    limited = await desk(world)
    tasks = [await world.start_claimed(name) for name in "abcd"]
    await limited.ask(tasks[0])
    assert await oldest(world) is None
    for task, priority in zip(tasks[1:], (2, 1, 1), strict=True):
        world.clock.advance(10)
        await limited.ask(task, priority=priority)

    assert await oldest(world) == 20  # the request of the lowest priority
    await limited.give_back(tasks[1])
    assert await oldest(world) == 10
    await limited.give_back(tasks[0])
    assert await oldest(world) == 0
    await limited.give_back(tasks[2])
    assert await oldest(world) is None


async def test_the_oldest_request_is_that_of_all_keys_and_of_each_key(world: World) -> None:
    limited = await desk(world, tenants=LimitValues(concurrency=1))
    for n, key in enumerate(("acme", "globex", "globex", "acme", "globex")):
        await limited.ask(await world.start_claimed(f"r{n}"), "s", LimitKey("tenants", key), priority=-n)
        world.clock.advance(10)

    found = await world.store.read(LimitKeysQuery("tenants", 10))

    waited = {one.key: world.now() - one.oldest_waiting for one in found.keys if one.oldest_waiting is not None}
    assert waited == {"globex": 30, "acme": 20}
    assert await oldest(world, "tenants") == 30


async def test_a_request_waits_at_the_limit_without_room(world: World) -> None:
    limited = await desk(world, bank=LimitValues(concurrency=1), shop=LimitValues(concurrency=1))
    tasks = [await world.start_claimed(name) for name in "abc"]
    await limited.ask(tasks[0], "s", BANK)
    await limited.ask(tasks[1], "s", LimitKey("shop"))

    await limited.ask(tasks[2], "s", BANK, LimitKey("shop"))
    before = (await oldest(world), await oldest(world, "shop"))
    world.clock.advance(10)
    await limited.give_back(tasks[0])

    assert before == (0, None)
    assert (await oldest(world), await oldest(world, "shop")) == (None, 10)


async def test_a_repeated_request_and_a_later_claim_keep_the_time_of_the_request(world: World) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a"), await world.start_claimed("b")
    await limited.ask(first)
    await limited.ask(second, "", attempt=0, park=True)
    world.clock.advance(10)
    await world.cancel("b")  # makes the task due without a grant
    [claim] = (await world.claim("w2")).claims
    world.clock.advance(10)

    assert await limited.ask(claim.task, "", attempt=0) is WAITING
    assert await limited.ask(claim.task, "", attempt=0) is WAITING

    assert await oldest(world) == 20


async def test_the_wait_of_an_attempt_that_was_lost_begins_again(world: World) -> None:
    limited = await desk(world)
    first, second = await world.start_claimed("a", owner="w2"), await world.start_claimed("b")
    await limited.ask(first)
    await limited.ask(second)
    await world.store.heartbeat("w2", 10 * LEASE)
    world.clock.advance(LEASE)
    await world.store.reap(10)
    assert await oldest(world) is None

    [claim] = (await world.claim("w2")).claims
    await limited.ask(claim.task)
    world.clock.advance(10)

    assert await oldest(world) == 10


async def test_a_limit_counts_the_tokens_of_its_rate_until_they_come_back(world: World) -> None:
    desk_ = await desk(world, bank=LimitValues(rate=Pace(10, 1000, 5)))
    tasks = [await world.start_claimed(f"r{n}") for n in range(7)]
    for task in tasks:
        await desk_.ask(task)

    [full] = await world.store.limits(ReadLimits("bank"))
    world.clock.advance(350)
    [later] = await world.store.limits(ReadLimits("bank"))
    world.clock.advance(10_000)
    [unused] = await world.store.limits(ReadLimits("bank"))

    assert (full.tokens, later.tokens, unused.tokens) == (5, 2, 0)
