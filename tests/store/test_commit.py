"""Commits: everything that one turn writes at one time, in one transaction or not at all."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.errors import StateError
from holdfast.store.protocol import (
    Delivery,
    EventsQuery,
    Fact,
    FactState,
    Finish,
    LogsQuery,
    NewEvent,
    NewRun,
    Park,
    Release,
    Signal,
    Verdict,
)
from store.world import FLOW, LEASE, World, failure, log_line, result, turn, waiting


async def test_facts_are_read_as_they_were_written(world: World) -> None:
    task = await world.start_claimed("a")
    full = Fact(
        FactState.RESULT,
        "charge",
        0,
        "waitForEvent",
        at=5,
        started_at=3,
        seq=8,
        ok=False,
        value=b'{"e":1}',
        name="Charge the card",
        attempts=3,
        max_attempts=7,
        timeout_ms=100,
        wake_at=99,
        event_type="go",
        event=4,
    )
    bare = Fact(FactState.START, "nap", 0, "sleep", 1, 1)

    await world.commit(task, facts=[full, bare])

    assert await world.facts(task.run) == [full, bare]
    assert [type(fact.ok) for fact in await world.facts(task.run)] == [bool, bool]


async def test_observed_and_following_parts_are_both_written(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.commit(task, facts=[result("s")], then_facts=[result("t")])

    assert (answer.verdict, answer.signal, answer.due_now) == (Verdict.APPLIED, Signal.NONE, False)
    assert await world.keys(task.run) == ["s", "t"]


async def test_attempts_of_one_step_are_separate_facts(world: World) -> None:
    task = await world.start_claimed("a")

    await world.commit(task, facts=[failure("s", 1)])
    await world.commit(task, facts=[failure("s", 2)])
    await world.commit(task, facts=[result("s")])

    facts = await world.facts(task.run)
    assert [(fact.state, fact.n) for fact in facts] == [(0, 0), (2, 1), (2, 2)]


@pytest.mark.promise("committed-results-never-change")
async def test_a_result_is_written_once_and_never_changed(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s", value=b"1")])

    with pytest.raises(StateError):
        await world.commit(task, facts=[result("s", value=b"2"), result("t")])

    assert [(fact.key, fact.value) for fact in await world.facts(task.run)] == [("s", b"1")]


@pytest.mark.promise("isolation-of-runs")
async def test_a_commit_that_violates_a_constraint_fails_alone(world: World) -> None:
    tasks = [await world.start_claimed(f"r{n}") for n in range(20)]
    await world.commit(tasks[7], facts=[result("s", value=b"first")])

    answers = await asyncio.gather(
        *(world.commit(task, facts=[result("s", value=b"second")]) for task in tasks), return_exceptions=True
    )

    assert isinstance(answers[7], StateError)
    assert all(answer.verdict is Verdict.APPLIED for n, answer in enumerate(answers) if n != 7)  # type: ignore[union-attr]
    values = [(await world.facts(task.run))[0].value for task in tasks]
    assert values == [b"second"] * 7 + [b"first"] + [b"second"] * 12


async def test_a_finished_run_has_its_output_and_no_task(world: World) -> None:
    task = await world.start_claimed("a")
    world.clock.advance(50)

    await world.commit(task, then=Finish(Status.COMPLETE, output=b'"done"'))

    run, now = await world.find("a"), world.now()
    assert (run.status, run.output, run.error) == (Status.COMPLETE, b'"done"', None)
    assert (run.completed_at, run.updated_at) == (now, now)
    assert (run.owner, run.run_at) == (None, None)
    assert await world.store.heartbeat("w1", LEASE) == []


async def test_a_failed_run_has_its_error(world: World) -> None:
    task = await world.start_claimed("a")

    await world.commit(task, then=Finish(Status.ERRORED, error=b'{"name":"Oops"}'))

    run = await world.find("a")
    assert (run.status, run.output, run.error) == (Status.ERRORED, None, b'{"name":"Oops"}')


async def test_started_at_is_set_once(world: World) -> None:
    task = await world.start_claimed("a")

    await world.commit(task, started_at=111)
    await world.commit(task, started_at=222)

    assert (await world.find("a")).started_at == 111


async def test_a_released_run_waits_for_its_time(world: World) -> None:
    task = await world.start_claimed("a")
    world.clock.advance(10)
    due = world.now() + 500

    answer = await world.commit(task, then=Release(due, TaskKind.RETRY))

    run = await world.find("a")
    assert (answer.verdict, answer.due_now) == (Verdict.APPLIED, False)
    assert (run.status, run.run_at, run.owner, run.updated_at) == (Status.WAITING, due, None, due - 500)
    assert await world.claimed_ids() == []
    world.clock.advance(500)
    assert (await world.claim_one()).kind is TaskKind.RETRY


async def test_a_turn_that_stops_early_stays_active(world: World) -> None:
    task = await world.start_claimed("a")

    await world.commit(task, then=Release(world.now(), TaskKind.WAKE, status=Status.ACTIVE))

    assert (await world.find("a")).status is Status.ACTIVE
    assert await world.claimed_ids() == ["a"]


async def test_a_parked_run_is_paused_and_has_a_note(world: World) -> None:
    task = await world.start_claimed("a")

    await world.commit(task, facts=[result("s")], then=Park("the history does not fit the code"))

    run = await world.find("a")
    assert (run.status, run.note) == (Status.PAUSED, "the history does not fit the code")
    assert (run.owner, run.run_at) == (None, None)
    assert await world.claimed_ids() == []
    assert await world.keys(task.run) == ["s"]


async def test_a_resume_clears_the_note_of_a_parked_run(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, then=Park("stuck"))

    await world.resume("a")

    assert (await world.find("a")).note is None


async def test_logs_are_numbered_in_each_run_and_kept_in_order(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")

    await world.store.commit([turn(a, logs=[log_line("1"), log_line("2")]), turn(b, logs=[log_line("x")])])
    await world.commit(a, logs=[log_line("3")], then_logs=[log_line("4")])

    from_a = await world.store.read(_all(a.run))
    from_b = await world.store.read(_all(b.run))
    assert [(log.n, log.log.message) for log in from_a] == [(1, "1"), (2, "2"), (3, "3"), (4, "4")]
    assert [(log.n, log.log.message) for log in from_b] == [(1, "x")]


async def test_a_delivered_event_is_consumed_by_its_step(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go", payload=b"1")
    await world.send("go", payload=b"2")

    await world.commit(task, deliveries=[Delivery(1, "wait", 77)])

    assert [event.n for event in await world.undelivered(task.run)] == [2]
    consumed, _ = await world.store.read(EventsQuery(task.run))
    assert (consumed.n, consumed.delivered_at, consumed.consumed_by) == (1, 77, "wait")


@pytest.mark.promise("messages-once-in-order")
@pytest.mark.parametrize("number", [1, 2], ids=["consumed before", "missing"])
async def test_an_event_is_consumed_once(world: World, number: int) -> None:
    task = await world.start_claimed("a")
    await world.send("go")
    await world.commit(task, deliveries=[Delivery(1, "first", 1)])

    with pytest.raises(StateError):
        await world.commit(task, facts=[result("s")], deliveries=[Delivery(number, "second", 2)])

    [event] = await world.store.read(EventsQuery(task.run))
    assert event.consumed_by == "first"
    assert await world.keys(task.run) == []


async def test_a_commit_that_sends_to_a_missing_run_is_rejected(world: World) -> None:
    task = await world.start_claimed("a")
    await world.start("b")
    sends = [NewEvent(FLOW, "b", "go"), NewEvent(FLOW, "?", "go")]

    answer = await world.commit(task, facts=[result("s")], sends=sends)

    assert (answer.verdict, answer.unreachable) == (Verdict.REJECTED, True)
    assert await world.facts(task.run) == []
    assert (await world.claim_one("w2")).mailbox_page.events == ()


async def test_a_commit_sends_to_a_run_that_it_starts(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.commit(task, starts=[NewRun(FLOW, "b")], sends=[NewEvent(FLOW, "b", "go")])

    assert answer.verdict is Verdict.APPLIED
    assert [event.type for event in (await world.claim_one("w2")).mailbox_page.events] == ["go"]


async def test_a_commit_starts_runs(world: World) -> None:
    task = await world.start_claimed("a")
    await world.start("old")

    answer = await world.commit(task, starts=[NewRun(FLOW, "child", b"1"), NewRun(FLOW, "old")])

    assert [(one.created, one.run.instance_id) for one in answer.started] == [(True, "child"), (False, "old")]
    assert sorted(await world.claimed_ids(owner="w2")) == ["child", "old"]


async def test_a_commit_sends_events(world: World) -> None:
    task = await world.start_claimed("a")
    await world.start_waiting("b", "go")

    answer = await world.commit(task, sends=[NewEvent(FLOW, "b", "go", b"1", sender="a")])

    assert [(one.accepted, one.woken) for one in answer.sent] == [(True, True)]
    [event] = (await world.claim_one("w2")).mailbox_page.events
    assert (event.type, event.payload, event.sender) == ("go", b"1", "a")


async def test_a_run_that_sends_to_itself_and_waits_is_due_at_once(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.commit(task, sends=[NewEvent(FLOW, "a", "go")], then=waiting("go"))

    assert answer.due_now
    assert len((await world.claim_one()).mailbox_page.events) == 1


async def test_a_batch_is_applied_in_order_when_one_commit_signals_the_next(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")

    _, second = await world.store.commit([turn(a, sends=[NewEvent(FLOW, "b", "go")]), turn(b, then=waiting("go"))])

    assert second.due_now


async def test_a_payload_of_a_mebibyte_is_stored(world: World) -> None:
    task = await world.start_claimed("a", params=b"p" * 2**20)
    big = b"x" * 2**20

    await world.commit(task, facts=[result("s", value=big)], logs=[log_line("l", data=big)])

    assert (await world.facts(task.run))[0].value == big
    assert (await world.find("a")).params == b"p" * 2**20


async def test_five_hundred_commits_at_once_are_all_applied(world: World) -> None:
    tasks = [await world.start_claimed(f"r{n}") for n in range(500)]

    answers = await asyncio.gather(
        *(world.commit(task, facts=[result("s", seq=n)], logs=[log_line(str(n))]) for n, task in enumerate(tasks))
    )

    assert {answer.verdict for answer in answers} == {Verdict.APPLIED}
    stored = [(await world.facts(task.run))[0].seq for task in tasks[::50]]
    assert stored == list(range(0, 500, 50))


async def test_an_empty_batch_of_commits_returns_nothing(world: World) -> None:
    assert await world.store.commit([]) == []


def _all(run: int) -> LogsQuery:
    return LogsQuery(run)
