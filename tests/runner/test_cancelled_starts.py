"""Cancelled calls of ``start``: a run that was created begins at once, not only when a lease expires."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from driving import until
from holdfast import Context, Holdfast, WorkerConfig


@pytest.fixture
def began() -> Counter[str]:
    return Counter()


@pytest.fixture
def file_app(tmp_path: Path, began: Counter[str]) -> Holdfast:
    app = Holdfast(f"sqlite:///{tmp_path / 'work.db'}")

    @app.step
    async def note(id: str) -> None:
        began[id] += 1

    @app.workflow
    async def noting(ctx: Context) -> str:
        await note(ctx.info.instance_id)
        return ctx.info.instance_id

    return app


async def _cancel_after(turns: int, start: Any) -> bool:
    """Cancel a start after ``turns`` iterations of the event loop; return True if it was still pending."""
    task = asyncio.ensure_future(start)
    for _ in range(turns):
        await asyncio.sleep(0)
    return task.cancel()


async def test_a_run_whose_start_was_cancelled_begins_at_once(file_app: Holdfast, began: Counter[str]) -> None:
    async with file_app as app:
        cancelled = [await _cancel_after(turns, app.start("noting", id=f"run-{turns}")) for turns in range(1, 8)]
        assert any(cancelled)

        async def all_created_runs_have_begun() -> bool:
            created = {item.id for item in (await app.list("noting")).items}
            return bool(created) and set(began) == created and len(created) >= 7 - cancelled.index(True)

        await until(all_created_runs_have_begun, seconds=5)
    assert set(began.values()) == {1}


async def test_a_cancelled_start_of_an_id_that_another_call_starts_begins_nothing_twice(
    file_app: Holdfast, began: Counter[str]
) -> None:
    async with file_app as app:
        for turns in range(1, 8):
            kept = asyncio.ensure_future(app.start("noting", id=f"run-{turns}"))
            await _cancel_after(turns, app.start("noting", id=f"run-{turns}"))
            assert await (await kept).result(timeout=60) == f"run-{turns}"
    assert began == {f"run-{turns}": 1 for turns in range(1, 8)}


async def test_a_cancelled_start_frees_its_slot(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path / 'work.db'}", worker=WorkerConfig(concurrency=2))

    @app.workflow
    async def nothing(ctx: Context) -> str:
        return ctx.info.instance_id

    async with app:
        for n in range(10):
            await _cancel_after(2, app.start(nothing, id=f"cut-{n}"))
        runs = [await app.start(nothing, id=f"run-{n}") for n in range(10)]
        assert [await run.result(timeout=60) for run in runs] == [f"run-{n}" for n in range(10)]
