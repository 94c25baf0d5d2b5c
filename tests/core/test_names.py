"""Checks of names and ids."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import names
from holdfast.core.limits import Limits
from holdfast.errors import (
    HoldfastError,
    InvalidEventTypeError,
    InvalidInstanceIdError,
    InvalidLogError,
    InvalidNameError,
)

LIMITS = Limits()
Check = Callable[[object, Limits], str]

PATTERNED: list[tuple[Check, type[HoldfastError], int]] = [
    (names.check_workflow_name, InvalidNameError, 64),
    (names.check_instance_id, InvalidInstanceIdError, 100),
    (names.check_event_type, InvalidEventTypeError, 100),
]
FREE: list[tuple[Check, type[HoldfastError], int]] = [
    (names.check_step_name, InvalidNameError, 256),
    (names.check_log_category, InvalidLogError, 64),
]


@pytest.mark.parametrize(("check", "error", "max_length"), PATTERNED)
@pytest.mark.parametrize("good", ["a", "_", "0", "order-o-1", "A_b-9", "_-"])
def test_a_valid_name_is_accepted(check: Check, error: type[HoldfastError], max_length: int, good: str) -> None:
    assert check(good, LIMITS) == good


@pytest.mark.parametrize(("check", "error", "max_length"), PATTERNED)
@pytest.mark.parametrize("bad", ["-a", ".a", "a b", "a\n", "\na", "a/b", "ä", "a\0", "\ud800", "a" * 101])
def test_an_invalid_name_is_refused(check: Check, error: type[HoldfastError], max_length: int, bad: str) -> None:
    with pytest.raises(error) as caught:
        check(bad, LIMITS)
    assert "allowed" in str(caught.value)


def test_only_workflow_names_and_event_types_may_contain_dots() -> None:
    assert names.check_workflow_name("order.process", LIMITS) == "order.process"
    assert names.check_event_type("payment.received", LIMITS) == "payment.received"
    with pytest.raises(InvalidInstanceIdError):
        names.check_instance_id("a.b", LIMITS)


@pytest.mark.parametrize(("check", "error", "max_length"), PATTERNED + FREE)
def test_a_name_has_a_minimum_and_a_maximum_length(check: Check, error: type[HoldfastError], max_length: int) -> None:
    assert check("x" * max_length, LIMITS) == "x" * max_length
    for bad in ("", "x" * (max_length + 1)):
        with pytest.raises(error, match=rf"{len(bad)} characters; 1 to {max_length} are allowed"):
            check(bad, LIMITS)


@pytest.mark.parametrize(("check", "error", "max_length"), PATTERNED + FREE)
@pytest.mark.parametrize("bad", [None, 1, b"a", ["a"]])
def test_a_name_must_be_text(check: Check, error: type[HoldfastError], max_length: int, bad: Any) -> None:
    with pytest.raises(error, match="must be a str"):
        check(bad, LIMITS)


def test_an_enum_member_is_checked_as_its_value() -> None:
    class Type(str, Enum):  # noqa: UP042  (its str() is not its value)
        PAID = "paid"

    assert type(names.check_event_type(Type.PAID, LIMITS)) is str
    assert names.check_event_type(Type.PAID, LIMITS) == "paid"


@given(st.text(st.characters(), min_size=1, max_size=256))
def test_a_step_name_may_contain_any_character(name: str) -> None:
    assert names.check_step_name(name, LIMITS) == name


def test_the_system_category_is_reserved() -> None:
    with pytest.raises(InvalidLogError, match="reserved"):
        names.check_log_category("system", LIMITS)


def test_an_error_message_shortens_a_long_name() -> None:
    with pytest.raises(InvalidInstanceIdError) as caught:
        names.check_instance_id("x" * 1_000_000, LIMITS)
    assert len(str(caught.value)) < 300
