"""Which event ends a wait, when its time is up, and what the handler is told."""

from __future__ import annotations

import pytest

from holdfast import ChainTaskKind, Completed, RetryStep, Waiting

from .rig import Rig, program

HOUR = 3_600_000


@pytest.fixture
def rig() -> Rig:
    """A chain whose only step is running."""
    made = Rig(program("PAY", "SHIP"))
    made.go()
    return made


def test_a_wait_is_released_until_its_deadline_for_its_type(rig: Rig) -> None:
    rest = rig.answer(Waiting("paid", "1 hour"))
    assert (rest.wake_at, rest.topics, rest.retrying) == (rig.now + HOUR, frozenset({"paid"}), False)


def test_the_event_is_handed_to_the_handler_and_consumed_by_its_step(rig: Rig) -> None:
    rig.answer(Waiting("paid", "1 hour"))
    rig.send("paid", b'{"amount":5}')
    rest = rig.go()
    task = rig.task
    assert (task.kind, task.attempt, task.step_type) == (ChainTaskKind.EVENT, 1, "PAY")
    assert (task.event.type, task.event.payload, task.event.sender) == ("paid", {"amount": 5}, None)
    assert rig.consumed == {1: "PAY"}
    assert not rest.topics


def test_the_deadline_is_told_to_the_handler(rig: Rig) -> None:
    rig.answer(Waiting("paid", "1 hour"))
    assert rig.wait_ms(HOUR - 1).calls == ()
    rig.wait_ms(1)
    assert (rig.task.kind, rig.task.event) == (ChainTaskKind.WAITING_TIMEOUT, None)


def test_the_first_event_is_taken_and_the_second_kept_for_the_next_wait(rig: Rig) -> None:
    rig.send("paid", b"1")
    rig.send("paid", b"2")
    rig.answer(Waiting("paid", "1 hour"))
    assert rig.task.event.payload == 1
    rig.answer(Waiting("paid", "1 hour"))
    assert rig.task.event.payload == 2
    rig.answer(Waiting("paid", "1 hour"))
    assert rig.call is None


def test_an_event_that_came_before_the_step_is_found(rig: Rig) -> None:
    rig.send("shipped", b"7")
    rig.go()
    rig.answer(Completed())
    rig.answer(Waiting("shipped", "1 hour"))
    assert (rig.task.step_type, rig.task.event.payload) == ("SHIP", 7)


def test_an_event_of_another_type_is_left_alone(rig: Rig) -> None:
    rig.answer(Waiting("paid", "1 hour"))
    rig.send("shipped")
    assert rig.go().calls == ()
    assert rig.consumed == {}


def test_an_event_for_a_step_that_is_over_wakes_no_other(rig: Rig) -> None:
    rig.answer(Completed())
    rig.answer(Waiting("shipped", "1 hour"))
    rig.send("paid")
    assert rig.go().calls == ()


def test_an_event_sent_in_time_wins_though_it_is_seen_late(rig: Rig) -> None:
    rig.answer(Waiting("paid", "1 hour"))
    rig.send("paid", b"1", at=rig.now + HOUR)
    rig.wait_ms(2 * HOUR)
    assert rig.task.kind is ChainTaskKind.EVENT


def test_an_event_sent_too_late_is_kept(rig: Rig) -> None:
    rig.answer(Waiting("paid", "1 hour"))
    rig.send("paid", b"1", at=rig.now + HOUR + 1)
    rig.wait_ms(2 * HOUR)
    assert rig.task.kind is ChainTaskKind.WAITING_TIMEOUT
    rig.answer(Waiting("paid", "1 hour"))
    assert (rig.task.kind, rig.task.event.payload) == (ChainTaskKind.EVENT, 1)


def test_an_event_from_after_the_deadline_proves_that_it_has_passed(rig: Rig) -> None:
    """By the database's clock, of which this machine's may be behind."""
    rig.answer(Waiting("paid", "1 hour"))
    rig.send("paid", b"1", at=rig.now + HOUR + 1)
    rig.wait_ms(HOUR - 1)
    assert rig.task.kind is ChainTaskKind.WAITING_TIMEOUT


def test_a_wait_that_is_over_at_once_is_released_first_so_that_the_mailbox_is_read(rig: Rig) -> None:
    rest = rig.answer(Waiting("paid", 0))
    assert (rest.calls, rest.wake_at, rest.topics) == ((), rig.now, frozenset({"paid"}))
    rig.go()
    assert rig.task.kind is ChainTaskKind.WAITING_TIMEOUT


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("timeout", [False, True])
def test_what_it_was_woken_by_is_kept_through_retries_and_new_workers(rig: Rig, timeout: bool, cold: bool) -> None:
    rig.answer(Waiting("paid", "1 hour"))
    if timeout:
        rig.wait_ms(HOUR)
    else:
        rig.send("paid", b"5")
        rig.go()
    rig.answer(RetryStep("10 seconds", "busy"))
    if cold:
        rig.reopen()
    rig.wait_ms(10_000)
    rig.go(lost=True)
    assert (rig.task.kind, rig.task.attempt) == (
        ChainTaskKind.WAITING_TIMEOUT if timeout else ChainTaskKind.EVENT, 3,
    )  # fmt: skip
    assert timeout or rig.task.event.payload == 5


def test_a_wait_costs_no_attempt(rig: Rig) -> None:
    for _ in range(10):
        rig.answer(Waiting("paid", "1 hour"))
        rig.wait_ms(HOUR)
    assert rig.task.attempt == 1
    assert rig.steps()[0].attempts == 0


def test_a_failure_before_a_wait_does_not_delay_what_comes_after_it(rig: Rig) -> None:
    rig.answer(RetryStep("10 hours", "busy"))
    rig.wait_ms(10 * HOUR)
    rig.answer(Waiting("paid", "1 hour"))
    rig.send("paid")
    assert rig.go().calls


def test_one_that_waits_holds_no_lease(rig: Rig) -> None:
    rig.answer(Waiting("paid", "1 hour"))
    step = rig.steps()[0]
    assert (step.state, step.status, step.wait_event_type) == ("WAITING", "waiting", "paid")
    assert step.wake_at is not None
