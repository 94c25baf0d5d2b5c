"""Acts: what a run does to others, done once with the commit that carries it, and a fact for each answer."""

from __future__ import annotations

import json

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    FIRST_EPOCH,
    Act,
    Answer,
    AnswerEvent,
    CancelRun,
    Deed,
    Delivery,
    Fact,
    FactState,
    Finish,
    NewEvent,
    NewRun,
    OnConflict,
    ParentClose,
    Reply,
    Signal,
    Statement,
    TaskRef,
    TerminateRun,
    Touched,
    UnwatchRun,
    Verdict,
    Watch,
    WatchRun,
)
from store.world import FLOW, LEASE, World, act, pid, result, touched, turn, waiting

MONITOR = Watch.MONITOR

TO_OTHERS: dict[str, Deed] = {
    "send": NewEvent(FLOW, "b", "go"),
    "watch": WatchRun(FLOW, "b", MONITOR),
    "unwatch": UnwatchRun(FLOW, "b", MONITOR),
    "cancel": CancelRun(FLOW, "b", b"{}", None),
    "terminate": TerminateRun(FLOW, "b", None),
}


def _value(answer: Answer) -> bytes:
    return json.dumps(answer.value).encode()


async def test_an_act_is_done_and_its_fact_says_so(world: World) -> None:
    task = await world.begin("a")
    await world.wait("b", "go")
    fact = Fact(FactState.RESULT, "tell", 0, "send", at=5, started_at=3, seq=8, ok=False, value=b"?", name="Tell b")

    answer = await world.commit(task, acts=[Act(NewEvent(FLOW, "b", "go", b"1", sender=pid("a")), fact)])

    assert (answer.verdict, answer.acted) == (Verdict.APPLIED, [Answer.DONE])
    assert await world.store.facts(task.run) == [fact._replace(ok=True, value=b'"done"')]
    [mail] = (await world.take("w2")).mailbag.mail
    assert (mail.type, mail.payload, mail.sender) == ("go", b"1", pid("a"))


async def test_a_commit_without_acts_answers_none(world: World) -> None:
    task = await world.begin("a")

    answer = await world.commit(task, facts=[result("s")])

    assert (list(answer.acted), list(answer.births), touched(answer)) == ([], [], Touched())


async def test_acts_are_done_in_their_order(world: World) -> None:
    task = await world.begin("a")

    answer = await world.act(
        task,
        NewEvent(FLOW, "b", "early"),
        NewRun(FLOW, "b"),
        NewEvent(FLOW, "b", "go"),
        TerminateRun(FLOW, "b", None),
        NewEvent(FLOW, "b", "late"),
    )

    assert answer.acted == [Answer.MISSING, Answer.DONE, Answer.DONE, Answer.DONE, Answer.ENDED]
    run = await world.find("b")
    assert run.status is Status.TERMINATED
    assert [mail.type for mail in await world.unread(run.run)] == ["go"]


@pytest.mark.parametrize("verb", TO_OTHERS)
async def test_an_act_on_nobody_is_a_fact_and_no_refusal(world: World, verb: str) -> None:
    task = await world.begin("a")

    answer = await world.act(task, TO_OTHERS[verb], facts=[result("s")])

    assert (answer.verdict, answer.acted) == (Verdict.APPLIED, [Answer.MISSING])
    facts = {fact.key: fact for fact in await world.store.facts(task.run)}
    assert (facts["act0"].ok, facts["act0"].value) == (False, _value(Answer.MISSING))
    assert "s" in facts


@pytest.mark.parametrize("verb", ["send", "cancel", "terminate"])
async def test_an_act_on_a_run_that_has_ended_is_a_fact_and_no_refusal(world: World, verb: str) -> None:
    ended = await world.end("b")
    task = await world.begin("a")

    answer = await world.act(task, TO_OTHERS[verb])

    assert (answer.verdict, answer.acted) == (Verdict.APPLIED, [Answer.ENDED])
    [fact] = await world.store.facts(task.run)
    assert (fact.ok, fact.value) == (False, _value(Answer.ENDED))
    assert await world.find("b") == ended
    assert await world.unread(ended.run) == []


