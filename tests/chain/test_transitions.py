"""The transitions of a chain's step: each state with each input, as in the table of the specification."""

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

from .manual_run import ManualRun, program

TIMEOUT = 60_000
HOUR = 3_600_000
ATTEMPTS = 3

# --- a chain A, B, C, with B in each of the states


def at_b(failures: int = 0) -> ManualRun:
    """B is running, after ``failures`` failed attempts."""
    run = ManualRun(program("A", "B", "C", max_attempts=ATTEMPTS, timeout_ms=TIMEOUT))
    run.advance()
    run.answer(Completed(1))
    for _ in range(failures):
        run.answer(RetryStep("1 second", "again"))
        run.wait_ms(1000)
    return run


def pending() -> ManualRun:
    run = ManualRun(program("A", "B", "C", max_attempts=ATTEMPTS, timeout_ms=TIMEOUT))
    run.advance()
    return run


def ready() -> ManualRun:
    run = at_b()
    run.answer(RetryStep("10 seconds", "busy"))
    return run


def waiting() -> ManualRun:
    run = at_b()
    run.answer(Waiting("go", "1 hour"))
    return run


def done() -> ManualRun:
    run = at_b()
    run.answer(Completed(2))
    return run


def dead() -> ManualRun:
    run = at_b()
    run.answer(Dead("no"))
    return run


STATES: dict[str, Callable[[], ManualRun]] = {
    "PENDING": pending,
    "READY": ready,
    "RUNNING": at_b,
    "RUNNING, last attempt": lambda: at_b(ATTEMPTS - 1),
    "WAITING": waiting,
    "DONE": done,
    "DEAD": dead,
}

# --- inputs


def answers(value: Any) -> Callable[[ManualRun], None]:
    """The attempt of B returns ``value``. If no attempt is in flight, a late outcome arrives."""

    def apply(run: ManualRun) -> None:
        call = run.call
        if call is None or call.key != "B":
            run.advance(
                Outcome("B", run.steps()[1].attempts + 1, run.now, run.now, failure=Failure("Late", "too late"))
            )
            return
        run.answer(value)

    return apply


def time_out(run: ManualRun) -> None:
    if run.call is not None and run.call.key == "B":
        run.time_out()


def lose_worker(run: ManualRun) -> None:
    run.advance(lost=True)


def send_event(run: ManualRun) -> None:
    run.send("go", b"7")
    run.advance()


def send_other_event(run: ManualRun) -> None:
    run.send("stop")
    run.advance()


def pass_an_hour(run: ManualRun) -> None:
    run.wait_ms(HOUR)


def pause(run: ManualRun) -> None:
    run.machine.halt()
    run.send("go")
    run.wait_ms(HOUR)


class Expected(NamedTuple):
    """The state of B after the transition, the number of its failed attempts, and the end of the run."""

    state: str
    attempts: int = 0
    end: Status | None = None
    error: str | None = None


INPUTS: dict[str, Callable[[ManualRun], None]] = {
    "Completed": answers(Completed({"ok": True})),
    "a plain value": answers({"ok": True}),
    "Waiting": answers(Waiting("go", "1 hour")),
    "RetryStep": answers(RetryStep("30 seconds", "busy")),
    "Dead": answers(Dead("card stolen")),
    "an exception": answers(ValueError("broken")),
    "timeout": time_out,
    "worker lost": lose_worker,
    "its event": send_event,
    "another event": send_other_event,
    "time": pass_an_hour,
    "pause": pause,
}

FAILED = Status.ERRORED
RUNNING = {
    "Completed": Expected("DONE"),
    "a plain value": Expected("DONE"),
    "Waiting": Expected("WAITING"),
    "RetryStep": Expected("READY", 1, error="busy"),
    "Dead": Expected("DEAD", 1, FAILED, "card stolen"),
    "an exception": Expected("READY", 1, error="broken"),
    "timeout": Expected("READY", 1, error="too long"),
    "worker lost": Expected("RUNNING", 1, error="LEASE_EXPIRED"),  # due at once, and claimed again
}
LAST = {
    "Completed": Expected("DONE", 2),
    "a plain value": Expected("DONE", 2),
    "Waiting": Expected("WAITING", 2, error="again"),
    "RetryStep": Expected("DEAD", 3, FAILED, "busy"),
    "Dead": Expected("DEAD", 3, FAILED, "card stolen"),
    "an exception": Expected("DEAD", 3, FAILED, "broken"),
    "timeout": Expected("DEAD", 3, FAILED, "too long"),
    "worker lost": Expected("DEAD", 3, FAILED, "LEASE_EXPIRED"),
}
# An input that is not listed changes nothing.
TABLE: dict[str, dict[str, Expected]] = {
    "PENDING": {},
    "READY": {"time": Expected("RUNNING", 1, error="busy")},
    "RUNNING": RUNNING,
    "RUNNING, last attempt": LAST,
    "WAITING": {"its event": Expected("RUNNING"), "time": Expected("RUNNING")},
    "DONE": {},
    "DEAD": {},
}
UNCHANGED = {
    "PENDING": Expected("PENDING"),
    "READY": Expected("READY", 1, error="busy"),
    "RUNNING": Expected("RUNNING"),
    "RUNNING, last attempt": Expected("RUNNING", 2, error="again"),
    "WAITING": Expected("WAITING"),
    "DONE": Expected("DONE"),
    "DEAD": Expected("DEAD", 1, FAILED, "no"),
}


