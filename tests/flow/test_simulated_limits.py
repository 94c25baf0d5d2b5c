"""Limits under simulated faults: crashes, lost requests and answers, takeovers. Every run ends as without faults."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import ChainTask, Completed, Context, Holdfast, Rate, Retry, WorkerConfig
from holdfast.testing import simulate


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> int:
    return 300 if request.config.getoption("--long") else 15


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("sqlite://", worker=WorkerConfig(lease="2 seconds", poll="200 ms"))


async def test_a_workflow_with_limited_steps_ends_under_faults(app: Holdfast, seeds: int) -> None:
    bank = app.limit("bank", concurrency=1)
    slow = app.limit("slow", rate=Rate(10, per="1 second", burst=2))

    @app.step(limits=[bank, slow], retry=Retry(limit=5, delay="10 ms"))
    async def charge(n: int) -> int:
        await asyncio.sleep(0.01)
        return 2 * n

    @app.workflow
    async def pay(ctx: Context, n: int) -> int:
        amounts = await asyncio.gather(*(charge(n + k) for k in range(4)))
        await ctx.sleep("nap", "100 ms")
        return sum(amounts) + await charge(n)

    await simulate(app, pay, 5, seeds=seeds)


async def test_a_limited_workflow_whose_parent_waits_for_it_ends_under_faults(app: Holdfast, seeds: int) -> None:
    runs = app.limit("runs", concurrency=1)

    @app.step
    async def work(n: int) -> int:
        return n + 1

    @app.workflow(limits=[runs])
    async def child(ctx: Context, n: int) -> int:
        first = await work(n)
        await ctx.sleep("nap", "50 ms")
        return await work(first)

    @app.workflow(limits=[runs])
    async def parent(ctx: Context, n: int) -> int:
        return sum(await asyncio.gather(*(ctx.run(child, n + k) for k in range(3))))

    await simulate(app, parent, 1, seeds=seeds)


async def test_limited_chains_and_graphs_end_under_faults(app: Holdfast, seeds: int) -> None:
    bank = app.limit("bank", concurrency=1)
    chain, graph = app.chain("orders"), app.graph("etl")

    @chain.step("A", limits=[bank])
    async def a(task: ChainTask) -> Completed:
        return Completed(1)

    @chain.step("B", limits=[bank])
    async def b(task: ChainTask) -> Completed:
        return Completed(task.outputs["A"] + 1)

    @graph.node(limits=[bank])
    async def left() -> int:
        return 1

    @graph.node(limits=[bank])
    async def right() -> int:
        return 2

    @graph.node(after=[left, right], limits=[bank])
    async def both(left: int, right: int) -> int:
        return left + right

    for workflow in (chain, graph):
        await simulate(app, workflow, seeds=seeds)
