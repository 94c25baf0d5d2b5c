"""Chains and graphs: `python -m bench models [--postgres]`. Holdfast alone, without contenders.

Many short ones at once, and one long graph against a short one: what a node costs must not depend on their number.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.contract import database
from holdfast import ChainTask, Graph, Holdfast, WorkerConfig

CHAINS, STEPS = 1_000, 5
GRAPHS, LAYERS, WIDTH = 500, 5, 2
SMALL, LARGE, ROUNDS = 100, 10_000, 5


def run(where: Path, *, quick: bool, url: Callable[[str], str] | None = None) -> str:
    scale = 10 if quick else 1
    place = url or (lambda name: f"sqlite:///{database(where, name)}")
    lines = [
        asyncio.run(_chains(place("chains"), CHAINS // scale)),
        asyncio.run(_graphs(place("graphs"), GRAPHS // scale)),
        asyncio.run(_sizes(place("sizes"), SMALL, LARGE // scale)),
    ]
    return "\n".join(["", *lines])


def _app(url: str) -> Holdfast:
    return Holdfast(url, worker=WorkerConfig(concurrency=1_000))


async def _chains(url: str, chains: int) -> str:
    app = _app(url)
    chain = app.chain("chain")
    for n in range(STEPS):

        @chain.step(f"S{n}")
        async def step(task: ChainTask) -> int:
            return task.step_seq

    took = [await _all_at_once(app, chain, chains) for _ in range(3)]
    return f"{chains:,} chains of {STEPS} steps, all started together: {_rate(chains * STEPS, took)} steps/s"


async def _graphs(url: str, graphs: int) -> str:
    app = _app(url)
    graph = app.graph("graph")
    _layers(graph, LAYERS, WIDTH)
    took = [await _all_at_once(app, graph, graphs) for _ in range(3)]
    nodes = LAYERS * WIDTH
    return f"{graphs:,} graphs of {nodes} nodes, all started together: {_rate(graphs * nodes, took)} nodes/s"


async def _sizes(url: str, small: int, large: int) -> str:
    """One at a time, of the same shape: a hundred nodes wide, or less."""
    app = _app(url)
    graphs = {}
    for size in (small, large):
        graphs[size] = app.graph(f"of_{size}")
        _layers(graphs[size], max(1, size // 50), min(size, 50))
    per_node: dict[int, list[float]] = {size: [] for size in graphs}
    async with app:
        for _ in range(ROUNDS):
            for size, graph in graphs.items():
                began = time.perf_counter()
                await (await app.start(graph)).result()
                per_node[size].append((time.perf_counter() - began) / size * 1_000_000)
    of_small, of_large = (median(per_node[size]) for size in graphs)
    return (
        f"one graph of {small:,} nodes: {of_small:.0f} us per node; of {large:,} nodes: {of_large:.0f} us per node "
        f"({of_large / of_small:.2f} x)"
    )


def _layers(graph: Graph, layers: int, width: int) -> None:
    """Each node comes after two of the layer before."""
    before: list[str] = []
    for layer in range(layers):
        names = [f"n{layer}_{n}" for n in range(width)]
        for n, name in enumerate(names):
            after = sorted({before[n], before[(n + 1) % width]}) if before else []
            graph.node(name=name, after=after)(_work)
        before = names


async def _work() -> int:
    return 1


async def _all_at_once(app: Holdfast, work: Any, runs: int) -> float:
    async with app:
        began = time.perf_counter()
        started = await asyncio.gather(*(app.start(work) for _ in range(runs)))
        for run in started:
            await run.result()
        return time.perf_counter() - began


def _rate(units: int, took: list[float]) -> str:
    rates = sorted(units / one for one in took)
    return f"{median(rates):,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"