@pytest.mark.parametrize("input_name", INPUTS)
@pytest.mark.parametrize("state", STATES)
def test_an_input_moves_a_step_to_the_expected_state(state: str, input_name: str) -> None:
    run = STATES[state]()
    assert run.steps()[1].state == state.partition(",")[0]
    INPUTS[input_name](run)
    b, expected = run.steps()[1], TABLE[state].get(input_name, UNCHANGED[state])
    assert (b.state, b.attempts) == (expected.state, expected.attempts)
    assert (b.error.message if b.error else None) == expected.error
    ended = run.end.status if isinstance(run.end, Finish) else None
    assert ended == (None if input_name == "pause" else expected.end)


@pytest.mark.parametrize("state", STATES)
def test_a_cancellation_ends_the_run_at_once_in_every_state_of_a_step(state: str) -> None:
    run = STATES[state]()
    run.send(CANCEL, b'{"reason":"enough","deadlineMs":null}')
    decision = run.advance()
    assert isinstance(run.end, Finish)
    if state == "DEAD":
        assert run.end.status is Status.ERRORED
        return
    assert run.end.status is Status.CANCELLED
    assert list(decision.cancelled) == ([run.call.key] if run.call is not None else [])


_LINK_DOWN = {"watch": 2, "status": "errored", "output": None, "error": None, "note": None}


@pytest.mark.parametrize(
    ("event_type", "payload", "status"),
    [(CANCEL, {"reason": "enough", "deadlineMs": None}, Status.CANCELLED), (EXIT, _LINK_DOWN, Status.ERRORED)],
)
def test_an_event_that_ends_the_run_ends_it_after_a_pause_that_prevented_the_end(
    event_type: str, payload: dict[str, Any], status: Status
) -> None:
    run = at_b()
    run.send(event_type, json.dumps(payload).encode())
    run.advance()
    assert isinstance(run.end, Finish)

    run.reopen()  # the pause has kept the observed part of the decision, and not the end
    run.advance()

    assert isinstance(run.end, Finish)
    assert run.end.status is status


@pytest.mark.parametrize(("watch", "status"), [(1, "errored"), (2, "complete"), (4, "terminated")])
def test_the_end_of_an_unlinked_or_completed_run_has_no_effect(watch: int, status: str) -> None:
    run = at_b()
    run.send(EXIT, json.dumps({"watch": watch, "status": status, "output": None, "error": None, "note": None}).encode())
    run.advance()
    assert (run.states[1], run.end, run.consumed) == ("RUNNING", None, {1: EXIT})


# --- behaviour outside the table


def test_all_steps_are_planned_at_the_start() -> None:
    run = ManualRun(program("A", "B", "C"))
    assert run.states == ["READY", "PENDING", "PENDING"]
    assert [fact.n for fact in run.facts] == [0, 1, 2]


def test_the_commit_of_a_step_makes_the_next_step_due() -> None:
    run = pending()
    decision = run.answer(Completed(1))
    assert [fact.key for fact in decision.observed.facts] == ["A"]
    assert [call.key for call in decision.calls] == ["B"]
    assert run.states == ["DONE", "RUNNING", "PENDING"]


def test_the_output_of_the_last_step_is_the_output_of_the_chain() -> None:
    run = done()
    run.answer(Completed("all"))
    assert run.end == Finish(Status.COMPLETE, output=b'"all"')


def test_the_steps_after_a_dead_step_stay_pending() -> None:
    assert dead().states == ["DONE", "DEAD", "PENDING"]


def test_the_error_of_a_failed_chain_names_the_step_and_its_error() -> None:
    end = dead().end
    assert isinstance(end, Finish)
    assert end.error is not None
    error = Failure.decode(end.error)
    assert (error.name, error.message) == ("Dead", "step 'B' is dead after 1 attempt: no")
    assert error.cause == Failure("Dead", "no")


