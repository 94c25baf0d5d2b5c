"""Executes a program on a recorded disk, cuts the power at many points of the recording, and checks each image.

A cycle chooses a point of the journal, builds an image of the disk at that point, opens the image and checks it. The
recovery of an image is recorded too and cut again (``Cutter.second_cuts``), and the next execution of the program
continues from the image of one of the cuts.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import apsw

from holdfast import Handle, Holdfast, InstanceNotFoundError, StoreError, WorkerConfig

from .checker import GUARDS
from .power import Acknowledged, Disk, Journal, Sync, recording
from .power_check import BLOBS, FILE, AcknowledgedData, by_id, check, opened
from .power_models import BLOB_THRESHOLD, register_all, spoken
from .program import send_events
from .workload import TABLES, Planned, SideFile

_AS_STORE = 20
"""Every 20th cycle opens the file by the procedure of the store, and checks it again after a checkpoint."""
_SECOND = 50
"""After every 50th cycle, the power is cut again at each write of the recovery and the checkpoint."""


class JournalSideFile(SideFile):
    """A side file whose lines are entries of the disk's journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def write(self, line: dict[str, Any]) -> None:
        self._journal.add(Acknowledged(line))


async def execute(
    folder: Path,
    plan: list[Planned],
    *,
    failing: frozenset[int] = frozenset(),
    lease: float = 20,
    patience: float = 60,
    in_files: bool = False,
) -> Journal:
    """Run the plan in this process, continuing from the files in the folder, until all runs have ended.

    ``in_files``: blobs are files in the folder, not chunks in the database.
    """
    with recording(folder) as journal:
        side = JournalSideFile(journal)
        config = WorkerConfig(lease=lease, poll=0.1, max_losses=1_000_000)
        blobs = f"file://{folder}/{BLOBS}" if in_files else "database"
        app = Holdfast(f"sqlite:///{folder}/{FILE}", worker=config, blobs=blobs, blob_threshold=BLOB_THRESHOLD)
        register_all(app, side)
        async with app.connect():
            _prepare(folder)
        async with app, asyncio.timeout(patience), asyncio.TaskGroup() as group:
            side.write({"open": True})
            journal.fail(failing)
            for planned in plan:
                group.create_task(_run_one(app, planned, side))
        return journal


def _prepare(folder: Path) -> None:
    connection = apsw.Connection(str(folder / FILE))
    if not connection.table_exists("main", "ledger"):
        connection.execute(f"BEGIN; {TABLES} {GUARDS} COMMIT")
    connection.close()


async def _run_one(app: Holdfast, planned: Planned, side: SideFile) -> None:
    run = await (_started(app, planned, side) if planned.started_by is None else _found(app, planned))
    if planned.workflow == "talk":
        await _read(run, planned, side)
    assert await run.result(timeout=60) == planned.expected
    side.write({"acknowledged": "result", "id": planned.id})
    while not all(sent.state == "delivered" for sent in await run.outbox()):
        await asyncio.sleep(0.02)


async def _read(run: Handle[Any], planned: Planned, side: SideFile) -> None:
    """Follow the stream of a talk: what a reader has seen must survive, and its output is complete at the end."""
    while True:
        try:
            async for item in run.stream("out", attempts="all"):
                side.write({"read": planned.id, "offset": item.offset, "value": item.value})
            assert [item.value async for item in run.stream("out")] == spoken(planned.n)
        except StoreError:
            await asyncio.sleep(0.02)
        else:
            return


async def _started(app: Holdfast, planned: Planned, side: SideFile) -> Handle[Any]:
    while True:
        try:
            run = await app.start(planned.workflow, planned.n, id=planned.id)
            side.write({"acknowledged": "start", "id": planned.id})
            await send_events(run, planned, side)
        except StoreError:
            await asyncio.sleep(0.02)  # the outcome is unknown: repeat the call, with the same id
        else:
            return run


