"""Pause, resume, terminate, restart: at once without an owner, by a signal to the owner, never after the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    AffectedRuns,
    Audit,
    AuditQuery,
    CancelRun,
    ControlRequest,
    ControlResult,
    Delivery,
    Finish,
    LogsQuery,
    NewEvent,
    NewRun,
    Park,
    PauseRun,
    RedeliverOutbox,
    Release,
    RestartRun,
    ResumeRun,
    Signal,
    SnapshotQuery,
    TerminateRun,
    Verdict,
)
from store.world import FLOW, LEASE, World, log_line, result, turn, waiting

# --------------------------------------------------------------------------------------------------- pause


async def test_pausing_a_run_without_an_owner_takes_effect_at_once(world: World) -> None:
    before = await world.start("a")
    world.clock.advance(3)

    answer = await world.pause("a")

    run = await world.find("a")
    assert answer == before
    assert (run.status, run.updated_at, run.run_at, run.note) == (Status.PAUSED, world.now(), None, None)
    assert (await world.claim()).next_due is None


async def test_a_paused_run_does_not_wake_at_its_time(world: World) -> None:
    await world.start_waiting("a", run_at=world.now() + 10)
    await world.pause("a")
    world.clock.advance(10**6)

    assert await world.claimed_ids() == []


async def test_pausing_an_owned_run_signals_its_owner(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.pause("a")

    assert answer is not None
    assert not answer.pausing
    run = await world.find("a")
    assert (run.status, run.pausing, run.owner) == (Status.ACTIVE, True, "w1")
    assert [held.signal for held in await world.store.fetch_signals("w1")] == [Signal.PAUSE]
    assert [held.signal for held in await world.store.heartbeat("w1", LEASE)] == [Signal.PAUSE]
    assert (await world.commit(task, in_flight=1)).verdict is Verdict.PAUSING


async def test_a_pause_drops_the_following_part_and_keeps_the_observed_part(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go")
    await world.pause("a")

    answer = await world.commit(
        task,
        facts=[result("seen", event=1)],
        deliveries=[Delivery(1, "seen", 1)],
        logs=[log_line("seen")],
        starts=[NewRun(FLOW, "child")],
        sends=[NewEvent(FLOW, "child", "go")],
        started_at=9,
        then_facts=[result("following")],
        then_logs=[log_line("following")],
        then=Finish(Status.COMPLETE, b"1"),
    )

    run = await world.find("a")
    assert answer.verdict is Verdict.PAUSED
    assert (len(answer.started), len(answer.sent)) == (1, 1)
    assert (run.status, run.started_at, run.output, run.owner, run.pausing) == (Status.PAUSED, 9, None, None, False)
    assert await world.keys(task.run) == ["seen"]
    assert [log.log.message for log in await world.store.read(LogsQuery(task.run))] == ["seen"]
    assert list((await world.store.read(SnapshotQuery(task.run))).events) == [1]
    assert await world.claimed_ids(owner="w2") == ["child"]


@pytest.mark.parametrize("then", [waiting("go"), Park("x"), None], ids=["release", "park", "continue"])
async def test_a_pause_drops_every_kind_of_end_of_a_turn(world: World, then: Release | Park | None) -> None:
    task = await world.start_claimed("a")
    await world.pause("a")

    assert (await world.commit(task, then=then)).verdict is Verdict.PAUSED
    run = await world.find("a")
    assert (run.status, run.note) == (Status.PAUSED, None)


async def test_a_pause_waits_for_steps_in_flight(world: World) -> None:
    task = await world.start_claimed("a")
    await world.pause("a")

    first = await world.commit(task, facts=[result("s")], in_flight=2)
    second = await world.commit(task, facts=[result("t")], in_flight=1)
    assert (await world.find("a")).pausing
    third = await world.commit(task, facts=[result("u")], in_flight=0)

    assert [one.verdict for one in (first, second, third)] == [Verdict.PAUSING, Verdict.PAUSING, Verdict.PAUSED]
    assert await world.keys(task.run) == ["s", "t", "u"]
    assert (await world.commit(task)).verdict is Verdict.LOST


async def test_pausing_a_paused_run_changes_nothing(world: World) -> None:
    await world.start("a")
    await world.pause("a")
    paused = await world.find("a")
    world.clock.advance(5)

    again = await world.pause("a")

    assert again == paused == await world.find("a")


async def test_pausing_a_parked_run_keeps_its_note(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, then=Park("why"))

    await world.pause("a")

    assert (await world.find("a")).note == "why"


async def test_a_paused_run_buffers_events_and_is_not_woken(world: World) -> None:
    run = await world.start_waiting("a", "go")
    await world.pause("a")

    sent = await world.send("go")

    assert (sent.accepted, sent.woken) == (True, False)
    assert await world.claimed_ids() == []
    assert len(await world.undelivered(run.run)) == 1


async def test_a_pause_of_a_lost_turn_takes_effect_when_it_is_reaped(world: World) -> None:
    await world.start_claimed("a")
    await world.pause("a")
    world.clock.advance(LEASE)

    [expired] = await world.store.reap(9)

    assert not expired.parked
    run = await world.find("a")
    assert (run.status, run.pausing) == (Status.PAUSED, False)
    assert await world.claimed_ids() == []


async def test_a_pause_takes_effect_when_the_task_is_released(world: World) -> None:
    task = await world.start_claimed("a")
    await world.pause("a")

    assert await world.store.release([task]) == 1
    assert (await world.find("a")).status is Status.PAUSED


# --------------------------------------------------------------------------------------------------- resume


async def test_a_resumed_run_is_due_at_once(world: World) -> None:
    await world.start_waiting("a", run_at=world.now() + 10**6)
    await world.pause("a")
    paused = await world.find("a")
    world.clock.advance(5)

    answer = await world.resume("a")

    run = await world.find("a")
    assert answer == paused
    assert (run.status, run.run_at, run.updated_at) == (Status.ACTIVE, world.now(), world.now())
    assert (await world.claim_one()).kind is TaskKind.RESUME


async def test_the_epoch_survives_a_pause(world: World) -> None:
    task = await world.start_claimed("a")
    await world.pause("a")
    await world.commit(task)
    await world.resume("a")

    assert (await world.claim_one()).task.epoch == task.epoch + 1
    assert (await world.commit(task, facts=[result("late")])).verdict is Verdict.LOST


async def test_a_pause_can_be_withdrawn_before_it_takes_effect(world: World) -> None:
    task = await world.start_claimed("a")
    await world.pause("a")

    await world.resume("a")

    assert not (await world.find("a")).pausing
    assert await world.store.fetch_signals("w1") == []
    answer = await world.commit(task, then=Finish(Status.COMPLETE))
    assert (answer.verdict, (await world.find("a")).status) == (Verdict.APPLIED, Status.COMPLETE)


async def test_withdrawing_a_pause_keeps_the_events_signal(world: World) -> None:
    await world.start_claimed("a")
    await world.send("go")
    await world.pause("a")

    await world.resume("a")

    assert [held.signal for held in await world.store.fetch_signals("w1")] == [Signal.EVENTS]


async def test_reading_the_events_signal_keeps_the_pause_signal(world: World) -> None:
    await world.start_claimed("a")
    await world.send("go")
    await world.pause("a")

    first, second = await world.store.fetch_signals("w1"), await world.store.fetch_signals("w1")

    assert [held.signal for held in first] == [Signal.EVENTS | Signal.PAUSE]
    assert [held.signal for held in second] == [Signal.PAUSE]


async def test_resuming_a_run_that_is_not_paused_does_nothing(world: World) -> None:
    run = await world.start_waiting("a", run_at=world.now() + 100)

    assert await world.resume("a") == run
    assert await world.find("a") == run


@pytest.mark.promise("no-lost-wakeup")
async def test_events_sent_during_a_pause_are_claimed_after_the_resume(world: World) -> None:
    await world.start_waiting("a", "go")
    await world.pause("a")
    await world.send("go")
    await world.resume("a")

    assert len((await world.claim_one()).mailbox_page.events) == 1


# --------------------------------------------------------------------------------------------------- terminate


@pytest.mark.promise("finality")
@pytest.mark.parametrize("state", ["new", "held", "waiting", "paused"])
async def test_terminating_ends_a_run_at_once(world: World, state: str) -> None:
    match state:
        case "new":
            await world.start("a")
        case "held":
            await world.start_claimed("a")
        case "waiting":
            await world.start_waiting("a", "go")
        case _:
            await world.start("a")
            await world.pause("a")
    before = await world.find("a")
    world.clock.advance(7)

    answer = await world.terminate("a", "no longer needed")

    run, now = await world.find("a"), world.now()
    assert answer.run == before
    assert (run.status, run.note, run.completed_at, run.updated_at) == (
        Status.TERMINATED,
        "no longer needed",
        now,
        now,
    )
    assert (run.output, run.error, run.owner, run.run_at) == (None, None, None, None)
    assert await world.store.heartbeat("w1", LEASE) == []
    assert (await world.claim()).next_due is None


@pytest.mark.promise("finality")
@pytest.mark.parametrize("status", [Status.COMPLETE, Status.ERRORED, Status.CANCELLED, Status.TERMINATED])
async def test_a_terminal_run_is_never_changed(world: World, status: Status) -> None:
    ended = await world.start_ended("a", status)
    world.clock.advance(7)

    answers = [
        await world.pause("a"),
        await world.resume("a"),
        (await world.terminate("a", "again")).run,
        (await world.cancel("a", deadline_ms=1)).run,
        (await world.send("go")).run,
        (await world.create("a")).run,
    ]
    await world.store.reap(1)

    assert answers == [ended] * 6
    assert await world.find("a") == ended


async def test_the_history_of_a_terminated_run_stays_readable(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")], logs=[log_line("l")])

    await world.terminate("a")

    assert await world.keys(task.run) == ["s"]
    assert len(await world.store.read(LogsQuery(task.run))) == 1


# --------------------------------------------------------------------------------------------------- restart


async def test_a_restart_creates_a_new_run_of_the_same_instance(world: World) -> None:
    old = await world.start("a", params=b"[1]", queue="slow", priority=4, kind="chain", seed=42)
    world.clock.advance(5)

    new = await world.restart("a")

    assert (new.number, new.instance, new.created_at) == (1, old.instance, old.created_at)
    assert (new.params, new.queue, new.priority, new.kind, new.seed) == (b"[1]", "slow", 4, "chain", 42)
    assert (new.status, new.run_at, new.updated_at) == (Status.ACTIVE, world.now(), world.now())
    assert new.run != old.run
    assert new == await world.find("a") == await world.find("a", 1)


async def test_a_restart_ends_the_old_run_which_stays_readable(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")])

    new = await world.restart("a")

    old = await world.find("a", 0)
    assert (old.status, old.completed_at, old.owner) == (Status.TERMINATED, world.now(), None)
    assert (await world.keys(old.run), await world.keys(new.run)) == (["s"], [])
    assert (await world.commit(task)).verdict is Verdict.LOST


@pytest.mark.promise("finality")
async def test_a_restart_does_not_change_how_the_old_run_ended(world: World) -> None:
    ended = await world.start_ended("a")
    world.clock.advance(5)

    await world.restart("a")

    assert await world.find("a", 0) == replace(ended, current=False)


async def test_a_restarted_run_begins_as_a_fresh_one(world: World) -> None:
    await world.start_claimed("a")
    await world.send("go")
    await world.restart("a")

    claim = await world.claim_one("w2")

    assert (claim.kind, claim.task.epoch, claim.lost, list(claim.mailbox_page.events)) == (TaskKind.RUN, 1, False, [])


async def test_a_run_can_be_restarted_again_and_again(world: World) -> None:
    first = await world.start("a")

    runs = [await world.restart("a") for _ in range(3)]

    assert [(run.number, run.instance) for run in runs] == [(n, first.instance) for n in (1, 2, 3)]
    assert await world.ids() == ["a"]


async def test_a_restart_of_one_run_changes_nothing_if_another_run_is_the_current_one(world: World) -> None:
    first = await world.start("a")
    await world.terminate("a")

    runs = [await world.restart("a", run=first.run) for _ in range(3)]

    assert [(run.number, run.status) for run in runs] == [(1, Status.ACTIVE)] * 3
    assert (await world.find("a")).run == runs[0].run
    again = await world.store.control(RestartRun(FLOW, "a", run=first.run), Audit("restart"))
    assert again.refused
    assert [row.outcome for row in await world.store.read(AuditQuery("flow/a"))] == ["refused"]


async def test_a_restart_of_a_line_restarts_the_run_that_continues_it_and_no_other_run(world: World) -> None:
    first = await world.start_claimed("a")
    second = await world.continue_run(first, continues=True)

    results = [await world.store.control(RestartRun(FLOW, "a", line=first.run)) for _ in range(2)]

    assert [(one.run.number, one.refused) for one in results if one.run is not None] == [(2, False), (2, True)]
    assert (await world.find("a", 1)).run == second.run
    unknown = await world.store.control(RestartRun(FLOW, "a", line=10**9))
    assert (unknown.run, unknown.refused) == (await world.find("a"), True)


@pytest.mark.parametrize(
    "request_",
    [
        PauseRun(FLOW, "nobody"),
        ResumeRun(FLOW, "nobody"),
        TerminateRun(FLOW, "nobody"),
        CancelRun(FLOW, "nobody", b"{}", 5),
        RestartRun(FLOW, "nobody"),
        RedeliverOutbox(FLOW, "nobody"),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_a_control_request_to_an_unknown_run_affects_nothing(world: World, request_: ControlRequest) -> None:
    assert await world.store.control(request_) == ControlResult(None, AffectedRuns(), redelivered=0)


async def test_a_pause_drops_the_following_part_in_the_middle_of_a_batch(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await world.pause("a")

    first, second = await world.store.commit(
        [turn(a, then=Finish(Status.COMPLETE)), turn(b, then=Finish(Status.COMPLETE))]
    )

    assert (first.verdict, second.verdict) == (Verdict.PAUSED, Verdict.APPLIED)
    assert ((await world.find("a")).status, (await world.find("b")).status) == (Status.PAUSED, Status.COMPLETE)
