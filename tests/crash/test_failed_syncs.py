"""A sync that fails loses no acknowledged data, although the kernel discards the writes that it could not sync.

The order of commits, checkpoints and failures is fixed here. ``test_power_cut.py`` fails syncs by their numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw
import pytest
import pytest_asyncio

from holdfast import Context, Holdfast, StoreError
from holdfast.store.sqlite import connection

from .power import Disk, Entry, FailedSync, Journal, Sync, Write, recording
from .power_check import FILE
from .power_executions import write_image

WAL = f"{FILE}-wal"
LARGE = "x" * 50_000
"""A value in pages of its own, which no later commit writes."""


class RecordedStore:
    """An app without a worker on a recorded disk."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.path = str(folder / FILE)
        self.journal = journal
        self.app = Holdfast(f"sqlite:///{self.path}")
        self.started: set[str] = set()

        @self.app.workflow
        async def hold(ctx: Context, value: str) -> str:
            return value

    async def start(self, id: str, value: str = "") -> None:
        await self.app.start("hold", value, id=id)
        self.started.add(id)

    async def until(self, seen: Callable[[Entry], bool], *, since: int) -> None:
        """Wait for an entry of the journal."""
        async with asyncio.timeout(60):
            while not any(seen(entry) for entry in self.journal.entries[since:]):
                await asyncio.sleep(0.005)

    def check_after_cut(self, folder: Path) -> None:
        """Check that acknowledged runs are stored after a power cut now, which loses all unsynced writes."""
        disk = Disk()
        for entry in list(self.journal.entries):
            disk.apply(entry)
        write_image(disk.image(), folder)
        opened = apsw.Connection(str(folder / FILE))
        assert opened.execute("PRAGMA integrity_check").get == "ok"
        stored = {run for (run,) in opened.execute("SELECT instance_id FROM holdfast_run")}
        assert stored >= self.started
        opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RecordedStore]:
    monkeypatch.setattr(connection, "_CHECKPOINT_PAGES", 1_000_000)
    folder = tmp_path / "disk"
    folder.mkdir()
    with recording(folder) as journal:
        recorded = RecordedStore(folder, journal)
        async with recorded.app.connect():
            yield recorded


@pytest.mark.promise("durability")
async def test_pages_of_a_partial_checkpoint_survive_a_failed_sync_of_the_next_one(
    recorded: RecordedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = recorded.journal.entries
    await recorded.start("large", LARGE)
    reader = apsw.Connection(recorded.path)
    reader.execute("BEGIN; SELECT * FROM holdfast_run").fetchall()
    monkeypatch.setattr(connection, "_CHECKPOINT_PAGES", 1)

    mark = len(entries)
    await recorded.start("after-snapshot")
    await recorded.until(lambda entry: isinstance(entry, Write) and entry.file == FILE, since=mark)
    assert Sync(FILE) not in entries[mark:], "the reader did not limit the checkpoint"
    reader.close()
    recorded.journal.fail_next(FILE)
    await recorded.start("before-failure")
    await recorded.until(lambda entry: entry == FailedSync(FILE), since=mark)
    mark = len(entries)
    await recorded.start("after-failure")
    await recorded.until(lambda entry: entry == Sync(FILE), since=mark)
    await recorded.start("log-begins-again")

    recorded.check_after_cut(tmp_path / "image")


@pytest.mark.promise("durability")
async def test_a_commit_after_a_failed_commit_survives(recorded: RecordedStore, tmp_path: Path) -> None:
    await recorded.start("first")
    recorded.journal.fail_next(WAL)
    with pytest.raises(StoreError):
        await recorded.start("failed", LARGE)

    await recorded.start("next")

    recorded.check_after_cut(tmp_path / "image")


@pytest.mark.promise("durability")
async def test_a_commit_after_two_failed_commits_without_a_read_between_them_survives(
    recorded: RecordedStore, tmp_path: Path
) -> None:
    for number in range(2):
        await recorded.start(f"before-{number}")
        recorded.journal.fail_next(WAL)
        with pytest.raises(StoreError):
            await recorded.start(f"failed-{number}", LARGE)

    await recorded.start("next")

    recorded.check_after_cut(tmp_path / "image")
