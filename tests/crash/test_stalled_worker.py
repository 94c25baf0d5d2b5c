"""A worker that is stopped past its lease and goes on later: another one has its runs, and it can change nothing."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Start

from .conftest import MakeScene
from .drains import make_drains_app
from .herd import Child
from .scene import Scene, until

pytestmark = pytest.mark.promise("fencing")

TABLES = ("holdfast_run", "holdfast_task", "holdfast_fact", "holdfast_event", "holdfast_log", "ledger")


def is_stopped(worker: Child) -> bool:
    return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def everything(scene: Scene) -> dict[str, list[tuple[Any, ...]]]:
    return {table: scene.checker.rows(f"SELECT * FROM {table}") for table in TABLES}


def verdicts(scene: Scene, worker: Child) -> list[list[str]]:
    return [line["verdicts"] for line in scene.checker.side() if "verdicts" in line and line["pid"] == worker.pid]


async def test_results_held_past_the_lease_are_refused(make_scene: MakeScene) -> None:
    scene = await make_scene(copies=0)
    app = make_drains_app(str(scene.database), str(scene.side))
    async with app.connect():
        runs = await app.start_many("held", [Start(f"held-{n}", n) for n in range(10)])
        slow = scene.work(app="drains:make_drains_app", stop_before_results=True, copies=0)
        await until(lambda: is_stopped(slow), slow.said)
        quick = scene.work(app="drains:make_drains_app", copies=0)
        await until(lambda: all_wait(scene) and not held(scene), scene.story)
        assert await scene.stop(quick) == 0
        before = everything(scene)

        slow.signal(signal.SIGCONT)
        await until(lambda: verdicts(scene, slow), slow.said)
        assert set(verdicts(scene, slow)[0]) == {"lost"}
        assert everything(scene) == before

        for run in runs:
            await run.send_event("go", 1)
        for n, run in enumerate(runs):
            assert await run.result(timeout=10) == [n, quick.pid, 1]
    assert {one.pid for one in scene.checker.ran() if one.attempt == 1} >= {slow.pid}
    assert await scene.stop(slow) == 0


def all_wait(scene: Scene) -> bool:
    waiting = "SELECT count(*) FROM holdfast_run WHERE workflow = 'held' AND status = 'waiting'"
    return bool(scene.checker.one(waiting) == 10)


async def test_a_worker_stopped_at_any_moment_goes_on_beside_the_one_that_took_over(make_scene: MakeScene) -> None:
    scene = await make_scene(copies=16)
    workers = [scene.work(), scene.work()]
    async with scene.client() as app, asyncio.TaskGroup() as group:
        group.create_task(scene.send_all(app))
        for worker in [*workers, *workers]:
            await until(lambda: held(scene) or scene.checker.complete(), scene.story)
            await stop_outside_transaction(scene, worker)
            before = held(scene)
            await until(lambda before=before: not before & held(scene), scene.story)
            scene.checker.after_kill()
            worker.signal(signal.SIGCONT)
    await scene.until_complete()

    assert [await scene.stop(worker) for worker in workers] == [0, 0]
    scene.checker.at_the_end()


async def stop_outside_transaction(scene: Scene, worker: Child) -> None:
    """A process stopped inside a transaction holds the lock of the file: nobody gets on, nothing can go wrong."""
    connection = apsw.Connection(str(scene.database))
    while True:
        worker.signal(signal.SIGSTOP)
        await until(lambda: is_stopped(worker), worker.said)
        connection.set_busy_timeout(300)
        try:
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            worker.signal(signal.SIGCONT)
        else:
            connection.close()
            return


def held(scene: Scene) -> set[tuple[Any, ...]]:
    return set(scene.checker.rows("SELECT run, owner, epoch FROM holdfast_task WHERE owner IS NOT NULL"))
