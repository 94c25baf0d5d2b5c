"""``result()`` of runs that this process runs: no query, and still an answer when another process ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from apps import MakeApp
from driving import until
from holdfast import Holdfast, RunTerminatedError
from holdfast.store.protocol import CurrentRuns, RunByName, RunsById, SnapshotQuery


def count_reads(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Record every query for runs; returns the function that returns the names of the queries."""
    store, reads = app._opened().store, list[str]()
    read = store.read

    async def recorded(query: Any) -> Any:
        if isinstance(query, RunsById | RunByName | CurrentRuns | SnapshotQuery):
            reads.append(type(query).__name__)
        return await read(query)

    monkeypatch.setattr(store, "read", recorded)
    return lambda: reads


def app_with_waiting_workflow(make_app: MakeApp) -> tuple[Holdfast, Any, asyncio.Event]:
    app, gate = make_app(), asyncio.Event()

    @app.workflow
    async def waiting(ctx: Any, number: int) -> int:
        await ctx.do("wait", gate.wait)
        return number

    return app, waiting, gate


async def watched(app: Holdfast) -> None:
    """Wait until the worker has seen the store's version once."""

    async def seen() -> bool:
        return app._opened().hub.store_version is not None

    await until(seen)


async def test_waiting_for_a_run_of_this_process_needs_no_query(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, waiting, gate = app_with_waiting_workflow(make_app)
    async with app:
        await watched(app)
        reads = count_reads(app, monkeypatch)
        run = await app.start(waiting, 3)
        result = asyncio.create_task(run.result(timeout=60))
        await asyncio.sleep(0.2)  # several periods of the poll for changes
        gate.set()
        assert await result == 3
    assert reads() == []


async def test_a_run_of_this_process_that_another_process_ends_is_noticed_before_the_heartbeat(
    make_app: MakeApp,
) -> None:
    app, waiting, _ = app_with_waiting_workflow(make_app)
    other, foreign, _ = app_with_waiting_workflow(make_app)
    async with app, other.connect():
        await watched(app)
        run = await app.start(waiting, 3)
        await (await other.get(foreign, run.id)).terminate("by the other process")
        with pytest.raises(RunTerminatedError):
            await run.result(timeout=60)  # the heartbeat, which would notice it too, comes after 10 s


async def test_the_result_of_a_run_that_was_looked_up_needs_no_query_while_this_process_executes_it(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, waiting, gate = app_with_waiting_workflow(make_app)
    async with app:
        await watched(app)
        await app.start(waiting, 3, id="a")
        run = await app.get(waiting, "a")
        reads = count_reads(app, monkeypatch)
        result = asyncio.create_task(run.result(timeout=60))
        await asyncio.sleep(0)
        gate.set()

        assert await result == 3
        assert reads() == []


async def test_the_result_of_a_run_that_was_looked_up_and_has_ended_needs_one_query(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, waiting, gate = app_with_waiting_workflow(make_app)
    async with app:
        started = await app.start(waiting, 3, id="a")
        run = await app.get(waiting, "a")
        gate.set()
        await started.result()
        reads = count_reads(app, monkeypatch)

        assert await run.result(timeout=60) == 3
        assert reads() == ["RunsById"]


async def test_a_looked_up_run_that_another_process_ends_while_this_one_executes_it_is_noticed(
    make_app: MakeApp,
) -> None:
    app, waiting, _ = app_with_waiting_workflow(make_app)
    other, foreign, _ = app_with_waiting_workflow(make_app)
    async with app, other.connect():
        await watched(app)
        await app.start(waiting, 3, id="a")
        result = asyncio.create_task((await app.get(waiting, "a")).result(timeout=60))
        await (await other.get(foreign, "a")).terminate("by the other process")

        with pytest.raises(RunTerminatedError):
            await result


async def test_the_result_of_a_restarted_run_is_that_of_its_successor(make_app: MakeApp) -> None:
    app, waiting, gate = app_with_waiting_workflow(make_app)
    gate.set()
    async with app:
        await (await app.start(waiting, 3, id="a")).result()
        run = await app.get(waiting, "a")
        gate.clear()
        await (await app.get(waiting, "a")).restart()
        result = asyncio.create_task(run.result(timeout=60))
        await until(lambda: _is_active(app, waiting))
        assert not result.done()
        gate.set()

        assert await result == 3


async def _is_active(app: Holdfast, workflow: Any) -> bool:
    return (await (await app.get(workflow, "a")).status()).status == "active"
