"""The overview: groups of runs that need attention, and starts and ends over time."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_api import Api, client_of

from holdfast import Context, Holdfast, Retry, WorkerConfig
from holdfast.testing import Harness
from postgres_harness import CleanStore

EVERY_STORE = True


def make_app(**options: Any) -> Holdfast:
    app = Holdfast(**options, worker=WorkerConfig(version="7"))

    @app.workflow
    async def invoice(ctx: Context, key: str = "vat_id") -> Any:
        return {}[key]

    @app.step(retry=Retry(limit=9, delay="1 hour", backoff="constant"))
    async def call_bank() -> None:
        raise ConnectionError("bank.example does not answer")

    @app.workflow
    async def settle(ctx: Context) -> None:
        await call_bank()

    @app.workflow
    async def waiter(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go", timeout="1 day")

    return app


@pytest.fixture
async def h(database_options: dict[str, Any], database: str) -> AsyncIterator[Harness]:
    async with Harness(
        make_app(**database_options), seed=3, store=CleanStore if database == "postgres" else None
    ) as harness:
        yield harness


@pytest.fixture
async def virtual(h: Harness) -> AsyncIterator[Api]:
    async with client_of(h.app.asgi()) as http:
        yield Api(http)


async def _groups(virtual: Api) -> dict[tuple[str, str], Any]:
    body = await virtual.get("/_attention")
    assert body["runs"] == sum(group["count"] for group in body["groups"])
    return {(group["kind"], group["workflowName"]): group for group in body["groups"]}


async def test_runs_that_need_attention_are_grouped_by_cause(h: Harness, virtual: Api) -> None:
    for n in range(3):
        await h.start("invoice", id=f"i{n}")
    await h.start("invoice", "other", id="i3")
    await h.start("settle", id="s")
    await h.start("waiter", id="w")
    await h.start("waiter", id="q", queue="reports")
    await h.run_until_idle()
    await h.advance("150 minutes")

    groups = await _groups(virtual)

    assert {*groups} == {("errored", "invoice"), ("failing", "settle"), ("no_worker", "waiter")}
    errored = groups["errored", "invoice"]
    assert (errored["count"], errored["error"]["name"], errored["version"]) == (4, "KeyError", "7")
    assert re.fullmatch(r"errored: KeyError: '\w+' at .*test_http_overview.py:\d+", errored["why"])
    assert "traceback" not in errored["error"]
    assert errored["filter"] == {"workflow": "invoice", "status": "errored", "error": "KeyError"}
    assert errored["action"] == "retry"
    assert errored["samples"][0]["workflowName"] == "invoice"
    failing = groups["failing", "settle"]
    assert (failing["count"], failing["stepKey"]) == (1, "call_bank")
    alone = groups["no_worker", "waiter"]
    assert (alone["count"], alone["queue"], alone["samples"][0]["pid"]) == (1, "reports", "waiter/q")
    listed = await virtual.get("/_instances", **errored["filter"])
    assert len(listed["instances"]) == 4


async def test_a_run_that_was_retried_needs_no_attention(h: Harness, virtual: Api) -> None:
    run = await h.start("invoice", id="i")
    await h.run_until_idle()
    assert {*await _groups(virtual)} == {("errored", "invoice")}

    await run.restart()
    await h.advance("6 seconds", run=False)

    assert await _groups(virtual) == {}


async def test_a_series_counts_starts_and_ends_by_minute(h: Harness, virtual: Api) -> None:
    await h.start("invoice", id="a")
    await h.run_until_idle()
    await h.advance("10 minutes")
    for n in range(2):
        await h.start("invoice", id=f"b{n}")
    await h.start("waiter", id="w")
    await h.run_until_idle()

    hour = await virtual.get("/_series")
    day = await virtual.get("/_series", window="24h", workflow="waiter")
    await h.advance("3 days")
    await virtual.get("/_stats")
    week = await virtual.get("/_series", window="7d", workflow="invoice")

    assert (hour["stepMs"], len(hour["started"])) == (60_000, 60)
    assert (hour["started"][-11], hour["started"][-1]) == (1, 3)
    assert (hour["errored"][-11], hour["errored"][-1], sum(hour["complete"])) == (1, 2, 0)
    assert hour["workflows"]["invoice"]["errored"] == hour["errored"]
    assert "waiter" not in hour["workflows"]
    assert (day["stepMs"], len(day["started"]), sum(day["started"])) == (900_000, 96, 1)
    assert (week["stepMs"], len(week["started"])) == (7_200_000, 84)
    assert (sum(week["started"]), sum(week["errored"]), sum(week["started"][-36:])) == (3, 3, 0)
    assert await virtual.refused("GET", "/_series?window=7y") == (400, "VALIDATION_ERROR")
