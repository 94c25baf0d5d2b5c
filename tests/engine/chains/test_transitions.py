"""Every state of a step, and everything that can happen to it: the table of the linear-chain specification."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from holdfast import Completed, Dead, Outbound, RetryStep, Waiting
from holdfast.core.failure import Failure
from holdfast.core.model import Status
from holdfast.kernel.driver import Outcome
from holdfast.store.protocol import CANCEL, EXIT, Finish

from .rig import Rig, program

TIMEOUT = 60_000
HOUR = 3_600_000
ATTEMPTS = 3

# --- a chain A, B, C, with B in each of the states


def at_b(failures: int = 0) -> Rig:
    """B is running; it failed so often before."""
    rig = Rig(program("A", "B", "C", max_attempts=ATTEMPTS, timeout_ms=TIMEOUT))
    rig.go()
    rig.answer(Completed(1))
    for _ in range(failures):
        rig.answer(RetryStep("1 second", "again"))
        rig.wait_ms(1000)
    return rig


def pending() -> Rig:
    rig = Rig(program("A", "B", "C", max_attempts=ATTEMPTS, timeout_ms=TIMEOUT))
    rig.go()
    return rig


def ready() -> Rig:
    rig = at_b()
    rig.answer(RetryStep("10 seconds", "busy"))
    return rig


def waiting() -> Rig:
    rig = at_b()
    rig.answer(Waiting("go", "1 hour"))
    return rig


def done() -> Rig:
    rig = at_b()
    rig.answer(Completed(2))
    return rig


def dead() -> Rig:
    rig = at_b()
    rig.answer(Dead("no"))
    return rig


STATES: dict[str, Callable[[], Rig]] = {
    "PENDING": pending,
    "READY": ready,
    "RUNNING": at_b,
    "RUNNING, last attempt": lambda: at_b(ATTEMPTS - 1),
    "WAITING": waiting,
    "DONE": done,
    "DEAD": dead,
}

# --- what can happen


def answers(value: Any) -> Callable[[Rig], None]:
    """The attempt of B that is, or would be, under way says something; also where it is too late for that."""

    def happen(rig: Rig) -> None:
        call = rig.call
        if call is None or call.key != "B":
            rig.go(Outcome("B", rig.steps()[1].attempts + 1, rig.now, rig.now, failure=Failure("Late", "too late")))
            return
        rig.answer(value)

    return happen


def takes_too_long(rig: Rig) -> None:
    if rig.call is not None and rig.call.key == "B":
        rig.time_out()


def worker_is_lost(rig: Rig) -> None:
    rig.go(lost=True)


def event_comes(rig: Rig) -> None:
    rig.send("go", b"7")
    rig.go()


def other_event_comes(rig: Rig) -> None:
    rig.send("stop")
    rig.go()


def hour_passes(rig: Rig) -> None:
    rig.wait_ms(HOUR)


def pause(rig: Rig) -> None:
    rig.machine.hold()
    rig.send("go")
    rig.wait_ms(HOUR)


class To(NamedTuple):
    """Where B is afterwards, and how often it has failed then."""

    state: str
    attempts: int = 0
    end: Status | None = None
    error: str | None = None


HAPPENINGS: dict[str, Callable[[Rig], None]] = {
    "Completed": answers(Completed({"ok": True})),
    "a plain value": answers({"ok": True}),
    "Waiting": answers(Waiting("go", "1 hour")),
    "RetryStep": answers(RetryStep("30 seconds", "busy")),
    "Dead": answers(Dead("card stolen")),
    "an exception": answers(ValueError("broken")),
    "timeout": takes_too_long,
    "worker lost": worker_is_lost,
    "its event": event_comes,
    "another event": other_event_comes,
    "time": hour_passes,
    "pause": pause,
}

FAILED = Status.ERRORED
RUNNING = {
    "Completed": To("DONE"),
    "a plain value": To("DONE"),
    "Waiting": To("WAITING"),
    "RetryStep": To("READY", 1, error="busy"),
    "Dead": To("DEAD", 1, FAILED, "card stolen"),
    "an exception": To("READY", 1, error="broken"),
    "timeout": To("READY", 1, error="too long"),
    "worker lost": To("RUNNING", 1, error="LEASE_EXPIRED"),  # ready at once, and claimed again
}
LAST = {
    "Completed": To("DONE", 2),
    "a plain value": To("DONE", 2),
    "Waiting": To("WAITING", 2, error="again"),
    "RetryStep": To("DEAD", 3, FAILED, "busy"),
    "Dead": To("DEAD", 3, FAILED, "card stolen"),
    "an exception": To("DEAD", 3, FAILED, "broken"),
    "timeout": To("DEAD", 3, FAILED, "too long"),
    "worker lost": To("DEAD", 3, FAILED, "LEASE_EXPIRED"),
}
# What is not here changes nothing.
TABLE: dict[str, dict[str, To]] = {
    "PENDING": {},
    "READY": {"time": To("RUNNING", 1, error="busy")},
    "RUNNING": RUNNING,
    "RUNNING, last attempt": LAST,
    "WAITING": {"its event": To("RUNNING"), "time": To("RUNNING")},
    "DONE": {},
    "DEAD": {},
}
UNCHANGED = {
    "PENDING": To("PENDING"),
    "READY": To("READY", 1, error="busy"),
    "RUNNING": To("RUNNING"),
    "RUNNING, last attempt": To("RUNNING", 2, error="again"),
    "WAITING": To("WAITING"),
    "DONE": To("DONE"),
    "DEAD": To("DEAD", 1, FAILED, "no"),
}


@pytest.mark.parametrize("happening", HAPPENINGS)
@pytest.mark.parametrize("state", STATES)
def test_a_transition(state: str, happening: str) -> None:
    rig = STATES[state]()
    assert rig.steps()[1].state == state.partition(",")[0]
    HAPPENINGS[happening](rig)
    b, expected = rig.steps()[1], TABLE[state].get(happening, UNCHANGED[state])
    assert (b.state, b.attempts) == (expected.state, expected.attempts)
    assert (b.error.message if b.error else None) == expected.error
    ended = rig.end.status if isinstance(rig.end, Finish) else None
    assert ended == (None if happening == "pause" else expected.end)


@pytest.mark.parametrize("state", STATES)
def test_a_cancellation_ends_it_at_once_whatever_the_step_is_at(state: str) -> None:
    rig = STATES[state]()
    rig.send(CANCEL, b'{"reason":"enough","deadlineMs":null}')
    rest = rig.go()
    assert isinstance(rig.end, Finish)
    if state == "DEAD":
        assert rig.end.status is Status.ERRORED
        return
    assert rig.end.status is Status.CANCELLED
    assert list(rest.cancelled) == ([rig.call.key] if rig.call is not None else [])


@pytest.mark.parametrize(("watch", "status"), [(1, "errored"), (2, "complete"), (4, "terminated")])
def test_the_end_of_a_run_that_it_is_not_linked_to_or_that_ended_well_is_nothing_to_it(watch: int, status: str) -> None:
    rig = at_b()
    rig.send(EXIT, json.dumps({"watch": watch, "status": status, "output": None, "error": None, "note": None}).encode())
    rig.go()
    assert (rig.states[1], rig.end, rig.consumed) == ("RUNNING", None, {1: EXIT})


# --- what the table does not say


def test_all_steps_are_there_from_the_start() -> None:
    rig = Rig(program("A", "B", "C"))
    assert rig.states == ["READY", "PENDING", "PENDING"]
    assert [fact.n for fact in rig.facts] == [0, 1, 2]


def test_a_step_that_is_done_opens_the_next_in_the_same_commit() -> None:
    rig = pending()
    rest = rig.answer(Completed(1))
    assert [fact.key for fact in rest.observed.facts] == ["A"]
    assert [call.key for call in rest.calls] == ["B"]
    assert rig.states == ["DONE", "RUNNING", "PENDING"]


def test_after_the_last_step_the_chain_is_complete_with_its_output() -> None:
    rig = done()
    rig.answer(Completed("all"))
    assert rig.end == Finish(Status.COMPLETE, output=b'"all"')


def test_a_dead_step_leaves_those_after_it_pending() -> None:
    assert dead().states == ["DONE", "DEAD", "PENDING"]


def test_the_end_of_a_failed_chain_names_step_and_error() -> None:
    end = dead().end
    assert isinstance(end, Finish)
    assert end.error is not None
    error = Failure.decode(end.error)
    assert (error.name, error.message) == ("Dead", "step 'B' is dead after 1 attempt: no")
    assert error.cause == Failure("Dead", "no")


def test_a_retry_is_due_after_its_backoff() -> None:
    rig = at_b()
    rest = rig.answer(RetryStep("30 seconds", "busy"), took=5000)
    assert (rest.wake_at, rest.retrying) == (rig.now + 30_000, True)
    assert rig.wait_ms(29_999).calls == ()
    assert [call.attempt for call in rig.wait_ms(1).calls] == [2]


def test_what_a_handler_raises_is_tried_again_after_growing_pauses() -> None:
    rig = Rig(program("A", max_attempts=12))
    rig.go()
    pauses = []
    for _ in range(11):
        before = rig.now
        rest = rig.answer(ValueError("no"))
        assert rest.wake_at is not None
        pauses.append((rest.wake_at - before) // 1000)
        rig.wait_ms(rest.wake_at - rig.now)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_a_lost_attempt_is_followed_by_the_next_one_without_a_pause() -> None:
    rig = at_b()
    rest = rig.go(lost=True)
    assert [call.attempt for call in rest.calls] == [2]


def test_an_attempt_that_timed_out_is_tried_again_after_the_default_backoff() -> None:
    rig = at_b()
    rest = rig.time_out()
    assert (rest.wake_at, rest.calls) == (rig.now + 1000, ())


def test_a_call_has_the_timeout_of_its_step_and_its_rest_the_lease() -> None:
    rig = Rig(program("A", lease_ms=1000, timeout_ms=2000))
    rest = rig.go()
    assert (rest.lease_ms, [call.timeout_ms for call in rest.calls]) == (1000, [2000])


def test_a_rest_that_calls_nothing_has_no_lease() -> None:
    rig = Rig(program("A", lease_ms=1000))
    rig.go()
    assert rig.answer(Waiting("go", "1 hour")).lease_ms is None


@pytest.mark.parametrize("answer", [Completed(1, [Outbound("a", 1)]), Dead("x", [Outbound("a", 1)])])
def test_outbound_events_go_with_the_answer(answer: Any) -> None:
    rig = at_b()
    rest = rig.answer(answer)
    assert [(event.type, event.payload, event.step) for event in rest.observed.outbox] == [("a", b"1", "B")]


def test_outbound_events_go_with_the_wait() -> None:
    rig = at_b()
    rest = rig.answer(Waiting("go", 60, [Outbound("first"), Outbound("second", [1])]))
    assert [(event.type, event.payload) for event in rest.observed.outbox] == [("first", None), ("second", b"[1]")]


@pytest.mark.parametrize("value", [object(), Completed(float("nan")), Completed(1, [Outbound("a", object())])])
def test_an_answer_that_cannot_be_stored_is_final(value: Any) -> None:
    rig = at_b()
    rig.answer(value)
    b = rig.steps()[1]
    assert (b.state, b.attempts) == ("DEAD", 1)
    assert b.error is not None
    assert b.error.name == "NotSerializableError"
    assert rig.outbox == []


@pytest.mark.parametrize("answer", [Waiting("not a type!", 60), Waiting("go", "9999 days")])
def test_a_wait_that_cannot_be_is_refused(answer: Any) -> None:
    rig = at_b()
    rig.answer(answer)
    assert rig.states[1] == "DEAD"


# --- pause


def test_a_paused_machine_writes_what_was_answered_and_calls_nothing() -> None:
    rig = at_b()
    rig.machine.hold()
    rest = rig.answer(Completed(2))
    assert rig.states == ["DONE", "DONE", "READY"]
    assert (rest.calls, rest.end) == ((), None)
    rig.reopen()
    assert [call.key for call in rig.go().calls] == ["C"]


def test_a_chain_that_was_paused_with_its_last_answer_ends_when_it_goes_on() -> None:
    rig = done()
    rig.machine.hold()
    assert rig.answer(Completed("all")).end is None
    rig.reopen()
    assert rig.go().end == Finish(Status.COMPLETE, output=b'"all"')


def test_an_answer_that_comes_to_a_machine_opened_meanwhile_counts() -> None:
    rig = at_b()
    assert rig.call is not None
    outcome = rig.outcome(rig.call, Completed(2))
    rig.reopen()
    rig.go(outcome)
    assert rig.states == ["DONE", "DONE", "RUNNING"]


# --- losses


def test_a_lost_worker_costs_no_attempt_while_the_step_waits_for_its_retry() -> None:
    rig = ready()
    rig.go(lost=True)
    assert rig.steps()[1].attempts == 1


def test_a_lost_worker_costs_an_attempt_once_the_retry_was_due() -> None:
    rig = ready()
    rig.now += 10_000
    rig.go(lost=True)
    assert rig.steps()[1].attempts == 2
    assert rig.call is not None


def test_a_lost_worker_costs_no_attempt_when_it_had_nothing_left_but_the_end() -> None:
    rig = done()
    rig.answer(Completed(3))
    rig.go(lost=True)
    assert rig.end == Finish(Status.COMPLETE, output=b"3")
