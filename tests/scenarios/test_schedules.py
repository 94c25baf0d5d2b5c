"""Schedules: ticks start runs, once each, as the policies say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import (
    Batch,
    ChainTask,
    Context,
    DefinitionError,
    Holdfast,
    InvalidOptionError,
    ParamsInvalidError,
    Retention,
    ScheduleInfo,
    step_info,
)
from holdfast.errors import ScheduleExistsError, ScheduleNotFoundError
from holdfast.kernel.definition import Registry
from holdfast.kernel.notify import Hub
from holdfast.kernel.schedule_rules import take_up
from holdfast.ports import SystemRandomness
from holdfast.runner import schedules
from holdfast.testing import Harness
from postgres_harness import CleanStore

START = datetime(2030, 1, 1, tzinfo=UTC)


class Job:
    """A workflow that records its ticks, and takes some time."""

    def __init__(self, app: Holdfast, takes: str | None = None) -> None:
        self.ticks: list[str] = []
        self.results: list[Any] = []

        @app.workflow
        async def job(ctx: Context, params: Any = None) -> int:
            assert ctx.info.scheduled_for is not None
            self.ticks.append(f"{ctx.info.scheduled_for:%d %H:%M}")
            self.results.append(ctx.info.last_result)
            if takes is not None:
                await ctx.sleep("work", takes)
            return len(self.ticks)

        self.workflow = job


def harness(app: Holdfast, store_kind: str) -> Harness:
    return Harness(app, store=CleanStore if store_kind == "postgres" else None)


async def outcomes(h: Harness, name: str = "s") -> list[tuple[str, str]]:
    runs = (await h.app.schedules.get(name, runs=50)).last_runs
    return [(f"{run.scheduled_for:%d %H:%M}", run.outcome) for run in reversed(runs)]


async def test_each_tick_starts_one_run_that_gets_its_tick_and_the_last_result(app: Holdfast, store_kind: str) -> None:
    job = Job(app)
    app.schedule("s", job.workflow, cron="0 */6 * * *")
    async with harness(app, store_kind) as h:
        await h.advance("1 day")

        assert job.ticks == ["01 06:00", "01 12:00", "01 18:00", "02 00:00"]
        assert job.results == [None, 1, 2, 3]
        [run] = (await h.app.list(job.workflow, limit=1)).items
        assert run.id == "s-20300102T000000Z"
        description = await (await h.app.get(job.workflow, run.id)).describe()
        assert (description.schedule, description.scheduled_for) == ("s", START + timedelta(days=1))


async def test_ticks_start_once_with_many_workers(app: Holdfast, store_kind: str) -> None:
    job = Job(app)
    app.schedule("s", job.workflow, every="1 hour")
    async with harness(app, store_kind) as h:
        await h.advance("30 minutes")
        workers = [h._opened().new_worker(app.worker_config) for _ in range(3)]
        await h.advance("1 hour", run=False)
        for worker in workers:
            await worker.take_up_schedules()
        await h.run_until_idle()

        assert job.ticks == ["01 01:00"] or job.ticks == []
        assert len(await outcomes(h)) == 1


async def test_runs_that_retention_deletes_stay_in_the_last_runs(app: Holdfast, store_kind: str) -> None:
    results: list[Any] = []

    @app.workflow(retention=Retention(complete="90 minutes"))
    async def job(ctx: Context) -> int:
        results.append(ctx.info.last_result)
        return len(results)

    app.schedule("s", job, every="1 hour")
    async with harness(app, store_kind) as h:
        for _ in range(5):
            await h.advance("1 hour")

        assert [outcome for _, outcome in await outcomes(h)] == ["complete"] * 5
        assert results == [None, 1, 2, 3, 4]
        assert len((await h.app.list(job)).items) == 2


@pytest.mark.parametrize(
    ("overlap", "ticks", "expected"),
    [
        ("skip", ["01 00:01", "01 00:03", "01 00:05"],
         ["complete", "skipped", "complete", "skipped", "waiting", "skipped"]),
        ("queue_one", ["01 00:01", "01 00:02", "01 00:03", "01 00:05"],
         ["complete", "complete", "complete", "skipped", "waiting", "queued"]),
        ("queue_all", ["01 00:01", "01 00:02", "01 00:03", "01 00:04"],
         ["complete", "complete", "complete", "waiting", "queued", "queued"]),
        ("cancel_running", ["01 00:01", "01 00:02", "01 00:03", "01 00:04", "01 00:05", "01 00:06"],
         ["cancelled", "cancelled", "cancelled", "cancelled", "cancelled", "waiting"]),
        ("terminate_running", ["01 00:01", "01 00:02", "01 00:03", "01 00:04", "01 00:05", "01 00:06"],
         ["terminated", "terminated", "terminated", "terminated", "terminated", "waiting"]),
        ("allow", ["01 00:01", "01 00:02", "01 00:03", "01 00:04", "01 00:05", "01 00:06"],
         ["complete", "complete", "complete", "complete", "waiting", "waiting"]),
    ],
)  # fmt: skip
async def test_a_tick_while_a_run_is_open_follows_the_overlap_policy(
    app: Holdfast, overlap: Any, ticks: list[str], expected: list[str]
) -> None:
    job = Job(app, takes="90 seconds")
    app.schedule("s", job.workflow, every="1 minute", overlap=overlap)
    async with Harness(app) as h:
        await h.advance("6 minutes")
        await h.advance("5 seconds")

        assert job.ticks == ticks
        assert [outcome for _, outcome in await outcomes(h)] == expected


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        (None, ["01 09:00"]),
        ("last", ["01 08:00", "01 09:00"]),
        ("2 hours 45 minutes", ["01 06:00", "01 07:00", "01 08:00", "01 09:00"]),
        ("10 days", [f"01 {hour:02}:00" for hour in range(1, 10)]),
    ],
)
async def test_ticks_that_were_missed_are_caught_up_as_the_policy_says(
    app: Holdfast, catch_up: Any, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(app)
    app.schedule("s", job.workflow, every="1 hour", catch_up=catch_up, overlap="allow")
    async with Harness(app) as h:
        await h.advance("8 hours 30 minutes", run=False)
        await h.run_until_idle()
        await h.advance("30 minutes")

        assert sorted(job.ticks) == expected
        missed = [tick for tick, outcome in await outcomes(h) if outcome == "missed"]
        assert missed == ([] if catch_up == "10 days" else ["01 01:00"])
        assert ("schedule s: ticks since 2030-01-01 01:00:00+00:00 were missed" in caplog.text) == bool(missed)


async def test_a_very_long_downtime_of_a_dense_schedule_is_passed_over_at_once(app: Holdfast) -> None:
    job = Job(app)
    app.schedule("none", job.workflow, every="1 second")
    app.schedule("last", job.workflow, every="1 second", catch_up="last")
    async with Harness(app) as h:
        await h.advance("365 days", run=False)
        await h.advance("3600 seconds", run=False)
        await h.tick()

        assert len(job.ticks) <= 13


async def test_jitter_delays_the_run_and_not_the_tick(app: Holdfast) -> None:
    job = Job(app)
    app.schedule("s", job.workflow, every="1 hour", jitter="30 minutes")
    async with Harness(app) as h:
        await h.advance("1 hour")
        assert job.ticks == []
        await h.advance("30 minutes")

        assert job.ticks == ["01 01:00"]
        [run] = (await h.app.list(job.workflow)).items
        assert START + timedelta(hours=1) < run.created_at <= START + timedelta(minutes=90)


# --- control


async def test_a_paused_schedule_has_no_ticks_and_resumes_with_the_next_one(app: Holdfast) -> None:
    job = Job(app)
    app.schedule("s", job.workflow, every="1 hour", catch_up="1 day")
    async with Harness(app) as h:
        await h.app.schedules.pause("s", "maintenance")
        await h.advance("3 hours")
        paused = await h.app.schedules.get("s")
        assert (job.ticks, paused.paused, paused.note, paused.next_ticks) == ([], True, "maintenance", [])

        await h.app.schedules.resume("s")
        await h.advance("1 hour")

        assert job.ticks == ["01 04:00"]
        records = [(record.action, record.reason) for record in (await h.app.audit()).items]
        assert records == [("schedule_resume", None), ("schedule_pause", "maintenance"), ("schedule_declare", None)]


async def test_a_trigger_starts_a_run_now_also_of_a_paused_schedule(app: Holdfast, store_kind: str) -> None:
    job = Job(app, takes="10 minutes")
    app.schedule("s", job.workflow, every="1 hour", paused=True)
    async with harness(app, store_kind) as h:
        await h.advance("12 minutes")
        first = await h.app.schedules.trigger("s")
        await h.app.schedules.trigger("s")
        await h.advance("20 minutes")

        assert job.ticks == ["01 00:12", "01 00:12"]
        assert (await first.result()) in (1, 2)


async def test_a_triggered_run_receives_the_result_of_the_last_successful_run(app: Holdfast, store_kind: str) -> None:
    job = Job(app)
    app.schedule("s", job.workflow, every="1 hour", paused=True)
    async with harness(app, store_kind) as h:
        for _ in range(3):  # no tick is taken up in between
            run = await h.app.schedules.trigger("s")
            await h.run_until_idle()

        assert job.results == [None, 1, 2]
        assert [outcome for _, outcome in await outcomes(h)] == ["complete"] * 3
        assert (await run.describe()).schedule == "s"
        await h.app.schedules.resume("s")
        await h.advance("1 hour")
        assert job.results == [None, 1, 2, 3]


async def test_a_trigger_that_records_the_end_of_a_run_does_not_hold_up_a_queued_tick(
    app: Holdfast, store_kind: str
) -> None:
    job = Job(app, takes="90 minutes")
    app.schedule("s", job.workflow, every="1 hour", overlap="queue_one")
    async with harness(app, store_kind) as h:
        await h.advance("2 hours")  # the first tick has a run, the second one is queued
        await h.advance("29 minutes")
        assert job.ticks == ["01 01:00"]
        await h.advance("1 minute", run=False)
        await h.run_until_idle()
        await h.app.schedules.trigger("s")
        await h.advance("1 minute")

        assert sorted(job.ticks) == ["01 01:00", "01 02:00", "01 02:30"]
        assert job.results[0] is None
        assert set(job.results[1:]) == {1}


async def test_a_backfill_runs_each_tick_once_one_after_the_other(app: Holdfast) -> None:
    job = Job(app, takes="10 minutes")
    app.schedule("s", job.workflow, cron="0 3 * * *", paused=True)
    async with Harness(app) as h:
        first, last = START - timedelta(days=4), START

        assert await h.app.schedules.backfill("s", first, last) == 4
        await h.advance("15 minutes")
        assert job.ticks == ["28 03:00", "29 03:00"]
        await h.advance("1 hour")
        assert await h.app.schedules.backfill("s", first, last) == 4
        await h.advance("1 hour")

        assert job.ticks == ["28 03:00", "29 03:00", "30 03:00", "31 03:00"]


async def test_a_backfill_may_run_all_ticks_at_once(app: Holdfast) -> None:
    job = Job(app, takes="10 minutes")
    app.schedule("s", job.workflow, every="1 minute", paused=True)
    async with Harness(app) as h:
        await h.app.schedules.backfill("s", START - timedelta(minutes=250), START, overlap="allow")
        await h.run_until_idle()

        assert len(job.ticks) == 251


async def test_a_changed_spec_counts_from_now_on(app: Holdfast) -> None:
    job = Job(app)
    async with Harness(app) as h:
        await h.app.schedules.create("s", job.workflow, every="1 day", params=[1], queue="default")
        await h.advance("90 minutes")
        await h.app.schedules.update("s", every="1 hour", offset="10 minutes", overlap="allow")
        await h.advance("2 hours")

        assert job.ticks == ["01 02:10", "01 03:10"]
        found = await h.app.schedules.get("s")
        assert (found.spec.every_ms, found.overlap, found.params, found.declared) == (3_600_000, "allow", [1], False)
        assert await h.app.schedules.preview("s", 2) == [START + timedelta(hours=n, minutes=10) for n in (4, 5)]


async def test_a_deleted_schedule_ticks_no_more(app: Holdfast) -> None:
    job = Job(app)
    async with Harness(app) as h:
        await h.app.schedules.create("s", job.workflow, every="1 hour")
        with pytest.raises(ScheduleExistsError):
            await h.app.schedules.create("s", job.workflow, every="1 hour")
        await h.app.schedules.delete("s")
        await h.advance("2 hours")

        assert job.ticks == []
        assert await h.app.schedules.list() == []
        with pytest.raises(ScheduleNotFoundError):
            await h.app.schedules.get("s")


@pytest.mark.parametrize(
    "act",
    [
        lambda app, job: app.schedule("s", job, every="1 ms"),
        lambda app, job: app.schedule("s", job, every="1 hour", overlap="often"),
        lambda app, job: app.schedule("s", job, every="1 hour", catch_up="first"),
        lambda app, job: app.schedule("s", job, every="1 hour", queue=""),
    ],
)
def test_an_invalid_declaration_is_refused_at_once(app: Holdfast, act: Callable[[Any, Any], None]) -> None:
    job = Job(app)

    with pytest.raises(InvalidOptionError):
        act(app, job.workflow)
    assert app.registry.schedules == {}


def test_a_declaration_checks_params_and_names(app: Holdfast) -> None:
    @app.workflow
    async def typed(ctx: Context, params: int) -> None: ...

    app.schedule("s", typed, params=1, every="1 hour")
    with pytest.raises(DefinitionError, match="declared already"):
        app.schedule("s", typed, params=1, every="1 hour")
    with pytest.raises(ParamsInvalidError):
        app.schedule("t", typed, params="one", every="1 hour")


# --- reconciliation


async def reopened(app: Holdfast, h: Harness, *declare: Callable[[Holdfast], None]) -> list[ScheduleInfo]:
    """Start the program again with other declarations."""
    h.app.registry.schedules.clear()
    for one in declare:
        one(app)
    await h._opened().reconcile()
    return await h.app.schedules.list()


async def test_a_changed_declaration_takes_effect_and_an_unchanged_one_keeps_changes_at_run_time(
    app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(app)

    def declare(cron: str) -> Callable[[Holdfast], None]:
        return lambda app: app.schedule("s", job.workflow, cron=cron)

    declare("0 3 * * *")(app)
    async with Harness(app) as h:
        await h.app.schedules.update("s", cron="0 4 * * *")
        [kept] = await reopened(app, h, declare("0 3 * * *"))
        assert kept.spec.cron == ("0 4 * * *",)

        with caplog.at_level(logging.INFO, "holdfast"):
            [changed] = await reopened(app, h, declare("0 5 * * *"))
        assert changed.spec.cron == ("0 5 * * *",)
        assert changed.next_ticks == [START + timedelta(hours=5)]
        assert "schedule s is changed by the code: cron 0 5 * * *, before cron 0 4 * * *" in caplog.text


async def test_a_declaration_that_was_removed_pauses_its_schedule_until_it_is_back(app: Holdfast) -> None:
    job = Job(app)

    def declare(app: Holdfast) -> None:
        app.schedule("s", job.workflow, every="1 hour")

    declare(app)
    async with Harness(app) as h:
        [removed] = await reopened(app, h)
        assert (removed.paused, removed.note, removed.declared) == (
            True, "the code no longer declares this schedule", False,
        )  # fmt: skip
        await h.advance("2 hours")
        assert job.ticks == []

        [back] = await reopened(app, h, declare)
        assert (back.paused, back.note, back.declared) == (False, None, True)
        await h.advance("1 hour")
        assert job.ticks == ["01 03:00"]


async def test_a_schedule_whose_tick_is_queued_for_long_is_rarely_taken_up(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_up = list[int]()
    job = Job(app, takes="100 minutes")
    app.schedule("s", job.workflow, every="1 hour", overlap="queue_one", end=START + timedelta(hours=2))
    monkeypatch.setattr(
        schedules, "take_up", lambda row, content, now: (taken_up.append(now), take_up(row, content, now))[1]
    )
    async with Harness(app) as h:
        await h.advance("2 hours")  # the second tick has been due for a moment
        taken_up.clear()
        await h.advance("40 minutes")  # until the run of the first tick ends

        assert 80 <= len(taken_up) < 150
        assert max(later - earlier for earlier, later in pairwise(taken_up)) <= 33_000
        assert job.ticks == ["01 01:00", "01 02:00"]


async def test_queued_ticks_start_after_the_code_has_changed_or_removed_their_schedule(app: Holdfast) -> None:
    job = Job(app, takes="90 minutes")
    app.schedule("queues", job.workflow, every="1 hour", overlap="queue_one")
    app.schedule("fills", job.workflow, cron="0 3 1 6 *")
    async with Harness(app) as h:
        await h.app.schedules.backfill("fills", START - timedelta(days=800), START)
        await h.advance("2 hours 1 minute")
        assert [outcome for _, outcome in await outcomes(h, "queues")] == ["waiting", "queued"]

        await reopened(app, h, lambda app: app.schedule("queues", job.workflow, cron="0 3 1 6 *", overlap="queue_one"))
        await h.advance("5 hours")

        assert [outcome for _, outcome in await outcomes(h, "queues")] == ["complete", "complete"]
        assert {outcome for _, outcome in await outcomes(h, "fills")} == {"complete"}


async def test_a_tick_of_a_workflow_with_batches_has_a_list_of_its_params(app: Holdfast) -> None:
    received: list[list[int]] = []

    @app.workflow(batch=Batch(size=5, wait="1 second"))
    async def collect(ctx: Context, items: list[int]) -> None:
        received.append(items)

    app.schedule("declared", collect, params=1, every="1 hour")
    async with Harness(app) as h:
        await h.app.schedules.create("created", collect, params=2, every="1 hour")
        await h.app.schedules.update("created", params=3)
        await h.advance("1 hour")

    assert sorted(received) == [[1], [3]]


# --- other models, other features


async def test_chains_and_graphs_are_scheduled_too(app: Holdfast) -> None:
    ticks: list[str] = []
    chain, graph = app.chain("chain"), app.graph("graph")

    @chain.step("ONLY")
    async def only(task: ChainTask) -> str:
        ticks.append(f"chain {step_info().scheduled_for:%H:%M}")
        return "done"

    @graph.node
    async def node() -> str:
        ticks.append(f"graph {step_info().scheduled_for:%H:%M}")
        return "done"

    app.schedule("c", chain, every="1 hour")
    app.schedule("g.raph", graph, every="2 hours")
    async with Harness(app) as h:
        await h.advance("2 hours")

        assert sorted(ticks) == ["chain 01:00", "chain 02:00", "graph 02:00"]


async def test_a_run_that_continues_as_new_stays_open_and_keeps_its_tick(app: Holdfast) -> None:
    seen: list[str] = []

    @app.workflow
    async def job(ctx: Context, params: int | None = None) -> None:
        seen.append(f"{ctx.info.scheduled_for:%H:%M}/{ctx.info.run_number}")
        await ctx.sleep("work", "40 minutes")
        if (params or 0) < 2:
            raise ctx.continue_as_new((params or 0) + 1)

    app.schedule("s", job, every="1 hour")
    async with Harness(app) as h:
        await h.advance("3 hours")

        assert seen == ["01:00/0", "01:00/1", "01:00/2", "03:00/0"] or seen[:3] == ["01:00/0", "01:00/1", "01:00/2"]
        assert (await outcomes(h))[1] == ("01 02:00", "skipped")


async def test_a_schedule_that_cannot_be_taken_up_is_tried_again_and_does_not_stop_others(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(app)
    app.schedule("bad", job.workflow, every="1 hour", catch_up="1 hour")
    app.schedule("good", job.workflow, every="1 hour")
    async with Harness(app) as h:
        from holdfast.kernel.requests import Requests, ScheduledStart

        scheduled_run = Requests.scheduled_run

        def failing(self: Requests, start: ScheduledStart) -> Any:
            if start.schedule == "bad":
                raise ValueError("out of order")
            return scheduled_run(self, start)

        monkeypatch.setattr(Requests, "scheduled_run", failing)
        await h.advance("1 hour")
        assert job.ticks == ["01 01:00"]
        assert (await h.app.schedules.get("bad")).note == "cannot be taken up: out of order"
        monkeypatch.undo()
        await h.advance("2 minutes")

        assert job.ticks == ["01 01:00", "01 01:00"]
        assert (await h.app.schedules.get("bad")).note is None


async def test_a_changed_start_or_end_is_checked_against_the_other_one(app: Holdfast) -> None:
    job, start = Job(app), datetime(2030, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC)
    async with Harness(app) as h:
        await h.app.schedules.create("s", job.workflow, every="1 hour", start=start, end=start + timedelta(days=2))
        for wrong in ({"end": start - timedelta(1)}, {"start": start + timedelta(days=3)}):
            with pytest.raises(InvalidOptionError, match="end must not be before start"):
                await h.app.schedules.update("s", **wrong)
        await h.app.schedules.update("s", jitter="1 second")
        await h.app.schedules.update("s", end=None)

        assert (await h.app.schedules.get("s")).spec.period == (start, None)


async def test_a_worker_waits_only_for_the_runs_that_still_block_a_schedule() -> None:
    """A run that another process ended is not reported in this process: without this, its wait would stay forever."""
    hub = Hub()
    ports: Any = SimpleNamespace(requests=None, now_ms=lambda: 0)
    store: Any = None
    loop = schedules.ScheduleLoop(store, Registry(lambda: None), hub, ports, SystemRandomness(), 1_000)

    loop._wait_for_ends("s", [1, 2])
    loop._wait_for_ends("s", [2, 3])
    assert sorted(hub._waiting) == [2, 3]
    hub.ended(3, None)
    await asyncio.sleep(0)
    assert loop._ended == {"s"}
    loop._wait_for_ends("s", [])
    assert not hub._waiting
    assert not loop._waiting


async def test_a_worker_takes_up_ticks_in_real_time(app: Holdfast) -> None:
    ticks: list[datetime | None] = []
    third = asyncio.Event()

    @app.workflow
    async def job(ctx: Context) -> None:
        ticks.append(ctx.info.scheduled_for)
        if len(ticks) == 3:
            third.set()

    async with app:
        await app.schedules.create("s", job, every="1 second", overlap="allow")
        async with asyncio.timeout(60):
            await third.wait()

    assert len(set(ticks)) == len(ticks)


async def test_cron_on_start_is_described(app: Holdfast) -> None:
    @app.workflow
    async def old(ctx: Context) -> None: ...

    async with Harness(app) as h:
        run = await h.start(old, cron="30 6 * * *")

        assert (await run.describe()).cron == "30 6 * * *"
