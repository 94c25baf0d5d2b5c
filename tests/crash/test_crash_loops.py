"""Steps that end their process with ``os._exit``: attempts are counted, and a poison run does not stop other runs."""

from __future__ import annotations

import json

import pytest

from .conftest import MakeWorkspace
from .dying_steps import make_dying_app
from .workspace import Workspace, until

MAX_LOSSES = 4


async def start(workspace: Workspace, workflow: str) -> None:
    app = make_dying_app(str(workspace.database), str(workspace.side))
    async with app.connect():
        await app.start(workflow, id=workflow)


async def work_until(workspace: Workspace, workflow: str, *statuses: str, deaths: int) -> int:
    """Restart the worker whenever it dies, until the run has one of the statuses; returns the number of deaths."""
    died = 0
    worker = None
    while True:
        if worker is None or not worker.alive:
            if worker is not None:
                assert worker.code == 9, worker.output()
                died += 1
                workspace.checker.after_kill()
                assert died <= deaths, workspace.report()
            worker = workspace.start_worker(
                app="dying_steps:make_dying_app", max_losses=MAX_LOSSES, lease="300 ms", copies=0
            )
        await until(lambda worker=worker: not worker.alive or status(workspace, workflow) in statuses, workspace.report)
        if status(workspace, workflow) in statuses:
            return died


def status(workspace: Workspace, workflow: str) -> str:
    return str(workspace.checker.one("SELECT status FROM holdfast_run WHERE instance_id = ?", workflow))


def ended(workspace: Workspace, workflow: str) -> tuple[object, object]:
    [(output, error)] = workspace.checker.rows("SELECT output, error FROM holdfast_run WHERE instance_id = ?", workflow)
    return output and json.loads(output), error and json.loads(error)


def attempts(workspace: Workspace, workflow: str) -> list[int]:
    return [one.attempt for one in workspace.checker.ran() if one.run == workflow]


@pytest.mark.promise("at-least-once-steps")
async def test_an_attempt_that_kills_its_process_is_counted_and_repeated(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace()
    await start(workspace, "dies_once")

    deaths = await work_until(workspace, "dies_once", "complete", "errored", deaths=1)

    assert ended(workspace, "dies_once") == ("alive", None)
    assert (deaths, attempts(workspace, "dies_once")) == (1, [1, 2])


@pytest.mark.promise("at-least-once-steps")
async def test_a_step_that_always_kills_its_process_uses_up_its_attempts(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace()
    await start(workspace, "dies_always")

    deaths = await work_until(workspace, "dies_always", "complete", "errored", deaths=3)

    assert ended(workspace, "dies_always") == (["StepMaxAttemptsExceeded", 3], None)
    assert (deaths, attempts(workspace, "dies_always")) == (3, [1, 2, 3])


async def test_a_step_that_kills_its_process_uses_up_its_attempts_with_persist_task(
    make_workspace: MakeWorkspace,
) -> None:
    workspace = await make_workspace()
    await start(workspace, "dies_buffered")

    await work_until(workspace, "dies_buffered", "complete", "errored", "paused", deaths=MAX_LOSSES)

    _, error = ended(workspace, "dies_buffered")
    assert isinstance(error, dict)
    assert error["name"] == "StepMaxAttemptsExceeded"
    assert attempts(workspace, "dies_buffered") == [1, 2, 3]


async def test_a_step_without_retries_is_called_once(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace()
    await start(workspace, "dies_without_retry")

    deaths = await work_until(workspace, "dies_without_retry", "complete", "errored", deaths=1)

    _, error = ended(workspace, "dies_without_retry")
    assert isinstance(error, dict)
    assert error["name"] == "StepMaxAttemptsExceeded"
    assert (deaths, attempts(workspace, "dies_without_retry")) == (1, [1])


@pytest.mark.promise("isolation-of-runs")
async def test_a_poison_run_is_parked_and_the_others_finish(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace(copies=2)
    await start(workspace, "dies_forever")
    async with workspace.client() as app:
        await workspace.send_all(app)

    deaths = await work_until(workspace, "dies_forever", "paused", deaths=MAX_LOSSES)
    worker = workspace.workers[-1]
    await until(lambda: worker.alive and open_runs(workspace) == 1, workspace.report)

    assert deaths == MAX_LOSSES
    [(note,)] = workspace.checker.rows("SELECT note FROM holdfast_run WHERE instance_id = 'dies_forever'")
    assert note.startswith("parked")
    assert max(attempts(workspace, "dies_forever")) == MAX_LOSSES
    assert await workspace.stop(worker) == 0


def open_runs(workspace: Workspace) -> int:
    return int(workspace.checker.one("SELECT count(*) FROM holdfast_run WHERE completed_at IS NULL"))
