"""The page of one run in a real browser."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from browser_shop import CORPUS, HOSTILE
from browser_visit import visit

from holdfast import RunFailedError

if TYPE_CHECKING:
    from browser_visit import Served
    from playwright.async_api import Browser, Route


UNSAFE_PAGES = {
    "": "Needs attention",
    "runs?q=workflow:unsafe": "unsafe/s-0",
    "run/unsafe/s-0": "ValueError",
    "audit": "retry",
    "workflows/unsafe": "Start a run",
}


async def test_the_timeline_shows_every_attempt_and_its_error(chromium: Browser, stored_shop: Served) -> None:
    async with visit(chromium, stored_shop.url) as user:
        await user.open("run/fulfil/o-1")
        await user.sees("charge", ".w-row")
        await user.page.click(".w-row:has-text('charge')")

        await user.sees("ConnectionError", ".detail")
        await user.sees("pay_1", ".detail")
        await user.sees("redacted", ".detail")
        assert "hidden" not in await user.text(".detail .json")
        assert "sel=charge" in user.page.url


async def test_the_timeline_is_a_treegrid_that_keys_fold_and_zoom(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("run/fulfil/o-1")
        await user.sees("check", ".w-row")
        await user.page.keyboard.press("j")
        await user.page.keyboard.press("Enter")
        await user.page.wait_for_function("() => document.querySelectorAll('.w-row').length === 1")
        await user.page.keyboard.press("Enter")
        await user.sees("charge", "[role=treegrid] [role=row]")

        await user.page.keyboard.press("+")
        await user.page.wait_for_function("() => location.hash.includes('z=')")
        await user.page.keyboard.press("0")
        await user.page.wait_for_function("() => !location.hash.includes('z=')")
        await user.page.keyboard.press("t")
        await user.page.wait_for_function("() => location.hash.includes('fold=0')")


async def test_the_code_shows_the_facts_of_each_line_and_the_values_that_they_gave(
    chromium: Browser, shop: Served
) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("run/fulfil/o-1?tab=code")
        await user.sees("payment = ", ".code-line .value")
        line = ".code-line:has-text('await charge(order)')"
        await user.page.click(f"{line} [aria-label='Go to fact 1']")
        await user.page.wait_for_function("() => location.hash.includes('fact=1')")
        await user.page.wait_for_selector(f"{line} .now")
        await user.page.wait_for_selector(".code-line:has-text('wait_for_event').later")


async def test_values_with_markup_are_shown_as_text_and_large_ones_are_folded(chromium: Browser, shop: Served) -> None:
    await shop.app.start("hostile", HOSTILE, id="h-1")
    async with visit(chromium, shop.url) as user:
        await user.open("run/hostile/h-1?tab=logs")
        await user.sees("<img src=x onerror=", ".log-lines")
        await user.sees("\\u202e", ".log-lines")
        for tab in ("timeline", "facts", "mailbox", "code"):
            await user.open(f"run/hostile/h-1?tab={tab}")
        await user.sees("Locals", ".code-side")
        assert "broken" not in await user.page.title()
        assert await user.page.locator("img, main script").count() == 0


async def test_no_text_of_a_program_breaks_a_page(
    chromium: Browser, shop: Served, request: pytest.FixtureRequest
) -> None:
    for number in range(len(CORPUS)):
        run = await shop.app.start("unsafe", number, id=f"s-{number}")
        with pytest.raises(RunFailedError):
            await run.result(timeout=60)
        with shop.app.acting_as(CORPUS[number][:200]):
            await run.retry(reason=CORPUS[number])
    async with visit(chromium, shop.url) as user:
        for route, text in UNSAFE_PAGES.items():
            await user.open(route)
            await user.sees(text, "main")
            assert await user.page.locator("main img, main script, main style, main iframe").count() == 0, route
        for number in range(len(CORPUS) if request.config.getoption("--long") else 1):
            for tab in ("timeline", "logs", "facts"):
                await user.open(f"run/unsafe/s-{number}?tab={tab}")
                await user.page.wait_for_selector(".w-row, .log-lines, main table")
        assert "broken" not in await user.page.title()


async def test_a_pause_is_confirmed_and_its_reason_is_in_the_audit(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("run/fulfil/o-1")
        await user.sees("waiting", ".badge")
        await user.page.keyboard.press("p")
        await user.sees("No more code of the run is executed", "dialog")
        await user.page.keyboard.type("a holiday")
        await user.page.keyboard.press("Control+Enter")
        await user.sees("paused", ".badge")

        await user.page.click("text=Resume…")
        await user.sees("The run continues", "dialog")
        await user.page.keyboard.press("Control+Enter")
        await user.sees("waiting", ".badge")
        await user.open("run/fulfil/o-1?tab=audit")
        await user.sees("pause", "table")


async def test_an_event_sent_from_its_form_completes_the_run(chromium: Browser, stored_shop: Served) -> None:
    async with visit(chromium, stored_shop.url) as user:
        await user.open("run/fulfil/o-1")
        await user.page.click("text=Send approval…")
        await user.page.fill("#field-by", "ann")
        await user.page.keyboard.press("Control+Enter")
        await user.sees("complete", ".badge")
    assert (await (await stored_shop.app.get("fulfil", "o-1")).result())["by"] == "ann"


async def test_a_run_is_started_from_the_form_of_its_workflow(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("workflows/fulfil")
        await user.page.click("text=Start a run…")
        await user.page.fill("#field-id", "o-7")
        await user.page.fill("#field-total", "many")
        await user.page.click("dialog .primary")
        await user.sees("a whole number is needed", "dialog")
        await user.page.fill("#field-total", "70")
        await user.page.click("dialog .primary")
        await user.sees("waiting for an event", ".why")
        await user.sees("70", ".chips")


TYPE_AT_ONCE = """new MutationObserver((_, observer) => {
  const field = document.querySelector('#field-id');
  if (!field) return;
  observer.disconnect();
  field.value = 'o-8';
  field.dispatchEvent(new Event('input', { bubbles: true }));
}).observe(document, { childList: true, subtree: true });"""


async def test_a_value_typed_before_the_form_is_painted_is_kept(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("workflows/fulfil")
        await user.page.evaluate(TYPE_AT_ONCE)
        await user.page.click("text=Start a run…")
        await user.page.fill("#field-total", "80")

        assert await user.page.input_value("#field-id") == "o-8"


async def test_an_errored_run_is_retried_forked_and_deleted(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("run/fulfil/o-2?sel=invoice")
        await user.sees("errored", ".badge")
        await user.page.click("text=Fork from here…")
        await user.sees("A new instance starts", "dialog")
        await user.page.click("dialog .primary")
        await user.sees("Forked fulfil/o-2", ".toast")

        await user.page.click("[aria-label='More actions']")
        await user.page.click(".menu >> text=Delete…")
        assert await user.page.is_disabled("dialog .primary")
        await user.page.fill("dialog [inputmode=numeric]", "1")
        await user.page.click("dialog .primary")
        await user.sees("There is no run fulfil/o-2", "main")


async def test_the_slider_over_the_facts_shows_an_earlier_line(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("run/fulfil/o-1?tab=code")
        await user.sees("approval = await", ".code-line.here")
        await user.page.click("[aria-label='First fact']")
        await user.sees("payment = await charge(order)", ".code-line.here")
        assert "fact=0" in user.page.url


ZOOM_AND_LEAVE = """() => {
  dispatchEvent(new KeyboardEvent("keydown", { key: "+" }));
  location.hash = "#/runs?q=workflow:check";
  return new Promise((ended) => setTimeout(ended, 1000));  // later than the timer that writes the zoom into the URL
}"""


async def test_idle_time_is_folded_also_if_the_steps_took_no_time(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("run/parcels/p-1?tab=timeline")
        await user.sees("fold", ".timeline-tools")
        await user.page.wait_for_selector(".fold-label")
        await user.page.keyboard.press("t")
        await user.page.wait_for_function("() => document.querySelectorAll('.fold-label').length === 0")


async def test_the_timeline_is_zoomed_by_the_wheel_and_panned_by_the_mouse(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("run/fulfil/o-1")
        await user.page.wait_for_selector(".w-row")
        await user.painted()
        await user.page.mouse.move(900, 400)
        await user.page.keyboard.down("Control")
        for _ in range(4):
            await user.page.mouse.wheel(0, -200)
        await user.page.keyboard.up("Control")
        await user.page.wait_for_function("() => location.hash.includes('z=')")
        zoomed = user.page.url

        await user.page.mouse.down()
        await user.page.mouse.move(700, 400, steps=4)
        await user.page.mouse.up()
        await user.page.wait_for_function("(before) => location.href !== before", arg=zoomed)


async def test_a_zoom_does_not_reach_the_url_of_the_next_page(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url) as user:
        await user.open("run/fulfil/o-1")
        await user.page.wait_for_selector(".w-row")
        await user.page.evaluate(ZOOM_AND_LEAVE)
        await user.page.wait_for_selector("main.screen-runs h1", state="attached")
        assert user.page.url.endswith("#/runs?q=workflow:check")


FACTS_TAB_LOADED = """async () => {
  await import(new URL("run/tab-facts.js", document.querySelector("script[type=module]").src));
  await new Promise(requestAnimationFrame);
}"""


async def test_a_tab_stays_when_a_tab_left_earlier_is_loaded_later(chromium: Browser, shop: Served) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await answered.wait()
        await route.continue_()

    # A context of its own: the shared page has loaded the modules of the tabs.
    async with visit(chromium, shop.url, locale="en-GB") as user:
        await user.page.route("**/tab-facts.js", hold)
        await user.open("run/fulfil/o-1?tab=facts")
        await asked.wait()
        await user.open("run/fulfil/o-1?tab=code")
        await user.sees("Locals", ".code-side")
        answered.set()
        await user.page.evaluate(FACTS_TAB_LOADED)
        assert "Locals" in await user.text(".code-side")


async def test_a_page_that_waits_for_its_run_requests_nothing_else(chromium: Browser, shop: Served) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()
    requested: list[str] = []

    async def hold(route: Route) -> None:
        asked.set()
        await answered.wait()
        await route.continue_()

    async with visit(chromium, shop.url, locale="en-GB") as user:
        await user.page.clock.install()
        await user.page.route("**/_api/_instances?*", hold)
        await user.page.goto(f"{shop.url}#/run/fulfil/o-1")
        await asked.wait()
        user.page.on("request", lambda request: requested.append(request.url))
        await user.page.clock.run_for(10_000)
        await user.page.evaluate("() => fetch('_api/_me')")
        assert [url for url in requested if "/_api/" in url] == [f"{shop.url}_api/_me"]
        answered.set()
        await user.sees("o-1", "h1.id")
