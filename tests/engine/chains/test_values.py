"""What a handler can answer is checked where it is made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    Completed,
    Dead,
    InvalidDurationError,
    InvalidEventTypeError,
    InvalidOptionError,
    Outbound,
    RetryStep,
    Waiting,
)
from holdfast.chain.values import Outputs

NO_TEXT: list[Any] = [None, 5, b"x", ["x"]]
NO_DURATION: list[Any] = [None, "soon", -1, float("nan"), True, "1 parsec", [1]]


@pytest.mark.parametrize("value", NO_DURATION)
def test_a_duration_is_checked(value: Any) -> None:
    with pytest.raises(InvalidDurationError, match=r"Waiting\.timeout"):
        Waiting("go", value)
    with pytest.raises(InvalidDurationError, match=r"RetryStep\.backoff"):
        RetryStep(value, "busy")


@pytest.mark.parametrize("value", [*NO_TEXT, ""])
def test_the_type_of_an_event_is_text(value: Any) -> None:
    with pytest.raises(InvalidEventTypeError):
        Waiting(value, "1 hour")
    with pytest.raises(InvalidEventTypeError):
        Outbound(value)


@pytest.mark.parametrize("value", [*NO_TEXT, ValueError("x")])
def test_an_error_is_text(value: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"Dead\.error"):
        Dead(value)
    with pytest.raises(InvalidOptionError, match=r"RetryStep\.error"):
        RetryStep(1, value)


@pytest.mark.parametrize("value", [None, "x", ["x"], {"type": "x"}, [Outbound("a"), 5], 7])
def test_what_goes_out_is_a_list_of_outbound(value: Any) -> None:
    for make in (lambda: Completed(1, value), lambda: Waiting("go", 1, value), lambda: Dead("x", value)):
        with pytest.raises(InvalidOptionError, match="Outbound"):
            make()


def test_what_goes_out_cannot_be_changed_afterwards() -> None:
    events = [Outbound("a")]
    answer = Completed(1, events)
    events.append(Outbound("b"))
    assert answer.outbound == (Outbound("a"),)


def test_durations_are_the_same_in_every_form() -> None:
    assert Waiting("go", "1 hour").timeout_ms == Waiting("go", 3600).timeout_ms == 3_600_000
    assert RetryStep(timedelta(seconds=1), "").backoff_ms == RetryStep("1000 ms", "").backoff_ms == 1000


def test_an_output_that_is_changed_stays_as_it_was_for_others() -> None:
    outputs = Outputs({"A": b'{"n":[1]}'})
    outputs["A"]["n"].append(2)
    assert outputs["A"] == {"n": [1]}
    assert dict(outputs) == {"A": {"n": [1]}}
    with pytest.raises(KeyError):
        outputs["B"]
