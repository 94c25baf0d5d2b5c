"""Names are checked against one rule each, and the error says which."""

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


@pytest.mark.parametrize(("check", "error", "longest"), PATTERNED)
@pytest.mark.parametrize("good", ["a", "_", "0", "order-o-1", "A_b-9", "_-"])
def test_plain_names_pass(check: Check, error: type[HoldfastError], longest: int, good: str) -> None:
    assert check(good, LIMITS) == good


@pytest.mark.parametrize(("check", "error", "longest"), PATTERNED)
@pytest.mark.parametrize("bad", ["-a", ".a", "a b", "a\n", "\na", "a/b", "ä", "a\0", "\ud800", "a" * 101])
def test_other_names_are_refused(check: Check, error: type[HoldfastError], longest: int, bad: str) -> None:
    with pytest.raises(error) as caught:
        check(bad, LIMITS)
    assert "allowed" in str(caught.value)


def test_dots_are_for_workflows_and_events_only() -> None:
    assert names.check_workflow_name("order.process", LIMITS) == "order.process"
    assert names.check_event_type("payment.received", LIMITS) == "payment.received"
    with pytest.raises(InvalidInstanceIdError):
        names.check_instance_id("a.b", LIMITS)


@pytest.mark.parametrize(("check", "error", "longest"), PATTERNED + FREE)
def test_length_is_bounded_on_both_sides(check: Check, error: type[HoldfastError], longest: int) -> None:
    assert check("x" * longest, LIMITS) == "x" * longest
    for bad in ("", "x" * (longest + 1)):
        with pytest.raises(error, match=rf"{len(bad)} characters; 1 to {longest} are allowed"):
            check(bad, LIMITS)


@pytest.mark.parametrize(("check", "error", "longest"), PATTERNED + FREE)
@pytest.mark.parametrize("bad", [None, 1, b"a", ["a"]])
def test_only_text_is_a_name(check: Check, error: type[HoldfastError], longest: int, bad: Any) -> None:
    with pytest.raises(error, match="must be a str"):
        check(bad, LIMITS)


def test_an_enum_member_is_its_text() -> None:
    class Type(str, Enum):  # noqa: UP042  (its str() is not its text)
        PAID = "paid"

    assert type(names.check_event_type(Type.PAID, LIMITS)) is str
    assert names.check_event_type(Type.PAID, LIMITS) == "paid"


@given(st.text(st.characters(), min_size=1, max_size=256))
def test_a_step_may_have_any_name(name: str) -> None:
    assert names.check_step_name(name, LIMITS) == name


def test_the_system_category_is_reserved() -> None:
    with pytest.raises(InvalidLogError, match="reserved"):
        names.check_log_category("system", LIMITS)


def test_a_message_never_repeats_an_endless_name() -> None:
    with pytest.raises(InvalidInstanceIdError) as caught:
        names.check_instance_id("x" * 1_000_000, LIMITS)
    assert len(str(caught.value)) < 300
