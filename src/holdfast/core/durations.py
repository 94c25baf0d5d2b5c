"""Durations: parsing of the forms that users write into whole milliseconds (``to_ms``), and formatting (``describe``).

Points in time are not handled here.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

from holdfast.core.show import shown
from holdfast.errors import InvalidDurationError, InvalidOptionError

Duration: TypeAlias = timedelta | float | int | str

ACCEPTED = 'a timedelta, a number of seconds, or text such as "500 ms", "10s", "1h30m", "7 days"'
MAX_MS = 36_525 * 86_400_000  # 100 years

_UNITS = {
    name: ms
    for names, ms in (
        ("ms millisecond milliseconds", 1),
        ("s sec secs second seconds", 1_000),
        ("m min mins minute minutes", 60_000),
        ("h hr hrs hour hours", 3_600_000),
        ("d day days", 86_400_000),
        ("w week weeks", 604_800_000),
    )
    for name in names.split()
}
_PART = re.compile(r"\s*([0-9]++(?:\.[0-9]++)?)\s*+([a-z]++)\s*+")
_MAX_TEXT = 100
_MICROSECOND = timedelta(microseconds=1)


def to_ms(value: Duration, what: str = "duration") -> int:
    """Convert a duration to whole milliseconds. A positive duration is never rounded to 0.

    >>> to_ms("1h30m"), to_ms(0.25), to_ms(timedelta(days=7))
    (5400000, 250, 604800000)
    """
    if isinstance(value, str):
        exact = _parse(value, what)
    elif isinstance(value, timedelta):
        exact = Decimal(value // _MICROSECOND) / 1000
    else:
        exact = _seconds(value, what)
    if exact < 0:
        _refuse(value, what, "is negative")
    if exact > MAX_MS:
        _refuse(value, what, "is more than 100 years")
    return max(round(exact), 1) if exact else 0


def option_ms(name: str, value: Any) -> int:
    """``to_ms`` of the value of an option: an invalid value is an invalid option."""
    try:
        return to_ms(value, name)
    except InvalidDurationError as error:
        raise InvalidOptionError(str(error)) from None


def timeout_ms(name: str, value: Any) -> int:
    """``option_ms`` of a timeout, which must not be 0."""
    ms = option_ms(name, value)
    if ms == 0:
        raise InvalidOptionError(f"{name} must be greater than 0")
    return ms


def _seconds(value: object, what: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(value, what, "is not a duration")
    if not math.isfinite(min(value, MAX_MS)):  # min(): an int can be too large for a float
        _refuse(value, what, "is not a finite number")
    return Decimal(min(value, MAX_MS)) * 1000  # MAX_MS in seconds is far beyond the limit already


@lru_cache(maxsize=1024)  # workflow code passes the same few texts again and again; parsing one takes 5 us
def _parse(text: str, what: str) -> Decimal:
    """Parse a sum of parts from the largest unit to the smallest, each unit at most once, in linear time."""
    total, position, last_unit = Decimal(0), 0, math.inf
    lowered = text.lower() if len(text) <= _MAX_TEXT else ""
    while part := _PART.match(lowered, position):
        unit = _UNITS.get(part[2])
        if unit is None or unit >= last_unit:
            break
        total += Decimal(part[1]) * unit
        position, last_unit = part.end(), unit
    if position == 0 or position < len(lowered):
        _refuse(text, what, "cannot be read as a duration")
    return total


def _refuse(value: object, what: str, problem: str) -> NoReturn:
    raise InvalidDurationError(f"{what}: {shown(value)} {problem}; give {ACCEPTED}")


def describe_rounded(ms: int) -> str:
    """Like ``describe``, but without milliseconds if the duration is a minute or more: ``"23 h 59 min 58 s"``."""
    return describe(ms - ms % 1_000 if ms >= _UNITS["min"] else ms)


def describe(ms: int) -> str:
    """Format a duration exactly: ``"1 h 30 min"``, ``"2 days"``, ``"500 ms"``."""
    if ms < 0:
        return "-" + describe(-ms)
    parts: list[str] = []
    for unit, size in (("day", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1)):
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}")
    return " ".join(parts) or "0 ms"
