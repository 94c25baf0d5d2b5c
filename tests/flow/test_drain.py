"""The drain of a worker: it claims nothing, gives up its runs between steps, and can be resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, WorkerConfig
from holdfast.errors import WorkerNotFoundError
from holdfast.runner import lease_keeper

WORKER = WorkerConfig(lease="900 ms", poll="50 ms")


def make_app(path: Path, log: list[str], go: asyncio.Event) -> Holdfast:
    app = Holdfast(f"sqlite:///{path}/drain.db", worker=WORKER)

    @app.step
    async def first() -> str:
        log.append("first")
        await go.wait()
        return "first"

    @app.step
    async def second() -> str:
        log.append("second")
        return "second"

    @app.workflow
    async def flow(ctx: Context) -> str:
        await first()
        return await second()

    return app


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_a_drained_worker_finishes_its_step_and_leaves_the_rest_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_keeper, "_DRAIN_SECONDS", 0.0)  # every heartbeat looks for a drain
    go, log, others = asyncio.Event(), list[str](), list[str]()
    draining, other = make_app(tmp_path, log, go), make_app(tmp_path, others, go)
    async with draining:
        run = await draining.start("flow")

        async def holds() -> bool:
            return bool(log) and [one.held for one in await draining.workers()] == [1]

        async def notices() -> bool:
            opened = draining._opened().worker
            return opened is not None and opened._slots.draining

        async def holds_nothing() -> bool:
            return (await draining.workers())[0].held == 0

        await _until(holds)
        [worker] = await draining.workers()
        await draining.drain_worker(worker.id, reason="the host is replaced")
        await _until(notices)
        go.set()
        await _until(holds_nothing)
        assert (await run.status()).status != "complete"
        async with other:
            assert await run.result(timeout=60) == "second"
        assert (log, others) == (["first"], ["second"])

        late = await draining.start("flow", id="late")
        await asyncio.sleep(0.2)
        assert log == ["first"]
        assert (await draining.workers())[0].draining

        await draining.resume_worker(worker.id)
        assert await late.result(timeout=60) == "second"
        actions = [(record.action, record.reason) for record in (await draining.audit()).items]
        assert actions == [("worker_resume", None), ("worker_drain", "the host is replaced")]


async def test_a_worker_that_is_not_alive_cannot_be_drained(tmp_path: Path) -> None:
    async with make_app(tmp_path, [], asyncio.Event()) as app:
        with pytest.raises(WorkerNotFoundError, match="no living worker 'nobody'"):
            await app.drain_worker("nobody")