async def test_starts_have_answers_of_their_own(world: World) -> None:
    task = await world.begin("a")
    await world.start("living")
    await world.end("ended")

    answer = await world.act(
        task,
        NewRun(FLOW, "new"),
        NewRun(FLOW, "living"),
        NewRun(FLOW, "living", on_conflict=OnConflict.FAIL),
        NewRun(FLOW, "ended"),
    )

    assert answer.acted == [Answer.DONE, Answer.EXISTING, Answer.EXISTS, Answer.EXISTING]
    facts = await world.store.facts(task.run)
    assert [(fact.ok, fact.value) for fact in facts] == [(one.ok, _value(one)) for one in answer.acted]
    assert [fact.ok for fact in facts] == [True, True, False, True]


async def test_a_turn_that_lost_its_task_does_nothing_to_others(world: World) -> None:
    task = await world.begin("a")
    b = await world.start("b")
    stale = TaskRef(task.run, 0, "w1", task.epoch + 1)

    answer = await world.act(stale, NewRun(FLOW, "c"), *TO_OTHERS.values())

    assert (answer.verdict, list(answer.acted)) == (Verdict.LOST, [])
    assert await world.find("b") == b
    assert await world.ids() == ["b", "a"]
    assert await world.store.facts(task.run) == []


async def test_a_rejected_commit_does_nothing_to_others(world: World) -> None:
    task = await world.begin("a")
    b = await world.start("b")

    failed = await world.act(task, *TO_OTHERS.values(), statements=[Statement("INSERT INTO nowhere VALUES (1)", ())])
    unreachable = await world.act(task, *TO_OTHERS.values(), sends=[NewEvent(FLOW, "nobody", "go")])

    assert (failed.verdict, unreachable.verdict) == (Verdict.REJECTED, Verdict.REJECTED)
    assert await world.find("b") == b
    assert await world.store.facts(task.run) == []


@pytest.mark.parametrize("in_flight", [0, 1])
async def test_acts_are_left_out_when_a_pause_was_asked_for(world: World, in_flight: int) -> None:
    task = await world.begin("a")
    b = await world.start("b")
    await world.store.pause(FLOW, "a")

    answer = await world.act(task, TerminateRun(FLOW, "b", None), facts=[result("s")], in_flight=in_flight)

    assert answer.verdict is (Verdict.PAUSING if in_flight else Verdict.PAUSED)
    assert (list(answer.acted), touched(answer)) == ([], Touched())
    assert await world.find("b") == b
    assert await world.keys(task.run) == ["s"]


async def test_acts_come_after_all_else(world: World) -> None:
    """What the commit itself starts and sends is there for its acts."""
    task = await world.begin("a")

    answer = await world.act(
        task,
        TerminateRun(FLOW, "b", "not wanted after all"),
        starts=[NewRun(FLOW, "b")],
        sends=[NewEvent(FLOW, "b", "go")],
        then_facts=[result("t")],
    )

    assert answer.acted == [Answer.DONE]
    assert (await world.find("b")).note == "not wanted after all"
    assert await world.keys(task.run) == ["act0", "t"]


async def test_acts_come_before_the_end(world: World) -> None:
    task = await world.begin("a")
    child = NewRun(FLOW, "b", parent=pid("a"), parent_run=task.run, parent_close=ParentClose.TERMINATE)

    answer = await world.act(task, child, then=Finish(Status.COMPLETE, b"1"))

    assert (answer.verdict, answer.acted) == (Verdict.APPLIED, [Answer.DONE])
    assert (await world.find("a")).status is Status.COMPLETE
    assert (await world.find("b")).status is Status.TERMINATED
    assert touched(answer).ended == [(await world.find("b")).run]
    assert await world.keys(task.run) == ["act0"]


async def test_the_neighbours_in_a_batch_see_what_was_done(world: World) -> None:
    a, b = await world.begin("a"), await world.begin("b")
    c = await world.begin("c")

    first, second, third = await world.store.commit(
        [
            turn(a, acts=[act("x", NewEvent(FLOW, "b", "go")), act("y", TerminateRun(FLOW, "c", None))]),
            turn(b, then=waiting("go")),
            turn(c, facts=[result("s")]),
        ]
    )

    assert first.acted == [Answer.DONE, Answer.DONE]
    assert (second.verdict, second.due_now) == (Verdict.APPLIED, True)
    assert third.verdict is Verdict.LOST


