"""A server with the dashboard in this process, and visits of it with a real browser.

Loading the modules of a page costs more than most tests, so the visits of one server share a page. Each visit leaves it
in the state of a new page; a visit that changes lasting state, such as settings, closes the page.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Route, async_playwright

from holdfast import Holdfast

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium is installed: apt-get install chromium-headless-shell"


def chromium_path() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


class Served:
    """The dashboard of an app on a port of the loopback interface."""

    def __init__(self, app: Holdfast, port: int) -> None:
        self.app = app
        self.url = f"http://127.0.0.1:{port}/"


_kept: dict[str, Page] = {}
"""The page that the visits of a server share, by the address of the server."""


async def _forget(base: str) -> None:
    """Close the shared page of a server. A server that stops would wait for the stream of the page."""
    page = _kept.pop(base, None)
    if page is not None:
        await page.context.close()


@asynccontextmanager
async def serve(app: Holdfast, *, port: int = 0, **options: Any) -> AsyncIterator[Served]:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    asgi = app.dashboard(worker=True, debug=True, **options)
    server = uvicorn.Server(uvicorn.Config(asgi, log_level="error", lifespan="on", timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    served = Served(app, listener.getsockname()[1])
    try:
        yield served
    finally:
        await _forget(served.url)
        server.should_exit = True
        await running
        listener.close()


NEUTRAL = "audit"
"""The page on which a visit leaves the shared page. It has no stream."""
_LEAVE = """() => {
  document.querySelectorAll("[aria-label='Close the message']").forEach((button) => button.click());
  location.hash = "#/audit";
}"""
_IS_CLEAN = "() => localStorage.length === 0 && !document.querySelector('dialog, .toast')"


class Visit:
    """A page, and its errors."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.problems: list[str] = []
        page.set_default_timeout(60_000)
        page.on("pageerror", self._notice)
        page.on("console", self._listen)

    def _notice(self, error: Exception) -> None:
        self.problems.append(str(error))

    def _listen(self, message: ConsoleMessage) -> None:
        # Chromium also logs each response above 399; the page shows those itself.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    async def leave(self) -> bool:
        """Return the page to the state of a new one; False if that is not possible."""
        self.page.remove_listener("pageerror", self._notice)
        self.page.remove_listener("console", self._listen)
        await self.page.unroute_all()
        await self.page.evaluate(_LEAVE)
        await self.page.wait_for_selector(f"main.screen-{NEUTRAL} h1", state="attached")
        return bool(await self.page.evaluate(_IS_CLEAN))

    async def open(self, route: str = "") -> Visit:
        screen = f"main.screen-{route.split('?', maxsplit=1)[0].split('/', maxsplit=1)[0] or 'overview'}"
        await self.page.goto(f"{self.base}#/{route}")
        await self.page.wait_for_selector(f"{screen} h1, {screen} .empty, main.sign-in", state="attached")
        return self

    async def text(self, selector: str = "main") -> str:
        return await self.page.inner_text(selector)

    async def painted(self) -> None:
        """Wait until the effects of what is shown have run: listeners of the wheel and the mouse are effects."""
        await self.page.evaluate(_PAINTED)

    async def tries_again(self, selector: str, pattern: str) -> None:
        """Press the button that repeats a failed request. Requests that the page itself repeated before also fail."""

        async def fail_until_pressed(route: Route) -> None:
            if await self.page.evaluate("() => tried"):
                await route.continue_()
            else:
                await route.abort()

        await self.page.evaluate(_NOTICE_CLICK)
        await self.page.route(pattern, fail_until_pressed)
        await self.page.click(f"{selector} >> text=Try again")

    async def sees(self, text: str, selector: str = "body") -> None:
        """Wait until the text is shown."""
        await self.page.wait_for_function(
            "([selector, text]) => [...document.querySelectorAll(selector)].some((e) => e.innerText.includes(text))",
            arg=[selector, text],
        )


_PAINTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
_NOTICE_CLICK = """() => {
  tried = false;
  addEventListener('click', () => { tried = true; }, { capture: true, once: true });
}"""


@asynccontextmanager
async def visit(browser: Browser, base: str, **options: Any) -> AsyncIterator[Visit]:
    """Visit a page. At the end it must have had no error and no violation of its policy.

    ``options``: those of a browser context of this visit alone.
    """
    page = _kept.pop(base, None) if not options else None
    if page is None:
        page = await (await _new_context(browser, options)).new_page()
    visited = Visit(page, base)
    clean = False
    try:
        yield visited
        assert visited.problems == []
        clean = not options and await visited.leave()
    finally:
        if clean and base not in _kept:
            _kept[base] = page
        else:
            await page.context.close()


async def _new_context(browser: Browser, options: dict[str, Any]) -> BrowserContext:
    usual = {"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce"}  # transitions cost processor time
    context = await browser.new_context(**{**usual, **options})
    await context.add_init_script(
        "addEventListener('securitypolicyviolation', (e) => console.error('CSP', e.violatedDirective))"
    )
    return context
