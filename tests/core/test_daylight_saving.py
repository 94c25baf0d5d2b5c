"""Ticks on days on which the clocks change, in all time zones, compared with a search minute by minute.

The search knows the local time of each moment and nothing else: it has no notion of folds and gaps, and shares no code
with ``wall_times``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

import pytest

from holdfast.core.schedule_spec import ScheduleSpec

YEARS = (2025, 2026)
SAMPLE = (
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "America/Havana", "Asia/Beirut",
    "Pacific/Chatham", "America/Santiago", "Antarctica/Troll", "Africa/Cairo",
)  # fmt: skip
PARTS = 20
MINUTE = timedelta(minutes=1)
Minutes = tuple[tuple[datetime, datetime], ...]
"""Minutes in UTC, each with the time that the clock shows."""
REPEATING = {"*/10 * * * *": range(0, 60, 10), "25 * * * *": [25], "7 */2 * * *": [7]}
FIXED_TIMES = ["00:00", "00:30", "01:30", "02:00", "02:15", "02:30", "03:00", "23:30"]


@cache
def changes(zone: str) -> list[datetime]:
    """The minutes at which the offset of a zone changes."""
    found, info = [], ZoneInfo(zone)
    at, end = datetime(YEARS[0], 1, 1, tzinfo=UTC), datetime(YEARS[-1] + 1, 1, 1, tzinfo=UTC)
    while at < end:
        following = at + timedelta(hours=6)
        if at.astimezone(info).utcoffset() != following.astimezone(info).utcoffset():
            while at.astimezone(info).utcoffset() != following.astimezone(info).utcoffset() and following > at:
                middle = at + (following - at) // 2 // MINUTE * MINUTE
                if middle in (at, following):
                    break
                if at.astimezone(info).utcoffset() == middle.astimezone(info).utcoffset():
                    at = middle
                else:
                    following = middle
            found.append(following)
        at = following
    return found


def minutes(change: datetime, zone: str) -> Minutes:
    """Each minute of the two days around a change, in UTC and on the wall."""
    first, info = change - timedelta(days=1), ZoneInfo(zone)
    moments = [first + n * MINUTE for n in range(2 * 24 * 60)]
    return tuple((at, at.astimezone(info).replace(tzinfo=None)) for at in moments)


@cache  # many zones have the same clock
def search(shown: Minutes) -> dict[str, list[datetime]]:
    """The ticks of all texts, without the first minute."""
    found = {text: search_repeating(shown, text) for text in REPEATING}
    found |= {time: search_fixed(shown, time) for time in FIXED_TIMES}
    return {text: [at for at in ticks if at > shown[0][0]] for text, ticks in found.items()}


def search_repeating(shown: Minutes, text: str) -> list[datetime]:
    """All minutes at which the clock shows a matching time."""
    step = 2 if "*/2" in text else 1
    return [at for at, local in shown if local.minute in REPEATING[text] and local.hour % step == 0]


def search_fixed(shown: Minutes, time: str) -> list[datetime]:
    """The first minute of each date at which the clock shows the time, or a later one after a jump over the time."""
    hour, minute = map(int, time.split(":"))
    found, before, done = [], None, set()
    for at, local in shown:
        wanted = local.replace(hour=hour, minute=minute)
        for date in (wanted, wanted - timedelta(days=1)):
            if date not in done and before is not None and before < date <= local:
                found.append(at)
                done.add(date)
        if before is None or local > before:
            before = local
        done |= {wanted} if local >= wanted else set()
    return sorted(set(found))


def ticks(spec: ScheduleSpec, change: datetime) -> list[datetime]:
    return list(spec.between(change - timedelta(days=1) + MINUTE, change + timedelta(days=1) - MINUTE))


def check(zone: str) -> int:
    for change in changes(zone):
        expected = search(minutes(change, zone))
        for text in REPEATING:
            assert ticks(ScheduleSpec.read(cron=text, timezone=zone), change) == expected[text], (zone, change, text)
        for time in FIXED_TIMES:
            hour, minute = time.split(":")
            for spec in (
                ScheduleSpec.read(cron=f"{minute} {hour} * * *", timezone=zone),
                ScheduleSpec.read(cron=f"0 {minute} {hour} * * *", timezone=zone),
                ScheduleSpec.read(
                    calendar=f"{', '.join(f'{n}th' for n in range(1, 32))} day of the month at {time}", timezone=zone
                ),
            ):
                assert ticks(spec, change) == expected[time], (zone, change, spec.describe())
    return len(changes(zone))


@pytest.mark.parametrize("zone", SAMPLE)
def test_ticks_on_days_with_a_change_of_the_clocks_are_those_of_a_search(zone: str) -> None:
    assert check(zone) >= 2


@pytest.mark.parametrize("part", range(PARTS))
def test_ticks_in_all_time_zones_are_those_of_a_search(part: int, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("all time zones only with --long")
    assert sum(check(zone) for zone in sorted(available_timezones())[part::PARTS]) > 20


@pytest.mark.parametrize(
    ("cron", "forward", "back"),
    [
        ("30 2 * * *", ["03-29 01:00"], ["10-25 00:30"]),
        ("0,30 2 * * *", ["03-29 01:00"], ["10-25 00:00", "10-25 00:30"]),
        ("*/30 2 * * *", [], ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30"]),
        ("30 1-3 * * *", ["03-29 00:30", "03-29 01:00", "03-29 01:30"], ["10-24 23:30", "10-25 00:30", "10-25 02:30"]),
        ("15 * * * *", ["03-29 00:15", "03-29 01:15"], ["10-25 00:15", "10-25 01:15", "10-25 02:15"]),
    ],
)
def test_ticks_are_those_of_the_table_in_the_documentation(cron: str, forward: list[str], back: list[str]) -> None:
    """Berlin: at 01:00 UTC on March 29th the clock goes from 02:00 to 03:00; on October 25th from 03:00 to 02:00."""
    spec = ScheduleSpec.read(cron=cron, timezone="Europe/Berlin")

    def between(first: datetime, last: datetime) -> list[str]:
        return [f"{tick:%m-%d %H:%M}" for tick in spec.between(first, last)]

    spring = between(datetime(2026, 3, 29, 0, 1, tzinfo=UTC), datetime(2026, 3, 29, 1, 59, tzinfo=UTC))
    autumn = between(datetime(2026, 10, 24, 23, 1, tzinfo=UTC), datetime(2026, 10, 25, 2, 59, tzinfo=UTC))
    assert spring == forward
    assert [tick for tick in autumn if tick >= back[0]] == back
