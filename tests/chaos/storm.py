"""The storm: workers and a client work while a plan of faults is carried out and a checker takes snapshots."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crash.workload import Planned, SideFile
from holdfast import Handle, Holdfast, InstanceTerminalError

from .checker import Checker
from .faults import Fault, make_plan, summary
from .injection import Injector, Slot, kill_all, open_proxy
from .processes import Child
from .program import work
from .proxy import Proxy
from .server import Server
from .waiting import connected, retry_until_available, until
from .workload import TABLES, make_app, plan

LEASE = 2.0
WORKER = {"lease": LEASE, "poll": 0.5, "drain": 5, "max_losses": 1_000_000}


@dataclass(frozen=True, slots=True)
class Size:
    copies: int
    """Number of copies of the workload, 10 runs each."""
    seconds: float
    """Time in which faults are injected and runs started."""
    faults: int = 0
    workers: int = 4
    clock_off: float = 3600
    """Seconds by which the clock of the first worker is wrong."""
    completion_timeout: float = 300
    """Seconds in which all runs must end after that."""
    pause: float = 4
    """The longest pause before an event is sent, in seconds."""


SHORT = Size(copies=10, faults=10, seconds=7)
LONG = Size(copies=200, faults=240, seconds=240, completion_timeout=300)


def storm(server: Server, folder: Path, size: Size, seed: int, report: Callable[[str], None] = print) -> Storm:
    """The storm with the plan of a seed."""
    faults = make_plan(seed, count=size.faults, seconds=size.seconds, workers=size.workers, lease=LEASE)
    return Storm(server, folder, size, faults, seed=seed, report=report)


class Storm:
    def __init__(
        self,
        server: Server,
        folder: Path,
        size: Size,
        faults: Sequence[Fault],
        *,
        seed: int = 0,
        report: Callable[[str], None] = print,
    ) -> None:
        self.server = server
        self.folder = folder
        self.side = folder / "side.jsonl"
        self.database = ""
        self._seed = seed
        self.size = size
        self._report = report
        self._plan = plan(size.copies)
        self._faults = faults
        self._slots: list[Slot] = []
        self._checker: Checker
        self._client: Proxy
        self._injector: Injector

    @property
    def injected(self) -> Counter[str]:
        """Number of injected faults of each kind."""
        return self._injector.injected

    # --- run

    async def run(self) -> None:
        """Run the storm, from an empty database to the last check."""
        self._report(
            f"seed {self._seed}: {len(self._plan)} runs, {self.size.workers} workers, {self.size.seconds:.0f} s"
        )
        self._report(f"planned: {summary(self._faults)}")
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            await self._prepare(stack)
            try:
                await self._run_with_faults()
                await until(self._checker.complete, "not all runs are complete", self.size.completion_timeout)
                ended = time.monotonic()
                await self._stop_workers()
                await self._checker.check_at_end()
            except Exception as error:
                error.add_note(await self._describe())
                raise
        commits = sum(slot.proxy.commits for slot in self._slots) + self._client.commits
        self._report(f"injected {self.injected.total()}: {dict(self.injected)}")
        after = ended - self._injector.last_fault_at
        self._report(f"all {len(self._plan)} runs complete and correct, {after:.1f} s after the last fault")
        self._report(
            f"{self._checker.snapshots} snapshots, {commits} commits on the wire, {ended - began:.0f} s in all"
        )

    async def _prepare(self, stack: AsyncExitStack) -> None:
        self.database = await self.server.new_database()
        stack.push_async_callback(self.server.drop_database, self.database)
        proxies = self.server.folder / f"proxies-{self.database}"
        for number in range(self.size.workers):
            proxy = await open_proxy(proxies / f"{number}", self.server, stack)
            self._slots.append(Slot(number, proxy, self._make_worker))
        self._client = await open_proxy(proxies / "client", self.server, stack)
        self._injector = Injector(self.server, self._slots, self._client, self._on_fault)
        async with make_app(self.server.url(self.database), self.side).connect():
            pass  # creates the schema
        self._checker = Checker(self.server, self.database, self.side, self._plan)
        stack.push_async_callback(self._checker.close)
        await self._checker.prepare(TABLES)
        stack.callback(kill_all, self._slots)
        for slot in self._slots:
            slot.start()

    def _make_worker(self, slot: Slot) -> Child:
        url = self.server.url(self.database, sockets=slot.proxy.sockets)
        clock_off = self.size.clock_off if slot.number == 0 else 0
        log = self.folder / f"{slot.next_name}.log"
        return Child(log, work, url=url, side=str(self.side), clock_off=clock_off, **WORKER)

    def _on_fault(self) -> None:
        self._checker.losses += 1

    async def _run_with_faults(self) -> None:
        snapshots = asyncio.create_task(self._take_snapshots())
        app = make_app(self.server.url(self.database, sockets=self._client.sockets), self.side)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._start_runs(app))
                group.create_task(self._injector.inject_all(self._faults))
                group.create_task(self._fail_with(snapshots))
        finally:
            snapshots.cancel()
            await asyncio.gather(snapshots, return_exceptions=True)

    async def _fail_with(self, snapshots: asyncio.Task[None]) -> None:
        """End the storm at once if a snapshot fails."""
        await asyncio.wait([snapshots], timeout=self.size.seconds)
        if snapshots.done():
            snapshots.result()

    async def _take_snapshots(self) -> None:
        while True:
            await self._checker.snapshot()
            await asyncio.sleep(1)

    async def _stop_workers(self) -> None:
        codes = [await slot.worker.end() for slot in self._slots]
        assert codes == [0] * len(codes), f"exit codes {codes}"

    async def _describe(self) -> str:
        """The state for the report of a failure."""
        known = f"seed {self._seed}, injected {dict(self.injected)}\n{await self._checker.describe()}"
        return "\n".join([known, *(f"worker {slot.number}: {slot.worker.log_text()[-2000:]}" for slot in self._slots)])

    def log_text(self) -> str:
        """The log of all workers, also of those that died."""
        return "".join(child.log_text() for slot in self._slots for child in slot.children)

    # --- the client

    async def _start_runs(self, app: Holdfast) -> None:
        """Start the runs, spread over the whole time, and send their events."""
        own_runs = [planned for planned in self._plan if planned.started_by is None]
        rng = random.Random(self._seed)
        pause = self.size.seconds / len(own_runs)
        async with connected(app), asyncio.TaskGroup() as group:
            for planned in own_runs:
                group.create_task(
                    self._start_and_send(app, planned, [rng.uniform(0, self.size.pause) for _ in planned.events])
                )
                await asyncio.sleep(pause)

    async def _start_and_send(self, app: Holdfast, planned: Planned, pauses: Sequence[float]) -> None:
        """Start a run and send its events, each after its pause."""
        side = SideFile(self.side)
        run = await retry_until_available(lambda: app.start(planned.workflow, planned.n, id=planned.id))
        side.write({"acknowledged": "start", "id": planned.id})
        for number, pause in enumerate(pauses):
            await asyncio.sleep(pause)
            await retry_until_available(lambda number=number: self._send(run, planned, number))
        if planned.n % 5 == 0:
            result = await retry_until_available(
                lambda: run.result(timeout=self.size.completion_timeout + self.size.seconds)
            )
            assert result == planned.expected, f"{planned.id} returned {result}"

    async def _send(self, run: Handle[Any], planned: Planned, number: int) -> None:
        """Send an event twice with the same id: it must arrive once."""
        topic, payload = planned.events[number]
        for _ in range(2):
            with suppress(InstanceTerminalError):  # the run has ended
                await run.send_event(topic, payload, id=f"event-{number}")
                SideFile(self.side).write({"acknowledged": "event", "id": planned.id, "event": f"event-{number}"})
