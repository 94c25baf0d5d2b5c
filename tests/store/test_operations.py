"""Operations: effects on other runs, applied once with their commit, and a fact for each result."""

from __future__ import annotations

import json

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    FIRST_EPOCH,
    AffectedRuns,
    CancelRun,
    Delivery,
    Fact,
    FactState,
    Finish,
    NewEvent,
    NewRun,
    OnConflict,
    Operation,
    ParentClose,
    RecordedOperation,
    RelationsQuery,
    Reply,
    ReplyQuery,
    ReplyToEvent,
    RequestResult,
    Signal,
    Statement,
    TaskRef,
    TerminateRun,
    UnwatchRun,
    Verdict,
    Watch,
    WatchRun,
)
from store.world import FLOW, LEASE, World, affected, pid, recorded, result, turn, waiting

MONITOR = Watch.MONITOR

TO_OTHERS: dict[str, Operation] = {
    "send": NewEvent(FLOW, "b", "go"),
    "watch": WatchRun(FLOW, "b", MONITOR),
    "unwatch": UnwatchRun(FLOW, "b", MONITOR),
    "cancel": CancelRun(FLOW, "b", b"{}", None),
    "terminate": TerminateRun(FLOW, "b", None),
}


def _value(answer: RequestResult) -> bytes:
    return json.dumps(answer.value).encode()


async def test_an_operation_is_applied_and_its_fact_records_the_result(world: World) -> None:
    task = await world.start_claimed("a")
    await world.start_waiting("b", "go")
    fact = Fact(FactState.RESULT, "tell", 0, "send", at=5, started_at=3, seq=8, ok=False, value=b"?", name="Tell b")

    answer = await world.commit(
        task, operations=[RecordedOperation(NewEvent(FLOW, "b", "go", b"1", sender=pid("a")), fact)]
    )

    assert (answer.verdict, answer.operation_results) == (Verdict.APPLIED, [RequestResult.DONE])
    assert await world.facts(task.run) == [fact._replace(ok=True, value=b'"done"')]
    [event] = (await world.claim_one("w2")).mailbox_page.events
    assert (event.type, event.payload, event.sender) == ("go", b"1", pid("a"))


