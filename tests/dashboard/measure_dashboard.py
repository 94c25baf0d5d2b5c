"""Measure the dashboard in a real browser: ``python tests/dashboard/measure_dashboard.py [--runs N] [--facts N]``.

Prints the time until the first rows are painted, the time until a long timeline is painted, and the frames per second
while it is scrolled and zoomed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from browser_visit import Visit, open_browser, serve, visit
from playwright.async_api import Browser

from holdfast import Context, Holdfast, Limits, Start, tune_collector

FRAMES = """async (move) => {
  const box = document.querySelector('.waterfall');
  let frames = 0, longest = 0, before = performance.now();
  const start = before;
  while (performance.now() - start < 3000) {
    if (move === 'scroll') box.scrollTop = (box.scrollTop + 90) % (box.scrollHeight - box.clientHeight);
    else box.dispatchEvent(new WheelEvent('wheel', { bubbles: true, cancelable: true,
      deltaY: frames % 80 < 40 ? -12 : 12, ctrlKey: true, clientX: 900, clientY: 500 }));
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    longest = Math.max(longest, now - before);
    before = now;
    frames += 1;
  }
  return [frames / 3, longest];
}"""
BATCH = 100


def make_app(folder: Path) -> Holdfast:
    app = Holdfast(f"sqlite:///{folder}/measure.db", limits=Limits(steps=100_000))

    @app.step
    async def work(number: int) -> int:
        return number

    @app.workflow
    async def long(ctx: Context, facts: int) -> None:
        for begin in range(0, facts, 200):
            await asyncio.gather(*(work(number) for number in range(begin, min(facts, begin + 200))))
        await ctx.wait_for_event("end", type="end")

    @app.workflow
    async def later(ctx: Context) -> None: ...

    return app


async def paint(user: Visit, route: str, selector: str) -> float:
    """Milliseconds from the navigation to the first element of the page's data, by the clock of the page."""
    await user.page.goto("about:blank")
    await user.page.goto(f"{user.base}#/{route}", wait_until="commit")
    await user.page.wait_for_selector(selector)
    return float(await user.page.evaluate("() => performance.now()"))


async def heap(user: Visit) -> float:
    """Used JavaScript memory in MB after a collection."""
    session = await user.page.context.new_cdp_session(user.page)
    await session.send("HeapProfiler.collectGarbage")
    found: Any = await session.send("Runtime.getHeapUsage")
    return float(found["usedSize"]) / 1e6


async def measure(browser: Browser, app: Holdfast, options: argparse.Namespace) -> None:
    tune_collector()  # as ``holdfast serve`` does
    async with serve(app) as served:
        run = await app.start("long", options.facts, id="long")
        while (await run.status()).status != "waiting":
            await asyncio.sleep(0.5)
        for begin in range(0, options.runs, BATCH):
            await app.start_many("later", [Start(f"r-{begin + n}", delay=timedelta(days=30)) for n in range(BATCH)])
        async with visit(browser, served.url) as user:
            for name, route, selector in (("overview", "", ".figure"), ("runs", "runs", ".runs tbody tr")):
                times = sorted([await paint(user, route, selector) for _ in range(5)])
                print(f"{name}: first data painted after {times[2]:.0f} ms (median of 5; {options.runs} runs)")
            times = sorted([await paint(user, "run/long/long", ".w-row:nth-child(9)") for _ in range(5)])
            print(f"timeline: painted after {times[2]:.0f} ms (median of 5; {options.facts} facts)")
            for move in ("scroll", "zoom"):
                rate, longest = await user.page.evaluate(FRAMES, move)
                print(f"timeline, {move}: {rate:.0f} frames/s, longest frame {longest:.0f} ms")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--facts", type=int, default=20_000)
    with tempfile.TemporaryDirectory() as folder:
        async with open_browser() as browser:
            await measure(browser, make_app(Path(folder)), parser.parse_args())


if __name__ == "__main__":
    asyncio.run(main())
