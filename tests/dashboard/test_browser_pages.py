"""All pages in a real browser: themes, widths, accessibility, rights, a server that restarts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from browser_shop import HOSTILE, define_shop
from browser_visit import serve, visit
from dashboard_app import ADMIN, VIEWER

from holdfast import BearerTokens, Holdfast

if TYPE_CHECKING:
    from browser_visit import Served, Visit
    from playwright.async_api import Browser

PAGES = {
    "": "Needs attention", "runs": "fulfil/o-1", "run/fulfil/o-1": "charge", "run/fulfil/o-1?tab=code": "Locals",
    "run/fulfil/o-1?tab=logs": "charged", "run/fulfil/o-1?tab=mailbox": "The run waits for",
    "run/fulfil/o-1?tab=family": "o-1-check", "run/hostile/h-1?tab=audit": "pause",
    "run/fulfil/o-1?tab=facts": "waitForEvent", "run/parcels/p-1": "HAND_OVER", "flow": "Queues", "workers": "alive",
    "audit": "newest first", "run/fulfil/o-1?sel=%23run": "Params",
    "run/etl/e-1": "extract", "workflows/fulfil": "Start a run",
}  # fmt: skip
"""Each page, and a text that it shows when its data have come."""
CHOSEN = ("", "runs", "run/fulfil/o-1", "run/etl/e-1")
"""The pages that are visited in each look; the others in every look with ``--long``."""
FITS = "() => document.documentElement.scrollWidth <= innerWidth && innerWidth <= screen.width"
"""A phone widens its window to fit an element that is too wide."""
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
DARK: dict[str, Any] = {"color_scheme": "dark"}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


async def serious_findings(user: Visit) -> list[str]:
    """Run axe-core in the page. The debugging protocol evaluates the script, so the page's policy stays in force."""
    if await user.page.evaluate("() => typeof axe === 'undefined'"):
        await user.page.evaluate(AXE.read_text())
    found = await user.page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found if each["impact"] in {"serious", "critical"}
    ]


async def test_every_page_shows_its_data_without_errors_or_serious_findings(
    chromium: Browser, stored_shop: Served, each_store: str
) -> None:
    # The elements do not depend on the store, and looking for findings takes half of the time.
    await _look_at(chromium, stored_shop, PAGES, {}, findings=each_store == "sqlite")


@pytest.mark.parametrize("look", [DARK, PHONE], ids=["dark", "phone"])
async def test_pages_are_readable_in_dark_colours_and_on_a_phone(
    chromium: Browser, shop: Served, look: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    pages = PAGES if request.config.getoption("--long") else {each: PAGES[each] for each in CHOSEN}
    await _look_at(chromium, shop, pages, look)


async def _look_at(
    chromium: Browser, served: Served, pages: dict[str, str], look: dict[str, Any], *, findings: bool = True
) -> None:
    await (await served.app.start("hostile", HOSTILE, id="h-1")).pause()
    async with visit(chromium, served.url, **look) as user:
        for route, text in pages.items():
            await user.open(route)
            await user.sees(text, "main")
            assert not findings or await serious_findings(user) == [], route
            assert await user.page.evaluate(FITS), route


async def test_every_page_is_reachable_on_a_phone_and_causes_are_counted(chromium: Browser, shop: Served) -> None:
    async with visit(chromium, shop.url, **PHONE) as user:
        await user.open()
        await user.sees("1", ".bottom-nav .count")
        await user.page.click(".bottom-nav >> text=More")
        assert await serious_findings(user) == []
        await user.page.click("dialog >> text=Audit")
        await user.sees("newest first", "main")
        assert await user.page.locator("dialog").count() == 0

        await user.page.click(".bottom-nav >> text=Workflows")
        await user.page.click(".list >> text=fulfil")
        await user.sees("Charge, then wait for a person.", "main")
        await user.page.click("[aria-label='All workflows']")
        await user.sees("parcels", ".list")


async def test_a_page_reconnects_by_itself_after_a_restart_of_the_server(chromium: Browser, tmp_path: Path) -> None:
    def make() -> Holdfast:
        app = Holdfast(f"sqlite:///{tmp_path}/shop.db")
        define_shop(app)
        return app

    async with serve(make()) as served:
        port = int(served.url.rstrip("/").rsplit(":", 1)[1])
        await served.app.start("fulfil", {"id": "o-1"}, id="o-1")
        context = visit(chromium, served.url)
        user = await context.__aenter__()
        await user.open("run/fulfil/o-1")
        await user.sees("Live", ".live")
    await user.sees("reconnecting", ".live")
    assert "as of " in await user.text(".live")

    async with serve(make(), port=port) as served:
        await user.sees("Live", ".live")
        await (await served.app.get("fulfil", "o-1")).pause()
        await user.sees("paused", ".badge")
        user.problems.clear()  # the browser reports each refused connection
        await context.__aexit__(None, None, None)


async def test_a_viewer_is_offered_no_action_and_signs_out(chromium: Browser, tmp_path: Path) -> None:
    tokens = BearerTokens({VIEWER: "viewer", ADMIN: "admin"})
    app = Holdfast(f"sqlite:///{tmp_path}/shop.db", authorize=tokens)
    define_shop(app)
    async with serve(app) as served:
        await app.start("fulfil", {"id": "o-1"}, id="o-1")
        async with visit(chromium, served.url) as user:
            await user.open("run/fulfil/o-1")
            await user.page.fill("input[type=password]", VIEWER)
            await user.page.keyboard.press("Enter")
            await user.sees("waiting for an event", ".why")
            assert await user.page.locator("text=/Pause|Cancel…|Send approval…/").count() == 0
            await user.page.keyboard.press("p")
            assert await user.page.locator("dialog").count() == 0
            await user.page.click(".avatar")
            await user.sees("Sign in", "main")

            await user.page.fill("input[type=password]", ADMIN)
            await user.page.keyboard.press("Enter")
            await user.page.click("text=Pause")
            await user.page.fill("dialog input", "a holiday")
            await user.page.keyboard.press("Control+Enter")
            await user.sees("paused", ".badge")
