"""Parsing and formatting of durations."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.durations import MAX_MS, describe, describe_rounded, to_ms
from holdfast.errors import InvalidDurationError


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500 ms", 500),
        ("10s", 10_000),
        ("10 sec", 10_000),
        ("5 minutes", 300_000),
        ("1h30m", 5_400_000),
        ("1 h 30 min", 5_400_000),
        ("24 hours", 86_400_000),
        ("7 days", 604_800_000),
        ("1 week", 604_800_000),
        ("1.5 hours", 5_400_000),
        ("  2 HR ", 7_200_000),
        ("1w2d3h4m5s6ms", 604_800_000 + 2 * 86_400_000 + 3 * 3_600_000 + 4 * 60_000 + 5_006),
        ("0s", 0),
        ("0.1 ms", 1),
        ("1.4 milliseconds", 1),
    ],
)
def test_text_is_parsed_with_its_units(text: str, ms: int) -> None:
    assert to_ms(text) == ms


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (2, 2_000),
        (0.25, 250),
        (0, 0),
        (0.0, 0),
        (1e-9, 1),
        (timedelta(days=1), 86_400_000),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=3, microseconds=600), 4),
        (MAX_MS / 1000, MAX_MS),
    ],
)
def test_numbers_are_seconds_and_timedeltas_are_converted_exactly(value: Any, ms: int) -> None:
    assert to_ms(value) == ms


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        timedelta(days=-1),
        "-5s",
        math.nan,
        math.inf,
        -math.inf,
        True,
        None,
        b"1s",
        [1],
        "",
        " ",
        "5",
        "s",
        "5 parsecs",
        "1h1h",
        "1m1h",
        "5s!",
        "5 s later",
        "\u0665s",
        "1e3s",
        "1.s",
        ".5s",
        "nan s",
        "101 years",
        "36526 days",
        10**30,
        pytest.param(10**5000, id="an int too long to print"),
        1e300,
        timedelta.max,
        "9" * 99 + "w",
        pytest.param("1" * 1_000_000, id="very long text"),
        "1s\0",
    ],
)
def test_an_invalid_duration_is_refused_with_the_name_of_the_option(value: Any) -> None:
    with pytest.raises(InvalidDurationError) as caught:
        to_ms(value, "timeout")
    message = str(caught.value)
    assert message.startswith("timeout: ")
    assert '"1h30m"' in message
    assert len(message) < 300


@given(st.integers(0, MAX_MS))
def test_a_description_parses_to_the_same_duration(ms: int) -> None:
    assert to_ms(describe(ms)) == ms


@given(st.integers(0, MAX_MS))
def test_all_forms_of_a_duration_are_equal(ms: int) -> None:
    assert to_ms(f"{ms} ms") == to_ms(timedelta(milliseconds=ms)) == to_ms(ms / 1000) == ms


@given(st.floats(min_value=0, max_value=1e9, exclude_min=True))
def test_a_positive_duration_is_never_rounded_to_zero(seconds: float) -> None:
    assert to_ms(seconds) >= 1


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (5_400_000, "1 h 30 min"),
        (500, "500 ms"),
        (2 * 86_400_000, "2 days"),
        (86_400_000, "1 day"),
        (61_000, "1 min 1 s"),
        (0, "0 ms"),
        (-1_000, "-1 s"),
    ],
)
def test_a_description_names_each_unit(ms: int, text: str) -> None:
    assert describe(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(59_999, "59 s 999 ms"), (60_000, "1 min"), (61_001, "1 min 1 s"), (86_400_500, "1 day")]
)
def test_a_rounded_description_of_a_minute_or_more_has_no_milliseconds(ms: int, text: str) -> None:
    assert describe_rounded(ms) == text
