"""The workload of ``tests/chaos`` on worker processes, while a test does something to the server.

The client behaves as a client should: it repeats a call that failed with a ``StoreError``, with the same ids, and
starts a run again that does not exist any more.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from chaos.checker import Checker
from chaos.processes import Child
from chaos.program import work
from chaos.server import Server
from chaos.waiting import connected, until
from chaos.workload import TABLES, make_app, plan
from crash.workload import Planned, SideFile
from holdfast import Holdfast, InstanceNotFoundError, InstanceTerminalError, StoreError

WORKER = {"lease": 2.0, "poll": 0.5, "drain": 5, "max_losses": 1_000_000}
_RESULT_TIMEOUT = 90


def _with_equal_events(planned: Planned) -> Planned:
    """The run with two equal events: a failover may lose the first, and the client then sends it after the second."""
    n, go = planned.n, ("go", planned.n)
    return replace(planned, events=(go, go), expected=[n, n]) if planned.workflow == "events" else planned


class Load:
    """``copies`` copies of the workload, 10 runs each, started within ``seconds``, on ``workers`` processes."""

    def __init__(
        self, server: Server, folder: Path, url: Callable[[str], str] | None = None, *, copies: int = 6,
        seconds: float = 6, workers: int = 2,
    ) -> None:  # fmt: skip
        """``url``: the URL of a database for workers and clients; default: that of the server."""
        self.server = server
        self.database = ""
        self.errors: Counter[str] = Counter()
        """Errors that the client got, by name."""
        self.started_again: set[str] = set()
        """Runs that were acknowledged and did not exist later."""
        self.checker: Checker
        self._folder = folder
        self._side = folder / "side.jsonl"
        self._url = url or server.url
        self._plan = [_with_equal_events(planned) for planned in plan(copies)]
        self._seconds = seconds
        self._workers = workers
        self._children: list[Child] = []
        self._client: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Create the database, start workers and client; at the end, end the workers."""
        self.database = self.database or await self.server.new_database()
        async with make_app(self._url(self.database), self._side).connect():
            pass  # creates the schema
        self.checker = Checker(self.server, self.database, self._side, self._plan)
        await self.checker.prepare(TABLES)
        try:
            for number in range(self._workers):
                log = self._folder / f"worker-{number}.log"
                self._children.append(Child(log, work, url=self._url(self.database), side=str(self._side), **WORKER))
            await until(lambda: self._open() >= self._workers, "the workers do not start", 60)
            self._client = asyncio.create_task(self._run_client())
            yield self
        except Exception as error:
            error.add_note(self.log_text()[-4000:])
            raise
        finally:
            if self._client is not None:
                self._client.cancel()
                await asyncio.gather(self._client, return_exceptions=True)
            for child in self._children:
                child.send(signal.SIGKILL)
            await self.checker.close()

    def log_text(self) -> str:
        return "".join(child.log_text() for child in self._children)

    def count_fault(self) -> None:
        """Count a fault: each may cost a step in flight one more execution."""
        self.checker.losses += 1

    async def started(self, runs: int) -> None:
        """Wait until this many starts were acknowledged."""
        await until(lambda: self.acknowledged() >= runs, "the client does not start its runs", 60)

    def _open(self) -> int:
        return sum("open" in line for line in self.checker.side())

    def acknowledged(self) -> int:
        return sum(line.get("acknowledged") == "start" for line in self.checker.side())

    async def move_to(self, server: Server, *, lost_executions: int = 1) -> None:
        """Check another server from now on. ``lost_executions``: of a step, most of them, that it does not know."""
        before, self.server = self.checker, server
        await before.close()
        self.checker = Checker(server, self.database, self._side, self._plan)
        self.checker.losses = before.losses + lost_executions
        self.checker._began = before._began

    async def check_nothing_lost(self) -> None:
        """Check that acknowledged starts and events are stored, and the results that steps were called with."""
        await self.checker.snapshot()

    async def complete(self, seconds: float = 120) -> None:
        """Wait for the end of all runs, stop the workers, and check the final state."""
        assert self._client is not None
        async with asyncio.timeout(seconds):
            await self._client
        try:
            await until(self.checker.complete, "not all runs are complete", seconds)
        except AssertionError as error:
            error.add_note(await self.checker.describe())
            raise
        codes = [await child.end() for child in self._children]
        assert codes == [0] * len(codes), f"exit codes {codes}: {self.log_text()[-3000:]}"
        await self.checker.check_at_end()

    # --- the client

    async def _run_client(self) -> None:
        app = make_app(self._url(self.database), self._side)
        rng, own_runs = random.Random(1), [planned for planned in self._plan if planned.started_by is None]
        async with connected(app), asyncio.TaskGroup() as group:
            for planned in own_runs:
                group.create_task(self._follow(app, planned, [rng.uniform(0, 3) for _ in planned.events]))
                await asyncio.sleep(self._seconds / len(own_runs))
        async with connected(app), asyncio.TaskGroup() as group:  # results that were read may be lost
            for planned in own_runs:
                try:
                    await self._repeat(lambda planned=planned: app.get(planned.workflow, planned.id))
                except InstanceNotFoundError:
                    self.started_again.add(planned.id)
                group.create_task(self._follow(app, planned, [0.0 for _ in planned.events]))

    async def _follow(self, app: Holdfast, planned: Planned, pauses: list[float]) -> None:
        """Start a run, send its events and wait for its result; begin again if the run is lost meanwhile."""
        while True:
            await self._repeat(lambda: app.start(planned.workflow, planned.n, id=planned.id))
            SideFile(self._side).write({"acknowledged": "start", "id": planned.id})
            try:
                for number, pause in enumerate(pauses):
                    await asyncio.sleep(pause)
                    await self._repeat(lambda number=number: self._send(app, planned, number))
                result = await self._result(app, planned)
            except InstanceNotFoundError:
                self.errors["InstanceNotFoundError"] += 1
                self.started_again.add(planned.id)
                continue
            assert result == planned.expected, f"{planned.id} returned {result}"
            return

    async def _result(self, app: Holdfast, planned: Planned) -> Any:
        """Wait for the result; send the events again from time to time, because a failover may have lost them."""
        async with asyncio.timeout(_RESULT_TIMEOUT):
            while True:
                with suppress(TimeoutError):
                    run = await self._repeat(lambda: app.get(planned.workflow, planned.id))
                    return await self._repeat(lambda run=run: run.result(timeout=60))
                for number in range(len(planned.events)):
                    await self._repeat(lambda number=number: self._send(app, planned, number))

    async def _send(self, app: Holdfast, planned: Planned, number: int) -> None:
        topic, payload = planned.events[number]
        run = await app.get(planned.workflow, planned.id)
        with suppress(InstanceTerminalError):
            await run.send_event(topic, payload, id=f"event-{number}")
            SideFile(self._side).write({"acknowledged": "event", "id": planned.id, "event": f"event-{number}"})

    async def _repeat(self, call: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await call()
            except StoreError as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(0.05)
