"""SIGTERM and SIGINT: the program leaves ``async with app``, and the worker drains.

Leases last 30 seconds here: whoever had to wait for one to run out would be seen.
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

from .conftest import MakeScene
from .drains import make_drains_app
from .herd import Child
from .killer import WHEN
from .scene import Scene, until
from .test_kill_points import COPIES, LAST, sending

APP = "drains:make_drains_app"
LEASE = "30 seconds"


def work(scene: Scene, drain: str, **spec: Any) -> Child:
    return scene.work(app=APP, lease=LEASE, drain=drain, copies=0, **spec)


async def start(scene: Scene, workflow: str, seconds: float) -> None:
    app = make_drains_app(str(scene.database), str(scene.side))
    async with app.connect():
        await app.start(workflow, seconds, id=workflow)


async def until_in_flight(scene: Scene, workflow: str, times: int = 1) -> None:
    await until(lambda: attempts(scene, workflow, "first") >= times, scene.story)


def attempts(scene: Scene, workflow: str, key: str) -> int:
    return sum(one.run == workflow and one.key == key for one in scene.checker.ran())


def output(scene: Scene, workflow: str) -> Any:
    found = scene.checker.one("SELECT output FROM holdfast_run WHERE instance_id = ?", workflow)
    return found and json.loads(found)


def held(scene: Scene) -> int:
    return int(scene.checker.one("SELECT count(*) FROM holdfast_task WHERE owner IS NOT NULL"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workflow", ["drains", "drains_thread"])
async def test_a_step_in_flight_is_finished_and_the_run_given_back(
    make_scene: MakeScene, workflow: str, number: int
) -> None:
    scene = await make_scene()
    await start(scene, workflow, 0.6)
    first = work(scene, "20 seconds")
    await until_in_flight(scene, workflow)

    assert await scene.stop(first, number, seconds=5) == 0
    assert (workflow, "first") in scene.checker.results()
    assert attempts(scene, workflow, "second") == 0
    assert held(scene) == 0

    second = work(scene, "1 second")
    await until(lambda: output(scene, workflow), scene.story, seconds=5)
    assert [attempts(scene, workflow, key) for key in ("first", "second")] == [1, 1]
    assert await scene.stop(second) == 0
    assert scene.checker.one("PRAGMA integrity_check") == "ok"


async def test_a_step_longer_than_the_drain_is_cut_and_its_run_given_back(make_scene: MakeScene) -> None:
    scene = await make_scene()
    await start(scene, "drains", 60)
    first = work(scene, "300 ms")
    await until_in_flight(scene, "drains")

    assert await scene.stop(first, seconds=3) == 0
    assert held(scene) == 0
    second = work(scene, "0 s")
    await until_in_flight(scene, "drains", times=2)
    assert await scene.stop(second, seconds=3) == 0


async def test_a_thread_that_does_not_end_does_not_keep_the_program(make_scene: MakeScene) -> None:
    scene = await make_scene()
    await start(scene, "drains_thread", 8)
    package = Path(__file__).parent
    call = f"from {package.name}.drains import main; main(*{(str(scene.database), str(scene.side), '300 ms')!r})"
    code = f"import sys; sys.path.insert(0, {str(package.parent)!r}); {call}"
    program = subprocess.Popen([sys.executable, "-c", code])
    try:
        await until_in_flight(scene, "drains_thread")
        program.send_signal(signal.SIGTERM)
        await until(lambda: program.poll() is not None, "it does not end", seconds=4)
        assert program.returncode == 0
        assert held(scene) == 0
    finally:
        program.kill()
        program.wait()


async def test_the_second_signal_ends_it_at_once(make_scene: MakeScene) -> None:
    scene = await make_scene()
    await start(scene, "drains", 2)
    first = scene.work(app=APP, drain="60 seconds", copies=0)
    await until_in_flight(scene, "drains")
    first.signal(signal.SIGTERM)
    await asyncio.sleep(0.1)  # it drains, and lives; nothing tells of it
    assert first.alive

    assert await scene.stop(first, signal.SIGTERM, seconds=1) == -signal.SIGTERM
    assert scene.checker.one("PRAGMA integrity_check") == "ok"
    second = scene.work(app=APP, copies=0)
    await until(lambda: output(scene, "drains"), scene.story, seconds=15)
    assert await scene.stop(second) == 0


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", WHEN)
async def test_asked_to_stop_at_any_call_it_gives_everything_back(make_scene: MakeScene, when: str, long: bool) -> None:
    template = await make_scene(COPIES)
    points = list(range(1, LAST[when], 3 if long else 37))
    while points:
        scene = await make_scene(COPIES, of=template)
        async with sending(scene):
            while points and not scene.checker.complete():
                worker = scene.work(kill_at=f"{points[0]}:{when}", kill_with=signal.SIGTERM, lease=LEASE, drain="10 s")
                await until(lambda w=worker, s=scene: not w.alive or s.checker.complete(), scene.story)
                asked = not worker.alive  # else all was done before, and two may ask it to stop now: that kills
                ended = await scene.stop(worker)
                assert ended == 0 or not asked, worker.said()
                assert held(scene) == 0 or not asked
                points.pop(0)
            last = scene.work(lease=LEASE)
            await scene.until_complete(20)
            assert await scene.stop(last) == 0
        scene.checker.at_the_end(attempts_repeat=True)