async def test_a_run_that_is_born_claimed_by_an_act_is_handed_over(world: World) -> None:
    task = await world.begin("a")

    answer = await world.act(
        task,
        NewRun(FLOW, "mine", b"1", owner="w1", lease_ms=LEASE),
        NewRun(FLOW, "anybodys"),
        NewRun(FLOW, "later", owner="w1", lease_ms=LEASE, delay_ms=5),
    )

    [born] = answer.births
    assert (born.created, born.epoch, born.run) == (True, FIRST_EPOCH, await world.find("mine"))
    assert (born.run.owner, born.run.params) == ("w1", b"1")
    assert await world.claimed_ids(owner="w2") == ["anybodys"]
    reply = await world.commit(TaskRef(born.run.run, 0, "w1", born.epoch), facts=[result("s")])
    assert reply.verdict is Verdict.APPLIED


async def test_a_run_that_existed_is_no_birth(world: World) -> None:
    task = await world.begin("a")
    await world.begin("b")

    answer = await world.act(task, NewRun(FLOW, "b", owner="w1", lease_ms=LEASE))

    assert (answer.acted, list(answer.births)) == ([Answer.EXISTING], [])


async def test_a_new_run_that_nobody_holds_is_work(world: World) -> None:
    task = await world.begin("a")

    answer = await world.act(task, NewRun(FLOW, "b"))

    assert (touched(answer).work, touched(answer).ended, touched(answer).woken) == (True, [], [])


async def test_the_answer_names_who_was_woken(world: World) -> None:
    task = await world.begin("a")
    waits, held, sleeps = await world.wait("waits", "go"), await world.begin("held"), await world.wait("sleeps", "no")

    first = await world.act(task, NewEvent(FLOW, "held", "go"))
    second = await world.act(task, NewEvent(FLOW, "sleeps", "go"), at=1)
    third = await world.act(task, NewEvent(FLOW, "waits", "go"), at=2)

    assert (touched(first).woken, touched(first).work) == ([held.run], False)
    assert touched(second) == Touched()
    assert (touched(third).woken, touched(third).work) == ([waits.run], True)
    assert len(await world.unread(sleeps.run)) == 1


async def test_the_answer_names_who_was_ended(world: World) -> None:
    task = await world.begin("a")
    b = await world.begin("b")
    c = await world.begin("c", parent=pid("b"), parent_run=b.run)

    answer = await world.act(task, TerminateRun(FLOW, "b", "enough"))

    assert sorted(touched(answer).ended) == sorted([b.run, c.run])
    assert ((await world.find("b")).note, (await world.find("c")).status) == ("enough", Status.TERMINATED)
    assert (await world.commit(b)).verdict is Verdict.LOST


async def test_a_run_that_sends_to_itself_is_told_with_the_same_commit(world: World) -> None:
    task = await world.begin("a")

    answer = await world.act(task, NewEvent(FLOW, "a", "go"))

    assert answer.signal is Signal.MAIL
    assert [mail.type for mail in await world.unread(task.run)] == ["go"]


async def test_a_run_that_ends_itself_does_no_more(world: World) -> None:
    task = await world.begin("a")

    answer = await world.act(
        task, TerminateRun(FLOW, "a", "myself"), NewRun(FLOW, "b"), then=Finish(Status.COMPLETE, b"1")
    )

    run = await world.find("a")
    assert (answer.verdict, answer.acted) == (Verdict.APPLIED, [Answer.DONE, Answer.ENDED])
    assert (run.status, run.note, run.output) == (Status.TERMINATED, "myself", None)
    assert touched(answer).ended == [task.run]
    assert await world.ids() == ["a"]
    assert (await world.commit(task)).verdict is Verdict.LOST


async def test_a_run_that_ends_its_parent_ends_with_it(world: World) -> None:
    parent = await world.begin("p")
    child = await world.begin("c", parent=pid("p"), parent_run=parent.run)

    answer = await world.act(child, TerminateRun(FLOW, "p", None), then=Finish(Status.COMPLETE, b"1"))

    assert answer.verdict is Verdict.APPLIED
    assert [(await world.find(name)).status for name in ("p", "c")] == [Status.TERMINATED] * 2


async def test_acts_are_progress(world: World) -> None:
    await world.start("a")
    await world.claim("w1")
    world.clock.advance(LEASE)
    await world.store.reap(5)
    claim = await world.take("w2")
    assert (await world.find("a")).losses == 1

    await world.act(claim.task, NewRun(FLOW, "b"))

    assert (await world.find("a")).losses == 0


# --- questions and answers


async def _asked(world: World) -> tuple[TaskRef, TaskRef]:
    """b was asked something by a."""
    a, b = await world.begin("a"), await world.begin("b")
    await world.act(a, NewEvent(FLOW, "b", "ask", b"1", dedup="k", sender=pid("a"), ask="q1"))
    return a, b


