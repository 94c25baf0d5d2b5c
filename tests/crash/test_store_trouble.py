"""A store that fails for a while is waited out: nothing acknowledged is lost, nothing spins, the reason is told."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import StoreFullError, StoreUnavailableError

from .checker import Checker
from .conftest import MakeScene
from .drains import make_drains_app
from .herd import Child
from .scene import until
from .test_kill_points import sending


def cpu_seconds(process: Child) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def assert_it_does_not_spin(process: Child, seconds: float = 1) -> None:
    before = cpu_seconds(process)
    await asyncio.sleep(seconds)  # the measure itself
    assert cpu_seconds(process) - before < seconds / 2


@pytest.mark.promise("liveness")
async def test_a_full_database_is_waited_out(make_scene: MakeScene) -> None:
    scene = await make_scene(copies=16)
    pages = scene.checker.one("PRAGMA page_count")
    worker = scene.work(pages=pages + 15, lease="20 seconds")
    async with sending(scene):
        await until(lambda: "STORE_FULL" in worker.said(), scene.story)
        await assert_it_does_not_spin(worker)
        assert worker.alive
        scene.checker.after_kill()

        worker.signal(signal.SIGUSR1)
        await scene.until_complete()

    assert await scene.stop(worker) == 0
    scene.checker.at_the_end()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room; only where one may mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk], capture_output=True).returncode
    ):
        pytest.skip("cannot mount a small tmpfs here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.promise("liveness")
@pytest.mark.timeout(240)
async def test_a_full_disk_is_waited_out(make_scene: MakeScene, small_disk: Path) -> None:
    scene = await make_scene(copies=2)
    scene.checker.close()
    shutil.move(scene.database, small_disk / "work.db")
    scene.database = small_disk / "work.db"
    scene.checker = Checker(scene.database, scene.side, scene.plan)
    ballast = small_disk / "ballast"
    worker = scene.work(lease="20 seconds")
    await until(lambda: scene.is_open(worker), scene.story)
    async with scene.client() as app:
        fill(ballast)
        refused = 0
        for n in range(2000):
            try:
                await app.start("sequence", n, id=f"more-{n}")
            except StoreFullError:
                refused += 1
                break
        assert refused, "the disk never filled"
        await until(lambda: "STORE_FULL" in worker.said(), scene.story)
        await assert_it_does_not_spin(worker)
        ballast.unlink()
        await scene.send_all(app)
    await until(lambda: scene.checker.one("SELECT count(*) FROM holdfast_task") == 0, scene.story, seconds=150)

    assert await scene.stop(worker) == 0
    started = scene.checker.one("SELECT count(*) FROM holdfast_run WHERE instance_id LIKE 'more-%'")
    assert started >= n
    assert scene.checker.one("SELECT count(*) FROM holdfast_run WHERE status <> 'complete'") == 0
    assert scene.checker.one("PRAGMA integrity_check") == "ok"


def fill(ballast: Path, spare: int = 300_000) -> None:
    """Take the room of a disk, all but a little."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 65536):
            pass
    os.truncate(ballast, ballast.stat().st_size - spare)


@pytest.mark.parametrize("lease", ["400 ms", "20 seconds"])
async def test_work_waits_while_a_stranger_holds_the_lock(make_scene: MakeScene, lease: str) -> None:
    scene = await make_scene(copies=8)
    worker = scene.work(lease=lease)
    async with sending(scene):
        await until(lambda: scene.checker.results(), scene.story)
        stranger = scene.fork("program:hold_lock", seconds=2)
        await until(lambda: any("locked" in line for line in scene.checker.side()), stranger.said)
        await until(lambda: not stranger.alive, stranger.said)
        await scene.until_complete()

    assert stranger.code == 0, stranger.said()
    assert await scene.stop(worker) == 0
    assert "locked" not in worker.said()
    assert "Traceback" not in worker.said()
    scene.checker.at_the_end()


async def test_a_deleted_file_is_reported_without_spinning(make_scene: MakeScene) -> None:
    scene = await make_scene()
    app = make_drains_app(str(scene.database), str(scene.side))
    async with app.connect():
        await app.start("drains", 60, id="drains")
    worker = scene.work(app="drains:make_drains_app", drain="200 ms", copies=0)
    await until(lambda: any(one.run == "drains" for one in scene.checker.ran()), scene.story)

    scene.checker.close()
    for file in scene.folder.glob("work.db*"):
        file.unlink()
    await until(lambda: "deleted or replaced" in worker.said(), worker.said)

    await assert_it_does_not_spin(worker)
    begun = time.monotonic()
    await scene.stop(worker, seconds=10)
    assert time.monotonic() - begun < 8
    assert not scene.database.exists()


@pytest.mark.promise("durability")
async def test_nothing_is_acknowledged_into_a_deleted_file(make_scene: MakeScene) -> None:
    scene = await make_scene(copies=0)
    scene.checker.close()
    async with scene.client() as app:
        await app.start("sequence", 1, id="before")
        for file in scene.folder.glob("work.db*"):
            file.unlink()

        with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
            await app.start("sequence", 1, id="after")