def test_a_retry_is_due_after_its_backoff() -> None:
    run = at_b()
    decision = run.answer(RetryStep("30 seconds", "busy"), took=5000)
    assert (decision.wake_at, decision.retrying) == (run.now + 30_000, True)
    assert run.wait_ms(29_999).calls == ()
    assert [call.attempt for call in run.wait_ms(1).calls] == [2]


def test_a_raising_handler_is_retried_with_growing_delays() -> None:
    run = ManualRun(program("A", max_attempts=12))
    run.advance()
    delays = []
    for _ in range(11):
        before = run.now
        decision = run.answer(ValueError("no"))
        assert decision.wake_at is not None
        delays.append((decision.wake_at - before) // 1000)
        run.wait_ms(decision.wake_at - run.now)
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_a_lost_attempt_is_retried_without_a_delay() -> None:
    run = at_b()
    decision = run.advance(lost=True)
    assert [call.attempt for call in decision.calls] == [2]


def test_an_attempt_that_timed_out_is_retried_after_the_default_backoff() -> None:
    run = at_b()
    decision = run.time_out()
    assert (decision.wake_at, decision.calls) == (run.now + 1000, ())


def test_a_call_has_the_timeout_of_its_step_and_the_decision_has_the_lease() -> None:
    run = ManualRun(program("A", lease_ms=1000, timeout_ms=2000))
    decision = run.advance()
    assert (decision.lease_ms, [call.timeout_ms for call in decision.calls]) == (1000, [2000])


def test_a_decision_without_calls_has_no_lease() -> None:
    run = ManualRun(program("A", lease_ms=1000))
    run.advance()
    assert run.answer(Waiting("go", "1 hour")).lease_ms is None


@pytest.mark.parametrize("answer", [Completed(1, [Outbound("a", 1)]), Dead("x", [Outbound("a", 1)])])
def test_outbound_events_are_written_with_the_answer(answer: Any) -> None:
    run = at_b()
    decision = run.answer(answer)
    assert [(event.type, event.payload, event.step) for event in decision.observed.outbox] == [("a", b"1", "B")]


def test_outbound_events_are_written_with_the_wait() -> None:
    run = at_b()
    decision = run.answer(Waiting("go", 60, [Outbound("first"), Outbound("second", [1])]))
    assert [(event.type, event.payload) for event in decision.observed.outbox] == [("first", None), ("second", b"[1]")]


@pytest.mark.parametrize("value", [object(), Completed(float("nan")), Completed(1, [Outbound("a", object())])])
def test_an_unserializable_answer_is_not_retried(value: Any) -> None:
    run = at_b()
    run.answer(value)
    b = run.steps()[1]
    assert (b.state, b.attempts) == ("DEAD", 1)
    assert b.error is not None
    assert b.error.name == "NotSerializableError"
    assert run.outbox == []


@pytest.mark.parametrize("answer", [Waiting("not a type!", 60), Waiting("go", "9999 days")])
def test_an_invalid_wait_is_refused(answer: Any) -> None:
    run = at_b()
    run.answer(answer)
    assert run.states[1] == "DEAD"


# --- pause


def test_a_halted_machine_records_an_answer_and_starts_no_call() -> None:
    run = at_b()
    run.machine.halt()
    decision = run.answer(Completed(2))
    assert run.states == ["DONE", "DONE", "READY"]
    assert (decision.calls, decision.end) == ((), None)
    run.reopen()
    assert [call.key for call in run.advance().calls] == ["C"]


def test_a_chain_paused_at_its_last_answer_ends_after_the_resume() -> None:
    run = done()
    run.machine.halt()
    assert run.answer(Completed("all")).end is None
    run.reopen()
    assert run.advance().end == Finish(Status.COMPLETE, output=b'"all"')


def test_an_answer_counts_in_a_machine_that_was_opened_after_the_call() -> None:
    run = at_b()
    assert run.call is not None
    outcome = run.outcome(run.call, Completed(2))
    run.reopen()
    run.advance(outcome)
    assert run.states == ["DONE", "DONE", "RUNNING"]


# --- losses


def test_the_loss_of_a_worker_counts_no_attempt_before_the_retry_is_due() -> None:
    run = ready()
    run.advance(lost=True)
    assert run.steps()[1].attempts == 1


def test_the_loss_of_a_worker_counts_an_attempt_after_the_retry_was_due() -> None:
    run = ready()
    run.now += 10_000
    run.advance(lost=True)
    assert run.steps()[1].attempts == 2
    assert run.call is not None


def test_the_loss_of_a_worker_counts_no_attempt_if_all_steps_are_done() -> None:
    run = done()
    run.answer(Completed(3))
    run.advance(lost=True)
    assert run.end == Finish(Status.COMPLETE, output=b"3")
