"""Several worker and client processes on one file: no process gets an error because the database is locked."""

from __future__ import annotations

import asyncio
import re
import statistics
import time

import pytest

from .checker import Checker
from .conftest import MakeWorkspace
from .workload import plan
from .workspace import Workspace, until

WORKERS = 4
CLIENTS = 3
COPIES = 16  # 208 runs


async def test_many_workers_and_clients_complete_all_runs_without_lock_errors(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace(copies=0)
    workers = [workspace.start_worker(lease="10 seconds") for _ in range(WORKERS)]
    clients = [workspace.fork("program:start_and_send", copies=COPIES, part=n, parts=CLIENTS) for n in range(CLIENTS)]
    workspace.use_plan(plan(COPIES))
    await until(lambda: not any(client.alive for client in clients), workspace.report, 300)
    await workspace.until_complete()

    assert [client.code for client in clients] == [0] * CLIENTS, workspace.report()
    assert [await workspace.stop(worker) for worker in workers] == [0] * WORKERS
    workspace.checker.at_the_end(attempts_repeat=True)
    assert_no_lock_errors(workspace)
    assert len({one.pid for one in workspace.checker.ran()}) > 1


@pytest.mark.promise("no-lost-wakeup")
async def test_an_event_that_another_process_sends_wakes_the_run(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace(copies=0)
    worker = workspace.start_worker(poll="1 hour", lease="30 seconds")
    lateness: list[float] = []
    async with workspace.client() as app:
        for n in range(15):
            run = await app.start("events", n, id=f"events-{n}")
            await until(lambda n=n: waits(workspace.checker, f"events-{n}"), workspace.report)
            await run.send_event("go", {"n": 1})
            sent = time.monotonic()
            await run.send_event("go", {"n": 2})
            assert await run.result(timeout=60) == [1, 2]
            lateness.append(time.monotonic() - sent)
            await asyncio.sleep(0.01 * n)  # so that the sends are not synchronized with a loop of the worker

    print(f"median {statistics.median(lateness) * 1000:.0f} ms, worst {max(lateness) * 1000:.0f} ms")
    assert statistics.median(lateness) < 10  # the worker polls once an hour
    assert await workspace.stop(worker) == 0


async def test_many_processes_may_open_a_new_file_at_once(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace(copies=0)
    workspace.database = workspace.folder / "new.db"

    workers = [workspace.start_worker() for _ in range(8)]
    await until(lambda: all(workspace.is_open(w) or not w.alive for w in workers), workspace.report)

    assert [await workspace.stop(worker) for worker in workers] == [0] * 8, workspace.report()
    assert_no_lock_errors(workspace)


def waits(checker: Checker, id: str) -> bool:
    return checker.one("SELECT status FROM holdfast_run WHERE instance_id = ?", id) == "waiting"


def assert_no_lock_errors(workspace: Workspace) -> None:
    for process in workspace.workers:
        assert not re.search(r"\blocked\b", process.output())  # "blocked" is in the warning of a slow machine
        assert "STORE_BUSY" not in process.output()
        assert "Traceback" not in process.output()
