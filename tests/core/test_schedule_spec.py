"""Ticks of schedules: cron texts, intervals, calendars, exclusions, start and end, jitter."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from holdfast import InvalidOptionError
from holdfast.core.cron import Cron
from holdfast.core.schedule_spec import ScheduleSpec

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def shown(spec: ScheduleSpec, count: int = 3, start: datetime = START) -> list[str]:
    return [f"{tick:%Y-%m-%d %H:%M:%S}" for tick in spec.preview(start, count)]


def test_a_cron_text_of_six_fields_begins_with_the_second() -> None:
    spec = ScheduleSpec.read(cron="15,45 0 12 * * *")

    assert shown(spec) == ["2026-01-01 12:00:15", "2026-01-01 12:00:45", "2026-01-02 12:00:15"]


def test_an_interval_is_aligned_to_the_epoch_plus_its_offset() -> None:
    spec = ScheduleSpec.read(every="7 hours", offset="5 minutes")

    first = spec.after(START)
    assert first is not None
    assert (first - datetime(1970, 1, 1, 0, 5, tzinfo=UTC)) % timedelta(hours=7) == timedelta()
    assert spec.after(first) == first + timedelta(hours=7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("last weekday of the month at 18:00", ["2026-01-30 18:00:00", "2026-02-27 18:00:00", "2026-03-31 18:00:00"]),
        ("first and third monday of the month", ["2026-01-05 00:00:00", "2026-01-19 00:00:00", "2026-02-02 00:00:00"]),
        ("last day of february at 9:30", ["2026-02-28 09:30:00", "2027-02-28 09:30:00", "2028-02-29 09:30:00"]),
        ("15th day of june, july at 08:00", ["2026-06-15 08:00:00", "2026-07-15 08:00:00", "2027-06-15 08:00:00"]),
        ("second weekend day of the month", ["2026-01-04 00:00:00", "2026-02-07 00:00:00", "2026-03-07 00:00:00"]),
        ("fifth friday of the month", ["2026-01-30 00:00:00", "2026-05-29 00:00:00", "2026-07-31 00:00:00"]),
        ("1st day of the month at 00:00:30, 12:00", ["2026-01-01 00:00:30", "2026-01-01 12:00:00",
                                                    "2026-02-01 00:00:30"]),
    ],
)  # fmt: skip
def test_a_calendar_names_days_of_the_month_in_words(text: str, expected: list[str]) -> None:
    assert shown(ScheduleSpec.read(calendar=text)) == expected


def test_the_ticks_of_a_schedule_are_those_of_all_its_parts_each_once() -> None:
    spec = ScheduleSpec.read(cron=["0 6 * * *", "0 12 * * *"], every="6 hours")

    assert shown(spec, 4) == [
        "2026-01-01 06:00:00",
        "2026-01-01 12:00:00",
        "2026-01-01 18:00:00",
        "2026-01-02 00:00:00",
    ]


@pytest.mark.parametrize(
    "exclude",
    ["2026-01-02/2026-01-03", ["2026-01-02", date(2026, 1, 3)], "* * 2-3 1 *", ["second day of january", "2026-01-03"]],
)
def test_excluded_days_have_no_ticks(exclude: object) -> None:
    spec = ScheduleSpec.read(cron="0 6 * * *", exclude=exclude)

    assert shown(spec) == ["2026-01-01 06:00:00", "2026-01-04 06:00:00", "2026-01-05 06:00:00"]


def test_exclusions_are_in_the_time_zone_of_the_schedule() -> None:
    spec = ScheduleSpec.read(cron="30 0 * * *", timezone="Asia/Tokyo", exclude="2026-01-02")

    # 00:30 in Tokyo on January 2nd is 15:30 UTC on January 1st.
    assert shown(spec, 2) == ["2026-01-02 15:30:00", "2026-01-03 15:30:00"]


def test_a_cron_text_excludes_single_minutes() -> None:
    spec = ScheduleSpec.read(every="20 seconds", exclude="* 0-22 * * *")

    assert shown(spec, 2) == ["2026-01-01 23:00:00", "2026-01-01 23:00:20"]


def test_a_schedule_that_excludes_all_its_ticks_has_none() -> None:
    spec = ScheduleSpec.read(cron="0 6 * * *", exclude="* * * * *")

    assert spec.after(START) is None


def test_start_and_end_are_included() -> None:
    spec = ScheduleSpec.read(
        every="1 hour", start=START + timedelta(hours=5), end=datetime(2026, 1, 1, 9, tzinfo=BERLIN)
    )

    assert shown(spec, 9) == ["2026-01-01 05:00:00", "2026-01-01 06:00:00", "2026-01-01 07:00:00",
                              "2026-01-01 08:00:00"]  # fmt: skip


def test_the_ticks_of_an_interval_end_with_the_last_year_of_the_calendar() -> None:
    spec = ScheduleSpec.read(every="36500 days", end=LAST)

    ticks = spec.preview(START, 1000)
    assert len(ticks) == 80
    assert ticks == [*spec.between(START, LAST)]


def test_jitter_depends_on_schedule_and_tick_alone_and_ends_before_the_next_tick() -> None:
    spec = ScheduleSpec.read(every="1 minute", jitter="1 hour")
    ticks = spec.preview(START, 200)

    due = [spec.due("nightly", tick) for tick in ticks]
    assert due == [spec.due("nightly", tick) for tick in ticks]
    assert due != [spec.due("weekly", tick) for tick in ticks]
    assert all(tick <= at < tick + timedelta(minutes=1) for tick, at in zip(ticks, due, strict=True))
    assert len({at - tick for tick, at in zip(ticks, due, strict=True)}) > 150


def test_a_spec_survives_its_stored_form() -> None:
    spec = ScheduleSpec.read(
        cron="0 3 * * *", every="1 day", offset="1 hour", calendar="last day of the month", exclude="2026-05-01",
        timezone="Europe/Berlin", start=START, end=START + timedelta(days=400), jitter="5 minutes",
    )  # fmt: skip

    assert ScheduleSpec.decode(spec.encode()) == spec
    assert ScheduleSpec.decode(spec.encode()).preview(START, 50) == spec.preview(START, 50)
    assert spec.describe() == (
        "cron 0 3 * * *; last day of the month; every 1 day + 1 h (Europe/Berlin), not 2026-05-01, "
        "from 2026-01-01T00:00:00+00:00, until 2027-02-05T00:00:00+00:00, jitter 5 min"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs cron=, every= or calendar="),
        ({"cron": "* * *"}, "must have five fields"),
        ({"cron": "99 * * * *"}, "bad minute"),
        ({"cron": "0 0 30 2 *"}, "cannot be read|never ticks"),
        ({"cron": 5}, "cron must be text"),
        ({"every": "10 ms"}, "at least one second"),
        ({"cron": "0 3 * * *", "offset": "1 minute"}, "give both"),
        ({"calendar": "every tuesday"}, "cannot be read as a calendar"),
        ({"calendar": "zeroth day of the month"}, "must be 'last', 'first' or '15th'"),
        ({"calendar": "first day of smarch"}, "is not the name of a month"),
        ({"calendar": "first day of the month at 25:00"}, "is not a time"),
        ({"every": "1 day", "exclude": "2026-13-01"}, "not a date"),
        ({"every": "1 day", "exclude": "2026-02-01/2026-01-01"}, "ends before it begins"),
        ({"every": "1 day", "timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"every": "1 day", "start": datetime(2026, 1, 1)}, "datetime with a time zone"),  # noqa: DTZ001
        ({"every": "1 day", "start": START, "end": START - timedelta(1)}, "end must not be before start"),
        ({"every": "1 day", "start": FIRST}, "start must be in the years 1900 to 9000"),
        ({"cron": "0 3 * * *", "start": LAST}, "start must be in the years 1900 to 9000"),
    ],
)
def test_an_invalid_spec_is_refused_with_its_reason(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        ScheduleSpec.read(**options)  # type: ignore[arg-type]  (wrong types on purpose)


def test_a_tick_is_never_before_the_moment_it_is_asked_for() -> None:
    """In the repeated hour a text such as 50 2 * * * must not go back to its first occurrence."""
    second_pass = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 in Berlin, for the second time

    assert Cron("50 2 * * *", BERLIN).after(second_pass) == datetime(2026, 10, 26, 1, 50, tzinfo=UTC)
