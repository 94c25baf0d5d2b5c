"""The times of ticks: cron texts, intervals and calendars together, without exclusions, between start and end.

A spec is a value without I/O. ``ScheduleSpec.read`` checks the options that users write; ``content`` and ``decode`` are
its form in the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Protocol

from holdfast.core import codec
from holdfast.core.calendar_text import parse_calendar
from holdfast.core.cron import Cron, time_zone
from holdfast.core.durations import Duration, describe, option_ms
from holdfast.core.exclusions import Exclusion, parse_exclusion
from holdfast.core.model import from_ms, optional_from_ms, to_ms
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

_MIN_INTERVAL_MS = 1000
_MAX_EXCLUDED = 100_000
"""Number of excluded ticks in a row after which a schedule has no more ticks."""
_MAX_PARTS = 100
_YEARS = range(1900, 9001)
"""Years in which ticks may begin: the search for ticks needs times before and after them."""


class _Ticks(Protocol):
    def after(self, moment: datetime) -> datetime | None: ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Ticks at multiples of an interval since 1970-01-01 UTC, moved by an offset."""

    every_ms: int
    offset_ms: int = 0

    def after(self, moment: datetime) -> datetime | None:
        since = to_ms(moment) - self.offset_ms
        try:
            return from_ms((since // self.every_ms + 1) * self.every_ms + self.offset_ms)
        except OverflowError:  # after the year 9999
            return None


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """The ticks of a schedule. Texts are as users wrote them; times are milliseconds."""

    cron: tuple[str, ...] = ()
    every_ms: int | None = None
    offset_ms: int = 0
    calendar: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    timezone: str = "UTC"
    start: int | None = None
    end: int | None = None
    jitter_ms: int = 0
    _ticks: tuple[_Ticks, ...] = field(init=False, repr=False, compare=False)
    _excluded: tuple[Exclusion, ...] = field(init=False, repr=False, compare=False)
    _zone: tzinfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        zone = time_zone(self.timezone)
        ticks: list[_Ticks] = [Cron(text, zone) for text in self.cron]
        ticks += [parse_calendar(text, zone) for text in self.calendar]
        if self.every_ms is not None:
            ticks.append(Interval(self.every_ms, self.offset_ms))
        object.__setattr__(self, "_ticks", tuple(ticks))
        object.__setattr__(self, "_excluded", tuple(parse_exclusion(text, zone) for text in self.exclude))
        object.__setattr__(self, "_zone", zone)

    @classmethod
    def read(
        cls,
        *,
        cron: str | Sequence[str] | None = None,
        every: Duration | None = None,
        offset: Duration | None = None,
        calendar: str | Sequence[str] | None = None,
        exclude: Any = None,
        timezone: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration | None = None,
    ) -> ScheduleSpec:
        """Check the options of a schedule."""
        if not isinstance(timezone, str):
            raise InvalidOptionError(f"timezone must be a name such as 'Europe/Berlin', not {shown(timezone)}")
        every_ms = None if every is None else _interval_ms(every)
        if offset is not None and every_ms is None:
            raise InvalidOptionError("offset moves the ticks of every=; give both")
        spec = cls(
            _texts("cron", cron),
            every_ms,
            0 if offset is None else option_ms("offset", offset),
            _texts("calendar", calendar),
            tuple(_excluded_text(one) for one in _list("exclude", exclude)),
            timezone,
            None if start is None else to_ms(check_first("start", start)),
            None if end is None else to_ms(check_time("end", end)),
            0 if jitter is None else option_ms("jitter", jitter),
        )
        if not spec._ticks:
            raise InvalidOptionError("a schedule needs cron=, every= or calendar=")
        if spec.start is not None and spec.end is not None and spec.end < spec.start:
            raise InvalidOptionError("end must not be before start")
        return spec

    # --- ticks

    def after(self, moment: datetime) -> datetime | None:
        """The first tick later than ``moment``; None: there are no more."""
        if self.start is not None:
            moment = max(moment, from_ms(self.start - 1))
        for _ in range(_MAX_EXCLUDED):
            ticks = [tick for tick in (part.after(moment) for part in self._ticks) if tick is not None]
            if not ticks or (self.end is not None and to_ms(min(ticks)) > self.end):
                return None
            tick = min(ticks)
            skipped_to = self._excluded_until(tick)
            if skipped_to is None:
                return tick
            moment = max(tick, skipped_to - timedelta(milliseconds=1))
        return None

    def between(self, first: datetime, last: datetime) -> Iterator[datetime]:
        """The ticks from ``first`` to ``last``, both included."""
        tick = self.after(first - timedelta(milliseconds=1))
        while tick is not None and tick <= last:
            yield tick
            tick = self.after(tick)

    def preview(self, moment: datetime, count: int) -> list[datetime]:
        """The next ticks after a moment."""
        ticks: list[datetime] = []
        tick = self.after(moment)
        while tick is not None and len(ticks) < count:
            ticks.append(tick)
            tick = self.after(tick)
        return ticks

    def due(self, name: str, tick: datetime) -> datetime:
        """The time at which a tick starts its run: the tick plus a jitter that depends on both names.

        The jitter ends before the next tick, so that ticks start in their order.
        """
        if not self.jitter_ms:
            return tick
        following = self.after(tick)
        span = self.jitter_ms if following is None else min(self.jitter_ms, to_ms(following) - to_ms(tick) - 1)
        digest = hashlib.sha256(f"{name}/{to_ms(tick)}".encode()).digest()
        return tick + timedelta(milliseconds=int.from_bytes(digest[:8], "big") % (max(0, span) + 1))

    def _excluded_until(self, tick: datetime) -> datetime | None:
        if not self._excluded:
            return None
        local = tick.astimezone(self._zone).replace(tzinfo=None)
        ends = [end for end in (exclusion.end_at(local) for exclusion in self._excluded) if end is not None]
        return max(ends).replace(tzinfo=self._zone).astimezone(UTC) if ends else None

    # --- forms

    @property
    def period(self) -> tuple[datetime | None, datetime | None]:
        """The start and the end."""
        return optional_from_ms(self.start), optional_from_ms(self.end)

    def content(self) -> dict[str, Any]:
        """The spec as JSON, without defaults."""
        found = {
            "cron": list(self.cron),
            "everyMs": self.every_ms,
            "offsetMs": self.offset_ms or None,
            "calendar": list(self.calendar),
            "exclude": list(self.exclude),
            "timezone": None if self.timezone == "UTC" else self.timezone,
            "start": self.start,
            "end": self.end,
            "jitterMs": self.jitter_ms or None,
        }
        return {key: value for key, value in found.items() if value is not None and value != []}

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> ScheduleSpec:
        return cls(
            tuple(content.get("cron", ())),
            content.get("everyMs"),
            content.get("offsetMs", 0),
            tuple(content.get("calendar", ())),
            tuple(content.get("exclude", ())),
            content.get("timezone", "UTC"),
            content.get("start"),
            content.get("end"),
            content.get("jitterMs", 0),
        )

    def encode(self) -> bytes:
        return codec.encode(self.content(), what="spec")

    @classmethod
    def decode(cls, data: bytes) -> ScheduleSpec:
        return _decode(data)

    def describe(self) -> str:
        """The spec in words: ``"cron 0 3 * * * (Europe/Berlin)"``."""
        parts = [f"cron {text}" for text in self.cron] + list(self.calendar)
        if self.every_ms is not None:
            parts.append(f"every {describe(self.every_ms)}" + self._offset_text())
        text = "; ".join(parts)
        if self.timezone != "UTC":
            text += f" ({self.timezone})"
        if self.exclude:
            text += f", not {', '.join(self.exclude)}"
        for word, at in zip(("from", "until"), self.period, strict=True):
            text += "" if at is None else f", {word} {at.isoformat()}"
        return text + (f", jitter {describe(self.jitter_ms)}" if self.jitter_ms else "")

    def _offset_text(self) -> str:
        return f" + {describe(self.offset_ms)}" if self.offset_ms else ""


@lru_cache(maxsize=10_000)
def _decode(data: bytes) -> ScheduleSpec:
    return ScheduleSpec.of_content(codec.plain_object(data, "spec"))


def _interval_ms(every: Duration) -> int:
    ms = option_ms("every", every)
    if ms < _MIN_INTERVAL_MS:
        raise InvalidOptionError("every must be at least one second")
    return ms


def _list(name: str, value: Any) -> list[Any]:
    if value is None:
        return []
    values = [value] if isinstance(value, str | date) else value
    if not isinstance(values, list | tuple) or len(values) > _MAX_PARTS:
        raise InvalidOptionError(f"{name} must be text or a list of at most {_MAX_PARTS} texts, not {shown(value)}")
    return list(values)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = _list(name, value)
    for text in texts:
        if not isinstance(text, str):
            raise InvalidOptionError(f"{name} must be text or a list of texts, not {shown(value)}")
    return tuple(texts)


def _excluded_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) and not isinstance(value, datetime) else value


def check_time(name: str, value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidOptionError(f"{name} must be a datetime with a time zone, not {shown(value)}")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidOptionError(f"{name} must be in the years 1 to 9999 of UTC, not {shown(value)}") from None


def check_first(name: str, value: Any) -> datetime:
    """Check a time from which ticks are searched."""
    first = check_time(name, value)
    if first.year not in _YEARS:
        raise InvalidOptionError(f"{name} must be in the years {_YEARS[0]} to {_YEARS[-1]}, not {shown(value)}")
    return first
