"""SIGKILL at each call of the store: after a restart the workload completes with the same results.

The kill points are visited in order: a worker is killed at its n-th call, the next worker on the same file at its
(n+1)-th call, and so on. When the workload has completed, the next points are visited with a fresh file. ``--long``
visits every point; the ordinary run visits a fixed selection.
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

from .conftest import MakeWorkspace
from .killer import WHEN
from .workspace import LEASE, Workspace, until

COPIES = 8  # 104 runs

# A clean run makes about 150 calls in about 80 transactions.
LAST = {"before": 150, "during": 80, "after": 150}
STRIDE = {"before": 37, "during": 19, "after": 35}


PACKAGE = Path(__file__).parent
STRACE = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e"]


def can_trace() -> bool:
    """True if strace is installed and permitted."""
    if shutil.which("strace") is None:
        return False
    command = [*STRACE, "inject=pwrite64:error=EIO", sys.executable, "-c", "import os; os.pwrite(1, b'', 0)"]
    return b"Errno 5" in subprocess.run(command, capture_output=True, check=False).stderr


@pytest.mark.kind_settings("counts the calls of the store")
async def test_the_workload_completes_without_a_kill(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace(COPIES)
    count = workspace.folder / "count"

    worker = workspace.start_worker(count=str(count), lease="1 minute")  # on a busy machine a short one would expire
    async with sending(workspace):
        await workspace.until_complete()
    assert await workspace.stop(worker) == 0

    workspace.checker.at_the_end()
    calls, transactions = map(int, count.read_text().split())
    assert LAST["before"] * 0.5 < calls < LAST["before"] * 2, "adjust LAST"
    assert LAST["during"] * 0.5 < transactions < LAST["during"] * 2, "adjust LAST"


@pytest.mark.promise("committed-results-never-change", "durability", "liveness", "finality")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", WHEN)
async def test_the_workload_completes_after_kills_at_successive_store_calls(
    make_workspace: MakeWorkspace, when: str, long: bool
) -> None:
    points = range(1, 10_000) if long else range(1, LAST[when], STRIDE[when])
    template = await make_workspace(COPIES)
    visited: list[int] = []

    while len(visited) < len(points):
        workspace = await make_workspace(COPIES, of=template)
        async with sending(workspace):
            reached = await kill_on(workspace, when, list(points[len(visited) :]))
        visited += reached
        workspace.checker.at_the_end()
        if not reached:
            break  # the whole workload has fewer calls

    print(f"{when}: {len(visited)} kill points, the last at {visited[-1]}")
    assert visited[-1] > LAST[when] / 2


@pytest.mark.promise("durability")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", WHEN)
async def test_the_workload_completes_after_one_kill_on_a_fresh_file(
    make_workspace: MakeWorkspace, when: str, long: bool
) -> None:
    if not long and when != "during":
        pytest.skip("takes a while")
    template = await make_workspace(COPIES)
    for n in range(2, LAST[when], 10 if long else LAST[when] // 2 - 9):
        workspace = await make_workspace(COPIES, of=template)
        async with sending(workspace):
            await kill_on(workspace, when, [n])
        workspace.checker.at_the_end()


@pytest.mark.promise("durability")
@pytest.mark.timeout(3600)
async def test_the_workload_completes_after_a_kill_between_two_writes_of_a_transaction(
    make_workspace: MakeWorkspace, tmp_path: Path, long: bool
) -> None:
    if not can_trace():
        pytest.skip("strace is missing or not allowed")
    template = await make_workspace(COPIES)
    for n in range(7, 600, 23 if long else 290):
        workspace = await make_workspace(COPIES, of=template)
        spec = {"database": str(workspace.database), "side": str(workspace.side), "copies": COPIES, "lease": LEASE}
        path = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})"
        code = f"{path}; from {PACKAGE.name} import program; program.work(**{spec})"
        command = [*STRACE, f"inject=pwrite64:signal=SIGKILL:when={n}", sys.executable, "-c", code]
        async with sending(workspace):
            with (tmp_path / "log").open("w") as log:
                traced = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            try:
                await until(lambda p=traced: p.poll() is not None, workspace.report, 60)
            finally:
                with suppress(ProcessLookupError):  # strace and what it traces
                    os.killpg(traced.pid, signal.SIGKILL)
                traced.wait()
            assert traced.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
            workspace.checker.after_kill()
            await kill_on(workspace, "never", [])
        workspace.checker.at_the_end()


async def kill_on(workspace: Workspace, when: str, points: list[int]) -> list[int]:
    """Run workers on one file, each killed at its point, until the workload completes; returns the reached points."""
    reached: list[int] = []
    for n in points:
        worker = workspace.start_worker(kill_at=f"{n}:{when}")
        await until(lambda worker=worker: not worker.alive or workspace.checker.complete(), workspace.report, 40)
        if worker.alive:
            await workspace.stop(worker, signal.SIGKILL)
            return reached
        assert worker.code == -signal.SIGKILL, worker.output()
        workspace.checker.after_kill()
        reached.append(n)
    last = workspace.start_worker()
    await workspace.until_complete()
    await workspace.stop(last, signal.SIGKILL)
    return reached


@asynccontextmanager
async def sending(workspace: Workspace) -> AsyncIterator[None]:
    """Send the events that the runs wait for, during the context."""
    async with workspace.client() as app, asyncio.TaskGroup() as group:
        sender = group.create_task(workspace.send_all(app))
        yield
        await sender
