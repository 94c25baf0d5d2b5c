"""A start whose caller stops waiting: the run is there, and it must not lie idle until a lease has run out."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast, WorkerConfig

from .driving import until


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


async def _cut_off_after(turns: int, starting: Any) -> bool:
    """Cancel a start after so many turns of the loop; whether it was still under way."""
    task = asyncio.ensure_future(starting)
    for _ in range(turns):
        await asyncio.sleep(0)
    return task.cancel()


async def test_a_run_whose_start_was_cut_off_begins_at_once(file_app: Holdfast, began: Counter[str]) -> None:
    async with file_app as app:
        cut = [await _cut_off_after(turns, app.start("noting", id=f"run-{turns}")) for turns in range(1, 8)]
        assert any(cut)

        async def all_there_have_begun() -> bool:
            there = {item.id for item in (await app.list("noting")).items}
            return bool(there) and set(began) == there and len(there) >= 7 - cut.index(True)

        await until(all_there_have_begun, seconds=5)
    assert set(began.values()) == {1}


async def test_of_two_starts_of_one_id_the_one_cut_off_begins_nothing_twice(
    file_app: Holdfast, began: Counter[str]
) -> None:
    async with file_app as app:
        for turns in range(1, 8):
            kept = asyncio.ensure_future(app.start("noting", id=f"run-{turns}"))
            await _cut_off_after(turns, app.start("noting", id=f"run-{turns}"))
            assert await (await kept).result(timeout=5) == f"run-{turns}"
    assert began == {f"run-{turns}": 1 for turns in range(1, 8)}


async def test_a_cut_off_start_leaves_room_for_others(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path / 'work.db'}", worker=WorkerConfig(concurrency=2))

    @app.workflow
    async def nothing(ctx: Context) -> str:
        return ctx.info.instance_id

    async with app:
        for n in range(10):
            await _cut_off_after(2, app.start(nothing, id=f"cut-{n}"))
        runs = [await app.start(nothing, id=f"run-{n}") for n in range(10)]
        assert [await run.result(timeout=5) for run in runs] == [f"run-{n}" for n in range(10)]
