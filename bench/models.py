"""Chains and graphs: `python -m bench models [--postgres]`. Holdfast alone, without contenders.

Many short chains and graphs at once, and one large graph against a small one: the cost per node must not depend on the
number of nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.contract import database
from holdfast import ChainTask, Graph, Holdfast, WorkerConfig, tune_collector

CHAINS, STEPS = 1_000, 5
GRAPHS, LAYERS, WIDTH = 500, 5, 2
SMALL, LARGE, ROUNDS = 100, 10_000, 5


def run(where: Path, *, quick: bool, url: Callable[[str], str] | None = None) -> str:
    scale = 10 if quick else 1
    tune_collector()  # as `holdfast worker` does, and as in the other workloads
    database_url = url or (lambda name: f"sqlite:///{database(where, name)}")
    lines = [
        asyncio.run(_chains(database_url("chains"), CHAINS // scale)),
        asyncio.run(_graphs(database_url("graphs"), GRAPHS // scale)),
        asyncio.run(_sizes(database_url("sizes"), SMALL, LARGE // scale)),
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

    durations = [await _start_all_and_wait(app, chain, chains) for _ in range(3)]
    return f"{chains:,} chains of {STEPS} steps, all started together: {_rate(chains * STEPS, durations)} steps/s"


async def _graphs(url: str, graphs: int) -> str:
    app = _app(url)
    graph = app.graph("graph")
    _layers(graph, LAYERS, WIDTH)
    durations = [await _start_all_and_wait(app, graph, graphs) for _ in range(3)]
    nodes = LAYERS * WIDTH
    return f"{graphs:,} graphs of {nodes} nodes, all started together: {_rate(graphs * nodes, durations)} nodes/s"


async def _sizes(url: str, small: int, large: int) -> str:
    """Cost per node of a small and a large graph, run one at a time, both with layers of at most 50 nodes."""
    app = _app(url)
    graphs = {}
    for size in (small, large):
        graphs[size] = app.graph(f"of_{size}")
        _layers(graphs[size], max(1, size // 50), min(size, 50))
    per_node: dict[int, list[float]] = {size: [] for size in graphs}
    async with app:
        for _ in range(ROUNDS):
            for size, graph in graphs.items():
                started = time.perf_counter()
                await (await app.start(graph)).result()
                per_node[size].append((time.perf_counter() - started) / size * 1_000_000)
    small_us, large_us = (median(per_node[size]) for size in graphs)
    return (
        f"one graph of {small:,} nodes: {small_us:.0f} us per node; of {large:,} nodes: {large_us:.0f} us per node "
        f"({large_us / small_us:.2f} x)"
    )


def _layers(graph: Graph, layers: int, width: int) -> None:
    """Add layers of nodes. Each node depends on two nodes of the layer before."""
    before: list[str] = []
    for layer in range(layers):
        names = [f"n{layer}_{n}" for n in range(width)]
        for n, name in enumerate(names):
            after = sorted({before[n], before[(n + 1) % width]}) if before else []
            graph.node(name=name, after=after)(_work)
        before = names


async def _work() -> int:
    return 1


async def _start_all_and_wait(app: Holdfast, work: Any, runs: int) -> float:
    async with app:
        started = time.perf_counter()
        handles = await asyncio.gather(*(app.start(work) for _ in range(runs)))
        for handle in handles:
            await handle.result()
        return time.perf_counter() - started


def _rate(units: int, durations: list[float]) -> str:
    rates = sorted(units / seconds for seconds in durations)
    return f"{median(rates):,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"
