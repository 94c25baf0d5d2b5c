"""Actions in a real browser: limits, schedules, queues, forks with other results, events, graphs.

The tests of this module share one server; each uses runs of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

pytest.importorskip("playwright", reason="playwright is not installed")

from browser_shop import define_shop
from browser_visit import serve, visit

from holdfast import Context, Holdfast, Rate, Retry
from postgres_harness import CleanSchemas

if TYPE_CHECKING:
    from browser_visit import Served
    from playwright.async_api import Browser


@pytest_asyncio.fixture(scope="module")
async def busy_shop(each_store: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    with ExitStack() as stack:
        if each_store == "sqlite":
            app = Holdfast(f"sqlite:///{tmp_path_factory.mktemp('busy')}/shop.db")
        else:
            url, schema = stack.enter_context(CleanSchemas.one())
            app = Holdfast(url, schema=schema)
        define_shop(app)
        _define_busy(app)
        async with serve(app) as served:
            await app.start("etl", 4, id="e-1")
            yield served


CONFIRM_TWICE = """() => {
  const key = { key: "Enter", ctrlKey: true, bubbles: true };
  const input = document.querySelector("dialog input");
  for (let n = 0; n < 2; n += 1) input.dispatchEvent(new KeyboardEvent("keydown", key));
}"""


def _define_busy(app: Holdfast) -> None:
    app.limit("bank", concurrency=5, rate=Rate(100, "1 minute"))
    tenants = app.limit("tenants", concurrency=1, rate=Rate(600, "1 hour"), key="tenant")

    @app.workflow(limits=[tenants], hold="until_end")
    async def delivery(ctx: Context, parcel: dict[str, str]) -> None:
        await ctx.wait_for_event("go", type="go", timeout="24 hours")

    @app.step
    async def quote(total: int) -> dict[str, int]:
        return {"total": total}

    @app.workflow
    async def sale(ctx: Context, total: int) -> int:
        quoted = await quote(total)
        ctx.log.info("quoted", quoted)
        await ctx.sleep("cool off", 0.1)
        await ctx.wait_for_event("go", type="go", timeout="24 hours")
        ctx.log.info("after the event")
        return quoted["total"]

    app.schedule("nightly", sale, params=5, cron="0 3 * * *", overlap="allow")
    crawl = app.graph("crawl")

    @crawl.node
    async def shops(params: int) -> list[int]:
        return list(range(params))

    @crawl.node(map=shops, retry=Retry(limit=2, delay="1 hour", backoff="constant"))
    async def fetch(shops: int) -> int:
        if shops == 3:
            raise ConnectionError("HTTP 429")
        return shops

    @crawl.node(after=[fetch])
    async def load(fetch: list[int]) -> int:
        return sum(fetch)


async def _waiting(app: Holdfast, workflow: str, params: Any, id: str, *, type: str = "go") -> None:
    """Start a run, and wait until it waits for the event."""
    run = await app.start(workflow, params, id=id)
    async with asyncio.timeout(60):
        while type not in (await run.describe()).why:
            await asyncio.sleep(0.01)


async def test_a_limit_is_changed_on_the_page_and_enforced_at_once(chromium: Browser, busy_shop: Served) -> None:
    async with visit(chromium, busy_shop.url) as user:
        await user.open("flow")
        await user.page.click("[aria-label='More for bank']")
        await user.page.click("[aria-label='More for bank']")
        await user.page.click("text=Apply…")
        await user.sees("2 more may start at once", "dialog")
        await user.page.fill("dialog input", "the bank answers again")
        await user.page.keyboard.press("Control+Enter")
        await user.sees("changed", "table")
        await user.page.click("[aria-label^='Rate of bank']")
        await user.page.fill("dialog label:has-text('Starts') input", "120")
        await user.page.keyboard.press("Control+Enter")
        await user.sees("of 120 / min", "table")

    bank = next(limit for limit in await busy_shop.app.list_limits() if limit.name == "bank")
    assert (bank.concurrency, bank.rate) == (7, Rate(120, "1 min", burst=120))


async def test_a_limit_shows_its_keys_and_the_use_of_its_rate(chromium: Browser, busy_shop: Served) -> None:
    for tenant, count in (("acme", 3), ("globex", 1)):
        for n in range(count):
            await busy_shop.app.start("delivery", {"tenant": tenant}, id=f"{tenant}-{n}")
    async with visit(chromium, busy_shop.url) as user:
        await user.open("flow?limit=tenants")
        await user.sees("2 in use, 1 each", "table")
        await user.sees("of 600 / h", "table")
        await user.page.wait_for_function(
            "() => [...document.querySelectorAll('.flow tr')]"
            ".some((row) => /^acme.*2\\s+[0-9]+ [a-z]+$/s.test(row.innerText.trim()))"
        )
        await user.page.wait_for_selector("tr:has(button:text-is('tenants')) td:nth-child(5) time")
        assert await user.page.inner_text("tr:has(button:text-is('bank')) td:nth-child(5)") == "\u2013"
        await user.page.click("button:text-is('bank')")
        await user.page.wait_for_selector("h2:text-is('bank')")
        assert "limit=bank" in user.page.url


async def test_a_sheet_sends_its_request_once_however_often_it_is_confirmed(
    chromium: Browser, busy_shop: Served
) -> None:
    before = len((await busy_shop.app.list("sale", limit=100)).items)
    async with visit(chromium, busy_shop.url) as user:
        await user.open("flow")
        await user.page.click("button:has-text('nightly')")
        await user.page.click("text=Trigger now…")
        await user.page.wait_for_selector("dialog .primary")
        await user.page.evaluate(CONFIRM_TWICE)
        await user.sees("Trigger: done", ".toast")

    assert len((await busy_shop.app.list("sale", limit=100)).items) == before + 1


async def test_the_keyboard_deletes_a_run_only_with_the_typed_number(chromium: Browser, busy_shop: Served) -> None:
    run = await busy_shop.app.start("sale", 10, id="kept")
    await run.terminate()
    async with visit(chromium, busy_shop.url) as user:
        await user.open("run/sale/kept")
        await user.page.click("[aria-label='More actions']")
        await user.page.click("text=Delete…")
        await user.page.fill("dialog label:has-text('Reason') input", "not yet")
        await user.page.evaluate(CONFIRM_TWICE)
        await user.page.fill("dialog label:has-text('Type 1') input", "1")
        assert (await busy_shop.app.get("sale", "kept")).id == "kept"
        await user.page.keyboard.press("Control+Enter")
        await user.sees("Delete: sale/kept", ".toast")


async def test_a_schedule_is_paused_resumed_triggered_and_backfilled(chromium: Browser, busy_shop: Served) -> None:
    async with visit(chromium, busy_shop.url) as user:
        await user.open("flow")
        for word, on in (("Pause", "false"), ("Resume", "true")):
            await user.page.click("[aria-label='Schedule nightly']")
            await user.sees(word, "dialog")
            await user.page.click("dialog .primary")
            await user.page.wait_for_selector(f"[aria-label='Schedule nightly'][aria-checked={on}]")
        await user.page.click("button:has-text('nightly')")
        for word in ("Trigger", "Backfill"):
            await user.page.click(f"text={word}{' now' if word == 'Trigger' else ''}…")
            await user.page.click("dialog .primary")
            await user.sees(f"{word}: done", ".toast")

        await user.open("runs?q=workflow:sale")
        await user.page.wait_for_function("() => document.querySelectorAll('.runs tbody tr').length >= 2")


async def test_a_queue_is_paused_on_the_page(chromium: Browser, busy_shop: Served) -> None:
    async with visit(chromium, busy_shop.url) as user:
        await user.open("flow")
        for word, on, paused in (("Pause", "false", True), ("Resume", "true", False)):
            await user.page.click("[aria-label='Queue default']")
            await user.sees(word, "dialog")
            await user.page.click("dialog .primary")
            await user.page.wait_for_selector(f"[aria-label='Queue default'][aria-checked={on}]")
            assert [queue.paused for queue in await busy_shop.app.queues() if queue.name == "default"] == [paused]


async def test_the_runs_of_a_queue_without_workers_are_moved(chromium: Browser, busy_shop: Served) -> None:
    run = await busy_shop.app.start("sale", 10, id="stored", queue="attic")
    async with visit(chromium, busy_shop.url) as user:
        await user.open("flow")
        await user.sees("No worker claims from attic", ".notice")
        await user.page.click("text=Move its runs…")
        await user.sees("1 run of this queue", "dialog")
        await user.page.fill("dialog label:has-text('Reason') input", "the attic is closed")
        await user.page.click("dialog .primary")
        await user.sees("Move: done", ".toast")

    await run.send_event("go", None)
    assert await run.result(timeout=60) == 10
    assert "the attic is closed" in {record.reason for record in (await busy_shop.app.audit()).items}


async def test_a_worker_is_drained_and_resumed_on_the_page(chromium: Browser, busy_shop: Served) -> None:
    async with visit(chromium, busy_shop.url) as user:
        await user.open("workers")
        await user.page.click("text=Drain…")
        await user.sees("claims no more runs", "dialog")
        await user.page.fill("dialog input", "the host is replaced")
        await user.page.keyboard.press("Control+Enter")
        await user.sees("draining", "table")
        await user.page.click("text=Resume…")
        await user.page.click("dialog .primary")
        await user.sees("alive", "table")

    actions = {record.action: record.reason for record in (await busy_shop.app.audit()).items}
    assert actions["worker_drain"] == "the host is replaced"
    assert not (await busy_shop.app.workers())[0].draining


async def test_each_row_offers_the_next_action_on_its_run(chromium: Browser, busy_shop: Served) -> None:
    await _waiting(busy_shop.app, "sale", 10, "moved")
    async with visit(chromium, busy_shop.url) as user:
        await user.open("runs?q=workflow:sale moved")
        await user.page.click(".runs .move >> text=Send go…")
        await user.page.fill("dialog label:has-text('Reason') input", "decided by phone")
        await user.page.keyboard.press("Control+Enter")
        await user.sees("complete", ".runs .status")

    [record] = (await busy_shop.app.audit()).items[:1]
    assert (record.action, record.target, record.reason) == ("send_event", "sale/moved", "decided by phone")


async def test_a_fork_continues_with_another_result_of_an_earlier_step(chromium: Browser, busy_shop: Served) -> None:
    await _waiting(busy_shop.app, "sale", 10, "fork-me")
    async with visit(chromium, busy_shop.url) as user:
        await user.open("run/sale/fork-me?sel=cool%20off")
        await user.page.click("text=Fork from here…")
        await user.page.select_option("dialog [aria-label='Earlier step']", "quote")
        await user.page.click("text=Change its result")
        await user.page.fill("dialog textarea", '{"total": 99}')
        await user.page.fill("dialog label:has-text('Id of the new') input", "forked")
        await user.page.click("dialog .primary")
        await user.sees("Forked sale/fork-me", ".toast")

    forked = await busy_shop.app.get("sale", "forked")
    await forked.send_event("go", None)
    assert await forked.result(timeout=60) == 99


async def test_an_event_is_sent_to_a_run_from_the_page_of_its_workflow(chromium: Browser, busy_shop: Served) -> None:
    await _waiting(busy_shop.app, "fulfil", {"id": "o-9"}, "o-9", type="approval")
    async with visit(chromium, busy_shop.url) as user:
        await user.open("workflows/fulfil")
        await user.page.click("text=Send approval…")
        assert await user.page.is_disabled("dialog .primary")
        await user.page.fill("dialog label:has-text('Run') input", "o-9")
        await user.page.fill("#field-by", "bob")
        await user.page.click("dialog .primary")
        await user.sees("Send event: fulfil/o-9", ".toast")

    run = await busy_shop.app.get("fulfil", "o-9")
    assert (await run.result(timeout=60))["by"] == "bob"


async def test_a_graph_shows_its_items_by_state_and_the_path_to_the_running_node(
    chromium: Browser, busy_shop: Served
) -> None:
    await busy_shop.app.start("crawl", 8, id="c-1")
    async with visit(chromium, busy_shop.url) as user:
        await user.open("run/crawl/c-1?node=fetch")
        await user.page.wait_for_selector("svg.canvas >> text=7 of 8")
        await user.page.wait_for_selector("svg.canvas >> text=1 retry")
        await user.page.wait_for_selector(".edge.critical", state="attached")
        await user.sees("ConnectionError", ".detail")
        await user.sees("How long items took", ".detail")
        assert await user.page.locator(".detail .chart rect").count() == 20
        assert await user.page.locator(".edge.critical").count() == 1


async def test_the_log_is_followed_while_the_run_is_open(chromium: Browser, busy_shop: Served) -> None:
    await _waiting(busy_shop.app, "sale", 10, "logged")
    async with visit(chromium, busy_shop.url) as user:
        await user.open("run/sale/logged?tab=logs")
        await user.sees("quoted", ".log-lines")
        await user.sees("Live", ".live")
        await (await busy_shop.app.get("sale", "logged")).send_event("go", None)
        await user.sees("after the event", ".log-lines")
        assert (await user.text(".log-lines")).count("quoted") == 1