async def _found(app: Holdfast, planned: Planned) -> Handle[Any]:
    while True:
        try:
            return await app.get(planned.workflow, planned.id)
        except InstanceNotFoundError:
            await asyncio.sleep(0.02)  # another run has not started it yet


@dataclass(slots=True)
class Cutter:
    """Cuts the power, and checks the images. ``folder`` is the directory into which images are written."""

    folder: Path
    plan: list[Planned]
    cycles: Counter[str] = field(default_factory=Counter)
    last_image: dict[str, bytes] = field(default_factory=dict)
    """The image of the last cut."""
    _planned: dict[str, Planned] = field(init=False)

    def __post_init__(self) -> None:
        self._planned = by_id(self.plan)

    def cut(
        self, disk: Disk, acknowledged: AcknowledgedData, rng: Random | None, kind: str = "at work"
    ) -> dict[str, bytes]:
        """Run one cycle; returns the image."""
        image = disk.image(rng)
        number = self.cycles.total()
        self.inspect(image, acknowledged, as_store=number % _AS_STORE == 0)
        self.cycles[kind] += 1
        return image

    def inspect(self, image: dict[str, bytes], acknowledged: AcknowledgedData, *, as_store: bool = False) -> None:
        if FILE not in image:
            assert not acknowledged.opened, "the file does not exist"
            return
        self.last_image = image
        write_image(image, self.folder)
        connection = opened(self.folder, as_store=as_store)
        try:
            check(connection, acknowledged, self._planned)
            if as_store:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                check(connection, acknowledged, self._planned)
        finally:
            connection.close()

    def second_cuts(self, image: dict[str, bytes], acknowledged: AcknowledgedData, rng: Random) -> None:
        """Recover an image and run a checkpoint, and cut the power at each write of both."""
        if FILE not in image:
            return
        write_image(image, self.folder)
        with recording(self.folder) as journal:
            connection = opened(self.folder, as_store=False)
            check(connection, acknowledged, self._planned)
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            connection.close()
        for disk, _ in states(journal, Disk.of(image), acknowledged):
            self.cut(disk, acknowledged, rng, "in recovery")

    def cut_execution(
        self, journal: Journal, disk: Disk, acknowledged: AcknowledgedData, cycles: int, rng: Random
    ) -> tuple[dict[str, bytes], AcknowledgedData]:
        """Run ``cycles`` cycles on the journal of one execution.

        Returns the image of one of the cuts, and the data that was acknowledged before that cut. Afterwards ``disk``
        and ``acknowledged`` have their state at the end of the journal.
        """
        until = self.cycles.total() + cycles
        chosen = rng.choices(range(len(journal.entries)), _weights(journal), k=cycles)
        cuts, continued = Counter(chosen), rng.choice(chosen)
        returned = disk.image(), acknowledged.copy()
        for n, (now, current) in enumerate(states(journal, disk, acknowledged)):
            for which in range(cuts[n]):
                if self.cycles.total() >= until:
                    break
                image = self.cut(now, current, None if which == 0 and n % 3 == 0 else rng)
                if self.cycles["at work"] % _SECOND == 0:
                    self.second_cuts(image, current, rng)
                if n == continued:
                    returned = image, current.copy()
        return returned


def _weights(journal: Journal) -> list[int]:
    """Weights of the points: a cut right before a sync is more likely, because it loses the most writes."""
    return [4 if isinstance(entry, Sync) else 1 for entry in journal.entries]


def states(journal: Journal, disk: Disk, acknowledged: AcknowledgedData) -> Iterator[tuple[Disk, AcknowledgedData]]:
    """Apply the journal; yields the disk and the acknowledged data before each entry."""
    for entry in journal.entries:
        yield disk, acknowledged
        if isinstance(entry, Acknowledged):
            acknowledged.record(entry.line)
        disk.apply(entry)


def write_image(image: dict[str, bytes], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file, content in image.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
