"""Retry policies: number of attempts, delays, and errors that are not retried."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.retry import MAX_DELAY_MS, Backoff, Retry
from holdfast.errors import InvalidOptionError

backoffs = st.sampled_from(["constant", "linear", "exponential"])


def test_the_default_is_five_retries_with_delays_doubling_from_ten_seconds() -> None:
    retry = Retry()
    assert retry.max_attempts == 6
    assert [retry.delay_after(n) for n in (1, 2, 3, 4, 5)] == [10_000, 20_000, 40_000, 80_000, 160_000]


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [("constant", [100, 100, 100]), ("linear", [100, 200, 300]), ("exponential", [100, 200, 400])],
)
def test_the_backoff_determines_the_growth_of_the_delay(backoff: Backoff, delays: list[int]) -> None:
    retry = Retry(3, "100 ms", backoff)
    assert [retry.delay_after(n) for n in (1, 2, 3)] == delays


def test_a_policy_may_allow_unlimited_retries() -> None:
    retry = Retry(limit=math.inf)
    assert retry.max_attempts is None
    assert retry.allows(10**9)


def test_the_limit_counts_retries_not_attempts() -> None:
    retry = Retry(limit=2)
    assert [retry.allows(attempts) for attempts in (1, 2, 3)] == [True, True, False]
    assert Retry(limit=0).max_attempts == 1


@given(
    backoffs,
    st.integers(1, 10_000),
    st.integers(0, 10**9),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_a_delay_is_bounded_and_never_shorter_than_without_jitter(
    backoff: Backoff, failures: int, seconds: int, jitter: float, random: float
) -> None:
    retry = Retry(math.inf, seconds, backoff, jitter=jitter)
    without_jitter = retry.delay_after(failures)
    delay = retry.delay_after(failures, random)
    assert without_jitter <= delay <= min(MAX_DELAY_MS, round(without_jitter * (1 + jitter)) + 1)


@given(backoffs, st.integers(1, 500), st.integers(1, 10**6))
def test_the_delay_never_decreases_with_the_number_of_failures(backoff: Backoff, failures: int, ms: int) -> None:
    retry = Retry(math.inf, ms / 1000, backoff)
    assert retry.delay_after(failures) <= retry.delay_after(failures + 1)


def test_the_maximum_delay_applies_with_jitter() -> None:
    retry = Retry(delay="10s", max_delay="30s", jitter=1.0)
    assert retry.delay_after(1, 0.5) == 15_000
    assert retry.delay_after(10_000, 0.99) == 30_000


def test_non_retryable_errors_match_by_class_or_name() -> None:
    retry = Retry(non_retryable=[ValueError, "CardDeclined"])
    assert not retry.retries([cls.__name__ for cls in UnicodeDecodeError.__mro__])
    assert not retry.retries(["CardDeclined", "Exception"])
    assert retry.retries(["OSError", "Exception", "BaseException", "object"])


def test_equal_policies_are_equal_and_hash_equal() -> None:
    assert Retry(3, "1s") == Retry(3, "1s")
    assert hash(Retry(non_retryable=[ValueError])) == hash(Retry(non_retryable=(ValueError,)))
    assert repr(Retry(1)).startswith("Retry(limit=1, delay='10 seconds', backoff='exponential'")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("limit", -1),
        ("limit", 1.5),
        ("limit", True),
        ("limit", math.nan),
        ("limit", -math.inf),
        ("limit", "5"),
        ("limit", None),
        ("delay", -1),
        ("delay", "soon"),
        ("delay", None),
        ("backoff", "fibonacci"),
        ("backoff", None),
        ("backoff", []),
        ("max_delay", "never"),
        ("jitter", 1.1),
        ("jitter", -0.1),
        ("jitter", math.nan),
        ("jitter", "some"),
        ("non_retryable", "ValueError"),
        ("non_retryable", ValueError),
        ("non_retryable", [int]),
        ("non_retryable", [1]),
        ("non_retryable", 1),
    ],
)
def test_the_error_for_an_invalid_option_names_the_option(option: str, value: Any) -> None:
    with pytest.raises(InvalidOptionError, match=rf"Retry\.{option}\b"):
        Retry(**{option: value})
