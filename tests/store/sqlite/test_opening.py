"""Preallocation of the write-ahead log: commits go into allocated blocks and write little more than their pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.store.protocol import NewRun
from holdfast.store.sqlite import SqliteStore, opening
from store.world import FLOW, FakeClock

MIB = 1024 * 1024
COUNTERS = Path("/proc/self/io")


def written_bytes() -> int:
    """Bytes that this process has caused to be written to disks."""
    counters = dict(line.split(": ") for line in COUNTERS.read_text().splitlines())
    return int(counters["write_bytes"])


async def test_the_log_is_allocated_when_the_file_is_opened(
    path: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_WAL_PREALLOCATED_BYTES", 8 * MIB)
    store = SqliteStore(path, clock=clock)
    await store.open()

    size = Path(f"{path}-wal").stat().st_size
    await store.create([NewRun(FLOW, "a", b"1")])

    assert size >= 8 * MIB
    assert Path(f"{path}-wal").stat().st_size == size
    await store.close()


@pytest.mark.skipif(not COUNTERS.exists(), reason="counts the bytes of /proc/self/io")
async def test_a_commit_writes_little_more_than_its_pages(
    path: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_WAL_PREALLOCATED_BYTES", 8 * MIB)
    store = SqliteStore(path, clock=clock)
    await store.open()

    before = written_bytes()
    for n in range(20):
        await store.create([NewRun(FLOW, f"run-{n}", b"1")])

    assert (written_bytes() - before) / 20 < 256 * 1024
    await store.close()
