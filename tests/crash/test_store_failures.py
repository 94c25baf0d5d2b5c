"""A store that fails for some time: workers wait without spinning and log the cause, and lose no acknowledged data."""

from __future__ import annotations

import asyncio
import os
import re
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
from .conftest import MakeWorkspace
from .fork_server import ForkedProcess
from .slow_steps import make_slow_app
from .test_kill_points import sending
from .workspace import until


def cpu_seconds(process: ForkedProcess) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def assert_does_not_spin(process: ForkedProcess, seconds: float = 1) -> None:
    before = cpu_seconds(process)
    await asyncio.sleep(seconds)  # the time over which the processor time is measured
    assert cpu_seconds(process) - before < seconds / 2


@pytest.mark.promise("liveness")
async def test_a_worker_waits_while_the_database_is_full_and_then_continues(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace(copies=16)
    pages = workspace.checker.one("PRAGMA page_count")
    worker = workspace.start_worker(pages=pages + 15, lease="20 seconds")
    async with sending(workspace):
        await until(lambda: "STORE_FULL" in worker.output(), workspace.report)
        await assert_does_not_spin(worker)
        assert worker.alive
        workspace.checker.after_kill()

        worker.signal(signal.SIGUSR1)
        await workspace.until_complete()

    assert await workspace.stop(worker) == 0
    workspace.checker.at_the_end()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MB. The test is skipped if the user may not mount it."""
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
@pytest.mark.timeout(1200)
async def test_a_worker_waits_while_the_disk_is_full_and_then_continues(
    make_workspace: MakeWorkspace, small_disk: Path
) -> None:
    workspace = await make_workspace(copies=2)
    workspace.checker.close()
    shutil.move(workspace.database, small_disk / "work.db")
    workspace.database = small_disk / "work.db"
    workspace.checker = Checker(workspace.database, workspace.side, workspace.plan)
    ballast = small_disk / "ballast"
    worker = workspace.start_worker(lease="20 seconds")
    await until(lambda: workspace.is_open(worker), workspace.report)
    async with workspace.client() as app:
        fill(ballast)
        refused = 0
        for n in range(2000):
            try:
                await app.start("sequence", n, id=f"more-{n}")
            except StoreFullError:
                refused += 1
                break
        assert refused, "the disk did not become full"
        await until(lambda: "STORE_FULL" in worker.output(), workspace.report)
        await assert_does_not_spin(worker)
        ballast.unlink()
        await workspace.send_all(app)
    await until(lambda: workspace.checker.one("SELECT count(*) FROM holdfast_task") == 0, workspace.report, seconds=150)

    assert await workspace.stop(worker) == 0
    started = workspace.checker.one("SELECT count(*) FROM holdfast_run WHERE instance_id LIKE 'more-%'")
    assert started >= n
    assert workspace.checker.one("SELECT count(*) FROM holdfast_run WHERE status <> 'complete'") == 0
    assert workspace.checker.one("PRAGMA integrity_check") == "ok"


def fill(ballast: Path, spare: int = 300_000) -> None:
    """Fill the disk, except for ``spare`` bytes."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 65536):
            pass
    os.truncate(ballast, ballast.stat().st_size - spare)


@pytest.mark.parametrize("lease", ["400 ms", "20 seconds"])
async def test_work_waits_while_another_program_holds_the_lock(make_workspace: MakeWorkspace, lease: str) -> None:
    workspace = await make_workspace(copies=8)
    worker = workspace.start_worker(lease=lease)
    async with sending(workspace):
        await until(lambda: workspace.checker.results(), workspace.report)
        other = workspace.fork("program:hold_lock", seconds=2)
        await until(lambda: any("locked" in line for line in workspace.checker.side()), other.output)
        await until(lambda: not other.alive, other.output)
        await workspace.until_complete()

    assert other.code == 0, other.output()
    assert await workspace.stop(worker) == 0
    assert not re.search(r"\blocked\b", worker.output())
    assert "Traceback" not in worker.output()
    workspace.checker.at_the_end()


async def test_a_worker_reports_a_deleted_file_and_does_not_spin(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace()
    app = make_slow_app(str(workspace.database), str(workspace.side))
    async with app.connect():
        await app.start("slow_async", 600, id="slow_async")
    worker = workspace.start_worker(app="slow_steps:make_slow_app", drain="200 ms", copies=0)
    await until(lambda: any(one.run == "slow_async" for one in workspace.checker.ran()), workspace.report)

    workspace.checker.close()
    for file in workspace.folder.glob("work.db*"):
        file.unlink()
    await until(lambda: "deleted or replaced" in worker.output(), worker.output)

    await assert_does_not_spin(worker)
    begun = time.monotonic()
    await workspace.stop(worker)
    assert time.monotonic() - begun < 60
    assert not workspace.database.exists()


@pytest.mark.promise("durability")
async def test_a_write_to_a_deleted_file_is_not_acknowledged(make_workspace: MakeWorkspace) -> None:
    workspace = await make_workspace(copies=0)
    workspace.checker.close()
    async with workspace.client() as app:
        await app.start("sequence", 1, id="before")
        for file in workspace.folder.glob("work.db*"):
            file.unlink()

        with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
            await app.start("sequence", 1, id="after")
