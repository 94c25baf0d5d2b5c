"""Start policies: whether a start makes a run, which run stands for it, and when a held run is due."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from itertools import count
from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    BatchedStart,
    CancelRun,
    Created,
    DebouncedStart,
    DeclareLimits,
    Finish,
    LimitedStart,
    LimitKey,
    LimitValues,
    NewRun,
    NewUnit,
    NextRun,
    OnReuse,
    OnSingleton,
    PauseRun,
    PermitExchange,
    PermitRequest,
    PermitResult,
    ReadLimits,
    RequestResult,
    RestartRun,
    ResumeRun,
    RunRecord,
    RunsById,
    SingletonStart,
    StartPolicy,
    TerminateRun,
)
from store.world import FLOW, World

DONE, EXISTING = RequestResult.DONE, RequestResult.EXISTING
QUEUE, SKIP = OnSingleton.QUEUE, OnSingleton.SKIP
SINGLE = b'{"single":"k"}'
_ids = count(1)


def _start(**options: Any) -> NewRun:
    return NewRun(FLOW, "shared", on_reuse=OnReuse.ALLOW, **options)


async def test_an_ended_run_stands_for_starts_until_the_time_has_passed(world: World) -> None:
    [first] = await world.store.create([_start(reuse_after_ms=100)])
    claim = await world.claim_one()
    await world.commit(claim.task, then=Finish(Status.COMPLETE, output=b"7"))

    world.clock.advance(99)
    [early] = await world.store.create([_start(reuse_after_ms=100)])
    world.clock.advance(1)
    [late] = await world.store.create([_start(reuse_after_ms=100)])

    assert (early.result, early.run.run) == (RequestResult.EXISTING, first.run.run)
    assert (late.result, late.run.number) == (RequestResult.DONE, 1)


async def test_an_open_run_stands_for_starts_however_old_it_is(world: World) -> None:
    [first] = await world.store.create([_start(reuse_after_ms=100)])
    world.clock.advance(1_000)

    [late] = await world.store.create([_start(reuse_after_ms=100)])

    assert (late.result, late.run.run) == (RequestResult.EXISTING, first.run.run)


async def test_concurrent_starts_after_an_ended_run_make_one_run(world: World) -> None:
    await world.store.create([_start()])
    claim = await world.claim_one()
    await world.commit(claim.task, then=Finish(Status.COMPLETE, output=b"7"))

    results = await asyncio.gather(*(world.store.create([_start()]) for _ in range(5)))

    assert sorted(one.result for [one] in results) == [RequestResult.DONE] + [RequestResult.EXISTING] * 4
    assert len({one.run.run for [one] in results}) == 1


# --- singletons


async def _policy(world: World, policy: StartPolicy, params: bytes | None = None, **options: Any) -> Created:
    new = NewRun(FLOW, f"p{next(_ids)}", params, policy=policy, **options)
    [created] = await world.store.create([new])
    return created


def _single(world: World, on_open: OnSingleton = QUEUE, **options: Any) -> Awaitable[Created]:
    return _policy(world, SingletonStart("k", on_open), options=SINGLE, **options)


async def _record(world: World, created: Created) -> RunRecord:
    [record] = await world.store.read(RunsById([created.run.run]))
    return record


async def test_a_queued_singleton_is_due_when_the_run_before_it_has_ended(world: World) -> None:
    first, second, third = [await _single(world) for _ in range(3)]
    claim = await world.claim_one()
    assert (second.result, second.run.status, second.run.run_at) == (DONE, Status.WAITING, None)
    assert (await world.claim()).claims == ()

    await world.commit(claim.task, then=Finish(Status.COMPLETE))

    assert claim.task.run == first.run.run
    assert [one.task.run for one in (await world.claim()).claims] == [second.run.run]
    assert (await _record(world, third)).run_at is None


@pytest.mark.parametrize("end", ["terminate", "cancel", "expire"])
async def test_every_end_of_a_singleton_releases_the_next_one(world: World, end: str) -> None:
    first = await _single(world)
    second = await _single(world)

    if end == "terminate":
        await world.store.control(TerminateRun(FLOW, first.run.instance_id))
    else:
        claim = await world.claim_one()
        status = Status.CANCELLED if end == "cancel" else Status.ERRORED
        await world.commit(claim.task, then=Finish(status, error=b'{"name":"E","message":""}'))

    assert [one.task.run for one in (await world.claim()).claims] == [second.run.run]


async def test_the_end_of_a_held_singleton_releases_nothing(world: World) -> None:
    _, second, third = [await _single(world) for _ in range(3)]

    await world.store.control(TerminateRun(FLOW, second.run.instance_id))

    assert (await _record(world, third)).run_at is None


async def test_a_successor_keeps_the_place_of_a_singleton(world: World) -> None:
    await _single(world)
    second = await _single(world)
    claim = await world.claim_one()

    await world.commit(claim.task, then=Finish(Status.COMPLETE, next=NextRun(None, None, 1)))

    again = await world.claim_one()
    assert again.run.number == 1
    assert (await _record(world, second)).run_at is None
    await world.commit(again.task, then=Finish(Status.COMPLETE))
    assert (await world.claim_one()).task.run == second.run.run


async def test_a_restarted_singleton_keeps_its_place_and_waits_if_another_one_is_executed(world: World) -> None:
    first = await _single(world)
    second = await _single(world)
    restart = RestartRun(FLOW, first.run.instance_id)
    result = await world.store.control(restart)
    assert result.run is not None
    assert (await _record(world, second)).run_at is None

    claim = await world.claim_one()
    assert claim.task.run == result.run.run
    await world.commit(claim.task, then=Finish(Status.COMPLETE))
    later = await world.store.control(restart)

    assert later.run is not None
    assert (later.run.status, later.run.run_at) == (Status.WAITING, None)
    claim = await world.claim_one()
    assert claim.task.run == second.run.run
    await world.commit(claim.task, then=Finish(Status.COMPLETE))
    assert (await world.claim_one()).task.run == later.run.run


async def test_a_held_singleton_that_is_paused_and_resumed_stays_held(world: World) -> None:
    await _single(world)
    second = await _single(world)
    claim = await world.claim_one()

    await world.store.control(PauseRun(FLOW, second.run.instance_id))
    await world.store.control(ResumeRun(FLOW, second.run.instance_id))
    assert (await _record(world, second)).run_at is None
    await world.store.control(PauseRun(FLOW, second.run.instance_id))
    await world.commit(claim.task, then=Finish(Status.COMPLETE))

    assert (await world.claim()).claims == ()
    await world.store.control(ResumeRun(FLOW, second.run.instance_id))
    assert (await world.claim_one()).task.run == second.run.run


async def test_a_held_singleton_that_is_cancelled_ends_at_once(world: World) -> None:
    await _single(world)
    second = await _single(world)

    await world.store.control(CancelRun(FLOW, second.run.instance_id, b'{"reason":"late","deadlineMs":null}'))

    assert (await _record(world, second)).status is Status.CANCELLED


async def test_an_open_singleton_stands_for_a_skipped_start(world: World) -> None:
    first = await _single(world, SKIP)
    second = await _single(world, SKIP)
    await world.commit((await world.claim_one()).task, then=Finish(Status.COMPLETE))
    third = await _single(world, SKIP)

    assert (second.result, second.run.run) == (EXISTING, first.run.run)
    assert third.result is DONE


async def test_a_waiting_singleton_is_replaced_and_the_executed_one_continues(world: World) -> None:
    first = await _single(world)
    claim = await world.claim_one()
    second = await _single(world, OnSingleton.REPLACE_WAITING)
    third = await _single(world, OnSingleton.REPLACE_WAITING)

    replaced = await _record(world, second)
    assert (replaced.status, json.loads(replaced.error or b"")["message"]) == (Status.CANCELLED, "replaced")
    assert third.affected is not None
    assert second.run.run in third.affected.ended
    await world.commit(claim.task, then=Finish(Status.COMPLETE))
    assert (await world.claim_one()).task.run == third.run.run
    assert (await _record(world, first)).status is Status.COMPLETE


async def test_a_singleton_that_has_not_begun_is_replaced_also_if_it_is_due(world: World) -> None:
    first = await _single(world, OnSingleton.REPLACE_WAITING)
    second = await _single(world, OnSingleton.REPLACE_WAITING)

    assert (await _record(world, first)).status is Status.CANCELLED
    assert (await world.claim_one()).task.run == second.run.run


async def test_the_executed_singleton_gets_one_cancellation_and_the_new_one_waits_for_its_end(world: World) -> None:
    await _single(world)
    claim = await world.claim_one()
    second = await _single(world, OnSingleton.CANCEL_RUNNING)
    third = await _single(world, OnSingleton.CANCEL_RUNNING)

    assert [event.type for event in await world.undelivered(claim.task.run)] == ["@cancel"]
    assert (await _record(world, second)).status is Status.CANCELLED
    assert (await _record(world, third)).run_at is None
    await world.commit(claim.task, then=Finish(Status.CANCELLED, error=b'{"name":"CancelledError","message":""}'))
    assert (await world.claim_one()).task.run == third.run.run


async def test_the_units_of_a_held_graph_are_due_when_it_is_released(world: World) -> None:
    await _single(world)
    units = [NewUnit(1, "a", 0), NewUnit(2, "b", 1)]
    graph = await _single(world, kind="graph", units=units)
    claim = await world.claim_one()
    assert (await world.claim()).claims == ()

    await world.commit(claim.task, then=Finish(Status.COMPLETE))

    assert [(one.task.run, one.task.unit) for one in (await world.claim()).claims] == [(graph.run.run, 1)]


async def test_concurrent_starts_of_a_singleton_leave_one_due_run(world: World) -> None:
    await asyncio.gather(*(_single(world) for _ in range(8)))
    order = []

    while claims := (await world.claim()).claims:
        [claim] = claims
        order.append(claim.task.run)
        await world.commit(claim.task, then=Finish(Status.COMPLETE))

    assert len(order) == 8


# --- debounced and batched starts


async def test_the_last_params_of_debounced_starts_win_and_move_the_due_time(world: World) -> None:
    first = await _policy(world, DebouncedStart("k"), b"1", delay_ms=100)
    world.clock.advance(60)
    second = await _policy(world, DebouncedStart("k"), b"2", delay_ms=100)
    world.clock.advance(60)
    assert (await world.claim()).claims == ()
    world.clock.advance(40)

    claim = await world.claim_one()
    third = await _policy(world, DebouncedStart("k"), b"3", delay_ms=100)

    assert (second.result, second.run.run) == (EXISTING, first.run.run)
    assert claim.run.params == b"2"
    assert (third.result, third.run.run == first.run.run) == (DONE, False)


async def test_a_debounced_run_is_due_at_the_latest_after_its_maximum_wait(world: World) -> None:
    for n in range(4):
        await _policy(world, DebouncedStart("k", max_wait_ms=150), b"%d" % n, delay_ms=100)
        world.clock.advance(50)

    assert (await world.claim_one()).run.params == b"3"


async def test_a_paused_debounced_run_takes_the_last_params_and_stays_paused(world: World) -> None:
    first = await _policy(world, DebouncedStart("k"), b"1", delay_ms=100)
    await world.store.control(PauseRun(FLOW, first.run.instance_id))

    await _policy(world, DebouncedStart("k"), b"2", delay_ms=100)
    world.clock.advance(200)
    assert (await world.claim()).claims == ()
    await world.store.control(ResumeRun(FLOW, first.run.instance_id))

    assert (await world.claim_one()).run.params == b"2"


async def test_a_full_batch_is_due_at_once_and_the_next_item_begins_another(world: World) -> None:
    batch = BatchedStart("k", size=3, max_bytes=100)
    starts = [await _policy(world, batch, b'[{"n":%d}]' % n, delay_ms=100) for n in range(4)]

    claim = await world.claim_one()

    assert [one.result for one in starts] == [DONE, EXISTING, EXISTING, DONE]
    assert json.loads(claim.run.params or b"") == [{"n": 0}, {"n": 1}, {"n": 2}]
    world.clock.advance(100)
    assert json.loads((await world.claim_one()).run.params or b"") == [{"n": 3}]


async def test_concurrent_batched_starts_are_each_in_one_batch(world: World) -> None:
    batch = BatchedStart("k", size=5, max_bytes=1000)
    await asyncio.gather(*(_policy(world, batch, b"[%d]" % n, delay_ms=100) for n in range(12)))
    world.clock.advance(100)

    batches = [json.loads(one.run.params or b"") for one in (await world.claim(limit=10)).claims]

    assert sorted(len(one) for one in batches) == [2, 5, 5]
    assert sorted(item for one in batches for item in one) == list(range(12))


async def test_an_item_that_does_not_fit_begins_another_batch_and_makes_the_full_one_due(world: World) -> None:
    batch = BatchedStart("k", size=100, max_bytes=12)
    first = await _policy(world, batch, b'["aaaa"]', delay_ms=100)
    second = await _policy(world, batch, b'["bbbb"]', delay_ms=100)

    assert (second.result, (await world.claim_one()).task.run) == (DONE, first.run.run)


# --- limited starts


async def _used(world: World) -> int:
    [record] = await world.store.limits(ReadLimits("bank"))
    return record.used


async def test_a_start_without_room_is_refused_and_writes_nothing(world: World) -> None:
    await world.store.limits(DeclareLimits({"bank": LimitValues(concurrency=1)}))
    policy = LimitedStart([LimitKey("bank")], reject=True)
    first = await _policy(world, policy)
    second = await _policy(world, policy)

    assert (first.result, second.result) == (DONE, RequestResult.LIMITED)
    assert await _used(world) == 1
    claim = await world.claim_one()
    request = PermitRequest(claim.task, "", 0, [LimitKey("bank")], park=True)
    reply = await world.store.exchange_permits(PermitExchange(claim.task.owner, requests=[request]))
    assert (reply.results, await _used(world)) == ([PermitResult.HELD], 1)
    await world.commit(claim.task, then=Finish(Status.COMPLETE))
    assert (await _policy(world, policy)).result is DONE


async def test_a_dropped_start_is_recorded_as_cancelled_and_takes_no_permit(world: World) -> None:
    await world.store.limits(DeclareLimits({"bank": LimitValues(concurrency=1)}))
    policy = LimitedStart([LimitKey("bank")], reject=False)
    first = await _policy(world, policy)
    second = await _policy(world, policy)

    assert (second.result, second.run.status) == (EXISTING, Status.CANCELLED)
    assert json.loads(second.run.error or b"")["message"] == "dropped: limit 'bank' has no room"
    await world.store.control(TerminateRun(FLOW, first.run.instance_id))
    assert await _used(world) == 0
