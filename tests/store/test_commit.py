"""A commit: all that one turn writes, in one transaction or not at all."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.errors import StateError
from holdfast.store.protocol import (
    Delivery,
    Fact,
    FactState,
    Finish,
    NewEvent,
    NewRun,
    PageQuery,
    Park,
    Release,
    Signal,
    Verdict,
)
from store.world import FLOW, LEASE, World, failure, line, result, turn, waiting


async def test_facts_come_back_as_they_were_written(world: World) -> None:
    task = await world.begin("a")
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

    assert await world.store.facts(task.run) == [full, bare]
    assert [type(fact.ok) for fact in await world.store.facts(task.run)] == [bool, bool]


async def test_what_was_observed_and_what_follows_are_both_written(world: World) -> None:
    task = await world.begin("a")

    answer = await world.commit(task, facts=[result("s")], then_facts=[result("t")])

    assert (answer.verdict, answer.signal, answer.due_now) == (Verdict.APPLIED, Signal.NONE, False)
    assert await world.keys(task.run) == ["s", "t"]


async def test_attempts_of_one_step_are_facts_of_their_own(world: World) -> None:
    task = await world.begin("a")

    await world.commit(task, facts=[failure("s", 1)])
    await world.commit(task, facts=[failure("s", 2)])
    await world.commit(task, facts=[result("s")])

    facts = await world.store.facts(task.run)
    assert [(fact.state, fact.n) for fact in facts] == [(0, 0), (2, 1), (2, 2)]


async def test_a_result_is_written_once_and_never_changed(world: World) -> None:
    task = await world.begin("a")
    await world.commit(task, facts=[result("s", value=b"1")])

    with pytest.raises(StateError):
        await world.commit(task, facts=[result("s", value=b"2"), result("t")])

    assert [(fact.key, fact.value) for fact in await world.store.facts(task.run)] == [("s", b"1")]


async def test_a_commit_that_breaks_the_rules_fails_alone(world: World) -> None:
    tasks = [await world.begin(f"r{n}") for n in range(20)]
    await world.commit(tasks[7], facts=[result("s", value=b"first")])

    answers = await asyncio.gather(
        *(world.commit(task, facts=[result("s", value=b"second")]) for task in tasks), return_exceptions=True
    )

    assert isinstance(answers[7], StateError)
    assert all(answer.verdict is Verdict.APPLIED for n, answer in enumerate(answers) if n != 7)  # type: ignore[union-attr]
    values = [(await world.store.facts(task.run))[0].value for task in tasks]
    assert values == [b"second"] * 7 + [b"first"] + [b"second"] * 12


async def test_a_finished_run_has_its_outcome_and_no_task(world: World) -> None:
    task = await world.begin("a")
    world.clock.advance(50)

    await world.commit(task, then=Finish(Status.COMPLETE, output=b'"done"'))

    run, now = await world.find("a"), await world.now()
    assert (run.status, run.output, run.error) == (Status.COMPLETE, b'"done"', None)
    assert (run.completed_at, run.updated_at) == (now, now)
    assert (run.owner, run.run_at) == (None, None)
    assert await world.store.heartbeat("w1", LEASE) == []


async def test_a_failed_run_has_its_error(world: World) -> None:
    task = await world.begin("a")

    await world.commit(task, then=Finish(Status.ERRORED, error=b'{"name":"Oops"}'))

    run = await world.find("a")
    assert (run.status, run.output, run.error) == (Status.ERRORED, None, b'{"name":"Oops"}')


async def test_started_at_is_set_once(world: World) -> None:
    task = await world.begin("a")

    await world.commit(task, started_at=111)
    await world.commit(task, started_at=222)

    assert (await world.find("a")).started_at == 111


async def test_a_released_run_waits_for_its_time(world: World) -> None:
    task = await world.begin("a")
    world.clock.advance(10)
    due = await world.now() + 500

    answer = await world.commit(task, then=Release(due, TaskKind.RETRY))

    run = await world.find("a")
    assert (answer.verdict, answer.due_now) == (Verdict.APPLIED, False)
    assert (run.status, run.run_at, run.owner, run.updated_at) == (Status.WAITING, due, None, due - 500)
    assert await world.claimed_ids() == []
    world.clock.advance(500)
    assert (await world.take()).kind is TaskKind.RETRY


async def test_a_turn_that_stops_early_stays_active(world: World) -> None:
    task = await world.begin("a")

    await world.commit(task, then=Release(await world.now(), TaskKind.WAKE, status=Status.ACTIVE))

    assert (await world.find("a")).status is Status.ACTIVE
    assert await world.claimed_ids() == ["a"]


async def test_a_parked_run_is_paused_and_says_why(world: World) -> None:
    task = await world.begin("a")

    await world.commit(task, facts=[result("s")], then=Park("the history does not fit the code"))

    run = await world.find("a")
    assert (run.status, run.note) == (Status.PAUSED, "the history does not fit the code")
    assert (run.owner, run.run_at) == (None, None)
    assert await world.claimed_ids() == []
    assert await world.keys(task.run) == ["s"]


async def test_the_note_of_a_parked_run_goes_with_its_resume(world: World) -> None:
    task = await world.begin("a")
    await world.commit(task, then=Park("stuck"))

    await world.store.resume(FLOW, "a")

    assert (await world.find("a")).note is None


async def test_logs_are_numbered_in_each_run_and_kept_in_order(world: World) -> None:
    a, b = await world.begin("a"), await world.begin("b")

    await world.store.commit([turn(a, logs=[line("1"), line("2")]), turn(b, logs=[line("x")])])
    await world.commit(a, logs=[line("3")], then_logs=[line("4")])

    from_a = await world.store.logs(_all(a.run))
    from_b = await world.store.logs(_all(b.run))
    assert [(log.n, log.line.message) for log in from_a] == [(1, "1"), (2, "2"), (3, "3"), (4, "4")]
    assert [(log.n, log.line.message) for log in from_b] == [(1, "x")]


async def test_a_delivered_event_is_consumed_by_its_step(world: World) -> None:
    task = await world.begin("a")
    await world.send("go", payload=b"1")
    await world.send("go", payload=b"2")

    await world.commit(task, deliveries=[Delivery(1, "wait", 77)])

    assert [mail.n for mail in await world.unread(task.run)] == [2]
    consumed, _ = await world.store.events(PageQuery(task.run))
    assert (consumed.n, consumed.delivered_at, consumed.consumed_by) == (1, 77, "wait")


@pytest.mark.parametrize("event", [1, 2], ids=["consumed before", "not there"])
async def test_an_event_is_consumed_once(world: World, event: int) -> None:
    task = await world.begin("a")
    await world.send("go")
    await world.commit(task, deliveries=[Delivery(1, "first", 1)])

    with pytest.raises(StateError):
        await world.commit(task, facts=[result("s")], deliveries=[Delivery(event, "second", 2)])

    [mail] = await world.store.events(PageQuery(task.run))
    assert mail.consumed_by == "first"
    assert await world.keys(task.run) == []


async def test_a_commit_that_sends_to_nobody_is_rejected_whole(world: World) -> None:
    task = await world.begin("a")
    await world.start("b")
    sends = [NewEvent(FLOW, "b", "go"), NewEvent(FLOW, "?", "go")]

    answer = await world.commit(task, facts=[result("s")], sends=sends)

    assert (answer.verdict, answer.unreachable) == (Verdict.REJECTED, True)
    assert await world.store.facts(task.run) == []
    assert (await world.take("w2")).mailbag.mail == ()


async def test_a_commit_sends_to_a_run_that_it_starts(world: World) -> None:
    task = await world.begin("a")

    answer = await world.commit(task, starts=[NewRun(FLOW, "b")], sends=[NewEvent(FLOW, "b", "go")])

    assert answer.verdict is Verdict.APPLIED
    assert [mail.type for mail in (await world.take("w2")).mailbag.mail] == ["go"]


async def test_a_commit_starts_runs(world: World) -> None:
    task = await world.begin("a")
    await world.start("old")

    answer = await world.commit(task, starts=[NewRun(FLOW, "child", b"1"), NewRun(FLOW, "old")])

    assert [(one.created, one.run.instance_id) for one in answer.started] == [(True, "child"), (False, "old")]
    assert sorted(await world.claimed_ids(owner="w2")) == ["child", "old"]


async def test_a_commit_sends_events(world: World) -> None:
    task = await world.begin("a")
    await world.wait("b", "go")

    answer = await world.commit(task, sends=[NewEvent(FLOW, "b", "go", b"1", sender="a")])

    assert [(one.accepted, one.woken) for one in answer.sent] == [(True, True)]
    [mail] = (await world.take("w2")).mailbag.mail
    assert (mail.type, mail.payload, mail.sender) == ("go", b"1", "a")


async def test_a_run_that_sends_to_itself_and_waits_is_due_at_once(world: World) -> None:
    task = await world.begin("a")

    answer = await world.commit(task, sends=[NewEvent(FLOW, "a", "go")], then=waiting("go"))

    assert answer.due_now
    assert len((await world.take()).mailbag.mail) == 1


async def test_a_batch_is_applied_in_order_when_one_commit_signals_the_next(world: World) -> None:
    a, b = await world.begin("a"), await world.begin("b")

    _, second = await world.store.commit([turn(a, sends=[NewEvent(FLOW, "b", "go")]), turn(b, then=waiting("go"))])

    assert second.due_now


async def test_a_payload_of_a_mebibyte_is_stored(world: World) -> None:
    task = await world.begin("a", params=b"p" * 2**20)
    big = b"x" * 2**20

    await world.commit(task, facts=[result("s", value=big)], logs=[line("l", data=big)])

    assert (await world.store.facts(task.run))[0].value == big
    assert (await world.find("a")).params == b"p" * 2**20


async def test_five_hundred_commits_at_once_are_all_applied(world: World) -> None:
    tasks = [await world.begin(f"r{n}") for n in range(500)]

    answers = await asyncio.gather(
        *(world.commit(task, facts=[result("s", seq=n)], logs=[line(str(n))]) for n, task in enumerate(tasks))
    )

    assert {answer.verdict for answer in answers} == {Verdict.APPLIED}
    stored = [(await world.store.facts(task.run))[0].seq for task in tasks[::50]]
    assert stored == list(range(0, 500, 50))


async def test_an_empty_batch_of_commits_is_nothing(world: World) -> None:
    assert await world.store.commit([]) == []


def _all(run: int) -> PageQuery:
    return PageQuery(run)
