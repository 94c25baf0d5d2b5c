"""Validation of handler answers at construction."""

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

NOT_TEXT: list[Any] = [None, 5, b"x", ["x"]]
NOT_DURATIONS: list[Any] = [None, "soon", -1, float("nan"), True, "1 parsec", [1]]


@pytest.mark.parametrize("value", NOT_DURATIONS)
def test_an_invalid_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidDurationError, match=r"Waiting\.timeout"):
        Waiting("go", value)
    with pytest.raises(InvalidDurationError, match=r"RetryStep\.backoff"):
        RetryStep(value, "busy")


@pytest.mark.parametrize("value", [*NOT_TEXT, ""])
def test_the_type_of_an_event_must_be_text(value: Any) -> None:
    with pytest.raises(InvalidEventTypeError):
        Waiting(value, "1 hour")
    with pytest.raises(InvalidEventTypeError):
        Outbound(value)


@pytest.mark.parametrize("value", [*NOT_TEXT, ValueError("x")])
def test_an_error_must_be_text(value: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"Dead\.error"):
        Dead(value)
    with pytest.raises(InvalidOptionError, match=r"RetryStep\.error"):
        RetryStep(1, value)


@pytest.mark.parametrize("value", [None, "x", ["x"], {"type": "x"}, [Outbound("a"), 5], 7])
def test_outbound_must_be_a_list_of_outbound_events(value: Any) -> None:
    for make in (lambda: Completed(1, value), lambda: Waiting("go", 1, value), lambda: Dead("x", value)):
        with pytest.raises(InvalidOptionError, match="Outbound"):
            make()


def test_later_changes_of_the_outbound_list_have_no_effect() -> None:
    events = [Outbound("a")]
    answer = Completed(1, events)
    events.append(Outbound("b"))
    assert answer.outbound == (Outbound("a"),)


def test_durations_are_accepted_in_every_form() -> None:
    assert Waiting("go", "1 hour").timeout_ms == Waiting("go", 3600).timeout_ms == 3_600_000
    assert RetryStep(timedelta(seconds=1), "").backoff_ms == RetryStep("1000 ms", "").backoff_ms == 1000


def test_changing_an_output_does_not_affect_later_accesses() -> None:
    outputs = Outputs({"A": b'{"n":[1]}'})
    outputs["A"]["n"].append(2)
    assert outputs["A"] == {"n": [1]}
    assert dict(outputs) == {"A": {"n": [1]}}
    with pytest.raises(KeyError):
        outputs["B"]
