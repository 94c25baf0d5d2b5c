"""Ways through the dashboard in a real browser: the palette, keys, settings, views, pages of a list, errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from browser_visit import visit

from holdfast import Start

if TYPE_CHECKING:
    from browser_visit import Served
    from playwright.async_api import Browser, Route


async def test_the_palette_finds_a_run_and_a_command(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open()
        await user.page.keyboard.press("Control+k")
        await user.page.wait_for_selector(".palette input:focus")
        await user.page.keyboard.type("parcels/p-")
        await user.sees("parcels/p-1", "#palette-list")
        await user.page.keyboard.press("Enter")
        await user.sees("HAND_OVER", "main")

        await user.page.keyboard.press("Control+k")
        await user.page.wait_for_selector(".palette input:focus")
        await user.page.keyboard.type("light or")
        await user.page.keyboard.press("Enter")
        await user.page.wait_for_selector(":root[data-theme=dark]")
        await user.page.reload()
        await user.page.wait_for_selector(":root[data-theme=dark]")


async def test_single_keys_can_be_turned_off_and_do_not_reach_the_page_below_a_dialog(
    chromium: Browser, shop: Served
) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("run/fulfil/o-1")
        await user.sees("waiting", ".badge")
        await user.page.keyboard.press("?")
        await user.sees("Keys and settings", "dialog")
        await user.page.keyboard.press("p")
        await user.page.click("dialog [aria-label='Single-key shortcuts']")
        await user.page.click("dialog [aria-label='Time zone'] >> text=local")
        await user.page.keyboard.press("Escape")
        await user.sees("local", ".top")
        await user.page.keyboard.press("p")
        await user.page.keyboard.press("Control+k")
        await user.page.wait_for_selector("dialog.palette")
        assert await user.page.locator("dialog").count() == 1


async def test_brackets_change_the_tab_and_back_returns(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("runs?q=workflow:parcels")
        await user.page.click("text=p-1")
        await user.page.wait_for_selector(".tab-list")
        await user.page.keyboard.press("]")
        await user.page.wait_for_function("() => location.hash.endsWith('tab=timeline')")
        await user.page.keyboard.press("[")
        await user.page.wait_for_function("() => location.hash.endsWith('tab=chain')")
        await user.page.go_back()
        await user.sees("workflow:parcels", ".token")


async def test_a_list_is_turned_over_in_both_directions(chromium: Browser, stored_shop: Served) -> None:
    await stored_shop.app.start_many("check", [Start(f"c-{n:03}", {"id": "c"}) for n in range(60)])
    async with visit(chromium, stored_shop.url) as user:
        await user.open("runs?q=workflow:check id:c-")
        await user.sees("50 runs on this page", ".pager")
        first = await user.page.inner_text(".runs tbody tr:first-child .c-run")
        await user.page.click("text=Older")
        await user.sees("10 runs on this page", ".pager")
        await user.page.click("text=Newer")
        await user.sees("50 runs on this page", ".pager")
        assert await user.page.inner_text(".runs tbody tr:first-child .c-run") == first


async def test_views_are_saved_and_columns_chosen_in_the_browser(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("runs?q=workflow:fulfil status:waiting")
        await user.page.click("text=Save view")
        await user.page.click("[aria-label=Columns]")
        await user.page.check(".menu >> text=total")
        assert await user.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        await user.open("runs")
        await user.page.click(".view >> text=fulfil waiting")
        await user.sees("o-1", ".runs")
        await user.sees("total", ".runs th")
        await user.page.click("text=Forget view")
        assert await user.page.locator(".view >> text=fulfil waiting").count() == 0


async def test_a_failed_request_is_shown_in_its_place_and_repeated(chromium: Browser, shop: Served) -> None:
    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, json={"code": "STORE_UNAVAILABLE", "message": "the database does not answer"})

    async with visit(chromium, shop.url) as user:
        await user.page.route("**/_api/_queues*", refuse)
        await user.open("flow")
        await user.sees("STORE_UNAVAILABLE", ".problem")
        await user.tries_again(".problem", "**/_api/_queues*")
        await user.sees("default", "main")
        await user.page.wait_for_selector(".problem", state="detached")


async def test_empty_pages_name_the_command_that_fills_them(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("runs?q=id:none")
        await user.sees("No run matches this filter", ".empty")
        await user.open("run/fulfil/none")
        await user.sees("holdfast instances list", ".empty")
        await user.open("run/parcels/p-1?tab=mailbox")
        await user.sees("holdfast instances send-event", ".empty")


async def test_the_mailbox_says_which_step_took_an_event(chromium: Browser, stored_shop: Served) -> None:
    run = await stored_shop.app.get("fulfil", "o-1")
    await run.send_event("aproval", {"by": "ann"})
    await run.send_event("approval", {"by": "bob"})
    await run.result(timeout=60)
    async with visit(chromium, stored_shop.url) as user:
        await user.open("run/fulfil/o-1?tab=mailbox")
        await user.sees("undelivered", "tbody tr")
        consumed = user.page.locator("tbody tr", has_text="bob")
        assert "approval" in await consumed.inner_text()
        assert "consumed" in await consumed.inner_text()


async def test_a_sheet_closes_when_the_address_leads_to_another_page(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("run/fulfil/o-1")
        await user.sees("waiting for an event", ".why")
        await user.page.keyboard.press("e")
        await user.page.wait_for_selector("dialog")
        await user.page.evaluate("() => { location.hash = '#/run/parcels/p-1'; }")
        await user.sees("p-1", "h1.id")
        assert await user.page.locator("dialog").count() == 0


LATE_MS = 2_500
"""Time of the page, which passes only in the test. The details of a run that exists follow 3,000 ms later at most."""


async def test_a_wrong_filter_and_a_missing_run_are_reported_at_once(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("runs?q=status:bogus")
        await user.sees("status", ".problem")
        assert "reconnecting" not in await user.text(".top")

    async with visit(chromium, shop.url, locale="en-GB") as user:
        await user.page.clock.install(time=0)
        await user.page.clock.pause_at(1)
        await user.page.goto(f"{shop.url}#/run/fulfil/none")
        for _ in range(LATE_MS):
            if await user.page.locator("text=There is no run").count():
                break
            await user.page.clock.run_for(1)
        assert "There is no run" in await user.text("main")
        await user.page.clock.resume()
        await user.page.wait_for_function("() => !document.querySelector('.top').innerText.includes('reconnecting')")
