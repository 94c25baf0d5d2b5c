"""A server with the dashboard in this process, and visits of it with a real browser."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

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
    try:
        yield Served(app, listener.getsockname()[1])
    finally:
        server.should_exit = True
        await running
        listener.close()


class Visit:
    """A page, and what went wrong on it."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.problems: list[str] = []
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._listen)

    def _listen(self, message: ConsoleMessage) -> None:
        # Chromium also logs each response above 399; the page shows those itself.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    async def open(self, route: str = "") -> Visit:
        await self.page.goto(f"{self.base}#/{route}")
        await self.page.wait_for_selector("main h1, main.sign-in, .page", state="attached")
        return self

    async def text(self, selector: str = "main") -> str:
        return await self.page.inner_text(selector)

    async def sees(self, text: str, selector: str = "body") -> None:
        """Wait until the text is shown."""
        await self.page.wait_for_function(
            "([selector, text]) => [...document.querySelectorAll(selector)].some((e) => e.innerText.includes(text))",
            arg=[selector, text],
        )


@asynccontextmanager
async def visit(browser: Browser, base: str, **options: Any) -> AsyncIterator[Visit]:
    """Visit with a fresh browser context. At the end the page must have had no error and no violation of its policy."""
    context = await browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    await context.add_init_script(
        "addEventListener('securitypolicyviolation', (e) => console.error('CSP', e.violatedDirective))"
    )
    try:
        visited = Visit(await context.new_page(), base)
        yield visited
        assert visited.problems == []
    finally:
        await context.close()
