"""A place where processes work on one database: the file, its side file, who runs, and the checker."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw

from holdfast import Holdfast, Start

from .checker import GUARDS, Checker
from .herd import Child, Herd
from .program import send_events
from .workload import TABLES, Planned, Side, make_app, plan

LEASE = "400 ms"


async def until(fact: Callable[[], Any], what: Callable[[], str] | str, seconds: float = 30) -> Any:
    """Wait for a fact, with a bound."""
    end = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < end, f"after {seconds} s: {what if isinstance(what, str) else what()}"
        await asyncio.sleep(0.01)
    return found


class Scene:
    def __init__(self, folder: Path, herd: Herd, copies: int) -> None:
        folder.mkdir()
        self.folder = folder
        self.copies = copies
        self.plan = plan(copies)
        self.database = folder / "work.db"
        self.side = folder / "side.jsonl"
        self.workers: list[Child] = []
        self.checker: Checker
        self._herd = herd

    async def prepare(self) -> None:
        """Start what the test starts, send what is sent early, add the tables and the guards."""
        async with self.client() as app:
            await self._start_all(app)
            for planned in self.plan:
                if planned.early:
                    await send_events(await app.get(planned.workflow, planned.id), planned, Side(self.side))
        connection = apsw.Connection(str(self.database))
        connection.execute(TABLES + GUARDS)
        connection.close()
        self.checker = Checker(self.database, self.side, self.plan)

    def use_plan(self, planned: list[Planned]) -> None:
        """Others start the runs: this is what they start."""
        self.checker.close()
        self.plan = planned
        self.checker = Checker(self.database, self.side, planned)

    def copy(self, name: str) -> Scene:
        """The same place as it is now, with nobody working."""
        other = Scene(self.folder.parent / name, self._herd, self.copies)
        shutil.copy(self.database, other.database)
        shutil.copy(self.side, other.side)
        other.checker = Checker(other.database, other.side, other.plan)
        return other

    async def _start_all(self, app: Holdfast) -> None:
        side = Side(self.side)
        by_workflow: dict[str, list[Planned]] = {}
        for planned in self.plan:
            if not planned.by_worker and planned.started_by is None:
                by_workflow.setdefault(planned.workflow, []).append(planned)
        for workflow, runs in by_workflow.items():
            for handle in await app.start_many(workflow, [Start(p.id, p.n) for p in runs]):
                side.write({"acknowledged": "start", "id": handle.id})

    # --- who works

    def work(self, **spec: Any) -> Child:
        given = {"lease": LEASE, "poll": "200 ms", "max_losses": 1_000_000, "copies": self.copies, **spec}
        worker = self._herd.fork("program:work", database=str(self.database), side=str(self.side), **given)
        self.workers.append(worker)
        return worker

    def fork(self, target: str, **spec: Any) -> Child:
        child = self._herd.fork(target, database=str(self.database), side=str(self.side), **spec)
        self.workers.append(child)
        return child

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Holdfast]:
        app = make_app(str(self.database), str(self.side))
        async with app.connect():
            yield app

    async def send_all(self, app: Holdfast, pause: float = 0.002) -> None:
        """Every event that is not the worker's to send, one after the other."""
        side = Side(self.side)
        for planned in self.plan:
            if planned.events and not (planned.early or planned.by_worker or planned.started_by):
                await send_events(await app.get(planned.workflow, planned.id), planned, side)
                await asyncio.sleep(pause)

    async def until_complete(self, seconds: float = 40) -> None:
        await until(self.checker.complete, self.story, seconds)

    async def stop(self, worker: Child, number: int = signal.SIGTERM, seconds: float = 20) -> int:
        if number != signal.SIGKILL:
            await until(lambda: not worker.alive or self.is_open(worker), "it never opened the database")
        worker.signal(number)
        await until(lambda: not worker.alive, lambda: f"it does not stop: {worker.said()}", seconds)
        assert worker.code is not None
        return worker.code

    def is_open(self, worker: Child) -> bool:
        """Its handlers are installed and its app is open."""
        return any("open" in line and line["pid"] == worker.pid for line in self.checker.side())

    def story(self) -> str:
        return self.checker.open_runs() + "\n" + "\n".join(worker.said()[-2000:] for worker in self.workers[-4:])

    def close(self) -> None:
        for worker in self.workers:
            worker.signal(signal.SIGKILL)
        if hasattr(self, "checker"):
            self.checker.close()
