"""Measure the cost of open pages: ``python tests/dashboard/measure_live.py [--pages 500] [--rounds 5]``.

A server with a worker executes batches of runs with five steps each (W1), alternately without and with open live
streams of another process: a third of the pages show the overview, a third the list of runs, a third one run. Prints
the steps per second of each batch, the processor time of the server per step, and the ratios of the medians. On a
machine with other load, the processor time is the figure to compare.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from browser_visit import serve

from holdfast import Context, Holdfast, Start, WorkerConfig, tune_collector

BATCHES, BATCH, STEPS = 400, 100, 5
TOPICS = ("topic=overview", "topic=instances&pageSize=50", "topic=run&workflow=flow&id=shown")


def make_app(url: str) -> Holdfast:
    app = Holdfast(url, worker=WorkerConfig(concurrency=1_000))

    @app.step
    async def step() -> str:
        return "done"

    @app.workflow
    async def flow(ctx: Context) -> None:
        for _ in range(STEPS):
            await step()

    @app.workflow
    async def shown(ctx: Context) -> None: ...

    return app


async def open_pages(base: str, pages: int) -> None:
    """Open the streams, print ``open``, count what they receive until the input ends, and print the count."""
    address, received = urlsplit(base), 0

    async def page(number: int) -> None:
        nonlocal received
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        query = TOPICS[number % len(TOPICS)]
        writer.write(f"GET /_api/_live?{query} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        while line := await reader.readline():
            received += line.startswith(b"event:")
            opened.add(number)

    opened: set[int] = set()
    tasks = [asyncio.create_task(page(number)) for number in range(pages)]
    while len(opened) < pages:
        await asyncio.sleep(0.05)
    await asyncio.sleep(5)  # the first state of each topic is read and sent
    received = 0
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(received, sum(task.done() for task in tasks), flush=True)


@asynccontextmanager
async def opened_pages(base: str, pages: int) -> AsyncIterator[None]:
    arguments = [sys.executable, __file__, "--base", base, "--pages", str(pages)]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert (await asyncio.to_thread(process.stdout.readline)).strip() == "open"
    yield
    output, _ = await asyncio.to_thread(process.communicate, "")
    print(f"  {pages} pages received {output.split()[0]} updates; closed by the server: {output.split()[1]}")


async def work(app: Holdfast, name: str) -> tuple[float, float]:
    """Steps per second, and microseconds of processor time of this process per step."""
    began, cpu = time.perf_counter(), time.process_time()
    for part in range(BATCHES):
        runs = await app.start_many("flow", [Start(f"{name}-{part}-{number}") for number in range(BATCH)])
        for run in runs:
            await run.result(timeout=120)
    steps = BATCHES * BATCH * STEPS
    return steps / (time.perf_counter() - began), (time.process_time() - cpu) / steps * 1e6


async def measure(url: str, pages: int, rounds: int) -> None:
    app = make_app(url)
    tune_collector()  # as ``holdfast serve`` does
    async with serve(app) as served:
        await (await app.start("flow", id="shown")).result()
        await work(app, "warm")
        alone, watched = [], []
        for number in range(rounds):
            alone.append(await work(app, f"alone-{number}"))
            async with opened_pages(served.url, pages):
                watched.append(await work(app, f"watched-{number}"))
            for what, (rate, cpu) in (("alone", alone[-1]), ("with pages", watched[-1])):
                print(f"{what}: {rate:.0f} steps/s, {cpu:.0f} us of processor time per step", flush=True)
        for index, name in enumerate(("steps per second", "processor time per step")):
            ratio = median(one[index] for one in watched) / median(one[index] for one in alone)
            print(f"{name}, with {pages} pages to without: {ratio:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--base", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.base:
        asyncio.run(open_pages(options.base, options.pages))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(f"sqlite:///{Path(folder)}/live.db", options.pages, options.rounds))


if __name__ == "__main__":
    main()
