"""The list of runs in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from browser_shop import until_it_waits_for_approval
from browser_visit import visit

if TYPE_CHECKING:
    from browser_visit import Served
    from playwright.async_api import Browser


async def test_the_filter_box_completes_conditions_and_keeps_them_in_the_url(
    chromium: Browser, stored_shop: Served
) -> None:
    async with visit(chromium, stored_shop.url) as user:
        await user.open("runs")
        await user.sees("fulfil/o-1", ".runs")
        await user.page.keyboard.press("/")
        await user.page.keyboard.type("workf")
        await user.page.keyboard.press("Tab")
        await user.page.keyboard.type("parc")
        await user.sees("parcels", ".offers")
        await user.page.keyboard.press("Tab")

        await user.sees("workflow:parcels", ".token")
        await user.page.wait_for_function("() => document.querySelectorAll('.runs tbody tr').length === 1")
        assert "q=workflow%3Aparcels" in user.page.url

        await user.page.reload()
        await user.sees("parcels/p-1", ".runs")
        assert await user.page.locator(".runs tbody tr").count() == 1


async def test_a_run_is_found_and_opened_by_keys_alone(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("runs?q=workflow:fulfil")
        await user.sees("fulfil/o-1", ".runs")
        await user.page.keyboard.press("j")
        await user.page.keyboard.press("j")
        await user.page.keyboard.press("Enter")
        await user.sees("o-1", "h1.id")

        await user.page.keyboard.press("Escape")
        await user.sees("All runs", ".views")


async def test_a_bulk_retry_of_a_selection_leaves_out_runs_without_an_error(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("runs?q=workflow:fulfil")
        await user.sees("errored", ".runs")
        await user.page.check("[aria-label='Select all runs of this page']")
        await user.page.click(".bulk >> text=Retry")
        await user.sees("1 run would continue", ".dry")
        await user.sees("fulfil/o-1 is waiting", ".dry")
        await user.page.fill("[aria-label=Reason]", "vat_id is back")
        await user.page.click(".bulk .primary")
        await user.sees("Retry: 1 run", ".toast")

        await user.open("audit")
        await user.sees("vat_id is back", "table")


async def test_a_bulk_action_on_the_whole_filter_shows_the_count_of_its_dry_run(
    chromium: Browser, stored_shop: Served
) -> None:
    async with visit(chromium, stored_shop.url) as user:
        await user.open("runs?q=status:waiting+workflow:fulfil")
        await user.sees("o-1", ".runs")
        await user.page.check("[aria-label='Select all runs of this page']")
        await user.page.click("text=Select all in this filter")
        await user.page.click(".bulk >> text=Pause")
        await user.sees("1 run would be paused", ".dry")
        await user.page.click(".bulk .primary")
        await user.sees("Pause: 1 run", ".toast")


async def test_a_bulk_retry_of_the_whole_filter_counts_only_runs_that_can_be_retried(
    chromium: Browser, shop: Served
) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("runs?q=workflow:fulfil")
        await user.sees("o-1", ".runs")
        await user.page.check("[aria-label='Select all runs of this page']")
        await user.page.click("text=Select all in this filter")
        await user.page.click(".bulk >> text=Retry")
        await user.sees("1 run would continue", ".dry")
        await user.page.click(".bulk >> text=Pause")
        await user.sees("2 runs would be paused. Those whose status does not allow it are left out.", ".dry")


async def test_a_second_condition_is_completed_after_a_space(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("runs?q=workflow:fulfil")
        await user.sees("o-1", ".runs")
        await user.page.keyboard.press("/")
        await user.page.keyboard.type(" status:err")
        await user.page.keyboard.press("Tab")
        await user.page.wait_for_function("() => decodeURIComponent(location.hash).includes('status:errored')")


async def test_the_count_of_a_dry_run_follows_the_runs_of_its_filter(chromium: Browser, shop: Served) -> None:
    other = await shop.app.start("fulfil", {"id": "o-3"}, id="o-3")
    await until_it_waits_for_approval(other)
    async with visit(chromium, shop.url) as user:
        await user.open("runs?q=status:waiting+workflow:fulfil")
        await user.sees("o-3", ".runs")
        await user.page.check("[aria-label='Select all runs of this page']")
        await user.page.click("text=Select all in this filter")
        await user.page.click(".bulk >> text=Pause")
        await user.sees("2 runs would be paused", ".dry")

        await other.terminate()

        await user.sees("1 run would be paused", ".dry")


async def test_a_dry_run_that_failed_can_be_repeated(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("runs?q=status:waiting+workflow:fulfil")
        await user.sees("o-1", ".runs")
        await user.page.route("**/_bulk", lambda route: route.abort())
        await user.page.check("[aria-label='Select all runs of this page']")
        await user.page.click("text=Select all in this filter")
        await user.page.click(".bulk >> text=Pause")
        await user.sees("The server does not answer", ".bulk")

        await user.tries_again(".bulk", "**/_bulk")

        await user.sees("1 run would be paused", ".dry")


async def test_new_runs_are_shown_by_a_button_and_changes_appear_in_place(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        seen = await shop.app.start("fulfil", {"id": "o-seen"}, id="o-seen")
        await user.open("runs?q=workflow:fulfil")
        await user.sees("fulfil/o-seen", ".runs")
        await seen.cancel()
        await user.sees("cancelled", ".runs .c-status")  # from here on the stream announces every new run
        await shop.app.start("fulfil", {"id": "o-3"}, id="o-3")
        await user.sees("1 new run", ".pill")
        assert "o-3" not in await user.text(".runs")

        await user.page.keyboard.press(".")
        await user.sees("fulfil/o-3", ".runs")
        await (await shop.app.get("fulfil", "o-3")).terminate()
        await user.sees("terminated", ".runs .c-status")
