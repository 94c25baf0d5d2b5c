"""Cron texts of five fields, or six with seconds: parsing, checks, and the time of the next tick.

The fields are those of Debian's cron: lists, ranges, steps, names of months and days; ``L``, ``LW`` and ``MON#2`` are
accepted, too. Times are UTC, or in a time zone that is named first (``TZ=Europe/Berlin 30 9 * * MON-FRI``). When the
clocks change, the rules of ``wall_times`` apply: the times are repeating if the field of the minutes or of the hours
begins with ``*``, and fixed otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from holdfast.core.show import shown
from holdfast.core.wall_times import CombinedTimes, WallTimes
from holdfast.errors import InvalidOptionError

_FIELDS = 5
_MAX_TEXT = 500
_ZONES = ("TZ=", "CRON_TZ=")
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class _CronDays:
    """The days of a cron text, as the parser of cronsim understands them."""

    def __init__(self, parsed: CronSim) -> None:
        self._parsed = parsed
        self.months: Sequence[int] = sorted(parsed.months)

    def __contains__(self, day: date, /) -> bool:
        return day.month in self._parsed.months and self._parsed.match_day(day)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron text.

    >>> Cron("30 9 * * MON-FRI").after(datetime(2026, 1, 2, 12, tzinfo=UTC)).isoformat()
    '2026-01-05T09:30:00+00:00'
    """

    text: str
    zone: tzinfo = UTC
    """The time zone of a text that names none."""
    ticks: WallTimes = field(init=False, repr=False, compare=False)
    _has_seconds: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or len(self.text) > _MAX_TEXT:
            raise InvalidOptionError(f"cron must be a short text such as '0 */6 * * *', not {shown(self.text)}")
        zone, fields = _split(self.text, self.zone)
        try:
            parsed = CronSim(" ".join(fields), datetime(2000, 1, 1))  # noqa: DTZ001  (only parsed)
        except CronSimError as error:
            raise InvalidOptionError(f"cron {shown(self.text)} cannot be read: {str(error).lower()}") from None
        object.__setattr__(self, "_has_seconds", len(fields) > _FIELDS)
        repeating = any(part.startswith("*") for part in parsed.parts[1:3])
        times = CombinedTimes(*(tuple(sorted(part)) for part in (parsed.hours, parsed.minutes, parsed.seconds)))
        object.__setattr__(self, "ticks", WallTimes(_CronDays(parsed), times, zone, repeating))
        self.after(_EPOCH)

    def after(self, moment: datetime) -> datetime:
        """The first tick later than ``moment``, which must be an aware datetime."""
        tick = self.ticks.after(moment)
        if tick is None:
            raise InvalidOptionError(f"cron {shown(self.text)} never ticks")
        return tick

    def matches(self, local: datetime) -> bool:
        """True if a wall-clock time matches; a text without seconds matches all seconds of its minutes."""
        second = local.hour * 3600 + local.minute * 60
        if self._has_seconds:
            second += local.second
        return local.date() in self.ticks.days and self.ticks.times.at_or_after(second) == second


def _split(text: str, zone: tzinfo) -> tuple[tzinfo, list[str]]:
    fields = text.split()
    if fields and fields[0].startswith(_ZONES):
        zone = time_zone(fields.pop(0).partition("=")[2], "cron")
    if len(fields) not in (_FIELDS, _FIELDS + 1):
        raise InvalidOptionError(
            f"cron {shown(text)} must have five fields: minute, hour, day of the month, month, day of the week; "
            "or six, with the second before them"
        )
    return zone, fields


def time_zone(name: str, option: str = "timezone") -> tzinfo:
    """The time zone with an IANA name."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise InvalidOptionError(f"{option}: there is no time zone {shown(name)} on this system") from None
