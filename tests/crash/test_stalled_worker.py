"""A worker that is stopped past its lease and goes on later: another one has its runs, and it can change nothing."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

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
    scene.checker.at_the_end(attempts_repeat=True)
    assert await scene.stop(quick) == 0

    slow.signal(signal.SIGCONT)
    await until(lambda: verdicts(scene, slow), slow.said)
    assert set(verdicts(scene, slow)[0]) == {"lost"}
    assert everything(scene) == before
    await start_and_finish_more(scene, slow)
    assert await scene.stop(slow) == 0


async def test_a_worker_stopped_at_any_moment_goes_on_beside_the_one_that_took_over(make_scene: MakeScene) -> None:
    scene = await make_scene(copies=16)
    first, second = scene.work(), scene.work()
    async with scene.client() as app:
        sent = scene.send_all(app)
        for worker in (first, second, first):
            held = "SELECT count(*) FROM holdfast_task WHERE owner IS NOT NULL"
            await until(lambda: scene.checker.one(held) or scene.checker.complete(), scene.story)
            worker.signal(signal.SIGSTOP)
            await until(lambda worker=worker: is_stopped(worker), worker.said)
            expired = "SELECT count(*) FROM holdfast_task WHERE lease_until < unixepoch('subsec') * 1000"
            await until(lambda: not scene.checker.one(expired), scene.story)
            if worker is first:
                scene.checker.after_kill()
            worker.signal(signal.SIGCONT)
        await sent
    await scene.until_complete()

    assert await scene.stop(first) == 0
    assert await scene.stop(second) == 0
    scene.checker.at_the_end(attempts_repeat=True)
