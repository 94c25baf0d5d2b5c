"""Waits of steps: the event that ends a wait, its timeout, and the argument of the handler."""

from __future__ import annotations

import pytest

from holdfast import ChainTaskKind, Completed, RetryStep, Waiting

from .manual_run import ManualRun, program

HOUR = 3_600_000


@pytest.fixture
def run() -> ManualRun:
    """A chain whose first step is running."""
    run = ManualRun(program("PAY", "SHIP"))
    run.advance()
    return run


def test_a_waiting_run_wakes_at_the_deadline_or_for_the_event_type(run: ManualRun) -> None:
    decision = run.answer(Waiting("paid", "1 hour"))
    assert (decision.wake_at, decision.topics, decision.retrying) == (run.now + HOUR, frozenset({"paid"}), False)


def test_an_event_is_passed_to_the_handler_and_consumed_by_its_step(run: ManualRun) -> None:
    run.answer(Waiting("paid", "1 hour"))
    run.send("paid", b'{"amount":5}')
    decision = run.advance()
    task = run.task
    assert (task.kind, task.attempt, task.step_type) == (ChainTaskKind.EVENT, 1, "PAY")
    assert (task.event.type, task.event.payload, task.event.sender) == ("paid", {"amount": 5}, None)
    assert run.consumed == {1: "PAY"}
    assert not decision.topics


def test_the_handler_is_called_with_a_timeout_at_the_deadline(run: ManualRun) -> None:
    run.answer(Waiting("paid", "1 hour"))
    assert run.wait_ms(HOUR - 1).calls == ()
    run.wait_ms(1)
    assert (run.task.kind, run.task.event) == (ChainTaskKind.WAITING_TIMEOUT, None)


def test_a_wait_consumes_the_first_event_and_leaves_the_second_to_the_next_wait(run: ManualRun) -> None:
    run.send("paid", b"1")
    run.send("paid", b"2")
    run.answer(Waiting("paid", "1 hour"))
    assert run.task.event.payload == 1
    run.answer(Waiting("paid", "1 hour"))
    assert run.task.event.payload == 2
    run.answer(Waiting("paid", "1 hour"))
    assert run.call is None


def test_a_wait_consumes_an_event_sent_before_the_step_began(run: ManualRun) -> None:
    run.send("shipped", b"7")
    run.advance()
    run.answer(Completed())
    run.answer(Waiting("shipped", "1 hour"))
    assert (run.task.step_type, run.task.event.payload) == ("SHIP", 7)


def test_a_wait_does_not_consume_an_event_of_another_type(run: ManualRun) -> None:
    run.answer(Waiting("paid", "1 hour"))
    run.send("shipped")
    assert run.advance().calls == ()
    assert run.consumed == {}


def test_an_event_for_a_finished_step_wakes_no_other_step(run: ManualRun) -> None:
    run.answer(Completed())
    run.answer(Waiting("shipped", "1 hour"))
    run.send("paid")
    assert run.advance().calls == ()


def test_an_event_sent_before_the_deadline_ends_the_wait_even_if_it_is_read_later(run: ManualRun) -> None:
    run.answer(Waiting("paid", "1 hour"))
    run.send("paid", b"1", at=run.now + HOUR)
    run.wait_ms(2 * HOUR)
    assert run.task.kind is ChainTaskKind.EVENT


def test_an_event_sent_after_the_deadline_is_kept_for_the_next_wait(run: ManualRun) -> None:
    run.answer(Waiting("paid", "1 hour"))
    run.send("paid", b"1", at=run.now + HOUR + 1)
    run.wait_ms(2 * HOUR)
    assert run.task.kind is ChainTaskKind.WAITING_TIMEOUT
    run.answer(Waiting("paid", "1 hour"))
    assert (run.task.kind, run.task.event.payload) == (ChainTaskKind.EVENT, 1)


def test_an_event_sent_after_the_deadline_ends_the_wait_with_a_timeout(run: ManualRun) -> None:
    """The event has a time of the database's clock; the worker's clock may be behind."""
    run.answer(Waiting("paid", "1 hour"))
    run.send("paid", b"1", at=run.now + HOUR + 1)
    run.wait_ms(HOUR - 1)
    assert run.task.kind is ChainTaskKind.WAITING_TIMEOUT


def test_a_wait_without_time_is_released_once_so_that_the_mailbox_is_read(run: ManualRun) -> None:
    decision = run.answer(Waiting("paid", 0))
    assert (decision.calls, decision.wake_at, decision.topics) == ((), run.now, frozenset({"paid"}))
    run.advance()
    assert run.task.kind is ChainTaskKind.WAITING_TIMEOUT


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("timeout", [False, True])
def test_retries_and_new_workers_get_the_event_that_ended_the_wait(
    run: ManualRun, timeout: bool, reopened: bool
) -> None:
    run.answer(Waiting("paid", "1 hour"))
    if timeout:
        run.wait_ms(HOUR)
    else:
        run.send("paid", b"5")
        run.advance()
    run.answer(RetryStep("10 seconds", "busy"))
    if reopened:
        run.reopen()
    run.wait_ms(10_000)
    run.advance(lost=True)
    assert (run.task.kind, run.task.attempt) == (
        ChainTaskKind.WAITING_TIMEOUT if timeout else ChainTaskKind.EVENT, 3,
    )  # fmt: skip
    assert timeout or run.task.event.payload == 5


def test_a_wait_counts_no_attempt(run: ManualRun) -> None:
    for _ in range(10):
        run.answer(Waiting("paid", "1 hour"))
        run.wait_ms(HOUR)
    assert run.task.attempt == 1
    assert run.steps()[0].attempts == 0


def test_the_backoff_of_a_failure_before_a_wait_does_not_delay_the_wake_up(run: ManualRun) -> None:
    run.answer(RetryStep("10 hours", "busy"))
    run.wait_ms(10 * HOUR)
    run.answer(Waiting("paid", "1 hour"))
    run.send("paid")
    assert run.advance().calls


def test_a_waiting_step_is_shown_with_its_event_type_and_deadline(run: ManualRun) -> None:
    run.answer(Waiting("paid", "1 hour"))
    step = run.steps()[0]
    assert (step.state, step.status, step.wait_event_type) == ("WAITING", "waiting", "paid")
    assert step.wake_at is not None
