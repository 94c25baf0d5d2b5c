"""Expiry: overdue runs are claimed to be ended, and cancellations with a deadline set an expiry."""

from __future__ import annotations

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    CANCEL,
    CancelRun,
    Expiry,
    Finish,
    NewRun,
    RequestResult,
    Signal,
    Verdict,
)
from store.world import FLOW, LEASE, World, pid, result, waiting

LONG = 10 * LEASE


async def _state(world: World, state: str) -> int:
    """Create a run that expires, in the given state; returns its id."""
    task = await world.start_claimed("a", "w1", expires_ms=100, expiry=Expiry.RUN)
    match state:
        case "new":
            await world.store.release([task])
        case "waiting":
            await world.commit(task, then=waiting("go"))
        case "sleeping":
            await world.commit(task, then=waiting(run_at=world.now() + 10**6))
        case "paused":
            await world.pause("a")
            await world.commit(task)
        case "pausing":
            await world.pause("a")
    return task.run


async def test_a_run_record_has_its_expiry(world: World) -> None:
    made = await world.create("a", expires_ms=100, expiry=Expiry.EXECUTION)
    plain = await world.create("b")

    assert (made.run.expires_at, made.run.expiry) == (world.now() + 100, "execution")
    assert (plain.run.expires_at, plain.run.expiry) == (None, None)
    assert await world.find("a") == made.run


@pytest.mark.parametrize("state", ["new", "held", "waiting", "sleeping", "paused", "pausing"])
async def test_an_expired_run_is_claimed_as_overdue_in_any_state(world: World, state: str) -> None:
    run = await _state(world, state)
    world.clock.advance(100)

    claimed = await world.claim("w2", workflows=["unknown"], queues=["unknown"])

    [overdue] = claimed.overdue
    assert list(claimed.claims) == []
    assert (overdue.task.run, overdue.task.owner) == (run, "w2")
    assert (overdue.run.run, overdue.run.owner, overdue.run.expiry) == (run, "w2", "run")
    assert list(overdue.mailbox_page.events) == []
    answer = await world.commit(overdue.task, then=Finish(Status.ERRORED))
    assert (answer.verdict, (await world.find("a")).status) == (Verdict.APPLIED, Status.ERRORED)


async def test_a_run_that_has_not_expired_is_not_claimed_as_overdue(world: World) -> None:
    await _state(world, "waiting")
    world.clock.advance(99)

    claimed = await world.claim("w2")

    assert (list(claimed.claims), list(claimed.overdue)) == ([], [])


@pytest.mark.promise("fencing")
async def test_the_previous_owner_of_an_overdue_run_is_fenced(world: World) -> None:
    task = await world.start_claimed("a", "w1", expires_ms=100, expiry=Expiry.RUN)
    world.clock.advance(100)

    [overdue] = (await world.claim("w2")).overdue

    assert overdue.task.epoch == task.epoch + 1
    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.LOST
    assert await world.store.heartbeat("w1", LEASE) == []
    assert [held.run for held in await world.store.heartbeat("w2", LEASE)] == [task.run]


async def test_an_owner_may_claim_its_own_overdue_run(world: World) -> None:
    task = await world.start_claimed("a", "w1", expires_ms=100, expiry=Expiry.RUN)
    world.clock.advance(100)

    [overdue] = (await world.claim("w1")).overdue

    assert overdue.task == task._replace(epoch=task.epoch + 1)


async def test_an_overdue_run_is_claimed_once_within_a_lease(world: World) -> None:
    await _state(world, "waiting")
    world.clock.advance(100)
    [overdue] = (await world.claim("w2")).overdue

    again = [list((await world.claim(owner)).overdue) for owner in ("w2", "w3")]

    assert again == [[], []]
    assert (await world.commit(overdue.task)).verdict is Verdict.APPLIED


async def test_an_overdue_run_is_claimed_again_after_its_lease_expired(world: World) -> None:
    run = await _state(world, "waiting")
    world.clock.advance(100)
    await world.claim("w2")
    world.clock.advance(LEASE)
    await world.store.reap(5)

    claimed = await world.claim("w3")

    assert [claim.task.run for claim in claimed.overdue] == [run]
    assert list(claimed.claims) == []


