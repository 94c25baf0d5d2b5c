"""Checks of option values."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest

from holdfast.core.checks import check_count, check_enum, check_flag, check_optional_text, is_whole_number
from holdfast.core.retry import Retry, check_retry
from holdfast.errors import InvalidOptionError


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, 0, 11])
def test_a_value_outside_the_range_or_of_another_type_is_no_whole_number(value: Any) -> None:
    assert not is_whole_number(value, 1, 10)


def test_a_whole_number_may_be_either_bound() -> None:
    assert is_whole_number(1, 1, 10)
    assert is_whole_number(10, 1, 10)
    assert is_whole_number(-(10**30))


def test_valid_values_are_returned() -> None:
    assert check_count("version", 1) == 1
    assert check_flag("eager", False) is False
    assert check_enum("size", "small", Size) is Size.SMALL
    assert check_optional_text("reason", None) is None
    assert check_retry(retry := Retry()) is retry


def test_errors_name_the_option_and_show_the_value() -> None:
    with pytest.raises(InvalidOptionError, match="version must be a whole number of at least 1, not 0"):
        check_count("version", 0)
    with pytest.raises(InvalidOptionError, match="eager must be True or False, not 1"):
        check_flag("eager", 1)
    with pytest.raises(InvalidOptionError, match="size must be one of small, large, not 'huge'"):
        check_enum("size", "huge", Size)
    with pytest.raises(InvalidOptionError, match="reason must be text, not 3"):
        check_optional_text("reason", 3)
    with pytest.raises(InvalidOptionError, match=r"retry must be a Retry\(...\), not 3"):
        check_retry(3)
