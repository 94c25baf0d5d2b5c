"""A simulated process: a whole app, with a worker or as a client only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import cast

from holdfast.app import Holdfast
from holdfast.checking.checker import Checker, CheckOptions
from holdfast.client import Client
from holdfast.client.replaying import Replayer
from holdfast.core.limits import Limits
from holdfast.kernel.definition import Registry
from holdfast.kernel.requests import Requests
from holdfast.open_app import OpenApp
from holdfast.payloads.config import PayloadConfig
from holdfast.ports import LoopTimers, Runtime, milliseconds
from holdfast.runner.config import WorkerConfig
from holdfast.store.protocol import Store
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.loop import Process, SimulatedLoop
from holdfast.testing.simulation.node_store import NodeStore
from holdfast.testing.simulation.ports import InlineSpawn, LoopClock, UnreliableHub
from holdfast.testing.simulation.streams import mixed, stream
from holdfast.testing.virtual import SeededRandomness
from simulation.payloads import PAYLOADS, with_payloads
from simulation.programs.chain_and_graph import register_chain, register_graph
from simulation.programs.external_system import ExternalSystem
from simulation.programs.failing_items import register_graph_with_failing_items
from simulation.programs.graph_of_runs import register_graph_of_runs
from simulation.programs.interpreter import register_programs
from simulation.programs.names import MAY_FAIL, NEW, OLD
from simulation.programs.run_parts import register_peers
from simulation.programs.step_leases import register_chain_with_leases
from simulation.system.faults import Fault

_NEWEST = 2
"""The newest version of the code."""
_LEASES = (0.2, 0.5, 1.0, 2.0)
_SHORT_LEASE = 0.05
_MAX_SKEW = 0.5
_PINNED = 0.3
"""Part of the seeds in which all workflows are pinned."""
_TWO_WRITERS = 0.3
"""Part of the seeds in which each worker writes two batches of commits at the same time, as on PostgreSQL."""
_REMAINING_SKEW = 0.02
"""Part of a clock's error that remains in the estimate of the store's time."""
_BULK_LEASE_MS = 500
"""The lease of bulk jobs, and the time after which processes look for jobs that no other process works on."""
_LIMITS = Limits(event_wait_min="1 ms")


@dataclass(frozen=True, slots=True)
class Shared:
    """Objects that all processes of a simulation share."""

    seed: int
    loop: SimulatedLoop
    database: SimulatedDatabase
    faults: Faults
    external: ExternalSystem
    _code: dict[int, Registry] = field(default_factory=dict)

    @property
    def payloads(self) -> PayloadConfig | None:
        """Codec and blob store of all processes; None: values are stored as they are."""
        return PAYLOADS if with_payloads(self.seed) else None

    def code(self, version: int) -> Registry:
        """The registry of processes with this version of the code. It is built once and shared."""
        if version not in self._code:
            app = Holdfast("sqlite://", limits=_LIMITS)
            register_programs(app, self.external, version)
            register_peers(app)
            register_chain(app, self.external)
            register_graph(app, self.external)
            register_graph_of_runs(app, self.external)
            register_chain_with_leases(app, self.external)
            register_graph_with_failing_items(app, self.external)
            if stream(self.seed, "pinned").random() < _PINNED:
                for definition in app.registry:
                    definition.pinned = True
                    app.registry.replace(definition)
            self._code[version] = app.registry
        return self._code[version]


class Node:
    """A process that boots again after its death, under the same name. Each boot begins a new life.

    ``died`` is called with the node and the circumstances whenever the process is killed.
    """

    def __init__(self, name: str, shared: Shared, died: Callable[[Node, str], None], *, works: bool) -> None:
        self.name = name
        self.works = works
        self.version = 1
        self.lives = 0
        self.process: Process | None = None
        self.store: NodeStore | None = None
        self.opened: OpenApp | None = None
        self._shared = shared
        self._died = died
        self._opened: list[OpenApp] = []
        """The apps of all lives."""
        self.runs_bulk_jobs = False
        """True if the process takes up bulk jobs of other processes, as a server does."""
        self.clock = LoopClock(shared.loop)
        """The clock of the machine."""
        self._estimate = LoopClock(shared.loop)
        """The worker's estimate of the store's time, which has a small error."""
        self.config = self._settings()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def busy(self) -> bool:
        """True if the worker has turns, reserved slots or graph runs in memory."""
        worker = self.opened.worker if self.opened is not None else None
        return self.alive and worker is not None and worker.occupied

    @property
    def workers(self) -> list[str]:
        """The ids of the workers of all lives."""
        return [opened.worker.id for opened in self._opened if opened.worker is not None]

    @property
    def client(self) -> Client:
        if self.opened is None:
            raise RuntimeError(f"{self.name} has not booted")
        return self.opened.client

    def boot(self) -> Process:
        self.lives += 1
        self.process = self._shared.loop.start_process(self.name)
        self.process.context().run(self._boot)
        return self.process

    def kill(self, how: str, process: Process | None = None) -> None:
        """Kill ``process``, by default the current life, if it is alive."""
        target = process or self.process
        if target is None or not target.alive:
            return
        target.kill()
        if self.store is not None:
            self.store.disconnect()
        self._died(self, how)

    async def check(self) -> list[str]:
        """Compare the open runs with the newest code; return the differences."""
        registry = self._shared.code(_NEWEST)
        if self.opened is None:
            raise RuntimeError(f"{self.name} has not booted")
        store = self.opened.store
        runtime = Runtime(self.clock, SeededRandomness(0))
        requests = Requests(registry, _LIMITS, runtime, self._estimate, None)
        report = await Checker(store, Replayer(registry, requests, milliseconds(self._estimate))).check(CheckOptions())
        unfit = [found for found in report.workflows.values() if found.counts and found.name != MAY_FAIL]
        return [line for found in unfit for line in found.lines()]

    async def shut_down(self) -> None:
        """Close the app, as a deploy does."""
        if self.opened is not None:
            await self.opened.close()

    def end(self) -> None:
        """Close the machines that killed lives left in memory."""
        for opened in self._opened:
            if opened.worker is not None:
                opened.worker._cache.clear()

    def _boot(self) -> None:
        shared, life = self._shared, f"{self.name}.{self.lives}"
        runtime = Runtime(self.clock, SeededRandomness(mixed(shared.seed, life)))
        app = Holdfast("sqlite://", runtime=runtime, worker=self.config, limits=_LIMITS)
        app.registry = shared.code(self.version)
        app.payloads = shared.payloads
        self.store = self._new_store(life)
        timers = LoopTimers(self._estimate)
        store = cast("Store", self.store)
        self.opened = OpenApp(app, store, timers, InlineSpawn(), UnreliableHub(life, shared.faults))
        self._opened.append(self.opened)
        if self.works:
            self.opened.start_worker(self.config)
            if self.opened.worker is not None:
                self.opened.worker.blobs.pause = 0.2
        jobs = self.opened.client.bulk_jobs
        jobs.lease_ms = _BULK_LEASE_MS
        if self.runs_bulk_jobs:
            jobs.watch()

    def _new_store(self, life: str) -> NodeStore:
        store = NodeStore(
            life,
            self._shared.database,
            self._estimate,
            self._shared.faults,
            kill=partial(self.kill, process=self.process),
            max_delay=1.5 * self.config.lease_ms / 1000,
        )
        if stream(self._shared.seed, "writers").random() < _TWO_WRITERS:
            store.writers = 2
        return store

    def _settings(self) -> WorkerConfig:
        faults, draw = self._shared.faults, self._shared.faults.draw(f"settings.{self.name}")
        lease, poll, concurrency = draw.choice(_LEASES), draw.choice([0.4, 1.0]), draw.choice([3, 100])
        skew = draw.uniform(-_MAX_SKEW, _MAX_SKEW)
        if faults.has(Fault.SHORT_LEASE, self.name):
            lease = _SHORT_LEASE
        if faults.has(Fault.SKEW, self.name):
            self.clock.error = timedelta(seconds=skew)
            self._estimate.error = timedelta(seconds=skew * _REMAINING_SKEW)
        return WorkerConfig(
            lease=lease,
            poll=poll,
            drain=0.5,
            concurrency=1 if faults.has(Fault.ONE_AT_A_TIME, self.name) else concurrency,
            cache=0 if faults.has(Fault.NO_CACHE, self.name) else 100,
            version=None if not self.works else OLD if self.name == "w1" else NEW,
        )
