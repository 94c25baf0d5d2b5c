"""The details of one run: timeline, one step, stored facts, mailbox, family."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from http_api import Api, client_of, until

from holdfast import Context, Holdfast, NonRetryableError, Retry
from holdfast.testing import Harness
from postgres_harness import CleanStore

EVERY_STORE = True


def make_app(**options: Any) -> Holdfast:
    app = Holdfast(**options)
    failures = {"flaky": 2}

    @app.step(retry=Retry(limit=5, delay="10 seconds", backoff="constant"))
    async def flaky() -> str:
        if failures["flaky"]:
            failures["flaky"] -= 1
            raise ConnectionError("no answer")
        return "paid"

    @app.step
    async def reserve(what: str) -> str:
        await asyncio.sleep(0)
        return what

    @app.step(retry=Retry(limit=0))
    async def invoice() -> None:
        raise KeyError("vat_id")

    @app.workflow
    async def broken(ctx: Context, handled: bool) -> None:
        try:
            await invoice()
        except KeyError as error:
            if handled:
                raise NonRetryableError("no invoice") from error
            raise

    @app.workflow
    async def sub(ctx: Context) -> str:
        await ctx.sleep("nap", "5 minutes")
        return "slept"

    @app.workflow
    async def order(ctx: Context, params: Any = None) -> Any:
        ctx.log.info("begun")
        await flaky()
        await asyncio.gather(ctx.do("tea", reserve, "tea"), ctx.do("cup", reserve, "cup"))
        await ctx.run("sub", id="child")
        return (await ctx.wait_for_event("approval", type="approval", timeout="1 day")).payload

    return app


@pytest.fixture
async def h(database_options: dict[str, Any], database: str) -> AsyncIterator[Harness]:
    app = make_app(**database_options)
    async with Harness(app, seed=3, store=CleanStore if database == "postgres" else None) as harness:
        yield harness


@pytest.fixture
async def virtual(h: Harness) -> AsyncIterator[Api]:
    async with client_of(h.app.asgi()) as http:
        yield Api(http)


async def _run_to_wait(h: Harness) -> None:
    await h.start("order", id="o-1")
    await h.run_until_idle()
    await h.advance("10 minutes")


async def test_the_timeline_has_every_attempt_with_its_error(h: Harness, virtual: Api) -> None:
    begin = h.now()
    await _run_to_wait(h)

    timeline = await virtual.get("/order/instances/o-1/timeline")

    items = {item["key"]: item for item in timeline["items"]}
    start = timeline["start"]
    assert start == begin.timestamp() * 1000
    flaky = items["flaky"]
    assert [(one["n"], one["outcome"], one["start"] - start) for one in flaky["attempts"]] == [
        (1, "failed", 0), (2, "failed", 10_000), (3, "ok", 20_000),
    ]  # fmt: skip
    assert flaky["attempts"][0]["error"]["name"] == "ConnectionError"
    assert flaky["attempts"][0]["retryAt"] == flaky["attempts"][1]["start"]
    assert items["#child sub"]["child"] == "sub/child"
    assert items["#child sub"]["end"] - items["#child sub"]["start"] == 300_000
    approval = items["approval"]
    assert (approval["status"], approval["end"], approval["eventType"]) == ("waiting", None, "approval")
    assert approval["wakeAt"] == approval["start"] + 86_400_000
    assert timeline["end"] is None
    assert timeline["total"] == len(items)
    assert [line["level"] for line in timeline["logs"]] == ["info"]


async def test_the_timeline_sends_changes_since_a_version(h: Harness, virtual: Api) -> None:
    await _run_to_wait(h)
    first = await virtual.get("/order/instances/o-1/timeline")
    await h.advance("1 hour")
    await (await h.app.get("order", "o-1")).send_event("approval", {"by": "ann"})
    await h.run_until_idle()

    changes = await virtual.get("/order/instances/o-1/timeline", since=first["version"] + 60_000)

    assert [item["key"] for item in changes["items"]] == ["approval"]
    assert changes["total"] == first["total"]
    assert changes["version"] > first["version"]
    assert changes["end"] is not None
    [message] = changes["messages"]
    assert (message["type"], message["by"]) == ("approval", "approval")
    assert message["takenAt"] >= message["at"]


async def test_the_timeline_names_the_worker_of_a_long_attempt(shop: Any, api: Api, gates: Any) -> None:
    await api.create("doors", 1, id="d")
    [worker] = await api.workers()

    async def held() -> Any:
        timeline = await api.get("/doors/instances/d/timeline")
        return timeline if timeline["items"] else None

    timeline = await until(held)
    running = timeline["items"][0]["attempts"][0]
    assert (running["outcome"], running["end"], running["worker"]) == ("running", None, worker["id"])
    assert [(one["worker"], one["end"], one["lost"]) for one in timeline["holders"]] == [(worker["id"], None, False)]
    assert (await api.get("/doors/instances/d"))["meta"]["owner"] == worker["id"]
    gates.door("d-0-0").set()


async def test_a_step_is_shown_with_its_result(h: Harness, virtual: Api) -> None:
    await _run_to_wait(h)

    step = (await virtual.get("/order/instances/o-1/step", key="tea"))["step"]

    assert (step["stepKey"], step["result"], step["status"]) == ("tea", "tea", "completed")
    assert (await virtual.get("/order/instances/o-1/step", key="none"))["step"] is None


async def test_all_facts_are_listed_in_pages_in_the_order_of_their_times(h: Harness, virtual: Api) -> None:
    await _run_to_wait(h)
    path = "/order/instances/o-1/facts/all"
    pages = [await virtual.get(path, pageSize=4)]
    while pages[-1]["hasNextPage"]:
        pages.append(await virtual.get(path, pageSize=4, cursor=pages[-1]["nextCursor"]))

    facts = [fact for page in pages for fact in page["facts"]]

    assert len(facts) == pages[0]["total"] > 5
    assert [fact["at"] for fact in facts] == sorted(fact["at"] for fact in facts)
    failures = [fact for fact in facts if fact["state"] == "failure"]
    assert [(fact["key"], fact["n"], fact["ok"]) for fact in failures] == [("flaky", 1, False), ("flaky", 2, False)]
    assert next(fact["value"] for fact in facts if fact["key"] == "tea" and fact["state"] == "result") == "tea"
    assert await virtual.refused("GET", f"{path}?cursor=e1") == (400, "INVALID_CURSOR")


async def test_the_mailbox_names_the_step_that_consumed_an_event(h: Harness, virtual: Api) -> None:
    await _run_to_wait(h)
    run = await h.app.get("order", "o-1")
    waiting = await virtual.get("/order/instances/o-1/mailbox")
    await run.send_event("other", 1)
    await run.send_event("approval", {"by": "ann"})
    await h.run_until_idle()

    events = (await virtual.get("/order/instances/o-1/mailbox", order="desc"))["events"]
    first = await virtual.get("/order/instances/o-1/mailbox", pageSize=1)

    assert waiting["awaited"] == ["approval"]
    outside = [event for event in events if "engine" not in event]
    assert [(event["type"], event["consumedByStepKey"]) for event in outside] == [
        ("approval", "approval"), ("other", None),
    ]  # fmt: skip
    assert [event["engine"] for event in events if event not in outside] == [True]  # the end of the child
    assert first["hasNextPage"] is True
    again = await virtual.get("/order/instances/o-1/mailbox", pageSize=5, cursor=first["nextCursor"])
    assert [event["n"] for event in first["events"] + again["events"]] == [1, 2, 3]


async def test_the_family_has_ancestors_and_children(h: Harness, virtual: Api) -> None:
    await h.start("order", id="o-1")
    await h.run_until_idle()
    await h.advance("1 minute")

    family = await virtual.get("/sub/instances/child/family")
    parent = await virtual.get("/order/instances/o-1/family")

    assert family["itself"]["pid"] == "sub/child"
    assert [one["pid"] for one in family["ancestors"]] == ["order/o-1"]
    assert [one["pid"] for one in family["watchedBy"]] == ["order/o-1"]
    assert [(one["pid"], one["status"]) for one in parent["children"]] == [("sub/child", "waiting")]
    assert parent["ancestors"] == []


async def test_pages_of_all_instances_lead_back(h: Harness, virtual: Api) -> None:
    for n in range(7):
        await h.start("sub", id=f"s{n}")

    async def page(**query: Any) -> tuple[list[str], Any, Any]:
        body = await virtual.get("/_instances", pageSize=3, **query)
        return [one["id"] for one in body["instances"]], body.get("nextCursor"), body.get("previousCursor")

    for order, ids in (("desc", ["s6", "s5", "s4", "s3", "s2", "s1", "s0"]), ("asc", [f"s{n}" for n in range(7)])):
        first, after, before = await page(order=order)
        assert (first, before) == (ids[:3], None)
        second, third_cursor, back = await page(order=order, cursor=after)
        assert second == ids[3:6]
        third, end, back_to_second = await page(order=order, cursor=third_cursor)
        assert (third, end) == (ids[6:], None)
        assert await page(order=order, cursor=back_to_second) == (second, third_cursor, back)
        assert await page(order=order, cursor=back) == (first, after, None)
    assert await virtual.refused("GET", "/_instances?cursor=x1") == (400, "INVALID_CURSOR")


async def test_a_run_number_that_no_store_can_hold_is_not_found(h: Harness, virtual: Api) -> None:
    await _run_to_wait(h)

    response = await virtual.send("GET", "/order/instances/o-1/timeline", params={"runNumber": 2**70})

    assert response.status_code == 404


async def test_the_parts_of_why_name_the_step_and_the_line_that_raised_the_error(h: Harness, virtual: Api) -> None:
    for name, handled in (("raised", False), ("replaced", True)):
        await h.app.start("broken", handled, id=name)
    await h.app.start("sub", id="fine")
    await h.advance("1 hour")

    listed = {run["id"]: run["meta"]["whyParts"] for run in (await virtual.get("/_instances"))["instances"]}
    assert listed["fine"] == {"kind": "ended"}
    assert (listed["raised"]["kind"], listed["raised"]["stepKey"]) == ("ended", "invoice")
    assert "stepKey" not in listed["replaced"]
    lines = Path(__file__).read_text().splitlines()
    for name, text in (
        ("raised", 'raise KeyError("vat_id")'),
        ("replaced", 'raise NonRetryableError("no invoice") from error'),
    ):
        position = listed[name]["position"]
        assert position["file"].endswith("test_http_details.py")
        assert lines[position["line"] - 1].strip() == text


async def test_the_error_for_a_run_number_that_never_was_names_the_run(h: Harness, virtual: Api) -> None:
    await h.start("order", id="o-1")

    for route in ("timeline", "facts/all", "mailbox", "export"):
        refused = await virtual.send("GET", f"/order/instances/o-1/{route}?runNumber=9")
        assert (refused.status_code, refused.json()["message"]) == (
            404,
            "there is no run 9 of instance 'o-1' of workflow 'order'",
        )
