"""Steps that end their process with ``os._exit``: attempts are counted, and a poison run does not stop the others."""

from __future__ import annotations

import json

import pytest

from .conftest import MakeScene
from .loops import make_loops_app
from .scene import Scene, until

MAX_LOSSES = 4


async def start(scene: Scene, workflow: str) -> None:
    app = make_loops_app(str(scene.database), str(scene.side))
    async with app.connect():
        await app.start(workflow, id=workflow)


async def work_until(scene: Scene, workflow: str, *statuses: str, deaths: int) -> int:
    """Restart the worker whenever it died, until the run has one of the statuses; how often it died."""
    died = 0
    worker = None
    while True:
        if worker is None or not worker.alive:
            if worker is not None:
                assert worker.code == 9, worker.said()
                died += 1
                scene.checker.after_kill()
                assert died <= deaths, scene.story()
            worker = scene.work(app="loops:make_loops_app", max_losses=MAX_LOSSES, lease="300 ms", copies=0)
        await until(lambda worker=worker: not worker.alive or status(scene, workflow) in statuses, scene.story)
        if status(scene, workflow) in statuses:
            return died


def status(scene: Scene, workflow: str) -> str:
    return str(scene.checker.one("SELECT status FROM holdfast_run WHERE instance_id = ?", workflow))


def ended(scene: Scene, workflow: str) -> tuple[object, object]:
    [(output, error)] = scene.checker.rows("SELECT output, error FROM holdfast_run WHERE instance_id = ?", workflow)
    return output and json.loads(output), error and json.loads(error)


def attempts(scene: Scene, workflow: str) -> list[int]:
    return [one.attempt for one in scene.checker.ran() if one.run == workflow]


@pytest.mark.promise("at-least-once-steps")
async def test_an_attempt_that_took_its_process_along_is_counted_and_made_again(make_scene: MakeScene) -> None:
    scene = await make_scene()
    await start(scene, "dies_once")

    deaths = await work_until(scene, "dies_once", "complete", "errored", deaths=1)

    assert ended(scene, "dies_once") == ("alive", None)
    assert (deaths, attempts(scene, "dies_once")) == (1, [1, 2])


@pytest.mark.promise("at-least-once-steps")
async def test_a_step_that_always_kills_its_process_uses_up_its_attempts(make_scene: MakeScene) -> None:
    scene = await make_scene()
    await start(scene, "dies_always")

    deaths = await work_until(scene, "dies_always", "complete", "errored", deaths=3)

    assert ended(scene, "dies_always") == (["StepMaxAttemptsExceeded", 3], None)
    assert (deaths, attempts(scene, "dies_always")) == (3, [1, 2, 3])


async def test_attempts_are_used_up_also_when_results_are_buffered(make_scene: MakeScene) -> None:
    scene = await make_scene()
    await start(scene, "dies_buffered")

    await work_until(scene, "dies_buffered", "complete", "errored", "paused", deaths=MAX_LOSSES)

    _, error = ended(scene, "dies_buffered")
    assert isinstance(error, dict)
    assert error["name"] == "StepMaxAttemptsExceeded"
    assert attempts(scene, "dies_buffered") == [1, 2, 3]


async def test_a_step_without_retries_is_called_once(make_scene: MakeScene) -> None:
    scene = await make_scene()
    await start(scene, "dies_without_retry")

    deaths = await work_until(scene, "dies_without_retry", "complete", "errored", deaths=1)

    _, error = ended(scene, "dies_without_retry")
    assert isinstance(error, dict)
    assert error["name"] == "StepMaxAttemptsExceeded"
    assert (deaths, attempts(scene, "dies_without_retry")) == (1, [1])


@pytest.mark.promise("isolation-of-runs")
async def test_a_poison_run_is_parked_and_the_others_finish(make_scene: MakeScene) -> None:
    scene = await make_scene(copies=2)
    await start(scene, "dies_forever")
    async with scene.client() as app:
        await scene.send_all(app)

    deaths = await work_until(scene, "dies_forever", "paused", deaths=MAX_LOSSES)
    worker = scene.workers[-1]
    await until(lambda: worker.alive and open_runs(scene) == 1, scene.story)

    assert deaths == MAX_LOSSES
    [(note,)] = scene.checker.rows("SELECT note FROM holdfast_run WHERE instance_id = 'dies_forever'")
    assert note.startswith("parked")
    assert max(attempts(scene, "dies_forever")) == MAX_LOSSES
    assert await scene.stop(worker) == 0


def open_runs(scene: Scene) -> int:
    return int(scene.checker.one("SELECT count(*) FROM holdfast_run WHERE completed_at IS NULL"))