async def test_overdue_runs_do_not_count_towards_the_limit(world: World) -> None:
    await world.store.create([NewRun(FLOW, f"o{n}", expires_ms=10, expiry=Expiry.RUN) for n in range(3)])
    await world.store.create([NewRun(FLOW, f"r{n}") for n in range(3)])
    world.clock.advance(10)

    claimed = await world.claim(limit=2)

    assert sorted(claim.run.instance_id for claim in claimed.overdue) == ["o0", "o1", "o2"]
    assert [claim.run.instance_id for claim in claimed.claims] == ["r0", "r1"]


async def test_a_claim_with_limit_zero_claims_no_overdue_runs(world: World) -> None:
    await _state(world, "new")
    world.clock.advance(100)

    looked = await world.claim("w2", limit=0)

    assert list(looked.overdue) == []
    assert (looked.next_due or 0) <= looked.now
    assert len((await world.claim("w2")).overdue) == 1


async def test_the_number_of_overdue_runs_per_claim_is_bounded(world: World) -> None:
    await world.store.create([NewRun(FLOW, f"o{n}", expires_ms=10, expiry=Expiry.RUN) for n in range(250)])
    world.clock.advance(10)
    seen: list[int] = []

    while len(seen) < 250:
        claimed = await world.claim("w2", limit=1, workflows=frozenset({"other"}), lease_ms=LONG)
        assert 0 < len(claimed.overdue) <= 250
        assert len(seen) + len(claimed.overdue) == 250 or (claimed.next_due or 0) <= claimed.now
        seen += [claim.task.run for claim in claimed.overdue]

    assert len(set(seen)) == 250
    assert list((await world.claim("w2")).overdue) == []


async def test_the_longest_overdue_runs_are_claimed_first(world: World) -> None:
    for n, ms in enumerate((30, 10, 20)):
        await world.start(f"r{n}", expires_ms=ms, expiry=Expiry.RUN)
    world.clock.advance(30)

    assert [claim.run.instance_id for claim in (await world.claim()).overdue] == ["r1", "r2", "r0"]


async def test_next_due_is_also_when_any_run_expires(world: World) -> None:
    now = world.now()
    await world.start("a", expires_ms=100, expiry=Expiry.RUN, workflow="unknown", queue="unknown")
    await world.start("b", delay_ms=200)

    early = await world.claim()
    await world.start("c", delay_ms=50)

    assert early.next_due == now + 100
    assert (await world.claim()).next_due == now + 50


async def test_next_due_includes_the_expiry_of_owned_and_paused_runs(world: World) -> None:
    now = world.now()
    await world.start_claimed("held", expires_ms=200, expiry=Expiry.RUN)
    assert (await world.claim("w2")).next_due == now + 200

    await world.start("paused", expires_ms=100, expiry=Expiry.RUN)
    await world.pause("paused")

    assert (await world.claim("w2")).next_due == now + 100


async def test_an_ended_run_does_not_expire(world: World) -> None:
    task = await world.start_claimed("a", expires_ms=100, expiry=Expiry.RUN)
    await world.finish(task)
    await world.start("b", expires_ms=100, expiry=Expiry.RUN)
    await world.terminate("b")
    world.clock.advance(100)

    claimed = await world.claim()

    assert (list(claimed.overdue), claimed.next_due) == ([], None)
    assert (await world.find("a")).expires_at is None


async def test_an_expiry_survives_a_release_and_a_loss(world: World) -> None:
    task = await world.start_claimed("a", expires_ms=LONG, expiry=Expiry.RUN)
    expires_at = (await world.find("a")).expires_at
    await world.commit(task, then=waiting("go"))
    await world.send("go")
    await world.claim_one("w2")
    world.clock.advance(LEASE)
    await world.store.reap(1)

    run = await world.find("a")

    assert (run.status, run.expires_at, run.expiry) == (Status.PAUSED, expires_at, "run")


async def test_an_overdue_claim_is_marked_lost_if_the_run_was_owned(world: World) -> None:
    await world.start_claimed("held", expires_ms=10, expiry=Expiry.RUN)
    await world.start("free", expires_ms=10, expiry=Expiry.RUN)
    world.clock.advance(10)

    lost = {claim.run.instance_id: claim.lost for claim in (await world.claim("w2")).overdue}

    assert lost == {"held": True, "free": False}


# --------------------------------------------------------------------------------------------------- cancel


