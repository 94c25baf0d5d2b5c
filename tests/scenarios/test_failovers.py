"""Workers and clients of a database that fails over to a server without the last commits (PostgreSQL only)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from driving import step_keys, until, until_status
from holdfast import Context, Holdfast, InstanceNotFoundError, WorkerConfig
from postgres_failover import Failover, through
from postgres_server import new_database, server
from store.postgres.fault_tools import Proxy

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def url() -> str:
    return new_database(migrated=True)


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path, server().folder)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
def app(url: str, proxy: Proxy) -> Holdfast:
    return Holdfast(through(proxy, url), worker=WorkerConfig(lease="20 seconds", poll=0.2))


@pytest.fixture
async def failover(url: str, proxy: Proxy) -> AsyncIterator[Failover]:
    connection = await asyncpg.connect(url)
    yield Failover(connection, proxy)
    await connection.close()


class Gate:
    """Steps that record their calls and wait."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.open = asyncio.Event()

    async def pass_(self, name: str) -> str:
        self.calls.append(name)
        await self.open.wait()
        return name

    async def note(self, name: str) -> str:
        self.calls.append(name)
        return name

    async def called(self, name: str, times: int = 1) -> None:
        await until(lambda: _ready(self.calls.count(name) >= times), seconds=10)


async def _ready(condition: bool) -> bool:
    return condition


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def test_a_run_in_progress_continues_from_the_facts_that_are_left(
    app: Holdfast, failover: Failover, gate: Gate
) -> None:
    saved = asyncio.Event()

    async def second() -> str:
        gate.calls.append("second")
        await saved.wait()
        return "second"

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        results = [await ctx.do("first", gate.note, "first"), await ctx.do("second", second)]
        return [*results, await ctx.do("third", gate.pass_, "third")]

    async with app:
        run = await app.start(flow, id="a")
        await gate.called("second")
        await failover.save()
        saved.set()
        await gate.called("third")
        await failover.fail_over()
        await gate.called("third", 2)
        gate.open.set()

        assert await run.result(timeout=60) == ["first", "second", "third"]
        assert await step_keys(run) == ["first", "second", "third"]
        assert gate.calls == ["first", "second", "third", "second", "third"]


async def test_waiting_for_a_lost_run_raises_instance_not_found_and_the_worker_continues(
    app: Holdfast, failover: Failover, gate: Gate
) -> None:
    @app.workflow
    async def flow(ctx: Context, name: str) -> str:
        return await ctx.do("step", gate.pass_, name)

    async with app:
        kept = await app.start(flow, "kept", id="kept")
        await failover.save()
        lost = await app.start(flow, "lost", id="lost")
        await gate.called("lost")
        waiting = asyncio.create_task(lost.result(timeout=60))
        await failover.fail_over()

        with pytest.raises(InstanceNotFoundError):
            await waiting
        gate.open.set()
        assert await kept.result(timeout=60) == "kept"
        again = await app.start(flow, "new", id="lost")
        assert await again.result(timeout=60) == "new"


async def test_a_suspended_run_is_replayed_from_the_database_and_not_from_the_cache(
    app: Holdfast, failover: Failover, gate: Gate
) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        first = await ctx.wait_for_event("wait for a", type="a", payload=str)
        await ctx.do("between", gate.note, "between")
        second = await ctx.wait_for_event("wait for b", type="b", payload=str)
        return [first.payload, second.payload]

    async with app:
        run = await app.start(flow, id="a")
        await until_status(run, "waiting")
        await failover.save()
        await run.send_event("a", "lost")
        await gate.called("between")
        await until_status(run, "waiting")
        await failover.fail_over()
        await run.send_event("b", "kept")
        await run.send_event("a", "kept")

        assert await run.result(timeout=60) == ["kept", "kept"]
        assert gate.calls == ["between", "between"]


async def test_nodes_of_a_graph_in_progress_are_called_again_with_the_results_that_are_left(
    app: Holdfast, failover: Failover, gate: Gate
) -> None:
    saved, results, graph = asyncio.Event(), iter(["lost", "kept"]), app.graph("etl")

    @graph.node
    async def first() -> str:
        gate.calls.append("first")
        await saved.wait()
        return next(results)

    @graph.node(after=[first])
    async def second(first: str) -> str:
        return await gate.pass_(f"second of {first}")

    async with app:
        run = await app.start(graph, id="a")
        await gate.called("first")
        await failover.save()
        saved.set()
        await gate.called("second of lost")
        await failover.fail_over()
        await gate.called("second of kept")
        gate.open.set()

        assert await run.result(timeout=60) == {"first": "kept", "second": "second of kept"}
        assert gate.calls == ["first", "second of lost", "first", "second of kept"]


async def test_a_worker_continues_under_another_id(app: Holdfast, failover: Failover) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    async with app:
        await (await app.start(flow, id="a")).result(timeout=60)
        [before] = [worker.id for worker in await until(app.workers)]
        await failover.fail_over()
        await (await app.start(flow, id="b")).result(timeout=60)

        async def new_worker() -> bool:
            return any(worker.id != before and worker.alive for worker in await app.workers())

        await until(new_worker, seconds=10)
