"""Lives of a program whose power is cut again and again, and a look at what each cut leaves.

One cycle: a cut somewhere in what a program wrote, the files as they are then, a program that opens them, and a check.
A program that opened them may be cut off itself, while SQLite recovers the file or moves its log (``second_cuts``), or
at work (the next life).
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
from .power_check import FILE, Promises, by_id, check, opened
from .power_models import register_all
from .program import send_events
from .workload import TABLES, Planned, SideFile

_AS_STORE = 20
"""One cycle in so many opens the file with all that the store does, and looks once more after its log is moved."""
_SECOND = 50
"""One cycle in so many is cut off again while the file is opened and its log moved."""


class JournalSideFile(SideFile):
    """A side file that is part of the disk's journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def write(self, line: dict[str, Any]) -> None:
        self._journal.add(Acknowledged(line))


async def execute(
    folder: Path, plan: list[Planned], *, failing: frozenset[int] = frozenset(), lease: float = 20, patience: float = 60
) -> Journal:
    """Run the plan in this process, from whatever the folder holds, until all is done."""
    with recording(folder) as journal:
        side = JournalSideFile(journal)
        config = WorkerConfig(lease=lease, poll=0.1, max_losses=1_000_000)
        app = Holdfast(f"sqlite:///{folder}/{FILE}", worker=config)
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
    assert await run.result(timeout=60) == planned.expected
    side.write({"acknowledged": "result", "id": planned.id})
    while not all(sent.state == "delivered" for sent in await run.outbox()):
        await asyncio.sleep(0.02)


async def _started(app: Holdfast, planned: Planned, side: SideFile) -> Handle[Any]:
    while True:
        try:
            run = await app.start(planned.workflow, planned.n, id=planned.id)
            side.write({"acknowledged": "start", "id": planned.id})
            await send_events(run, planned, side)
        except StoreError:
            await asyncio.sleep(0.02)  # as the message says: try again
        else:
            return run


async def _found(app: Holdfast, planned: Planned) -> Handle[Any]:
    while True:
        try:
            return await app.get(planned.workflow, planned.id)
        except InstanceNotFoundError:
            await asyncio.sleep(0.02)  # it is started by another one


@dataclass(slots=True)
class Cutter:
    """Cuts the power, and looks at what is left. ``folder`` is where images are put."""

    folder: Path
    plan: list[Planned]
    cycles: Counter[str] = field(default_factory=Counter)
    left: dict[str, bytes] = field(default_factory=dict)
    """By the last cut."""
    _planned: dict[str, Planned] = field(init=False)

    def __post_init__(self) -> None:
        self._planned = by_id(self.plan)

    def cut(self, disk: Disk, promises: Promises, rng: Random | None, kind: str = "at work") -> dict[str, bytes]:
        """One cycle; what the cut has left."""
        image = disk.image(rng)
        number = self.cycles.total()
        self.inspect(image, promises, as_store=number % _AS_STORE == 0)
        self.cycles[kind] += 1
        return image

    def inspect(self, image: dict[str, bytes], promises: Promises, *, as_store: bool = False) -> None:
        if FILE not in image:
            assert not promises.opened, "the file is gone"
            return
        self.left = image
        write_image(image, self.folder)
        connection = opened(self.folder, as_store=as_store)
        try:
            check(connection, promises, self._planned)
            if as_store:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                check(connection, promises, self._planned)
        finally:
            connection.close()

    def second_cuts(self, image: dict[str, bytes], promises: Promises, rng: Random) -> None:
        """Open what a cut has left and move its log into the file; cut that off at each of its writes."""
        if FILE not in image:
            return
        write_image(image, self.folder)
        with recording(self.folder) as journal:
            connection = opened(self.folder, as_store=False)
            check(connection, promises, self._planned)
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            connection.close()
        for disk, _ in states(journal, Disk.of(image), promises):
            self.cut(disk, promises, rng, "in recovery")

    def cut_execution(
        self, journal: Journal, disk: Disk, promises: Promises, cycles: int, rng: Random
    ) -> tuple[dict[str, bytes], Promises]:
        """So many cycles in what one life has written; what one of the cuts has left, and what was promised until then.

        Afterwards disk and promises are as at its end.
        """
        until = self.cycles.total() + cycles
        chosen = rng.choices(range(len(journal.entries)), _weights(journal), k=cycles)
        cuts, next_life = Counter(chosen), rng.choice(chosen)
        image, said = disk.image(), promises.copy()
        for n, (now, told) in enumerate(states(journal, disk, promises)):
            for which in range(cuts[n]):
                if self.cycles.total() >= until:
                    break
                left = self.cut(now, told, None if which == 0 and n % 3 == 0 else rng)
                if self.cycles["at work"] % _SECOND == 0:
                    self.second_cuts(left, told, rng)
                if n == next_life:
                    image, said = left, told.copy()
        return image, said


def _weights(journal: Journal) -> list[int]:
    """Right before a sync is where most is missing."""
    return [4 if isinstance(entry, Sync) else 1 for entry in journal.entries]


def states(journal: Journal, disk: Disk, promises: Promises) -> Iterator[tuple[Disk, Promises]]:
    """The disk and what was promised, right before each entry."""
    for entry in journal.entries:
        yield disk, promises
        if isinstance(entry, Acknowledged):
            promises.record(entry.line)
        disk.apply(entry)


def write_image(image: dict[str, bytes], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file, content in image.items():
        (folder / file).write_bytes(content)
