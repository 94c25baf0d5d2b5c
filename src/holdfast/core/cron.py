"""Cron schedules of five fields: parsing, checks, and the time of the next tick.

The fields are those of Debian's cron: lists, ranges, steps, names of months and days. Times are UTC, or in a time zone
that is named first (``TZ=Europe/Berlin 30 9 * * MON-FRI``). When the zone's clock is put forward, a tick in the skipped
hour occurs right after that hour; when the clock is put back, a tick in the repeated hour occurs once. Schedules that
tick every hour or more often follow the elapsed time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

_FIELDS = 5
_MAX_TEXT = 500
_ZONES = ("TZ=", "CRON_TZ=")


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron schedule.

    >>> Cron("30 9 * * MON-FRI").after(datetime(2026, 1, 2, 12, tzinfo=UTC)).isoformat()
    '2026-01-05T09:30:00+00:00'
    """

    text: str
    _fields: str = field(init=False, repr=False, compare=False)
    _zone: tzinfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or len(self.text) > _MAX_TEXT:
            raise InvalidOptionError(f"cron must be a short text such as '0 */6 * * *', not {shown(self.text)}")
        zone, fields = _split(self.text)
        object.__setattr__(self, "_zone", zone)
        object.__setattr__(self, "_fields", fields)
        try:
            self.after(datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            raise InvalidOptionError(f"cron {shown(self.text)} cannot be read: {str(error).lower()}") from None

    def after(self, moment: datetime) -> datetime:
        """The first tick later than ``moment``, which must be an aware datetime."""
        try:
            tick: datetime = next(CronSim(self._fields, moment.astimezone(self._zone)))
        except StopIteration:
            raise InvalidOptionError(f"cron {shown(self.text)} never ticks") from None
        return tick.astimezone(UTC)


def _split(text: str) -> tuple[tzinfo, str]:
    fields = text.split()
    zone: tzinfo = UTC
    if fields and fields[0].startswith(_ZONES):
        zone = _zone(fields.pop(0).partition("=")[2])
    if len(fields) != _FIELDS:
        raise InvalidOptionError(
            f"cron {shown(text)} must have five fields: minute, hour, day of the month, month, day of the week"
        )
    return zone, " ".join(fields)


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidOptionError(f"cron: there is no time zone {name!r} on this system") from None
