"""Measure the memory of open pages: ``python tests/dashboard/measure_memory.py [--minutes 30] [--every 0.5]``.

Three pages stay open in one browser: the overview, the list of runs, and one run. A worker starts and ends a run every
``--every`` seconds, and the shown run completes a step as often. Prints the JavaScript memory of each page after a
collection, and the number of its elements, once in two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from browser_visit import Visit, open_browser, serve, visit
from measure_dashboard import heap

from holdfast import Context, Holdfast

ROUTES = {"overview": ("", ".figure"), "list of runs": ("runs", ".runs tbody tr"), "run": ("run/ticking/t", ".w-row")}
INTERVAL_S = 120


def make_app(folder: Path, every: float) -> Holdfast:
    app = Holdfast(f"sqlite:///{folder}/memory.db")

    @app.workflow
    async def short(ctx: Context) -> None:
        await ctx.sleep("a moment", every)

    @app.workflow
    async def ticking(ctx: Context) -> None:
        for number in range(10_000):
            await ctx.sleep(f"tick {number}", every)

    return app


async def shown(pages: dict[str, Visit]) -> str:
    parts = []
    for name, user in pages.items():
        elements = await user.page.evaluate("() => document.querySelectorAll('*').length")
        parts.append(f"{name} {await heap(user):.1f} MB and {elements} elements")
    return "; ".join(parts)


async def start_runs(app: Holdfast, every: float) -> None:
    while True:
        await app.start("short")
        await asyncio.sleep(every)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=0.5)
    options = parser.parse_args()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        app = make_app(Path(folder), options.every)
        browser = await stack.enter_async_context(open_browser())
        served = await stack.enter_async_context(serve(app))
        await app.start("ticking", id="t")
        starting = asyncio.create_task(start_runs(app, options.every))
        pages = {name: await stack.enter_async_context(visit(browser, served.url)) for name in ROUTES}
        for name, (route, selector) in ROUTES.items():
            await pages[name].open(route)
            await pages[name].page.wait_for_selector(selector)
        began = time.monotonic()
        await asyncio.sleep(10)
        while True:
            minutes = (time.monotonic() - began) / 60
            print(f"after {minutes:.1f} min: {await shown(pages)}", flush=True)
            if minutes >= options.minutes:
                break
            await asyncio.sleep(min(INTERVAL_S, max(1, (options.minutes - minutes) * 60)))
        starting.cancel()


if __name__ == "__main__":
    asyncio.run(main())
