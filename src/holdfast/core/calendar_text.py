"""Days of a month in words: ``"last weekday of the month at 18:00"``.

A text has the form *ordinals* *day* ``of`` *months* ``at`` *times*. The ordinals are ``first`` to ``fifth``, ``1st`` to
``31st`` and ``last``, several joined by ``and`` or commas. The day is ``day``, ``weekday`` (Monday to Friday),
``weekend day`` or the name of a day of the week. The months are ``the month`` or names of months. The times are of the
form ``18:00`` or ``18:00:30``; without them the time is midnight. These are fixed times in the sense of
``wall_times``.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, tzinfo

from holdfast.core.show import shown
from holdfast.core.wall_times import ListedTimes, WallTimes
from holdfast.errors import InvalidOptionError

_MAX_TEXT = 500
_TEXT = re.compile(r"(?P<ordinals>.+?) (?P<day>weekend day|[a-z]+) of (?P<months>.+?)(?: at (?P<times>.+))?")
_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_SEPARATOR = re.compile(r", and |,| and ")
_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS: dict[str, frozenset[int]] = {
    "day": frozenset(range(7)),
    "weekday": frozenset(range(5)),
    "weekend day": frozenset((5, 6)),
    **{name: frozenset((n,)) for n, name in enumerate(_NAMES)},
}
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
           "november", "december")  # fmt: skip
_WORDS = ("first", "second", "third", "fourth", "fifth")
_LAST = -1
_SUFFIXED = re.compile(r"([0-9]{1,2})(?:st|nd|rd|th)")


@dataclass(frozen=True, slots=True)
class CalendarDays:
    """The n-th days of some kind in some months; -1 is the last one."""

    ordinals: frozenset[int]
    weekdays: frozenset[int]
    months: Sequence[int]

    def __contains__(self, day: date, /) -> bool:
        if day.month not in self.months or day.weekday() not in self.weekdays:
            return False
        length = calendar.monthrange(day.year, day.month)[1]
        same = [n for n in range(1, length + 1) if (day.weekday() + n - day.day) % 7 in self.weekdays]
        return same.index(day.day) + 1 in self.ordinals or (_LAST in self.ordinals and same[-1] == day.day)


def parse_days(text: str) -> CalendarDays:
    """The days of a text without times."""
    days, times = _parse(text)
    if times is not None:
        raise InvalidOptionError(f"{shown(text)} names whole days, and no times")
    return days


def parse_calendar(text: object, zone: tzinfo) -> WallTimes:
    """The ticks of a text."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise InvalidOptionError(
            f"calendar must be text such as 'last weekday of the month at 18:00', not {shown(text)}"
        )
    days, times = _parse(text)
    return WallTimes(days, ListedTimes(tuple(sorted(set(times or (0,))))), zone, repeating=False)


def _parse(text: str) -> tuple[CalendarDays, list[int] | None]:
    match = _TEXT.fullmatch(" ".join(text.lower().split()))
    if match is None or match["day"] not in _DAYS:
        raise InvalidOptionError(
            f"{shown(text)} cannot be read as a calendar: write it as 'last weekday of the month at 18:00' or "
            "'first and third monday of january at 09:00, 17:30'"
        )
    ordinals = frozenset(_ordinal(part, text) for part in _parts(match["ordinals"]))
    days = CalendarDays(ordinals, _DAYS[match["day"]], _months(match["months"], text))
    return days, None if match["times"] is None else [_second(part, text) for part in _parts(match["times"])]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in _SEPARATOR.split(text)]


def _ordinal(part: str, text: str) -> int:
    if part == "last":
        return _LAST
    if part in _WORDS:
        return _WORDS.index(part) + 1
    match = _SUFFIXED.fullmatch(part)
    if match is None or not 1 <= int(match[1]) <= 31:
        raise InvalidOptionError(f"calendar {shown(text)}: {shown(part)} must be 'last', 'first' or '15th'")
    return int(match[1])


def _months(part: str, text: str) -> Sequence[int]:
    if part in ("the month", "each month", "every month"):
        return range(1, 13)
    months = _parts(part)
    for month in months:
        if month not in _MONTHS:
            raise InvalidOptionError(f"calendar {shown(text)}: {shown(month)} is not the name of a month")
    return sorted(_MONTHS.index(month) + 1 for month in months)


def _second(part: str, text: str) -> int:
    match = _TIME.fullmatch(part)
    if match is None:
        raise InvalidOptionError(f"calendar {shown(text)}: {shown(part)} is not a time such as 18:00")
    return int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3] or 0)
