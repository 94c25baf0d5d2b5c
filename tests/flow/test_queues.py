"""Queues from the code to the database: pauses, moves, concurrency, and the explanations that ``why`` gives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, WorkerConfig
from holdfast.errors import DefinitionError, InvalidOptionError

WORKER = WorkerConfig(poll="100 ms", queues=("default", "bulk", "slow"))


@pytest.fixture
def app(tmp_path: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{tmp_path}/queues.db", worker=WORKER)


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(app: Holdfast) -> None:
    @app.workflow
    async def flow(ctx: Context) -> int:
        return 7

    async with app:
        await app.pause_queue("bulk", reason="the bank is down")
        run = await app.start(flow, queue="bulk")
        assert await (await app.start(flow)).result() == 7  # the worker has claimed since
        assert "queue 'bulk' is paused" in (await run.describe()).why
        [bulk] = [queue for queue in await app.queues() if queue.name == "bulk"]
        assert (bulk.paused, bulk.due) == (True, 1)

        await app.resume_queue("bulk")

        assert await run.result() == 7
        actions = [(record.action, record.target) for record in (await app.audit()).items]
        assert actions == [("queue_resume", "queue bulk"), ("queue_pause", "queue bulk")]


async def test_work_that_runs_when_its_queue_is_paused_continues(app: Holdfast) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @app.step
    async def work() -> int:
        began.set()
        await go.wait()
        return 7

    @app.workflow
    async def flow(ctx: Context) -> int:
        return await work() + await work()

    async with app:
        run = await app.start(flow, queue="bulk")
        await began.wait()
        await app.pause_queue("bulk")
        go.set()

        assert await run.result() == 14


async def test_an_event_wakes_no_run_of_a_paused_queue(app: Holdfast) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        return str((await ctx.wait_for_event("go", type="go")).payload)

    async with app:
        run = await app.start(flow, queue="bulk")
        while "go" not in (await run.describe()).why:
            await asyncio.sleep(0.01)
        await app.pause_queue("bulk")
        await run.send_event("go", "now")
        other = await app.start(flow)
        await other.send_event("go", "other")
        assert await other.result() == "other"
        assert (await run.status()).status != "complete"

        await app.resume_queue("bulk")
        assert await run.result() == "now"


async def test_runs_of_a_paused_queue_are_moved_to_another_one(app: Holdfast) -> None:
    @app.workflow
    async def flow(ctx: Context) -> int:
        return 7

    async with app:
        await app.pause_queue("bulk")
        runs = [await app.start(flow, queue="bulk") for _ in range(3)]

        assert await app.move_queue("bulk", "slow") == 3

        assert [await run.result() for run in runs] == [7, 7, 7]
        assert {(await run.describe()).queue for run in runs} == {"slow"}


async def test_a_declared_queue_is_paused_and_has_a_concurrency(app: Holdfast) -> None:
    inside = most = 0

    @app.step
    async def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1

    @app.workflow
    async def flow(ctx: Context) -> None:
        await work()

    app.queue("bulk", concurrency=2, paused=True)
    async with app:
        runs = [await app.start(flow, queue="bulk") for _ in range(8)]
        assert [queue.name for queue in await app.queues() if queue.paused] == ["bulk"]
        await app.resume_queue("bulk")
        for run in runs:
            await run.result()
        assert [limit.name for limit in await app.list_limits()] == ["queue bulk"]

    assert most == 2


async def test_graph_nodes_count_towards_the_concurrency_of_their_queue(app: Holdfast) -> None:
    inside = most = 0
    graph = app.graph("parts")

    async def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1

    for name in "abcde":
        graph.node(name=name)(work)
    app.queue("bulk", concurrency=2)
    async with app:
        await (await app.start(graph, queue="bulk")).result()

    assert most == 2


async def test_the_keys_of_a_fair_queue_share_its_concurrency(app: Holdfast) -> None:
    served: list[str] = []
    app.queue("bulk", concurrency=1, fair=True, paused=True)

    @app.workflow
    async def flow(ctx: Context, tenant: str) -> None:
        served.append(tenant)

    async with app:
        runs = [await app.start(flow, tenant, queue="bulk", key=tenant) for tenant in "aaaaaab"]
        await app.resume_queue("bulk")
        for run in runs:
            await run.result(timeout=60)

    assert served.index("b") <= 2


def test_wrong_declarations_of_queues_are_refused(app: Holdfast) -> None:
    app.queue("bulk")

    with pytest.raises(DefinitionError):
        app.queue("bulk")
    with pytest.raises(InvalidOptionError):
        app.queue("")
    with pytest.raises(InvalidOptionError):
        app.queue("slow", concurrency=-1)
    with pytest.raises(InvalidOptionError):
        app.queue("fair", fair=True)


async def test_a_queue_takes_only_its_share_of_the_slots_of_a_worker(tmp_path: Path) -> None:
    config = WorkerConfig(poll="1 hour", concurrency=10, queues={"bulk": 20, "default": 80})
    app = Holdfast(f"sqlite:///{tmp_path}/shares.db", worker=config)
    inside = most = 0
    go = asyncio.Event()

    @app.step
    async def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await go.wait()
        inside -= 1

    @app.workflow
    async def slow(ctx: Context) -> None:
        await work()

    @app.workflow
    async def quick(ctx: Context) -> int:
        return 7

    async with app:
        runs = [await app.start(slow, queue="bulk") for _ in range(9)]
        async with asyncio.timeout(60):
            while inside < 2:
                await asyncio.sleep(0.001)
            assert [await (await app.start(quick)).result() for _ in range(3)] == [7, 7, 7]
            go.set()
            for run in runs:
                await run.result()

    assert most == 2


async def test_a_drained_queue_has_no_task_that_a_worker_executes(app: Holdfast) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @app.step
    async def work() -> None:
        began.set()
        await go.wait()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await work()

    async with app:
        run = await app.start(flow, queue="bulk")
        await began.wait()
        with pytest.raises(TimeoutError):
            await app.drain_queue("bulk", timeout="100 ms")
        go.set()

        await app.drain_queue("bulk", timeout="10 seconds")

        assert (await run.status()).status == "complete"
        assert [queue.paused for queue in await app.queues() if queue.name == "bulk"] == [True]


@pytest.mark.parametrize("queues", [{"bulk": 0}, {"bulk": "20"}, {"": 1}])
def test_wrong_shares_of_queues_are_refused(queues: dict[str, int]) -> None:
    with pytest.raises(InvalidOptionError):
        WorkerConfig(queues=queues)
