"""Schedules: one run of the same id per tick, and a single run for all missed ticks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast import Context, Handle, Holdfast, InstanceExistsError, InvalidOptionError, Retry, RunTerminatedError
from holdfast.core.cron import Cron
from holdfast.testing import Harness

from .message_drives import crash_everywhere


class Ticks:
    """A workflow that records the time and the run number of each tick."""

    def __init__(self, app: Holdfast, takes: str = "") -> None:
        self.seen: list[tuple[str, int]] = []

        @app.workflow
        async def ticking(ctx: Context, params: Any = None) -> None:
            if takes:
                await ctx.sleep("work", takes)
            self.seen.append((f"{ctx.info.started_at:%m-%d %H:%M}", ctx.info.run_number))

        self.workflow = ticking


def ticks(text: str, start: datetime, count: int) -> list[str]:
    """First ticks of a schedule after ``start``, in the time zone of ``start``."""
    cron, found, now = Cron(text), [], start
    for _ in range(count):
        now = cron.after(now)
        found.append(f"{now.astimezone(start.tzinfo):%m-%d %H:%M}")
    return found


# --- the engine


async def test_a_schedule_starts_at_its_first_tick(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    run = await h.start(clock.workflow, cron="30 6 * * *")
    await h.advance("6 hours")

    assert clock.seen == []
    description = await run.describe()
    assert (description.status, description.why) == ("waiting", "waiting for its start at 2030-01-01 06:30:00 UTC")
    await h.advance("30 minutes")
    assert clock.seen == [("01-01 06:30", 0)]


async def test_each_tick_is_a_new_run_of_the_same_id(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    run = await h.start(clock.workflow, id="nightly", cron="0 */6 * * *")
    await h.advance("24 hours")

    assert clock.seen == [("01-01 06:00", 0), ("01-01 12:00", 1), ("01-01 18:00", 2), ("01-02 00:00", 3)]
    assert ((await run.describe()).run_number, (await run.status()).status) == (4, "waiting")
    assert [one.id for one in (await h.app.list()).items] == ["nightly"]


async def test_the_first_tick_is_later_than_the_start(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    await h.start(clock.workflow, cron="0 0 * * *")
    await h.run_until_idle()
    assert clock.seen == []


async def test_ticks_that_were_missed_are_caught_up_once(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    await h.start(clock.workflow, cron="0 * * * *")
    await h.advance("1 hour")
    await h.advance("5 hours 20 minutes", run=False)
    await h.restart()
    await h.run_until_idle()

    assert clock.seen == [("01-01 01:00", 0), ("01-01 06:20", 1)]
    await h.advance("1 hour")
    assert clock.seen[2:] == [("01-01 07:00", 2)]


async def test_a_first_tick_that_was_missed_is_caught_up(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    await h.start(clock.workflow, cron="0 1 * * *")
    await h.advance("20 hours", run=False)
    await h.run_until_idle()
    assert clock.seen == [("01-01 20:00", 0)]


async def test_a_run_that_takes_longer_than_a_tick_is_not_overtaken(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app, takes="90 minutes")
    await h.start(clock.workflow, cron="0 * * * *")
    await h.advance("6 hours")

    assert clock.seen == [("01-01 01:00", 0), ("01-01 03:00", 1)]


async def test_each_tick_gets_the_same_input(app: Holdfast, h: Harness) -> None:
    seen: list[Any] = []

    @app.workflow
    async def flow(ctx: Context, params: list[int]) -> None:
        params.append(len(seen))
        seen.append((params, dict(ctx.values), ctx.info.attempt))

    await h.start(flow, [7], cron="0 0 * * *", context={"c": 1})
    await h.advance("2 days")

    assert seen == [([7, 0], {"c": 1}, 1), ([7, 1], {"c": 1}, 1)]


async def test_a_failed_tick_does_not_end_the_schedule(app: Holdfast, h: Harness) -> None:
    begun: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        begun.append(ctx.info.run_number)
        raise ValueError("broken")

    run = await h.start(flow, cron="0 * * * *")
    await h.advance("3 hours")

    assert begun == [0, 1, 2]
    assert (await run.status()).status == "waiting"


async def test_the_attempts_of_a_tick_begin_with_one(app: Holdfast, h: Harness) -> None:
    seen: list[tuple[str, int]] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        seen.append((f"{ctx.info.started_at:%H:%M}", ctx.info.attempt))
        if ctx.info.attempt == 1:
            raise ValueError("again")

    await h.start(flow, cron="0 * * * *", retry=Retry(limit=3, delay="5 minutes"))
    await h.advance("2 hours 30 minutes")

    assert seen == [("01:00", 1), ("01:05", 2), ("02:00", 1), ("02:05", 2)]


async def test_a_timeout_ends_the_tick_and_not_the_schedule(app: Holdfast, h: Harness) -> None:
    seen: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        seen.append(ctx.info.run_number)
        await ctx.sleep("long", "1 day")

    run = await h.start(flow, cron="0 * * * *", run_timeout="10 minutes")
    await h.advance("3 hours")

    assert seen == [0, 1, 2]
    assert (await run.status()).status == "waiting"


async def test_an_execution_timeout_ends_the_schedule(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    run = await h.start(clock.workflow, cron="0 * * * *", execution_timeout="150 minutes")
    await h.advance("1 day")

    assert [moment for moment, _ in clock.seen] == ["01-01 01:00", "01-01 02:00", "01-01 03:00"]
    assert (await run.status()).status == "complete"


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_a_schedule_can_be_ended_between_ticks(app: Holdfast, h: Harness, how: str) -> None:
    clock = Ticks(app)
    run = await h.start(clock.workflow, cron="0 * * * *")
    await h.advance("90 minutes")
    await getattr(run, how)("enough")
    await h.advance("1 day")

    assert len(clock.seen) == 1
    assert (await run.status()).status == {"terminate": "terminated", "cancel": "cancelled"}[how]


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_a_schedule_can_be_ended_during_a_tick(app: Holdfast, h: Harness, how: str) -> None:
    clock = Ticks(app, takes="30 minutes")
    run = await h.start(clock.workflow, cron="0 * * * *")
    await h.advance("70 minutes")
    await getattr(run, how)("enough")
    await h.advance("1 day")

    assert clock.seen == []
    description = await run.describe()
    assert (description.status, description.run_number) == ({"terminate": "terminated", "cancel": "cancelled"}[how], 0)


async def test_result_waits_for_the_end_of_the_schedule(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    run: Handle[Any] = await h.start(clock.workflow, cron="0 * * * *")
    waiting = asyncio.create_task(run.result())
    await h.advance("3 hours")
    assert not waiting.done()
    await run.terminate("enough")

    with pytest.raises(RunTerminatedError, match="enough"):
        await asyncio.wait_for(waiting, 60)


async def test_a_schedule_is_an_existing_run_between_ticks(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    await h.start(clock.workflow, id="one", cron="0 * * * *")
    await h.advance("90 minutes")

    with pytest.raises(InstanceExistsError):
        await h.start(clock.workflow, id="one", on_conflict="fail", on_reuse="allow")
    run = await h.start(clock.workflow, id="one", cron="30 * * * *")  # the existing schedule is not changed
    await h.advance("1 hour")
    assert [moment for moment, _ in clock.seen] == ["01-01 01:00", "01-01 02:00"]
    assert (await run.describe()).run_number == 2


async def test_a_schedule_can_be_replaced(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    await h.start(clock.workflow, id="one", cron="0 * * * *")
    await h.advance("90 minutes")
    await h.start(clock.workflow, id="one", cron="45 * * * *", on_conflict="terminate_existing")
    await h.advance("1 hour")

    assert [moment for moment, _ in clock.seen] == ["01-01 01:00", "01-01 01:45"]


async def test_a_start_delay_comes_before_the_first_tick(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    await h.start(clock.workflow, cron="0 * * * *", start_delay="150 minutes")
    await h.advance("4 hours")

    assert [moment for moment, _ in clock.seen] == ["01-01 03:00", "01-01 04:00"]


async def test_messages_before_the_first_tick_are_kept(app: Holdfast, h: Harness) -> None:
    seen: list[Any] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        messages = ctx.listen("n")
        seen.extend([await messages.receive(), await messages.receive()])

    run = await h.start(flow, cron="0 * * * *", messages=[("n", 1)])
    await run.send_event("n", 2)
    await h.advance("1 hour")

    assert seen == [1, 2]


async def test_ticks_survive_a_crash_at_any_commit(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def ticking(ctx: Context, to: str) -> None:
        await ctx.send(to, "tick", ctx.info.run_number)

    @app.workflow
    async def parent(ctx: Context) -> list[int]:
        child = await ctx.spawn(ticking, ctx.info.pid, cron="0 * * * *", id="clock")
        heard = ctx.listen("tick")
        numbers = [await heard.receive() for _ in range(3)]
        await ctx.terminate(child.pid)
        return numbers

    assert await crash_everywhere(h, parent) == [0, 1, 2]


async def test_a_restarted_worker_follows_the_schedule(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    await h.start(clock.workflow, cron="TZ=Asia/Tokyo 0 9 * * MON-FRI")
    for _ in range(4):
        await h.advance("1 day")
        await h.restart()

    # 2030-01-01 is a Tuesday; nine o'clock in Tokyo is midnight in UTC.
    assert [moment for moment, _ in clock.seen] == ["01-02 00:00", "01-03 00:00", "01-04 00:00"]


@pytest.mark.above_the_store
async def test_a_tick_in_a_skipped_hour_comes_right_after_it(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    await h.advance("88 days", run=False)  # 2030-03-30; clocks go forward on the 31st
    await h.start(clock.workflow, cron="TZ=Europe/Berlin 30 2 * * *")
    await h.advance("3 days")

    assert [moment for moment, _ in clock.seen] == ["03-30 01:30", "03-31 01:00", "04-01 00:30"]


@pytest.mark.above_the_store
async def test_a_tick_in_a_repeated_hour_comes_once(app: Holdfast, h: Harness) -> None:
    clock = Ticks(app)
    await h.advance("298 days", run=False)  # 2030-10-26; clocks go back on the 27th
    await h.start(clock.workflow, cron="TZ=Europe/Berlin 30 2 * * *")
    await h.advance("3 days")

    assert [moment for moment, _ in clock.seen] == ["10-26 00:30", "10-27 00:30", "10-28 01:30"]


# --- the schedules themselves

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)  # a Tuesday
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", ["01-01 00:01", "01-01 00:02"]),
        ("*/15 * * * *", ["01-01 00:15", "01-01 00:30", "01-01 00:45", "01-01 01:00"]),
        ("0 */6 * * *", ["01-01 06:00", "01-01 12:00", "01-01 18:00", "01-02 00:00"]),
        ("5-20/5 8 * * *", ["01-01 08:05", "01-01 08:10", "01-01 08:15", "01-01 08:20", "01-02 08:05"]),
        ("0 9,17 * * *", ["01-01 09:00", "01-01 17:00", "01-02 09:00"]),
        ("0 0 * * 0", ["01-06 00:00", "01-13 00:00"]),
        ("0 0 * * 7", ["01-06 00:00", "01-13 00:00"]),
        ("0 0 * * SUN", ["01-06 00:00", "01-13 00:00"]),
        ("0 0 * * mon-wed", ["01-02 00:00", "01-07 00:00", "01-08 00:00"]),
        ("0 0 1 JAN,jul *", ["07-01 00:00", "01-01 00:00"]),
        ("0 0 31 * *", ["01-31 00:00", "03-31 00:00", "05-31 00:00"]),
        ("0 0 13 * FRI", ["01-04 00:00", "01-11 00:00", "01-13 00:00"]),  # day of month or day of week, as in cron
        ("59 23 31 12 *", ["12-31 23:59"]),
        ("0 0 29 2 *", ["02-29 00:00"]),
        ("  0   0  *  * * ", ["01-02 00:00"]),
        ("TZ=UTC 0 12 * * *", ["01-01 12:00"]),
        ("CRON_TZ=America/New_York 0 12 * * *", ["01-01 17:00"]),
        ("TZ=Asia/Kolkata 0 0 * * *", ["01-01 18:30"]),
    ],
)
def test_a_schedule_ticks_at_the_times_its_expression_names(text: str, expected: list[str]) -> None:
    assert ticks(text, NEW_YEAR, len(expected)) == expected


def test_a_leap_day_comes_in_a_leap_year() -> None:
    assert Cron("0 0 29 2 *").after(NEW_YEAR) == datetime(2032, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # forward: 02:00 is followed by 03:00
        ("TZ=Europe/Berlin 0 * * * *", ["03-31 00:00", "03-31 01:00", "03-31 03:00", "03-31 04:00"]),
        (
            "TZ=Europe/Berlin */30 1-3 * * *",
            ["03-31 01:00", "03-31 01:30", "03-31 03:00", "03-31 03:30", "04-01 01:00"],
        ),
        ("TZ=Europe/Berlin 0 3 * * *", ["03-31 03:00", "04-01 03:00"]),
    ],
)
def test_ticks_in_the_hour_skipped_by_a_clock_change_come_right_after_it(text: str, expected: list[str]) -> None:
    start = datetime(2030, 3, 30, 23, 59, tzinfo=BERLIN)
    assert ticks(text, start, len(expected)) == expected


def test_hourly_schedules_follow_the_elapsed_time_when_clocks_go_back() -> None:
    cron, now = Cron("TZ=Europe/Berlin 0 * * * *"), datetime(2030, 10, 26, 22, 30, tzinfo=UTC)
    found = []
    for _ in range(4):
        now = cron.after(now)
        found.append(f"{now:%H:%M}")
    assert found == ["23:00", "00:00", "01:00", "02:00"]


def test_a_tick_is_later_than_the_moment_and_in_utc() -> None:
    cron = Cron("TZ=Europe/Berlin 30 9 * * *")
    tick = cron.after(datetime(2030, 6, 1, 7, 30, tzinfo=UTC))
    assert tick == datetime(2030, 6, 2, 7, 30, tzinfo=UTC)
    assert tick.utcoffset() == timedelta(0)
    assert cron.after(tick - timedelta(milliseconds=1)) == tick


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "* * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "*/-1 * * * *",
        "5-1 * * * *",
        "1,,2 * * * *",
        "a * * * *",
        "* * * FOO *",
        "0 0 30 2 *",
        "0 0 31 4 *",
        "@daily",
        "@hourly",
        "TZ=Mars/Olympus 0 0 * * *",
        "TZ= 0 0 * * *",
        "TZ=../../etc/passwd 0 0 * * *",
        "Europe/Berlin 0 0 * * *",
        "1" * 5000 + " * * * *",
        "\x00 * * * *",
        "\u0661 * * * *",
    ],
)
async def test_a_schedule_that_cannot_be_read_is_refused(app: Holdfast, h: Harness, text: str) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    with pytest.raises(InvalidOptionError, match="cron"):
        await h.start(flow, cron=text)
    assert (await h.app.list()).items == []
