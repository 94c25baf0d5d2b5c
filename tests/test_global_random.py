"""The engine neither uses nor changes the process-global generator of `random`."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack
from typing import Any

from apps import MakeApp
from holdfast import Context, Graph, Handle, Holdfast, Retry, Step
from holdfast.ports import SystemRandomness

JITTERY = Retry(limit=3, delay="1 ms", jitter=0.5)


def steps_that_fail_once(app: Holdfast) -> Step[[str], str]:
    failed: set[str] = set()

    @app.step(retry=JITTERY)
    async def flaky(name: str) -> str:
        if name not in failed:
            failed.add(name)
            raise OSError(name)
        return name

    return flaky


def graph_with_a_child(app: Holdfast, flaky: Step[[str], str]) -> Graph:
    @app.workflow
    async def child(ctx: Context, name: str) -> str:
        return await flaky(name)

    graph = app.graph("graph")

    @graph.node(retry=JITTERY)
    async def first(params: str) -> str:
        return await flaky(params)

    graph.node(run=child, after=[first], input=lambda first: f"{first}'s child")
    return graph


async def test_a_run_leaves_the_global_state_unchanged(make_app: MakeApp) -> None:
    app = make_app()
    flaky = steps_that_fail_once(app)
    graph = graph_with_a_child(app, flaky)

    @app.workflow
    async def parent(ctx: Context, name: str) -> str:
        await asyncio.sleep(0.001)
        assert 0 <= ctx.random.random() < 1
        return await ctx.run("child", await flaky(name))

    random.seed(1)
    before = random.getstate()
    async with app:
        runs: list[Handle[Any]] = [await app.start(parent, "a"), await app.start(graph, "b")]
        for run in runs:
            await run.result(timeout=60)

    assert random.getstate() == before


async def test_seeding_the_global_generator_does_not_repeat_instance_ids(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def double(ctx: Context, n: int) -> int:
        return 2 * n

    async with app:
        results = []
        for n in range(3):
            random.seed(42)
            results.append(await (await app.start(double, n)).result(timeout=60))

    assert results == [0, 2, 4]


async def test_a_step_may_seed_the_global_generator(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def parent(ctx: Context, n: int) -> int:
        async def seeding() -> int:
            random.seed(0)
            return n

        return await ctx.run(child, await ctx.do("seed", seeding))

    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        return n

    async with app:
        runs = [await app.start(parent, n) for n in range(40)]
        assert [await run.result(timeout=60) for run in runs] == [*range(40)]


async def test_two_workers_that_seed_equally_do_not_refuse_each_others_commits(make_app: MakeApp) -> None:
    apps = [make_app(), make_app()]
    for app in apps:

        @app.workflow(name="seeding")
        async def seeding(ctx: Context, n: int) -> int:
            async def seed() -> int:
                random.seed(0)
                return n

            return await ctx.do("one", seed) + await ctx.do("two", seed)

    async with AsyncExitStack() as opened:
        for app in apps:
            random.seed(7)
            await opened.enter_async_context(app)
        runs = [await apps[n % 2].start("seeding", n, id=f"run-{n}") for n in range(20)]
        assert [await run.result(timeout=60) for run in runs] == [2 * n for n in range(20)]


async def test_a_forked_process_draws_different_ids() -> None:
    randomness = SystemRandomness()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, randomness.uuid4().bytes)
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read, 16) != randomness.uuid4().bytes
