"""Worker ids are readable in SQL views, facts and the list of workers."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apps import MakeApp
from holdfast import ChainTask, Holdfast
from holdfast.runner.identity import worker_id
from holdfast.testing import Harness
from holdfast.testing.virtual import SeededRandomness

READABLE = rf"apps@[\w.-]+:{os.getpid()}:[0-9a-f]{{12}}"  # the module in which the fixtures create their apps


async def test_workers_have_readable_ids(make_app: MakeApp) -> None:
    app = make_app()
    async with app:
        await app._opened().worker.keep_leases()  # type: ignore[union-attr]
        [worker] = await app.workers()
    assert re.search(READABLE, worker.id)
    assert f"@{re.sub('[^A-Za-z0-9._-]+', '_', platform.node())[:60]}:" in worker.id


async def test_the_owner_of_a_node_is_readable(app: Holdfast, h: Harness) -> None:
    graph = app.graph("g")

    @graph.node
    async def only() -> None: ...

    run = await h.start(graph)
    await h.run_until_idle()
    [start] = (await run.facts("start/")).values()
    assert re.search(READABLE, start["owner"])


async def test_the_owner_of_a_chain_step_is_readable(app: Holdfast, h: Harness) -> None:
    chain = app.chain("c")

    @chain.step("ONLY")
    async def only(task: ChainTask) -> None:
        await asyncio.Event().wait()

    await h.start(chain)
    await h.tick()
    live = await h._store.begin()
    schema = getattr(h._store._store, "_schema", "main")
    [row] = await live.fetch(f"SELECT locked_by FROM {schema}.holdfast_chain_step", ())
    await live.rollback()
    assert re.search(READABLE, row["locked_by"])


@pytest.mark.above_the_store
async def test_workers_of_one_process_have_different_ids(app: Holdfast, h: Harness) -> None:
    ids = {h._new_worker().id for _ in range(100)}
    assert len(ids) == 100


@pytest.mark.above_the_store
def test_a_worker_id_has_a_maximum_length_and_no_unusual_characters() -> None:
    long_id = worker_id("häßlich app" * 20, "h\0st\n" * 100, 7, SeededRandomness(1))
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,40}@[A-Za-z0-9._-]{1,60}:7:[0-9a-f]{12}", long_id)
    assert re.fullmatch(r"_@_:7:[0-9a-f]{12}", worker_id("", "", 7, SeededRandomness(1)))


@pytest.mark.above_the_store
@pytest.mark.parametrize("command", [["shop.py"], ["-m", "shop"]])
def test_the_program_of_an_app_is_the_name_of_its_file(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "shop.py").write_text("from holdfast import Holdfast\nprint(Holdfast('sqlite://').program)\n")
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "shop"
