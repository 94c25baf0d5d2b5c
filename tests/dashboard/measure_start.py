"""Measure the first minutes: ``python tests/dashboard/measure_start.py``.

Makes an empty virtual environment, installs this checkout with the extra ``server`` (first command), starts
``holdfast dev --example`` (second command), and opens the order in Chromium. Prints the seconds from the first command
until the timeline of the order is painted, and until the order continues after its worker was killed with the button.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from browser_visit import Visit, open_browser, visit
from playwright.async_api import Error

ROOT = Path(__file__).parents[2]
PORT = 8791


async def look(began: float) -> None:
    async with open_browser() as browser, visit(browser, f"http://127.0.0.1:{PORT}/") as user:
        await opened(user)
        print(f"order painted after {time.monotonic() - began:.1f} s", flush=True)
        await user.sees("pack parcel", ".w-row")
        killed = time.monotonic()
        await user.page.click("text=Kill the worker")
        await user.sees("Killed the worker", ".toast")
        await user.page.wait_for_selector(".lost-gap", state="attached", timeout=60_000)
        print(f"loss of the worker shown {time.monotonic() - killed:.1f} s after the kill", flush=True)
        await user.page.wait_for_selector(".w-row:has-text('pack parcel') >> text=/2./", timeout=60_000)
        print(f"second attempt shown {time.monotonic() - killed:.1f} s after the kill", flush=True)
        user.problems.clear()  # connections that were refused before the server listened


async def opened(user: Visit) -> None:
    """Open the page of the order as soon as the server listens."""
    while True:
        try:
            await user.open("run/order/o-1")
            await user.page.wait_for_selector(".w-row", timeout=10_000)
        except Error:  # the server does not listen yet
            await asyncio.sleep(0.1)
        else:
            return


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        began = time.monotonic()
        subprocess.run([f"{folder}/bin/pip", "install", "--quiet", f"{ROOT}[server]"], check=True)
        print(f"installed after {time.monotonic() - began:.1f} s", flush=True)
        command = [f"{folder}/bin/holdfast", "dev", "--example", "--port", str(PORT)]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            asyncio.run(look(began))
        finally:
            os.kill(server.pid, signal.SIGTERM)
            server.wait()


if __name__ == "__main__":
    main()
