"""A power cut at any moment loses no acknowledged data.

``make power`` runs more cuts (``power_soak.py``).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import BinaryIO

import apsw
import pytest

from holdfast.payloads import blobs
from holdfast.payloads.blobs import FileBlobs
from holdfast.store.sqlite import connection, opening

from .power import Disk, FailedSync, Journal, Rename, Sync
from .power_check import FILE, AcknowledgedData
from .power_executions import Cutter, execute, states, write_image
from .power_models import whole_plan
from .workload import Planned

COPIES = 2
PLAN = whole_plan(COPIES, 0)
TALKS = [planned for planned in PLAN if planned.workflow == "talk"]


def check_cuts(journal: Journal, folder: Path, every: int, plan: list[Planned] = PLAN) -> int:
    """Cut the power at every n-th entry of the journal, and before more of the syncs; returns the number of cuts."""
    cutter = Cutter(folder, plan)
    for n, (disk, acknowledged) in enumerate(states(journal, Disk(), AcknowledgedData())):
        if n % every == 0 or (isinstance(journal.entries[n], Sync) and n % (every // 2 + 1) == 0):
            for rng in (None, Random(n)):
                cutter.cut(disk, acknowledged, rng)
    return cutter.cycles.total()


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_CHECKPOINT_PAGES", 40)


@pytest.mark.promise("durability")
@pytest.mark.timeout(3600)
async def test_acknowledged_writes_survive_a_power_cut(tmp_path: Path, long: bool) -> None:
    (tmp_path / "disk").mkdir()
    journal = await execute(tmp_path / "disk", PLAN)

    cuts = check_cuts(journal, tmp_path / "image", every=1 if long else 8)

    print(f"{cuts} cuts in {len(journal.entries)} writes, {sum(isinstance(e, Sync) for e in journal.entries)} syncs")
    assert cuts > 120
    assert any(isinstance(e, Sync) and e.file == "work.db" for e in journal.entries[200:]), "no checkpoint was seen"


@pytest.mark.promise("durability")
async def test_acknowledged_blobs_in_files_survive_a_power_cut(tmp_path: Path, long: bool) -> None:
    (tmp_path / "disk").mkdir()
    journal = await execute(tmp_path / "disk", TALKS, in_files=True)

    check_cuts(journal, tmp_path / "image", every=1 if long else 3, plan=TALKS)

    assert sum(isinstance(e, Rename) for e in journal.entries) >= 2 * COPIES


@pytest.mark.parametrize("what", ["files", "names", "folders"])
async def test_the_check_fails_if_blobs_in_files_are_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    sync = blobs._sync
    if what == "files":
        monkeypatch.setattr(blobs.FileBlobs, "_finish", _finish_without_sync)
    elif what == "names":
        monkeypatch.setattr(blobs, "_sync", lambda folder: None if len(folder.name) == 2 else sync(folder))
    else:
        monkeypatch.setattr(blobs, "_make_folder", lambda folder: folder.mkdir(parents=True, exist_ok=True))
    (tmp_path / "disk").mkdir()
    journal = await execute(tmp_path / "disk", TALKS, in_files=True)

    with pytest.raises(AssertionError, match="blob"):
        check_cuts(journal, tmp_path / "image", every=10, plan=TALKS)


def _finish_without_sync(store: FileBlobs, id: str, file: BinaryIO) -> None:
    file.flush()
    store._path(id).with_suffix(".part").rename(store._path(id))
    for folder in (store._path(id).parent, store._folder):
        blobs._sync(folder)


@pytest.mark.parametrize("level", ["NORMAL", "OFF"])
async def test_the_check_fails_if_commits_are_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setattr(opening, "_set_durable", lambda made: made.pragma("synchronous", level))
    (tmp_path / "disk").mkdir()
    journal = await execute(tmp_path / "disk", PLAN)

    with pytest.raises((AssertionError, apsw.Error)):
        check_cuts(journal, tmp_path / "image", every=40)


@pytest.mark.promise("durability")
@pytest.mark.timeout(3600)
async def test_acknowledged_writes_survive_a_power_cut_although_syncs_failed(tmp_path: Path, long: bool) -> None:
    for first in range(1, 20, 1 if long else 10):
        folder = tmp_path / f"disk-{first}"
        folder.mkdir()
        journal = await execute(folder, PLAN, failing=frozenset(range(first, 400, 19)))

        assert any(isinstance(e, FailedSync) for e in journal.entries)
        check_cuts(journal, tmp_path / "image", every=20)


@pytest.mark.parametrize(
    "spoiled",
    [
        "DELETE FROM holdfast_task; DELETE FROM holdfast_run WHERE instance_id = 'sequence-000'",
        "DROP TRIGGER event_never_goes; DELETE FROM holdfast_event WHERE dedup = 'event-1'",
        "DROP TRIGGER end_is_final; UPDATE holdfast_run SET output = x'5b5d' WHERE instance_id = 'fan-0'",
        "DROP TRIGGER end_is_final; UPDATE holdfast_run SET status = 'active' WHERE instance_id = 'sale-0'",
        "DROP TRIGGER fact_never_goes; DELETE FROM holdfast_fact WHERE key = 'pay'",
        "DROP TRIGGER fact_never_goes; DELETE FROM holdfast_fact WHERE key = 'RESERVE'",
        "DELETE FROM ledger WHERE entry = 'live'",
        "INSERT INTO ledger VALUES ('ledger-000', 'in')",
        "DELETE FROM holdfast_outbox WHERE type = 'shipped'",
        "DELETE FROM holdfast_chunk WHERE first > 1",
        "DELETE FROM holdfast_blob_chunk",
    ],
)
def test_the_check_fails_if_rows_are_missing_or_changed(
    whole: tuple[dict[str, bytes], AcknowledgedData], tmp_path: Path, spoiled: str
) -> None:
    image, acknowledged = whole
    cutter = Cutter(tmp_path / "image", PLAN)
    cutter.inspect(image, acknowledged)

    write_image(image, tmp_path / "spoiled")
    spoiling = apsw.Connection(str(tmp_path / "spoiled" / FILE))
    spoiling.execute(spoiled)
    spoiling.close()

    with pytest.raises(AssertionError):
        cutter.inspect({FILE: (tmp_path / "spoiled" / FILE).read_bytes()}, acknowledged)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], AcknowledgedData]:
    """The file of a program that was not cut, and the data that was acknowledged."""
    folder = tmp_path_factory.mktemp("whole")
    journal = asyncio.run(execute(folder, PLAN))
    acknowledged = AcknowledgedData()
    for _ in states(journal, Disk(), acknowledged):
        pass
    return {FILE: (folder / FILE).read_bytes()}, acknowledged


@pytest.mark.promise("durability")
def test_acknowledged_writes_survive_a_second_cut_during_recovery(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    journal = asyncio.run(execute(tmp_path / "disk", PLAN))
    cutter = Cutter(tmp_path / "image", PLAN)

    left, acknowledged = cutter.cut_execution(journal, Disk(), AcknowledgedData(), 30, Random(1))
    cutter.second_cuts(left, acknowledged, Random(1))

    assert cutter.cycles["in recovery"] > 0
