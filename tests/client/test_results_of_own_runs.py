"""``result()`` of runs that this process runs: no query, and still an answer when another process ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from apps import MakeApp
from driving import until
from holdfast import Holdfast, RunTerminatedError


def count_reads(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Record every read of runs; returns the function that returns the names of the intents read with."""
    store, reads = app._opened().store, list[str]()

    def recorded(name: str) -> Any:
        intent = getattr(store, name)

        async def read(*args: Any, **options: Any) -> Any:
            reads.append(name)
            return await intent(*args, **options)

        return read

    for name in ("find", "get", "list", "load"):
        if hasattr(store, name):
            monkeypatch.setattr(store, name, recorded(name), raising=True)
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
        result = asyncio.create_task(run.result(timeout=10))
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
            await run.result(timeout=5)  # the heartbeat, which would notice it too, comes after 10 s
