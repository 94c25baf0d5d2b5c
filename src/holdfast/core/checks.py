"""Checks of option values that several modules take: counts, flags, choices, texts.

The messages name the option and show the value. Code with a message of its own uses ``is_whole_number``.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, TypeGuard, TypeVar

from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


def is_whole_number(value: object, least: float = -math.inf, most: float = math.inf) -> TypeGuard[int]:
    """True for an int between ``least`` and ``most``; a bool is not a number.

    >>> is_whole_number(3, least=1), is_whole_number(True), is_whole_number(3.0)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_type(name: str, value: T | None, kind: type[T]) -> T | None:
    """Return the value of an option that is an object of the library, or None."""
    if value is not None and not isinstance(value, kind):
        raise InvalidOptionError(f"{name} must be a {kind.__name__}(...), not {shown(value)}")
    return value


def check_count(name: str, value: Any, most: float = math.inf) -> int:
    """Return the value of an option that counts something, at least 1."""
    if not is_whole_number(value, 1, most):
        raise InvalidOptionError(f"{name} must be a whole number of at least 1, not {shown(value)}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Return the value of an option that is True or False."""
    if not isinstance(value, bool):
        raise InvalidOptionError(f"{name} must be True or False, not {shown(value)}")
    return value


def check_enum(name: str, value: Any, choices: type[E]) -> E:
    """Return the member of ``choices`` that the value of an option names."""
    try:
        return choices(value)
    except ValueError:
        allowed = ", ".join(choices)
        raise InvalidOptionError(f"{name} must be one of {allowed}, not {shown(value)}") from None


def check_text(name: str, value: Any) -> str:
    """Return the value of an argument that is text."""
    if not isinstance(value, str):
        raise InvalidOptionError(f"{name} must be text, not {shown(value)}")
    return value


def check_optional_text(name: str, value: Any) -> str | None:
    """Return the value of an option that is text or None."""
    if value is not None and not isinstance(value, str):
        raise InvalidOptionError(f"{name} must be text, not {shown(value)}")
    return value
