"""SIGKILL at every call of the store: after restarts everything is as if nothing had happened.

A chain goes through the kill points in order on one file: a worker is killed at its n-th call, the next one on the
same file at its (n+1)-th, and so on; when the workload is done, the chain goes on with a fresh file. ``--long`` visits
every point; the ordinary run takes steps of a fixed length.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from .conftest import MakeScene
from .killer import WHEN
from .scene import LEASE, Scene, until

COPIES = 16  # 208 runs

# A clean run makes about 270 calls in about 120 transactions.
LAST = {"before": 270, "during": 120, "after": 270}
STRIDE = {"before": 31, "during": 17, "after": 29}


PACKAGE = Path(__file__).parent
STRACE = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e"]


def can_trace() -> bool:
    """Whether strace is there, and may be used."""
    if shutil.which("strace") is None:
        return False
    command = [*STRACE, "inject=pwrite64:error=EIO", sys.executable, "-c", "import os; os.pwrite(1, b'', 0)"]
    return b"Errno 5" in subprocess.run(command, capture_output=True, check=False).stderr


@pytest.mark.kind_settings("counts the calls of the store")
async def test_without_a_kill_the_workload_is_done(make_scene: MakeScene) -> None:
    scene = await make_scene(COPIES)
    count = scene.folder / "count"

    worker = scene.work(count=str(count))
    async with sending(scene):
        await scene.until_complete()
    assert await scene.stop(worker) == 0

    scene.checker.at_the_end()
    calls, transactions = map(int, count.read_text().split())
    assert LAST["before"] * 0.5 < calls < LAST["before"] * 2, "adjust LAST"
    assert LAST["during"] * 0.5 < transactions < LAST["during"] * 2, "adjust LAST"


@pytest.mark.promise("committed-results-never-change", "durability", "liveness", "finality")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", WHEN)
async def test_killed_at_each_call_in_turn(make_scene: MakeScene, when: str, long: bool) -> None:
    points = range(1, 10_000) if long else range(1, LAST[when], STRIDE[when])
    template = await make_scene(COPIES)
    visited: list[int] = []

    while len(visited) < len(points):
        scene = await make_scene(COPIES, of=template)
        async with sending(scene):
            reached = await kill_on(scene, when, list(points[len(visited) :]))
        visited += reached
        scene.checker.at_the_end()
        if not reached:
            break  # a whole workload has fewer calls

    print(f"{when}: {len(visited)} kill points, the last at {visited[-1]}")
    assert visited[-1] > LAST[when] / 2


@pytest.mark.promise("durability")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", WHEN)
async def test_killed_once_on_a_fresh_file(make_scene: MakeScene, when: str, long: bool) -> None:
    template = await make_scene(COPIES)
    for n in range(2, LAST[when], 10 if long else LAST[when] // 2 - 9):
        scene = await make_scene(COPIES, of=template)
        async with sending(scene):
            await kill_on(scene, when, [n])
        scene.checker.at_the_end()


@pytest.mark.promise("durability")
@pytest.mark.timeout(3600)
async def test_killed_between_two_writes_of_a_transaction(make_scene: MakeScene, tmp_path: Path, long: bool) -> None:
    if not can_trace():
        pytest.skip("strace is missing or not allowed")
    template = await make_scene(COPIES)
    for n in range(7, 600, 23 if long else 290):
        scene = await make_scene(COPIES, of=template)
        spec = {"database": str(scene.database), "side": str(scene.side), "copies": COPIES, "lease": LEASE}
        path = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})"
        code = f"{path}; from {PACKAGE.name} import program; program.work(**{spec})"
        command = [*STRACE, f"inject=pwrite64:signal=SIGKILL:when={n}", sys.executable, "-c", code]
        async with sending(scene):
            with (tmp_path / "log").open("w") as log:
                traced = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            try:
                await until(lambda p=traced: p.poll() is not None, scene.story, 60)
            finally:
                with suppress(ProcessLookupError):  # strace and what it traces
                    os.killpg(traced.pid, signal.SIGKILL)
                traced.wait()
            assert traced.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
            scene.checker.after_kill()
            await kill_on(scene, "never", [])
        scene.checker.at_the_end()


async def kill_on(scene: Scene, when: str, points: list[int]) -> list[int]:
    """Work on one file until it is done, being killed at the points in turn; those that were reached."""
    reached: list[int] = []
    for n in points:
        worker = scene.work(kill_at=f"{n}:{when}")
        await until(lambda worker=worker: not worker.alive or scene.checker.complete(), scene.story, 40)
        if worker.alive:
            await scene.stop(worker, signal.SIGKILL)
            return reached
        assert worker.code == -signal.SIGKILL, worker.said()
        scene.checker.after_kill()
        reached.append(n)
    last = scene.work()
    await scene.until_complete()
    await scene.stop(last, signal.SIGKILL)
    return reached


@asynccontextmanager
async def sending(scene: Scene) -> AsyncIterator[None]:
    """Meanwhile the test sends the events that the runs wait for."""
    async with scene.client() as app, asyncio.TaskGroup() as group:
        sender = group.create_task(scene.send_all(app))
        yield
        await sender
