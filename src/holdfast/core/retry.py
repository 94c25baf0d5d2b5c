"""Retry policies, and the computation of delays.

This module draws no random numbers and reads no clock; callers pass both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeGuard, cast, get_args

from holdfast.core.checks import is_whole_number
from holdfast.core.durations import Duration, option_ms
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

Backoff: TypeAlias = Literal["constant", "linear", "exponential"]

MAX_DELAY_MS = 365 * 86_400_000
_MAX_DOUBLINGS = 62  # 1 ms doubled 62 times is far beyond the longest delay


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy: up to ``limit`` retries after the first attempt, each after a delay.

    The n-th failure is followed by ``delay`` (constant), ``delay * n`` (linear) or
    ``delay * 2 ** (n - 1)`` (exponential), stretched by up to the fraction ``jitter``, at most
    ``max_delay``. An error whose class or base class is in ``non_retryable``, as a class or by name, is not retried.

    >>> Retry(limit=3, delay="1s").delay_after(3)
    4000
    """

    limit: float = 5  # an int, or math.inf
    delay: Duration = "10 seconds"
    backoff: Backoff = "exponential"
    max_delay: Duration | None = field(default=None, kw_only=True)
    jitter: float = field(default=0.0, kw_only=True)
    non_retryable: Iterable[type[BaseException] | str] = field(default=(), kw_only=True)

    delay_ms: int = field(init=False, repr=False, compare=False)
    max_attempts: int | None = field(init=False, repr=False, compare=False)
    """Maximum number of attempts, including the first. None: unlimited."""
    max_delay_ms: int = field(init=False, repr=False, compare=False)
    non_retryable_names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_limit(self.limit)
        _check_jitter(self.jitter)
        if self.backoff not in get_args(Backoff):
            raise _invalid("backoff", self.backoff, "'constant', 'linear' or 'exponential'")
        errors = _as_tuple(self.non_retryable)
        longest = MAX_DELAY_MS if self.max_delay is None else option_ms("Retry.max_delay", self.max_delay)
        derived = {
            "delay_ms": option_ms("Retry.delay", self.delay),
            "max_attempts": None if math.isinf(self.limit) else int(self.limit) + 1,
            "max_delay_ms": min(longest, MAX_DELAY_MS),
            "non_retryable": errors,
            "non_retryable_names": frozenset(e if isinstance(e, str) else e.__name__ for e in errors),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def delay_after(self, failures: int, random: float = 0.0) -> int:
        """Milliseconds from the ``failures``-th failure to the next attempt; ``random`` is in [0, 1)."""
        delay = self.delay_ms
        if self.backoff == "linear":
            delay *= max(failures, 1)
        elif self.backoff == "exponential":
            delay <<= min(max(failures, 1) - 1, _MAX_DOUBLINGS)
        delay = min(delay, self.max_delay_ms)
        return min(round(delay * (1 + self.jitter * random)), self.max_delay_ms)

    def allows(self, attempts: int) -> bool:
        """True if another attempt may follow after ``attempts`` attempts."""
        return attempts <= self.limit

    def retries(self, error_names: Sequence[str]) -> bool:
        """True if an error whose class and base classes have these names is retried."""
        return self.non_retryable_names.isdisjoint(error_names)


def check_retry(retry: Any) -> Retry:
    """Return the value of the option ``retry``."""
    if not isinstance(retry, Retry):
        raise InvalidOptionError(f"retry must be a Retry(...), not {shown(retry)}")
    return retry


def _check_limit(value: object) -> None:
    unlimited = isinstance(value, float) and value == math.inf
    if not unlimited and not is_whole_number(value, 0):
        raise _invalid("limit", value, "a whole number of retries of at least 0, or math.inf")


def _check_jitter(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _invalid("jitter", value, "a fraction from 0 to 1")


def _as_tuple(value: object) -> tuple[type[BaseException] | str, ...]:
    expected = "a sequence of exception classes or their names"
    if isinstance(value, str | type) or not isinstance(value, Iterable):
        raise _invalid("non_retryable", value, expected)
    errors: list[type[BaseException] | str] = []
    for error in cast("Iterable[object]", value):
        if not _is_error(error):
            raise _invalid("non_retryable", error, expected)
        errors.append(error)
    return tuple(errors)


def _is_error(value: object) -> TypeGuard[type[BaseException] | str]:
    return isinstance(value, str) or (isinstance(value, type) and issubclass(value, BaseException))


def _invalid(name: str, value: object, expected: str) -> InvalidOptionError:
    return InvalidOptionError(f"Retry.{name} must be {expected}, not {shown(value)}")