async def test_a_commit_without_operations_returns_no_results(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.commit(task, facts=[result("s")])

    assert (list(answer.operation_results), list(answer.claimed_children), affected(answer)) == ([], [], AffectedRuns())


async def test_operations_are_applied_in_order(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.operate(
        task,
        NewEvent(FLOW, "b", "early"),
        NewRun(FLOW, "b"),
        NewEvent(FLOW, "b", "go"),
        TerminateRun(FLOW, "b", None),
        NewEvent(FLOW, "b", "late"),
    )

    assert answer.operation_results == [
        RequestResult.MISSING,
        RequestResult.DONE,
        RequestResult.DONE,
        RequestResult.DONE,
        RequestResult.ENDED,
    ]
    run = await world.find("b")
    assert run.status is Status.TERMINATED
    assert [event.type for event in await world.undelivered(run.run)] == ["go"]


@pytest.mark.parametrize("verb", TO_OTHERS)
async def test_an_operation_on_a_missing_run_is_recorded_and_does_not_reject_the_commit(
    world: World, verb: str
) -> None:
    task = await world.start_claimed("a")

    answer = await world.operate(task, TO_OTHERS[verb], facts=[result("s")])

    assert (answer.verdict, answer.operation_results) == (Verdict.APPLIED, [RequestResult.MISSING])
    facts = {fact.key: fact for fact in await world.facts(task.run)}
    assert (facts["op0"].ok, facts["op0"].value) == (False, _value(RequestResult.MISSING))
    assert "s" in facts


@pytest.mark.parametrize("verb", ["send", "cancel", "terminate"])
async def test_an_operation_on_an_ended_run_is_recorded_and_does_not_reject_the_commit(world: World, verb: str) -> None:
    ended = await world.start_ended("b")
    task = await world.start_claimed("a")

    answer = await world.operate(task, TO_OTHERS[verb])

    assert (answer.verdict, answer.operation_results) == (Verdict.APPLIED, [RequestResult.ENDED])
    [fact] = await world.facts(task.run)
    assert (fact.ok, fact.value) == (False, _value(RequestResult.ENDED))
    assert await world.find("b") == ended
    assert await world.undelivered(ended.run) == []


async def test_start_operations_have_their_own_results(world: World) -> None:
    task = await world.start_claimed("a")
    await world.start("living")
    await world.start_ended("ended")

    answer = await world.operate(
        task,
        NewRun(FLOW, "new"),
        NewRun(FLOW, "living"),
        NewRun(FLOW, "living", on_conflict=OnConflict.FAIL),
        NewRun(FLOW, "ended"),
    )

    assert answer.operation_results == [
        RequestResult.DONE,
        RequestResult.EXISTING,
        RequestResult.EXISTS,
        RequestResult.EXISTING,
    ]
    facts = await world.facts(task.run)
    assert [(fact.ok, fact.value) for fact in facts] == [(one.ok, _value(one)) for one in answer.operation_results]
    assert [fact.ok for fact in facts] == [True, True, False, True]


@pytest.mark.promise("fencing")
async def test_a_stale_turn_applies_no_operations(world: World) -> None:
    task = await world.start_claimed("a")
    b = await world.start("b")
    stale = TaskRef(task.run, 0, "w1", task.epoch + 1)

    answer = await world.operate(stale, NewRun(FLOW, "c"), *TO_OTHERS.values())

    assert (answer.verdict, list(answer.operation_results)) == (Verdict.LOST, [])
    assert await world.find("b") == b
    assert await world.ids() == ["b", "a"]
    assert await world.facts(task.run) == []


async def test_a_rejected_commit_applies_no_operations(world: World) -> None:
    task = await world.start_claimed("a")
    b = await world.start("b")

    failed = await world.operate(
        task, *TO_OTHERS.values(), statements=[Statement("INSERT INTO nowhere VALUES (1)", ())]
    )
    unreachable = await world.operate(task, *TO_OTHERS.values(), sends=[NewEvent(FLOW, "nobody", "go")])

    assert (failed.verdict, unreachable.verdict) == (Verdict.REJECTED, Verdict.REJECTED)
    assert await world.find("b") == b
    assert await world.facts(task.run) == []


@pytest.mark.parametrize("in_flight", [0, 1])
async def test_operations_are_not_applied_when_a_pause_was_requested(world: World, in_flight: int) -> None:
    task = await world.start_claimed("a")
    b = await world.start("b")
    await world.pause("a")

    answer = await world.operate(task, TerminateRun(FLOW, "b", None), facts=[result("s")], in_flight=in_flight)

    assert answer.verdict is (Verdict.PAUSING if in_flight else Verdict.PAUSED)
    assert (list(answer.operation_results), affected(answer)) == ([], AffectedRuns())
    assert await world.find("b") == b
    assert await world.keys(task.run) == ["s"]


async def test_operations_are_applied_after_all_other_rows(world: World) -> None:
    """Runs that the commit starts, and events that it sends, exist when its operations are applied."""
    task = await world.start_claimed("a")

    answer = await world.operate(
        task,
        TerminateRun(FLOW, "b", "not wanted after all"),
        starts=[NewRun(FLOW, "b")],
        sends=[NewEvent(FLOW, "b", "go")],
        then_facts=[result("t")],
    )

    assert answer.operation_results == [RequestResult.DONE]
    assert (await world.find("b")).note == "not wanted after all"
    assert await world.keys(task.run) == ["op0", "t"]


async def test_operations_are_applied_before_the_end(world: World) -> None:
    task = await world.start_claimed("a")
    child = NewRun(FLOW, "b", parent=pid("a"), parent_run=task.run, parent_close=ParentClose.TERMINATE)

    answer = await world.operate(task, child, then=Finish(Status.COMPLETE, b"1"))

    assert (answer.verdict, answer.operation_results) == (Verdict.APPLIED, [RequestResult.DONE])
    assert (await world.find("a")).status is Status.COMPLETE
    assert (await world.find("b")).status is Status.TERMINATED
    assert affected(answer).ended == [(await world.find("b")).run]
    assert await world.keys(task.run) == ["op0"]


async def test_later_commits_of_a_batch_see_the_effects_of_operations(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    c = await world.start_claimed("c")

    first, second, third = await world.store.commit(
        [
            turn(
                a, operations=[recorded("x", NewEvent(FLOW, "b", "go")), recorded("y", TerminateRun(FLOW, "c", None))]
            ),
            turn(b, then=waiting("go")),
            turn(c, facts=[result("s")]),
        ]
    )

    assert first.operation_results == [RequestResult.DONE, RequestResult.DONE]
    assert (second.verdict, second.due_now) == (Verdict.APPLIED, True)
    assert third.verdict is Verdict.LOST


async def test_a_run_created_claimed_by_an_operation_is_returned(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.operate(
        task,
        NewRun(FLOW, "mine", b"1", owner="w1", lease_ms=LEASE),
        NewRun(FLOW, "anybodys"),
        NewRun(FLOW, "later", owner="w1", lease_ms=LEASE, delay_ms=5),
    )

    [child] = answer.claimed_children
    assert (child.created, child.epoch, child.run) == (True, FIRST_EPOCH, await world.find("mine"))
    assert (child.run.owner, child.run.params) == ("w1", b"1")
    assert await world.claimed_ids(owner="w2") == ["anybodys"]
    reply = await world.commit(TaskRef(child.run.run, 0, "w1", child.epoch), facts=[result("s")])
    assert reply.verdict is Verdict.APPLIED


async def test_an_existing_run_is_not_a_claimed_child(world: World) -> None:
    task = await world.start_claimed("a")
    await world.start_claimed("b")

    answer = await world.operate(task, NewRun(FLOW, "b", owner="w1", lease_ms=LEASE))

    assert (answer.operation_results, list(answer.claimed_children)) == ([RequestResult.EXISTING], [])


async def test_a_new_run_without_an_owner_is_reported_as_work(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.operate(task, NewRun(FLOW, "b"))

    assert (affected(answer).work, affected(answer).ended, affected(answer).woken) == (True, [], [])


async def test_the_result_names_the_woken_runs(world: World) -> None:
    task = await world.start_claimed("a")
    waits, held, sleeps = (
        await world.start_waiting("waits", "go"),
        await world.start_claimed("held"),
        await world.start_waiting("sleeps", "no"),
    )

    first = await world.operate(task, NewEvent(FLOW, "held", "go"))
    second = await world.operate(task, NewEvent(FLOW, "sleeps", "go"), at=1)
    third = await world.operate(task, NewEvent(FLOW, "waits", "go"), at=2)

    assert (affected(first).woken, affected(first).work) == ([held.run], False)
    assert affected(second) == AffectedRuns()
    assert (affected(third).woken, affected(third).work) == ([waits.run], True)
    assert len(await world.undelivered(sleeps.run)) == 1


async def test_the_result_names_the_ended_runs(world: World) -> None:
    task = await world.start_claimed("a")
    b = await world.start_claimed("b")
    c = await world.start_claimed("c", parent=pid("b"), parent_run=b.run)

    answer = await world.operate(task, TerminateRun(FLOW, "b", "enough"))

    assert sorted(affected(answer).ended) == sorted([b.run, c.run])
    assert ((await world.find("b")).note, (await world.find("c")).status) == ("enough", Status.TERMINATED)
    assert (await world.commit(b)).verdict is Verdict.LOST


async def test_a_run_that_sends_to_itself_gets_the_signal_with_the_same_commit(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.operate(task, NewEvent(FLOW, "a", "go"))

    assert answer.signal is Signal.EVENTS
    assert [event.type for event in await world.undelivered(task.run)] == ["go"]


async def test_a_run_that_ends_itself_applies_no_further_operations(world: World) -> None:
    task = await world.start_claimed("a")

    answer = await world.operate(
        task, TerminateRun(FLOW, "a", "myself"), NewRun(FLOW, "b"), then=Finish(Status.COMPLETE, b"1")
    )

    run = await world.find("a")
    assert (answer.verdict, answer.operation_results) == (Verdict.APPLIED, [RequestResult.DONE, RequestResult.ENDED])
    assert (run.status, run.note, run.output) == (Status.TERMINATED, "myself", None)
    assert affected(answer).ended == [task.run]
    assert await world.ids() == ["a"]
    assert (await world.commit(task)).verdict is Verdict.LOST


async def test_a_run_that_ends_its_parent_ends_with_it(world: World) -> None:
    parent = await world.start_claimed("p")
    child = await world.start_claimed("c", parent=pid("p"), parent_run=parent.run)

    answer = await world.operate(child, TerminateRun(FLOW, "p", None), then=Finish(Status.COMPLETE, b"1"))

    assert answer.verdict is Verdict.APPLIED
    assert [(await world.find(name)).status for name in ("p", "c")] == [Status.TERMINATED] * 2


async def test_operations_count_as_progress(world: World) -> None:
    await world.start("a")
    await world.claim("w1")
    world.clock.advance(LEASE)
    await world.store.reap(5)
    claim = await world.claim_one("w2")
    assert (await world.find("a")).losses == 1

    await world.operate(claim.task, NewRun(FLOW, "b"))

    assert (await world.find("a")).losses == 0


# --- asks and replies


async def _asking_pair(world: World) -> tuple[TaskRef, TaskRef]:
    """Two owned runs a and b; a has asked b."""
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await world.operate(a, NewEvent(FLOW, "b", "ask", b"1", dedup="k", sender=pid("a"), ask="q1"))
    return a, b


async def test_an_ask_is_stored_with_its_key_and_sender(world: World) -> None:
    _, b = await _asking_pair(world)
    await world.send("plain", "b")

    question, plain = await world.undelivered(b.run)

    assert (question.type, question.payload, question.sender, question.ask) == ("ask", b"1", pid("a"), "q1")
    assert plain.ask is None


@pytest.mark.parametrize(("ok", "value"), [(True, b'{"a":1}'), (False, b'"no"'), (True, None)])
async def test_a_reply_is_sent_to_the_asking_run(world: World, ok: bool, value: bytes | None) -> None:
    a, b = await _asking_pair(world)

    answer = await world.operate(b, ReplyToEvent(1, Reply(ok, value)))

    assert answer.operation_results == [RequestResult.DONE]
    assert affected(answer).woken == [a.run]
    [event] = await world.undelivered(a.run)
    assert (event.type, event.sender, event.ask) == ("@reply", pid("b"), None)
    assert json.loads(event.payload or b"") == {"ask": "q1", "ok": ok, "value": value and json.loads(value)}


async def test_a_reply_wakes_the_asking_run_whatever_it_waits_for(world: World) -> None:
    a, b = await _asking_pair(world)
    await world.commit(a, then=waiting("something else", run_at=world.now() + 10**6))

    answer = await world.operate(b, ReplyToEvent(1, Reply(True, b"1")))

    assert (affected(answer).woken, affected(answer).work) == ([a.run], True)
    assert (await world.claim_one("w2")).run.run == a.run


async def test_a_reply_is_stored_with_the_ask(world: World) -> None:
    _, b = await _asking_pair(world)
    assert await world.store.read(ReplyQuery(b.run, "k")) is None

    await world.operate(b, ReplyToEvent(1, Reply(False, b'"no"')))

    assert await world.store.read(ReplyQuery(b.run, "k")) == Reply(False, b'"no"')
    assert await world.store.read(ReplyQuery(b.run, "other")) is None
    assert len(await world.undelivered(b.run)) == 1


async def test_a_reply_without_a_value_is_a_reply(world: World) -> None:
    _, b = await _asking_pair(world)

    await world.operate(b, ReplyToEvent(1, Reply(True, None)))

    assert await world.store.read(ReplyQuery(b.run, "k")) == Reply(True, None)


async def test_a_reply_can_be_read_after_the_replying_run_has_ended(world: World) -> None:
    _, b = await _asking_pair(world)

    await world.operate(b, ReplyToEvent(1, Reply(True, b"7")), then=Finish(Status.COMPLETE))

    assert await world.store.read(ReplyQuery(b.run, "k")) == Reply(True, b"7")


async def test_an_ended_asking_run_receives_no_reply(world: World) -> None:
    a, b = await _asking_pair(world)
    await world.finish(a)

    answer = await world.operate(b, ReplyToEvent(1, Reply(True, b"7")))

    assert answer.operation_results == [RequestResult.DONE]
    assert await world.undelivered(a.run) == []


@pytest.mark.parametrize("sender", [None, "somebody", "flow/nobody"])
async def test_a_reply_to_a_client_is_stored_with_the_ask_only(world: World, sender: str | None) -> None:
    b = await world.start_claimed("b")
    await world.send("ask", "b", dedup="k", ask="k", sender=sender)

    answer = await world.operate(b, ReplyToEvent(1, Reply(True, b"7")))

    assert answer.operation_results == [RequestResult.DONE]
    assert await world.store.read(ReplyQuery(b.run, "k")) == Reply(True, b"7")


async def test_a_reply_to_an_event_without_ask_is_stored_and_not_sent(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await world.send("ask", "b", dedup="k", sender=pid("a"))

    answer = await world.operate(b, ReplyToEvent(1, Reply(True, b"7")))

    assert answer.operation_results == [RequestResult.DONE]
    assert await world.store.read(ReplyQuery(b.run, "k")) == Reply(True, b"7")
    assert await world.undelivered(a.run) == []


async def test_a_reply_to_a_missing_event_returns_missing(world: World) -> None:
    b = await world.start_claimed("b")

    answer = await world.operate(b, ReplyToEvent(1, Reply(True, b"7")))

    assert answer.operation_results == [RequestResult.MISSING]


async def test_an_ask_can_be_consumed_and_replied_to_in_one_commit(world: World) -> None:
    _, b = await _asking_pair(world)

    answer = await world.operate(b, ReplyToEvent(1, Reply(True, b"7")), deliveries=[Delivery(1, "wait", 5)])

    assert answer.operation_results == [RequestResult.DONE]
    assert await world.undelivered(b.run) == []
    assert await world.store.read(ReplyQuery(b.run, "k")) == Reply(True, b"7")


async def test_an_ended_run_does_not_watch_a_child_that_a_worker_starts_too_late(world: World) -> None:
    parent = await world.start_claimed("p")
    await world.finish(parent, Status.TERMINATED)

    child = await world.start_claimed("c", parent=pid("p"), parent_run=parent.run, watch=Watch.MONITOR)

    assert (await world.store.read(RelationsQuery(child.run))).watched_by == []
    await world.finish(child, Status.COMPLETE)
