"""Exclusions of a schedule: dates, ranges of dates, days of a month in words, and cron texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo

from holdfast.core.calendar_text import CalendarDays, parse_days
from holdfast.core.cron import Cron
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)
_DATES = re.compile(r"(\d{4}-\d\d-\d\d)(?:/(\d{4}-\d\d-\d\d))?")


@dataclass(frozen=True, slots=True)
class DateRange:
    """Dates from the first to the last, both included."""

    first: date
    last: date

    def end_at(self, local: datetime) -> datetime | None:
        if self.first <= local.date() <= self.last:
            return datetime.combine(self.last + _DAY, time())
        return None


@dataclass(frozen=True, slots=True)
class _WholeDays:
    days: CalendarDays

    def end_at(self, local: datetime) -> datetime | None:
        return datetime.combine(local.date() + _DAY, time()) if local.date() in self.days else None


@dataclass(frozen=True, slots=True)
class _Minutes:
    cron: Cron

    def end_at(self, local: datetime) -> datetime | None:
        if not self.cron.matches(local):
            return None
        return local.replace(second=0, microsecond=0) + _MINUTE


Exclusion = DateRange | _WholeDays | _Minutes
"""``end_at`` takes a wall-clock time. If it is excluded, so are all ticks before the returned time; None: it is not."""


def parse_exclusion(value: object, zone: tzinfo) -> Exclusion:
    """An exclusion that is written as ``2026-12-24``, ``2026-12-24/2027-01-01``, a cron text, or days in words."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return DateRange(value, value)
    if not isinstance(value, str) or len(value) > 500:
        raise InvalidOptionError(f"exclude must be dates, days or cron texts, not {shown(value)}")
    match = _DATES.fullmatch(value.strip())
    if match is not None:
        return _range(match[1], match[2] or match[1], value)
    if " of " in value.lower():
        return _WholeDays(parse_days(value))
    return _Minutes(Cron(value, zone))


def _range(first: str, last: str, text: str) -> DateRange:
    try:
        found = DateRange(date.fromisoformat(first), date.fromisoformat(last))
    except ValueError:
        raise InvalidOptionError(f"exclude: {shown(text)} is not a date or a range of dates") from None
    if found.last < found.first:
        raise InvalidOptionError(f"exclude: {shown(text)} ends before it begins")
    return found