async def test_a_question_comes_with_the_key_of_who_asks(world: World) -> None:
    _, b = await _asked(world)
    await world.send("plain", "b")

    question, plain = await world.unread(b.run)

    assert (question.type, question.payload, question.sender, question.ask) == ("ask", b"1", pid("a"), "q1")
    assert plain.ask is None


@pytest.mark.parametrize(("ok", "value"), [(True, b'{"a":1}'), (False, b'"no"'), (True, None)])
async def test_an_answer_is_sent_to_the_run_that_asked(world: World, ok: bool, value: bytes | None) -> None:
    a, b = await _asked(world)

    answer = await world.act(b, AnswerEvent(1, Reply(ok, value)))

    assert answer.acted == [Answer.DONE]
    assert touched(answer).woken == [a.run]
    [mail] = await world.unread(a.run)
    assert (mail.type, mail.sender, mail.ask) == ("@reply", pid("b"), None)
    assert json.loads(mail.payload or b"") == {"ask": "q1", "ok": ok, "value": value and json.loads(value)}


async def test_an_answer_wakes_who_asked_whatever_it_waits_for(world: World) -> None:
    a, b = await _asked(world)
    await world.commit(a, then=waiting("something else", run_at=await world.now() + 10**6))

    answer = await world.act(b, AnswerEvent(1, Reply(True, b"1")))

    assert (touched(answer).woken, touched(answer).work) == ([a.run], True)
    assert (await world.take("w2")).run.run == a.run


async def test_an_answer_is_kept_with_the_question(world: World) -> None:
    _, b = await _asked(world)
    assert await world.store.reply(b.run, "k") is None

    await world.act(b, AnswerEvent(1, Reply(False, b'"no"')))

    assert await world.store.reply(b.run, "k") == Reply(False, b'"no"')
    assert await world.store.reply(b.run, "other") is None
    assert len(await world.unread(b.run)) == 1


async def test_an_answer_of_nothing_is_an_answer(world: World) -> None:
    _, b = await _asked(world)

    await world.act(b, AnswerEvent(1, Reply(True, None)))

    assert await world.store.reply(b.run, "k") == Reply(True, None)


async def test_an_answer_outlives_the_one_who_gave_it(world: World) -> None:
    _, b = await _asked(world)

    await world.act(b, AnswerEvent(1, Reply(True, b"7")), then=Finish(Status.COMPLETE))

    assert await world.store.reply(b.run, "k") == Reply(True, b"7")


async def test_who_asked_and_ended_is_not_told(world: World) -> None:
    a, b = await _asked(world)
    await world.finish(a)

    answer = await world.act(b, AnswerEvent(1, Reply(True, b"7")))

    assert answer.acted == [Answer.DONE]
    assert await world.unread(a.run) == []


@pytest.mark.parametrize("sender", [None, "somebody", "flow/nobody"])
async def test_a_question_from_outside_is_answered_where_it_is(world: World, sender: str | None) -> None:
    b = await world.begin("b")
    await world.send("ask", "b", dedup="k", ask="k", sender=sender)

    answer = await world.act(b, AnswerEvent(1, Reply(True, b"7")))

    assert answer.acted == [Answer.DONE]
    assert await world.store.reply(b.run, "k") == Reply(True, b"7")


async def test_an_event_that_asks_nothing_can_be_answered_and_nobody_is_told(world: World) -> None:
    a, b = await world.begin("a"), await world.begin("b")
    await world.send("ask", "b", dedup="k", sender=pid("a"))

    answer = await world.act(b, AnswerEvent(1, Reply(True, b"7")))

    assert answer.acted == [Answer.DONE]
    assert await world.store.reply(b.run, "k") == Reply(True, b"7")
    assert await world.unread(a.run) == []


async def test_an_event_that_never_was_cannot_be_answered(world: World) -> None:
    b = await world.begin("b")

    answer = await world.act(b, AnswerEvent(1, Reply(True, b"7")))

    assert answer.acted == [Answer.MISSING]


async def test_a_question_can_be_consumed_and_answered_at_once(world: World) -> None:
    _, b = await _asked(world)

    answer = await world.act(b, AnswerEvent(1, Reply(True, b"7")), deliveries=[Delivery(1, "wait", 5)])

    assert answer.acted == [Answer.DONE]
    assert await world.unread(b.run) == []
    assert await world.store.reply(b.run, "k") == Reply(True, b"7")
