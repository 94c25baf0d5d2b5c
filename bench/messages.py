"""Cost of messages and long histories: `python -m bench messages [--postgres]`. Holdfast alone, without contenders.

A round trip is a message from one run to another and the reply. The flood is many messages to one run, which receives
them one by one. The long history is a run of many steps, woken from memory and replayed from the store.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
from pathlib import Path

from bench.contract import database
from bench.latency import quantile
from holdfast import Context, Handle, Holdfast, Limits, WorkerConfig

ROUNDS = 300
FLOOD = 100_000
BATCH = 200
STEPS = 10_000
WAKES = 20


def run(where: Path, *, quick: bool, url: str | None = None) -> str:
    scale = 10 if quick else 1
    lines = [
        asyncio.run(_round_trips(url or _file(where, "trips"), ROUNDS // scale)),
        asyncio.run(_flood(url or _file(where, "flood"), FLOOD // scale)),
        asyncio.run(_long_history(url or _file(where, "history"), STEPS // scale)),
    ]
    return "\n".join(["", *lines])


def _file(where: Path, name: str) -> str:
    return f"sqlite:///{database(where, name)}"


async def _round_trips(url: str, rounds: int) -> str:
    app = Holdfast(url)
    samples: list[float] = []

    @app.workflow
    async def echo(ctx: Context) -> None:
        async for message in ctx.listen("ping", messages=True):
            await ctx.send(message.sender or "", "pong", message.payload)

    @app.workflow
    async def pinger(ctx: Context, pid: str) -> None:
        pongs = ctx.listen("pong")
        for n in range(rounds):
            started = time.perf_counter()
            await ctx.send(pid, "ping", n)
            await pongs.receive()
            samples.append((time.perf_counter() - started) * 1000)

    async with app:
        other = await app.start(echo)
        await (await app.start(pinger, other.pid)).result()
        await other.terminate()
    ordered = samples[rounds // 10 :]
    return f"message round trip: p50 {statistics.median(ordered):.2f} ms, p99 {quantile(ordered, 0.99):.2f} ms"


async def _flood(url: str, messages: int) -> str:
    app = Holdfast(url)

    @app.workflow
    async def sink(ctx: Context) -> int:
        count = 0
        async for message in ctx.inbox:
            assert message.payload == count, f"message {message.payload} was received as number {count}"
            count += 1
            if count == messages:
                return count
        return count

    async with app.connect():
        run = await app.start(sink, id="sink")
        started = time.perf_counter()
        for first in range(0, messages, BATCH):
            await asyncio.gather(*(run.send_event("n", n) for n in range(first, first + BATCH)))
        sent = time.perf_counter() - started
    async with app:
        run = await app.get(sink, "sink")
        started = time.perf_counter()
        assert await run.result() == messages
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"{messages:,} messages waiting for one run (sent in {sent:.1f} s): all consumed in order in {seconds:.1f} s, "
        f"{messages / seconds:,.0f}/s; {peak:.0f} MB of memory at most"
    )


async def _long_history(url: str, steps: int) -> str:
    limits = Limits(steps=steps + WAKES + 10)

    def build() -> tuple[Holdfast, dict[str, float]]:
        app, times = Holdfast(url, limits=limits, worker=WorkerConfig(lease=5)), dict[str, float]()

        @app.step
        async def add_one(value: int) -> int:
            return value + 1

        @app.workflow
        async def long(ctx: Context) -> int:
            total = 0
            for n in range(steps):
                total = await add_one(total)
                if n % 500 == 499:
                    await asyncio.sleep(0)
            go = ctx.listen("go")
            while await go.receive() != "stop":
                times["woken"] = time.perf_counter()
            return total

        return app, times

    app, times = build()
    async with app:
        run = await app.start("long", id="long")
        while (await run.describe()).why.startswith("running") or not (await run.describe()).why.startswith("waiting"):
            await asyncio.sleep(0.05)
        samples = [await _wake(run, times) for _ in range(WAKES)]
    app, times = build()
    async with app:
        run = await app.get("long", "long")
        replay_ms = await _wake(run, times)
        await run.send_event("go", "stop")
        await run.result()
    return (
        f"a run with {steps:,} facts: woken from memory p50 {statistics.median(samples):.2f} ms, "
        f"replayed cold in {replay_ms:.0f} ms"
    )


async def _wake(run: Handle[int], times: dict[str, float]) -> float:
    """Milliseconds from sending an event until the code has received it."""
    times.pop("woken", None)
    started = time.perf_counter()
    await run.send_event("go", "on")
    while "woken" not in times:
        await asyncio.sleep(0)
    return (times["woken"] - started) * 1000