async def test_a_cancellation_is_stored_as_an_event(world: World) -> None:
    run = await world.start_waiting("a", "go")

    steered = await world.cancel("a", payload=b'{"reason":"r","deadlineMs":null}')

    [event] = await world.undelivered(run.run)
    assert (event.type, event.payload, event.sender) == (CANCEL, b'{"reason":"r","deadlineMs":null}', None)
    assert (steered.run, steered.affected.woken, steered.affected.work) == (run, [run.run], True)
    claim = await world.claim_one()
    assert (claim.kind, claim.run.expires_at) == (TaskKind.WAKE, None)
    assert [one.type for one in claim.mailbox_page.events] == [CANCEL]


async def test_a_cancellation_signals_the_owner(world: World) -> None:
    task = await world.start_claimed("a")

    steered = await world.cancel("a")

    assert (steered.affected.woken, steered.affected.ended) == ([task.run], [])
    assert [held.signal for held in await world.store.fetch_signals("w1")] == [Signal.EVENTS]


async def test_a_cancellation_waits_for_the_end_of_a_pause(world: World) -> None:
    await world.start("a")
    await world.pause("a")

    steered = await world.cancel("a")

    assert steered.affected.woken == []
    assert await world.claimed_ids() == []
    await world.resume("a")
    assert [event.type for event in (await world.claim_one()).mailbox_page.events] == [CANCEL]


async def test_a_cancellation_reaches_a_run_that_has_not_begun(world: World) -> None:
    run = await world.start("a", delay_ms=10**6)

    steered = await world.cancel("a")

    assert steered.affected.woken == [run.run]
    assert (await world.claim_one()).run.started_at is None


async def test_a_second_cancellation_is_another_event(world: World) -> None:
    run = await world.start("a")

    await world.cancel("a")
    await world.cancel("a")

    assert [event.type for event in await world.undelivered(run.run)] == [CANCEL, CANCEL]


@pytest.mark.parametrize("state", ["new", "held", "waiting", "paused"])
async def test_a_cancellation_with_a_deadline_sets_the_expiry(world: World, state: str) -> None:
    task = await world.start_claimed("a")
    match state:
        case "new":
            await world.store.release([task])
        case "waiting":
            await world.commit(task, then=waiting("go"))
        case "paused":
            await world.pause("a")
            await world.commit(task)

    await world.cancel("a", deadline_ms=100)

    run = await world.find("a")
    assert (run.expires_at, run.expiry) == (world.now() + 100, "cancel")
    world.clock.advance(100)
    [overdue] = (await world.claim("w2")).overdue
    assert (overdue.run.run, overdue.run.expiry) == (task.run, "cancel")


@pytest.mark.parametrize(
    ("before", "deadline", "expected"),
    [(100, 50, (50, "cancel")), (100, 200, (100, "run")), (None, 200, (200, "cancel")), (100, None, (100, "run"))],
)
async def test_a_deadline_shortens_an_expiry_and_never_extends_it(
    world: World, before: int | None, deadline: int | None, expected: tuple[int, str]
) -> None:
    await world.start_claimed("a", expires_ms=before, expiry=before and Expiry.RUN)

    await world.cancel("a", deadline_ms=deadline)

    run, now = await world.find("a"), world.now()
    assert (run.expires_at, run.expiry) == (now + expected[0], expected[1])


async def test_the_earliest_deadline_is_kept(world: World) -> None:
    await world.start_claimed("a")
    for deadline in (100, 50, 70):
        await world.cancel("a", deadline_ms=deadline)

    assert (await world.find("a")).expires_at == world.now() + 50


async def test_a_cancellation_of_an_ended_run_has_no_effect(world: World) -> None:
    ended = await world.start_ended("a")

    steered = await world.cancel("a", deadline_ms=100)

    assert (steered.run, steered.affected.woken) == (ended, [])
    assert await world.find("a") == ended
    assert await world.undelivered(ended.run) == []


async def test_a_run_can_cancel_another_run(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")

    answer = await world.operate(a, CancelRun(FLOW, "b", b'{"reason":null,"deadlineMs":100}', 100))

    [event] = await world.undelivered(b.run)
    assert answer.operation_results == [RequestResult.DONE]
    assert (event.type, event.payload, event.sender) == (CANCEL, b'{"reason":null,"deadlineMs":100}', pid("a"))
    run = await world.find("b")
    assert (run.expires_at, run.expiry) == (world.now() + 100, "cancel")
