"""A power cut at any moment: what was acknowledged is there, on what the disk was told to keep."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from holdfast import Holdfast, StoreError, WorkerConfig
from holdfast.store.sqlite import connection, opening

from .checker import GUARDS, Checker
from .power import Disk, FailedSync, Journal, Said, Sync, recording
from .program import send_events
from .workload import TABLES, Side, plan, register

COPIES = 3


class Told(Side):
    """A side file that is part of the disk's journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def write(self, line: dict[str, Any]) -> None:
        self._journal.add(Said(line))


async def run_workload(folder: Path, failing: frozenset[int] = frozenset()) -> Journal:
    """The whole workload in this process, from the empty file on, with a checkpoint every few pages."""
    with recording(folder) as journal:
        side = Told(journal)
        app = Holdfast(f"sqlite:///{folder}/work.db", worker=WorkerConfig(lease="20 seconds"))
        register(app, side)
        async with app.connect():
            prepared = apsw.Connection(str(folder / "work.db"))
            prepared.execute(TABLES + GUARDS)
            prepared.close()
        async with app, asyncio.TaskGroup() as group:
            side.write({"open": True})
            journal.fail(failing)
            for planned in plan(COPIES):
                group.create_task(run_one(app, planned, side))
        return journal


async def run_one(app: Holdfast, planned: Any, side: Side) -> None:
    if planned.started_by is not None:
        return
    while True:
        try:
            run = await app.start(planned.workflow, planned.n, id=planned.id)
            side.write({"acknowledged": "start", "id": planned.id})
            await send_events(run, planned, side)
            break
        except StoreError:
            await asyncio.sleep(0.02)  # as the message says: try again
    assert await run.result(timeout=30) == planned.expected
    side.write({"acknowledged": "result", "id": planned.id})


def check_cut(folder: Path, said: list[dict[str, Any]], chance: Random | None, disk: Disk) -> None:
    """Build what the cut leaves, open it as a program would, and compare it with what was said before."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    disk.write_image(folder, chance)
    side = folder / "side.jsonl"
    side.write_text("".join(json.dumps({"pid": 0, "ms": 0, **line}) + "\n" for line in said))
    checker = Checker(folder / "work.db", side, plan(COPIES))
    checker.after_kill()
    assert checker.one("PRAGMA integrity_check") == "ok"
    finished = {run for (run,) in checker.rows("SELECT instance_id FROM holdfast_run WHERE completed_at IS NOT NULL")}
    assert {line["id"] for line in said if line.get("acknowledged") == "result"} <= finished
    checker.close()


def check_cuts(journal: Journal, folder: Path, every: int) -> int:
    """Cut the power again and again: right before a sync and in between; how often."""
    disk, said, cuts = Disk(), list[dict[str, Any]](), 0
    for n, entry in enumerate(journal.entries):
        if said and (n % every == 0 or (isinstance(entry, Sync) and n % (every // 2 + 1) == 0)):
            for chance in (None, Random(n)):
                check_cut(folder, said, chance, disk)
                cuts += 1
        disk.take(entry)
        if isinstance(entry, Said):
            said.append(entry.line)
    return cuts


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_CHECKPOINT_PAGES", 40)


@pytest.mark.timeout(3600)
async def test_what_was_acknowledged_survives(tmp_path: Path, long: bool) -> None:
    (tmp_path / "disk").mkdir()
    journal = await run_workload(tmp_path / "disk")

    cuts = check_cuts(journal, tmp_path / "image", every=1 if long else 5)

    print(f"{cuts} cuts in {len(journal.entries)} writes, {sum(isinstance(e, Sync) for e in journal.entries)} syncs")
    assert cuts > 200
    assert any(isinstance(e, Sync) and e.file == "work.db" for e in journal.entries[200:]), "no checkpoint was seen"


@pytest.mark.parametrize("level", ["NORMAL", "OFF"])
async def test_the_disk_notices_a_commit_that_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setattr(opening, "_be_durable", lambda made: made.pragma("synchronous", level))
    (tmp_path / "disk").mkdir()
    journal = await run_workload(tmp_path / "disk")

    with pytest.raises((AssertionError, apsw.Error)):
        check_cuts(journal, tmp_path / "image", every=40)


@pytest.mark.timeout(3600)
async def test_a_failed_sync_is_not_taken_for_a_good_one(tmp_path: Path, long: bool) -> None:
    for first in range(1, 20, 1 if long else 7):
        folder = tmp_path / f"disk-{first}"
        folder.mkdir()
        journal = await run_workload(folder, frozenset(range(first, 400, 19)))

        assert any(isinstance(e, FailedSync) for e in journal.entries)
        check_cuts(journal, tmp_path / "image", every=20)
