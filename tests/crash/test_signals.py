"""SIGTERM and SIGINT: the program leaves ``async with app``, and the worker drains.

Leases last 30 seconds here, longer than the time limits of the tests: a run that is not released fails its test.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import MakeWorkspace
from .fork_server import ForkedProcess
from .killer import WHEN
from .slow_steps import make_slow_app
from .test_kill_points import COPIES, LAST, sending
from .workspace import Workspace, until

APP = "slow_steps:make_slow_app"
LEASE = "30 seconds"


def work(workspace: Workspace, drain: str, **spec: Any) -> ForkedProcess:
    return workspace.start_worker(app=APP, lease=LEASE, drain=drain, copies=0, **spec)


async def start(workspace: Workspace, workflow: str, seconds: float) -> None:
    app = make_slow_app(str(workspace.database), str(workspace.side))
    async with app.connect():
        await app.start(workflow, seconds, id=workflow)


async def until_in_flight(workspace: Workspace, workflow: str, times: int = 1) -> None:
    await until(lambda: attempts(workspace, workflow, "first") >= times, workspace.report)


def attempts(workspace: Workspace, workflow: str, key: str) -> int:
    return sum(one.run == workflow and one.key == key for one in workspace.checker.ran())


def output(workspace: Workspace, workflow: str) -> Any:
    found = workspace.checker.one("SELECT output FROM holdfast_run WHERE instance_id = ?", workflow)
    return found and json.loads(found)


def owned_tasks(workspace: Workspace) -> int:
    return int(workspace.checker.one("SELECT count(*) FROM holdfast_task WHERE owner IS NOT NULL"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workflow", ["slow_async", "slow_thread"])
async def test_a_step_in_flight_is_finished_and_its_run_released(
    make_workspace: MakeWorkspace, workflow: str, number: int
) -> None:
    workspace = await make_workspace()
    await start(workspace, workflow, 3)
    first = work(workspace, "10 minutes")
    await until_in_flight(workspace, workflow)

    assert await workspace.stop(first, number) == 0
    assert (workflow, "first") in workspace.checker.results()
    assert attempts(workspace, workflow, "second") == 0
    assert owned_tasks(workspace) == 0

    second = work(workspace, "1 second")
    await until(lambda: output(workspace, workflow), workspace.report)
    assert [attempts(workspace, workflow, key) for key in ("first", "second")] == [1, 1]
    assert await workspace.stop(second) == 0
    assert workspace.checker.one("PRAGMA integrity_check") == "ok"


async def test_a_step_longer_than_the_drain_is_interrupted_and_its_run_released(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace()
    await start(workspace, "slow_async", 600)
    first = work(workspace, "300 ms")
    await until_in_flight(workspace, "slow_async")

    assert await workspace.stop(first) == 0
    assert owned_tasks(workspace) == 0
    second = work(workspace, "0 s")
    await until_in_flight(workspace, "slow_async", times=2)
    assert await workspace.stop(second) == 0


async def test_a_thread_that_does_not_end_does_not_delay_the_exit(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace()
    await start(workspace, "slow_thread", 600)
    package = Path(__file__).parent
    arguments = (str(workspace.database), str(workspace.side), "300 ms")
    call = f"from {package.name}.slow_steps import main; main(*{arguments!r})"
    code = f"import sys; sys.path.insert(0, {str(package.parent)!r}); {call}"
    program = subprocess.Popen([sys.executable, "-c", code])
    try:
        await until_in_flight(workspace, "slow_thread")
        program.send_signal(signal.SIGTERM)
        await until(lambda: program.poll() is not None, "the program does not end")
        assert program.returncode == 0
        assert owned_tasks(workspace) == 0
    finally:
        program.kill()
        program.wait()


async def test_a_second_signal_ends_the_worker_at_once(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace()
    await start(workspace, "slow_async", 8)
    first = workspace.start_worker(app=APP, drain="10 minutes", copies=0)
    await until_in_flight(workspace, "slow_async")
    first.signal(signal.SIGTERM)
    await asyncio.sleep(0.1)  # no observable fact shows that the worker drains
    assert first.alive

    assert await workspace.stop(first, signal.SIGTERM) == -signal.SIGTERM
    assert workspace.checker.one("PRAGMA integrity_check") == "ok"
    second = workspace.start_worker(app=APP, copies=0)
    await until(lambda: output(workspace, "slow_async"), workspace.report)
    assert await workspace.stop(second) == 0


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", WHEN)
async def test_a_worker_stopped_at_any_store_call_releases_all_tasks(
    make_workspace: MakeWorkspace, when: str, long: bool
) -> None:
    template = await make_workspace(COPIES)
    points = list(range(1, LAST[when], 3 if long else 73))
    while points:
        workspace = await make_workspace(COPIES, of=template)
        async with sending(workspace):
            while points and not workspace.checker.complete():
                worker = workspace.start_worker(
                    kill_at=f"{points[0]}:{when}", kill_with=signal.SIGTERM, lease=LEASE, drain="10 s"
                )
                await until(lambda w=worker, s=workspace: not w.alive or s.checker.complete(), workspace.report)
                asked = (
                    not worker.alive
                )  # otherwise all runs ended before the signal, and a second signal may kill the worker
                ended = await workspace.stop(worker)
                assert ended == 0 or not asked, worker.output()
                assert owned_tasks(workspace) == 0 or not asked
                points.pop(0)
            last = workspace.start_worker(lease=LEASE)
            await workspace.until_complete(20)
            assert await workspace.stop(last) == 0
        workspace.checker.at_the_end(attempts_repeat=True)
