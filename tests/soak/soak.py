"""A soak: workers and a client run under load and faults, while everything that could grow is measured."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from chaos.database_probe import GUARDS, DatabaseProbe
from chaos.faults import make_plan, summary
from chaos.injection import Injector, Slot, kill_all, open_proxy
from chaos.processes import Child
from chaos.proxy import Proxy
from chaos.server import Server
from chaos.waiting import until
from chaos.workload import TABLES

from .audit import Auditor
from .flat import Series, Verdict, What, judge
from .program import feed, work
from .samples import HAS_PROC, Process, Sampler
from .workload import make_app

LEASE = 3.0
# A small cache, so that it is full by the end of the warm-up.
WORKER = {"lease": LEASE, "poll": 0.5, "drain": 5, "max_losses": 1_000_000, "cache": 50}
# Vacuums and checkpoints run as often in minutes as otherwise in hours. Full-page writes follow checkpoints, which
# faults cause: with them, the WAL per run would depend on the number of faults.
SERVER = {
    "autovacuum_naptime": "5s",
    "checkpoint_timeout": "30s",
    "min_wal_size": "32MB",
    "max_wal_size": "64MB",
    "full_page_writes": "off",
}
CLIENT = "client"
_SPARED = 1
"""The number of workers that are not killed, so that they can be measured from the beginning to the end."""


@dataclass(frozen=True, slots=True)
class Size:
    seconds: float = 600
    rate: float = 15
    """Runs that the client starts per second."""
    workers: int = 3
    fault_every: float = 8
    sample_every: float = 4
    kept: float = 20
    """Seconds until a run that has ended is deleted, if the client has finished with it and all that ended before."""
    calm: float = 120
    """Seconds within which all runs must end after the load has stopped."""
    plants: tuple[str, ...] = ()


class Soak:
    def __init__(self, server: Server, folder: Path, size: Size, seed: int, say: Callable[[str], None] = print) -> None:
        self._server = server
        self._folder = folder
        self._size = size
        self._seed = seed
        self._say = say
        self._faults = make_plan(
            seed,
            count=int(size.seconds / size.fault_every),
            seconds=size.seconds * 0.97,
            workers=size.workers,
            lease=LEASE,
            spared=_SPARED,
        )
        self._database = ""
        self._slots: list[Slot] = []
        self._feeder: Child
        self._client: Proxy
        self._auditor: Auditor
        self._sampler: Sampler
        self._began = self._ended = 0.0
        self.injected: dict[str, int] = {}

    async def run(self) -> list[Verdict]:
        """Run the soak, from an empty database to the last check; returns the verdicts."""
        size = self._size
        self._say(f"seed {self._seed}: {size.workers} workers, {size.rate:g} runs a second, {size.seconds:.0f} s")
        self._say(f"planned: {summary(self._faults)}")
        async with AsyncExitStack() as stack:
            await self._prepare(stack)
            if not HAS_PROC:
                self._say("there is no /proc here: memory and open files of processes are not measured")
            try:
                await self._soak()
                runs = await self._finish()
            except BaseException as error:
                error.add_note(self._story())
                raise
        self._say(f"injected {sum(self.injected.values())}: {self.injected}")
        self._say(f"all {runs} runs ended as expected; {len(self.series())} values were measured")
        return self._judge()

    def series(self) -> list[Series]:
        return self._sampler.series()

    # --- set-up

    async def _prepare(self, stack: AsyncExitStack) -> None:
        self._database = await self._server.new_database()
        stack.push_async_callback(self._server.drop_database, self._database)
        proxies = self._server.folder / f"proxies-{self._database}"
        for number in range(self._size.workers):
            proxy = await open_proxy(proxies / f"{number}", self._server, stack)
            self._slots.append(Slot(number, proxy, self._make_worker))
        self._client = await open_proxy(proxies / CLIENT, self._server, stack)
        async with make_app(self._server.url(self._database)).connect():
            pass  # creates the schema
        deleting = "retention" not in self._size.plants
        self._auditor = Auditor(self._server, self._database, self._finished, age=self._size.kept, deleting=deleting)
        stack.push_async_callback(self._auditor.close)
        await self._auditor.execute(TABLES + GUARDS)
        probe = DatabaseProbe(self._server, self._database)
        stack.push_async_callback(probe.close)
        self._sampler = Sampler(probe, self._processes, lambda: self._auditor.deleted)
        stack.callback(kill_all, self._slots)
        for slot in self._slots:
            slot.start()
        self._feeder = self._make_client()
        stack.callback(self._feeder.send, signal.SIGKILL)
        await until(lambda: all(one.counts.exists() for one in self._processes()), self._story, 60)

    def _make_worker(self, slot: Slot) -> Child:
        name = slot.next_name
        url = self._server.url(self._database, sockets=slot.proxy.sockets)
        counts = str(self._counts(name))
        return Child(self._folder / f"{name}.log", work, url=url, counts=counts, plants=self._size.plants, **WORKER)

    def _make_client(self) -> Child:
        return Child(
            self._folder / "client.log",
            feed,
            url=self._server.url(self._database, sockets=self._client.sockets),
            counts=str(self._counts(CLIENT)),
            acknowledged=str(self._acknowledged),
            finished=str(self._finished),
            rate=self._size.rate,
            seed=self._seed,
        )

    @property
    def _acknowledged(self) -> Path:
        return self._folder / "acknowledged"

    @property
    def _finished(self) -> Path:
        return self._folder / "finished"

    def _counts(self, name: str) -> Path:
        return self._folder / f"{name}.counts"

    def _processes(self) -> Iterator[Process]:
        for slot in self._slots:
            yield Process(slot.name, slot.worker.pid, self._counts(slot.name), slot.proxy.connections)
        yield Process(CLIENT, self._feeder.pid, self._counts(CLIENT), self._client.connections)

    # --- load, faults and samples

    async def _soak(self) -> None:
        injector = Injector(self._server, self._slots, self._client, lambda: None)
        self._began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(self._sweep()), group.create_task(self._sample())]
            others.append(group.create_task(self._watch_client()))
            faults = group.create_task(injector.inject_all(self._faults))
            await asyncio.sleep(self._size.seconds)
            self._ended = time.monotonic()
            await faults
            for other in others:
                other.cancel()
        self.injected = dict(injector.injected)

    async def _sweep(self) -> None:
        while True:
            await self._auditor.sweep()
            await asyncio.sleep(min(2, self._size.kept / 4))

    async def _sample(self) -> None:
        while True:
            await self._sampler.sample()
            await asyncio.sleep(self._size.sample_every)

    async def _watch_client(self) -> None:
        """Fail if the client ends: before SIGTERM it ends only because of an error."""
        while self._feeder.alive:
            await asyncio.sleep(0.5)
        raise AssertionError(f"the client ended: {self._feeder.log_text()[-3000:]}")

    async def _finish(self) -> int:
        """Stop the load, wait until all runs have ended, and check them; returns the number of runs."""
        code = await self._feeder.end(seconds=self._size.calm)
        assert code == 0, f"the client ended with {code}"
        await until(self._nothing_open, "not all runs have ended", self._size.calm)
        codes = [await slot.worker.end() for slot in self._slots]
        assert codes == [0] * len(codes), f"exit codes {codes}"
        return await self._auditor.check_at_end(self._acknowledged)

    async def _nothing_open(self) -> bool:
        return await self._auditor.open_runs() == 0

    def _story(self) -> str:
        """The state for the report of a failure."""
        said = [f"{slot.name}: {slot.worker.log_text()[-2000:]}" for slot in self._slots]
        return "\n".join([f"seed {self._seed}", f"client: {self._feeder.log_text()[-3000:]}", *said])

    # --- verdicts

    def _judge(self) -> list[Verdict]:
        judged = [judge(series, self._began, self._ended) for series in self.series()]
        return [verdict for verdict in judged if verdict is not None]


def missing(verdicts: Sequence[Verdict], *, has_proc: bool = HAS_PROC) -> list[str]:
    """Values that have too few samples for a verdict: these do not count as flat."""
    judged = {(verdict.series.what, verdict.series.of) for verdict in verdicts}
    of_processes = (What.OBJECTS, What.CONNECTIONS, What.MEMORY, What.DESCRIPTORS)
    measured = of_processes if has_proc else of_processes[:2]
    processes = [(what, name) for what in measured for name in ("worker-0-0", CLIENT)]
    rest = {what for what in What if what not in of_processes} - {what for what, _ in judged}
    return [f"{what}: {of}" for what, of in processes if (what, of) not in judged] + sorted(rest)
