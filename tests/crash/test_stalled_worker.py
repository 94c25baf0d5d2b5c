"""A worker is stopped past its lease and continues later: another worker owns its runs, and it can change nothing."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Start

from .conftest import MakeWorkspace
from .fork_server import ForkedProcess
from .slow_steps import make_slow_app
from .workspace import Workspace, until

pytestmark = pytest.mark.promise("fencing")

TABLES = ("holdfast_run", "holdfast_task", "holdfast_fact", "holdfast_event", "holdfast_log", "ledger")


def is_stopped(worker: ForkedProcess) -> bool:
    return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def all_rows(workspace: Workspace) -> dict[str, list[tuple[Any, ...]]]:
    return {table: workspace.checker.rows(f"SELECT * FROM {table}") for table in TABLES}


def verdicts(workspace: Workspace, worker: ForkedProcess) -> list[list[str]]:
    return [line["verdicts"] for line in workspace.checker.side() if "verdicts" in line and line["pid"] == worker.pid]


async def test_results_of_a_worker_stopped_past_its_lease_are_refused(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace(copies=0)
    app = make_slow_app(str(workspace.database), str(workspace.side))
    async with app.connect():
        runs = await app.start_many("held", [Start(f"held-{n}", n) for n in range(10)])
        slow = workspace.start_worker(app="slow_steps:make_slow_app", stop_before_results=True, copies=0)
        await until(lambda: is_stopped(slow), slow.output)
        quick = workspace.start_worker(app="slow_steps:make_slow_app", copies=0)
        await until(lambda: all_wait(workspace) and not owned_tasks(workspace), workspace.report)
        assert await workspace.stop(quick) == 0
        before = all_rows(workspace)

        slow.signal(signal.SIGCONT)
        await until(lambda: verdicts(workspace, slow), slow.output)
        assert set(verdicts(workspace, slow)[0]) == {"lost"}
        assert all_rows(workspace) == before

        for run in runs:
            await run.send_event("go", 1)
        for n, run in enumerate(runs):
            assert await run.result(timeout=60) == [n, quick.pid, 1]
    assert {one.pid for one in workspace.checker.ran() if one.attempt == 1} >= {slow.pid}
    assert await workspace.stop(slow) == 0


def all_wait(workspace: Workspace) -> bool:
    waiting = "SELECT count(*) FROM holdfast_run WHERE workflow = 'held' AND status = 'waiting'"
    return bool(workspace.checker.one(waiting) == 10)


async def test_a_worker_that_continues_after_a_takeover_changes_nothing(
    make_workspace: MakeWorkspace,
) -> None:
    workspace = await make_workspace(copies=16)
    workers = [workspace.start_worker(), workspace.start_worker()]
    async with workspace.client() as app, asyncio.TaskGroup() as group:
        group.create_task(workspace.send_all(app))
        for worker in [*workers, *workers]:
            await until(lambda: owned_tasks(workspace) or workspace.checker.complete(), workspace.report)
            await stop_outside_transaction(workspace, worker)
            before = owned_tasks(workspace)
            await until(lambda before=before: not before & owned_tasks(workspace), workspace.report)
            workspace.checker.after_kill()
            worker.signal(signal.SIGCONT)
    await workspace.until_complete()

    assert [await workspace.stop(worker) for worker in workers] == [0, 0]
    workspace.checker.at_the_end()


async def stop_outside_transaction(workspace: Workspace, worker: ForkedProcess) -> None:
    """Stop the worker outside a transaction: inside one it would hold the lock of the file and block a takeover."""
    connection = apsw.Connection(str(workspace.database))
    while True:
        worker.signal(signal.SIGSTOP)
        await until(lambda: is_stopped(worker), worker.output)
        connection.set_busy_timeout(300)
        try:
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            worker.signal(signal.SIGCONT)
        else:
            connection.close()
            return


def owned_tasks(workspace: Workspace) -> set[tuple[Any, ...]]:
    return set(workspace.checker.rows("SELECT run, owner, epoch FROM holdfast_task WHERE owner IS NOT NULL"))
