"""The directory of one crash test: the database, its side file, the running processes, and the checker."""

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
from .fork_server import ForkedProcess, ForkServer
from .program import send_events
from .workload import TABLES, Planned, SideFile, make_app, plan

LEASE = "400 ms"


async def until(fact: Callable[[], Any], what: Callable[[], str] | str, seconds: float = 60) -> Any:
    """Wait until ``fact`` returns a true value, at most ``seconds``; returns the value."""
    end = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < end, f"after {seconds} s: {what if isinstance(what, str) else what()}"
        await asyncio.sleep(0.01)
    return found


class Workspace:
    def __init__(self, folder: Path, fork_server: ForkServer, copies: int) -> None:
        folder.mkdir()
        self.folder = folder
        self.copies = copies
        self.plan = plan(copies)
        self.database = folder / "work.db"
        self.side = folder / "side.jsonl"
        self.workers: list[ForkedProcess] = []
        self.checker: Checker
        self._fork_server = fork_server

    async def prepare(self) -> None:
        """Start the runs, send early events, and create the user's tables and the guard triggers."""
        async with self.client() as app:
            await self._start_all(app)
            for planned in self.plan:
                if planned.early:
                    await send_events(await app.get(planned.workflow, planned.id), planned, SideFile(self.side))
        connection = apsw.Connection(str(self.database))
        connection.execute(TABLES + GUARDS)
        connection.close()
        self.checker = Checker(self.database, self.side, self.plan)

    def use_plan(self, planned: list[Planned]) -> None:
        """Expect the runs of this plan, which other processes start."""
        self.checker.close()
        self.plan = planned
        self.checker = Checker(self.database, self.side, planned)

    def copy(self, name: str) -> Workspace:
        """A copy of the current files. The copy has no processes."""
        other = Workspace(self.folder.parent / name, self._fork_server, self.copies)
        shutil.copy(self.database, other.database)
        shutil.copy(self.side, other.side)
        other.checker = Checker(other.database, other.side, other.plan)
        return other

    async def _start_all(self, app: Holdfast) -> None:
        side = SideFile(self.side)
        by_workflow: dict[str, list[Planned]] = {}
        for planned in self.plan:
            if not planned.by_worker and planned.started_by is None:
                by_workflow.setdefault(planned.workflow, []).append(planned)
        for workflow, runs in by_workflow.items():
            for handle in await app.start_many(workflow, [Start(p.id, p.n) for p in runs]):
                side.write({"acknowledged": "start", "id": handle.id})

    # --- processes

    def start_worker(self, **spec: Any) -> ForkedProcess:
        given = {"lease": LEASE, "poll": "200 ms", "max_losses": 1_000_000, "copies": self.copies, **spec}
        worker = self._fork_server.fork("program:work", database=str(self.database), side=str(self.side), **given)
        self.workers.append(worker)
        return worker

    def fork(self, target: str, **spec: Any) -> ForkedProcess:
        child = self._fork_server.fork(target, database=str(self.database), side=str(self.side), **spec)
        self.workers.append(child)
        return child

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Holdfast]:
        app = make_app(str(self.database), str(self.side))
        async with app.connect():
            yield app

    async def send_all(self, app: Holdfast, pause: float = 0.002) -> None:
        """Send all events, except early ones and those that a worker or another run sends."""
        side = SideFile(self.side)
        for planned in self.plan:
            if planned.events and not (planned.early or planned.by_worker or planned.started_by):
                await send_events(await app.get(planned.workflow, planned.id), planned, side)
                await asyncio.sleep(pause)

    async def until_complete(self, seconds: float = 120) -> None:
        await until(self.checker.complete, self.report, seconds)

    async def stop(self, worker: ForkedProcess, number: int = signal.SIGTERM, seconds: float = 120) -> int:
        if number != signal.SIGKILL:
            await until(lambda: not worker.alive or self.is_open(worker), "the worker did not open the database")
        worker.signal(number)
        await until(lambda: not worker.alive, lambda: f"the worker does not stop: {worker.output()}", seconds)
        assert worker.code is not None
        return worker.code

    def is_open(self, worker: ForkedProcess) -> bool:
        """True if the worker has installed its signal handlers and opened its app."""
        return any("open" in line and line["pid"] == worker.pid for line in self.checker.side())

    def report(self) -> str:
        return self.checker.open_runs() + "\n" + "\n".join(worker.output()[-2000:] for worker in self.workers[-4:])

    def close(self) -> None:
        for worker in self.workers:
            worker.signal(signal.SIGKILL)
        if hasattr(self, "checker"):
            self.checker.close()
