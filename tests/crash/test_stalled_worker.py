"""A worker that is stopped past its lease and goes on later: another one has its runs, and it can change nothing."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import apsw

from .conftest import MakeScene
from .herd import Child
from .scene import Scene, until

TABLES = ("holdfast_run", "holdfast_fact", "holdfast_event", "holdfast_log", "ledger")


def is_stopped(worker: Child) -> bool:
    return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def everything(scene: Scene) -> dict[str, list[tuple[Any, ...]]]:
    return {table: scene.checker.rows(f"SELECT * FROM {table}") for table in TABLES}


def verdicts(scene: Scene, worker: Child) -> list[list[str]]:
    return [line["verdicts"] for line in scene.checker.side() if "verdicts" in line and line["pid"] == worker.pid]


async def start_and_finish_more(scene: Scene, worker: Child) -> None:
    """Only that worker is left, and new runs are done."""
    async with scene.client() as app:
        handles = [await app.start("sequence", n, id=f"more-{n}") for n in range(5)]
        for n, handle in enumerate(handles):
            assert await handle.result(timeout=10) == [n + 1, 2 * n + 2, 2 * n + 3]
    assert {one.pid for one in scene.checker.ran() if one.run.startswith("more-")} == {worker.pid}


async def test_results_held_past_the_lease_are_refused(make_scene: MakeScene) -> None:
    scene = await make_scene(copies=4)
    slow = scene.work(stop_before_results=True)
    await until(lambda: is_stopped(slow), slow.said)

    quick = scene.work()
    async with scene.client() as app:
        await scene.send_all(app)
    await scene.until_complete()
    before = everything(scene)
    scene.checker.at_the_end()
    assert await scene.stop(quick) == 0

    slow.signal(signal.SIGCONT)
    await until(lambda: verdicts(scene, slow), slow.said)
    assert set(verdicts(scene, slow)[0]) == {"lost"}
    assert everything(scene) == before
    await start_and_finish_more(scene, slow)
    assert await scene.stop(slow) == 0


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
