"""Times of the day on certain days, in a time zone: the part that cron texts and calendars share.

The rules for days on which the clocks change:

- **Fixed times** ("at 02:30"): a time that the clock skips occurs right after the gap; a time that the clock shows
  twice occurs once, the first time.
- **Repeating times** ("every ten minutes"): the ticks follow the elapsed time. Times that the clock skips do not
  occur, and times that the clock shows twice occur twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Protocol

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_HORIZON_YEARS = 50
"""A pattern without a match in this many years never matches."""


class Days(Protocol):
    """A set of dates."""

    @property
    def months(self) -> Sequence[int]:
        """The months that have such dates, ascending."""
        ...

    def __contains__(self, day: date, /) -> bool: ...


class Times(Protocol):
    """A set of times of the day."""

    def at_or_after(self, second: int) -> int | None:
        """The first of these times not before the given one, in seconds since midnight."""
        ...


@dataclass(frozen=True, slots=True)
class ListedTimes:
    """Times that are listed one by one, in seconds since midnight, ascending."""

    seconds: tuple[int, ...]

    def at_or_after(self, second: int) -> int | None:
        n = bisect_left(self.seconds, second)
        return self.seconds[n] if n < len(self.seconds) else None


@dataclass(frozen=True, slots=True)
class CombinedTimes:
    """All combinations of hours, minutes and seconds, each ascending."""

    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]

    def at_or_after(self, second: int) -> int | None:
        hour, minute, second = second // 3600, second // 60 % 60, second % 60
        for h in self.hours[bisect_left(self.hours, hour) :]:
            if h > hour:
                return h * 3600 + self.minutes[0] * 60 + self.seconds[0]
            for m in self.minutes[bisect_left(self.minutes, minute) :]:
                if m > minute:
                    return h * 3600 + m * 60 + self.seconds[0]
                n = bisect_left(self.seconds, second)
                if n < len(self.seconds):
                    return h * 3600 + m * 60 + self.seconds[n]
        return None


@dataclass(frozen=True, slots=True)
class WallTimes:
    """Ticks at wall-clock times of some days."""

    days: Days
    times: Times
    zone: tzinfo
    repeating: bool
    """True: repeating times, False: fixed times; see the docstring of the module."""

    def after(self, moment: datetime) -> datetime | None:
        """The first tick later than ``moment``, in UTC; None: there is none in fifty years."""
        moment = moment.astimezone(UTC)
        return self._repeating_after(moment) if self.repeating else self._fixed_after(moment)

    def _fixed_after(self, moment: datetime) -> datetime | None:
        # A later wall-clock time never occurs earlier, so the search needs no step back.
        local: datetime | None = _local(moment, self.zone).replace(microsecond=0)
        while local is not None:
            local = self._match(local + _SECOND)
            if local is not None and (tick := _occurrence(local, self.zone)) > moment:
                return tick
        return None

    def _repeating_after(self, moment: datetime) -> datetime | None:
        """Search from one change of the clocks to the next, with a constant offset in between."""
        start = moment.replace(microsecond=0) + _SECOND
        while True:
            local = _local(start, self.zone)
            match = self._match(local)
            if match is None:
                return None
            end = start + _DAY
            offset, last = local - _naive(start), _local(end, self.zone) - _naive(end)
            if last != offset:
                end = _change(start, end, offset, self.zone)
            tick = (match - offset).replace(tzinfo=UTC)
            if tick < end:
                return tick
            start = end if last != offset else max(end, tick - _DAY)

    def _match(self, local: datetime) -> datetime | None:
        """The first match at or after a wall-clock time."""
        day, second = local.date(), local.hour * 3600 + local.minute * 60 + local.second
        last_year = min(day.year + _HORIZON_YEARS, date.max.year - 1)
        while day.year <= last_year:
            if day.month not in self.days.months:
                day, second = _next_month(day), 0
                continue
            if day in self.days and (found := self.times.at_or_after(second)) is not None:
                return datetime.combine(day, time()) + timedelta(seconds=found)
            day, second = day + _DAY, 0
        return None


def _naive(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None)


def _local(moment: datetime, zone: tzinfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _next_month(day: date) -> date:
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1)


def _occurrence(local: datetime, zone: tzinfo) -> datetime:
    """The first moment at which the clock shows ``local``; if there is none, the first with a later time."""
    moment = local.replace(tzinfo=zone).astimezone(UTC)
    if _local(moment, zone) == local:
        return moment
    # In a gap, the offset of fold=0 is the one before the change.
    start = moment - _DAY
    return _change(start, moment, _local(start, zone) - _naive(start), zone)


def _change(start: datetime, end: datetime, offset: timedelta, zone: tzinfo) -> datetime:
    """The first second between two moments at which the zone's offset is not ``offset`` any more."""
    low, high = int(start.timestamp()), int(end.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        moment = datetime.fromtimestamp(middle, UTC)
        if _local(moment, zone) - _naive(moment) == offset:
            low = middle
        else:
            high = middle
    return datetime.fromtimestamp(high, UTC)
