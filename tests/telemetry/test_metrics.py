"""Metrics: counters and histograms of what was written, gauges of the database, and their text."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from apps import MakeApp
from driving import lose_worker
from holdfast import Context, Holdfast, NonRetryableError, Retry
from holdfast.client import stats as client_stats
from holdfast.telemetry.instruments import MAX_LABEL_SETS, Counter, Gauge, Histogram
from holdfast.telemetry.metrics import MAX_STEPS, NAMES, Metrics
from holdfast.testing import Harness


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("sqlite://")
    app.collect_metrics()
    return app


async def samples(app: Holdfast) -> Mapping[str, float]:
    """The value of each sample, by its name and labels as written."""
    text = await app.metrics_text()
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        if family.name.startswith("holdfast")
        for sample in family.samples
    }


def shop(app: Holdfast) -> None:
    tried: list[int] = []

    @app.step(retry=Retry(1, delay="1 second"))
    async def charge() -> int:
        tried.append(1)
        if len(tried) == 1:
            raise KeyError("x")
        return 5

    @app.step
    async def fail() -> None:
        raise NonRetryableError("no")

    @app.workflow
    async def order(ctx: Context) -> None:
        await charge()
        await fail()

    flow = app.graph("flow")

    @flow.node
    async def node() -> int:
        return 1


async def test_runs_and_steps_are_counted_when_they_are_written(app: Holdfast, h: Harness) -> None:
    shop(app)
    await h.start("order", queue="default")
    await h.start("flow")
    await h.run_until_idle()
    await h.advance("2 seconds")

    found = await samples(h.app)

    assert found["holdfast_runs_started_total workflow=order"] == 1
    assert found["holdfast_runs_started_total workflow=flow"] == 1
    assert found["holdfast_runs_ended_total status=errored workflow=order"] == 1
    assert found["holdfast_runs_ended_total status=complete workflow=flow"] == 1
    assert found["holdfast_steps_total outcome=retried step=charge workflow=order"] == 1
    assert found["holdfast_steps_total outcome=completed step=charge workflow=order"] == 1
    assert found["holdfast_steps_total outcome=errored step=fail workflow=order"] == 1
    assert found["holdfast_steps_total outcome=completed step=node workflow=flow"] == 1
    assert found["holdfast_step_duration_seconds_count step=charge workflow=order"] == 2
    assert found["holdfast_start_latency_seconds_count queue=default"] == 2
    assert found["holdfast_commit_seconds_count"] >= 2
    assert found["holdfast_lease_takeovers_total"] == 0


async def test_the_gauges_show_the_database(app: Holdfast, h: Harness) -> None:
    shop(app)

    @app.workflow
    async def waits(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go")

    await h.start("flow")
    await h.start(waits)
    await h.run_until_idle()
    await h.start(waits, queue="slow")

    found = await samples(h.app)

    assert found["holdfast_runs status=complete workflow=flow"] == 1
    assert found["holdfast_runs status=waiting workflow=waits"] == 1
    assert found["holdfast_queue_due queue=slow"] == 1
    assert found["holdfast_queue_oldest_due_seconds queue=slow"] == 0
    assert found["holdfast_workers_alive"] == 0


async def test_a_gauge_shows_for_how_long_the_oldest_request_of_a_limit_has_waited(app: Holdfast) -> None:
    app.limit("idle", concurrency=1)
    bank = app.limit("bank", concurrency=1)

    @app.workflow(limits=[bank], hold="until_end")
    async def waits(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go")

    async with Harness(app) as h:
        for _ in range(2):
            await h.start(waits)
            await h.run_until_idle()
        await h.advance("90 seconds")

        found = await samples(h.app)

    assert found["holdfast_limit_oldest_waiting_seconds limit=bank"] == 90
    assert found["holdfast_limit_oldest_waiting_seconds limit=idle"] == 0


async def test_the_gauges_are_read_at_most_every_five_seconds(
    app: Holdfast, h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop(app)
    await h.start("flow")
    before = (await samples(h.app))["holdfast_runs status=active workflow=flow"]
    await h.run_until_idle()

    assert (await samples(h.app))["holdfast_runs status=active workflow=flow"] == before == 1
    monkeypatch.setattr(client_stats, "CACHED_SECONDS", 0)
    assert (await samples(h.app))["holdfast_runs status=complete workflow=flow"] == 1


@pytest.mark.above_the_store
async def test_a_takeover_and_a_parked_run_are_counted(app: Holdfast, h: Harness) -> None:
    @app.step(retry=Retry(100, delay=0))
    async def slow() -> None:
        await asyncio.sleep(3600)

    @app.workflow
    async def order(ctx: Context) -> None:
        await slow()

    await h.start(order)
    for _ in range(11):
        await h._the_worker().claim_due(1)
        await asyncio.sleep(0)  # the turn begins
        await lose_worker(h)
        await h._the_worker().reap()

    text = app.telemetry[0].text(None)  # type: ignore[attr-defined]

    assert re.search(r"^holdfast_lease_takeovers_total (9|10)$", text, re.MULTILINE)
    assert 'holdfast_parked_total{reason="losses"} 1' in text


@pytest.mark.above_the_store
async def test_a_run_that_does_not_fit_its_code_is_counted_by_the_reason(app: Holdfast, h: Harness) -> None:
    kind = "event"

    @app.workflow
    async def order(ctx: Context) -> None:
        if kind == "event":
            await ctx.wait_for_event("a", type="go", timeout="1 hour")
        else:
            await ctx.sleep("a", "1 minute")
            await ctx.sleep("b", "1 minute")

    run = await h.start(order)
    await h.run_until_idle()
    kind = "sleep"
    await h.restart()
    await run.send_event("go")
    await h.run_until_idle()

    assert 'holdfast_parked_total{reason="non_deterministic"} 1' in app.telemetry[0].text(None)  # type: ignore[attr-defined]


async def test_the_metrics_of_a_real_worker_have_all_names(make_app: MakeApp) -> None:
    app = make_app()
    app.collect_metrics()
    shop(app)

    async with app:
        await (await app.start("flow")).result(timeout=60)
        text = await app.metrics_text()

    assert {name for name in NAMES if f"# TYPE {name} " in text} == set(NAMES)
    assert "python_info" in text
    found = {family.name for family in text_string_to_metric_families(text)}
    assert "holdfast_workers_alive" in found


@pytest.mark.above_the_store
def test_metrics_need_no_other_package() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from holdfast.telemetry.metrics import Metrics\nprint(Metrics().text(None))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "# TYPE holdfast_runs_started_total counter" in done.stdout
    assert "python_info" not in done.stdout


def test_the_number_of_steps_of_a_workflow_is_bounded() -> None:
    metrics = Metrics()

    names = {metrics._step_name("order", f"item-{n}") for n in range(MAX_STEPS + 50)}

    assert len(names) == MAX_STEPS + 1
    assert "other" in names


def test_the_number_of_label_sets_is_bounded() -> None:
    counter, histogram = Counter("c", "h", ["a"]), Histogram("h", "h", ["a"])
    for n in range(MAX_LABEL_SETS + 10):
        counter.add((str(n),))
        histogram.observe(1, (str(n),))
    gauge = Gauge("g", "h", ["a"])

    assert len(counter.values) == MAX_LABEL_SETS + 1
    assert counter.values["other",] == 10
    assert len(histogram.series) == MAX_LABEL_SETS + 1
    assert len(list(gauge.lines(((str(n),), 1.0) for n in range(5_000)))) == MAX_LABEL_SETS + 2


def test_label_values_are_escaped() -> None:
    counter = Counter("c", "h", ["a"])
    counter.add(('quo"te\\ and\nline \udc00',))

    assert [*counter.lines()][-1] == 'c{a="quo\\"te\\\\ and\\nline \\\\udc00"} 1'


def test_a_histogram_has_cumulative_buckets() -> None:
    histogram = Histogram("h", "help")
    for seconds in (0.001, 0.2, 5000):
        histogram.observe(seconds)

    lines = [*histogram.lines()]

    assert lines[:3] == ["# HELP h help", "# TYPE h histogram", 'h_bucket{le="0.001"} 1']
    assert 'h_bucket{le="0.25"} 2' in lines
    assert lines[-3:] == ['h_bucket{le="+Inf"} 3', "h_sum 5000.201", "h_count 3"]
