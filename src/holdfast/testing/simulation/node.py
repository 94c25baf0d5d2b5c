"""A simulated process: a whole app, with a worker or as a client only, from its boot to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import cast

from holdfast.app import Holdfast
from holdfast.client import Client
from holdfast.core.limits import Limits
from holdfast.kernel.definition import Registry
from holdfast.open_app import OpenApp
from holdfast.ports import LoopTimers, Runtime
from holdfast.runner.config import WorkerConfig
from holdfast.store.protocol import Store, TaskRef
from holdfast.testing.simulation.code import Outside, register, register_company
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.families import register_family
from holdfast.testing.simulation.faults import Faults, Kind
from holdfast.testing.simulation.leased import register_leased
from holdfast.testing.simulation.loop import Process, SimulatedLoop
from holdfast.testing.simulation.models import register_chain, register_graph
from holdfast.testing.simulation.node_store import NodeStore
from holdfast.testing.simulation.ports import HostileHub, InlineSpawn, LoopClock
from holdfast.testing.simulation.sieve import register_sieve
from holdfast.testing.simulation.streams import mixed
from holdfast.testing.virtual import SeededRandomness

_LEASES = (0.2, 0.5, 1.0, 2.0)
_SHORT_LEASE = 0.05
_MOST_SKEW = 0.5
_MEASURED = 0.02
"""How much of a clock's error is left when it is compared with the store's."""
_LIMITS = Limits(event_wait_min="1 ms")


@dataclass(frozen=True, slots=True)
class Shared:
    """What all processes of a simulation have in common."""

    seed: int
    loop: SimulatedLoop
    database: SimulatedDatabase
    faults: Faults
    outside: Outside
    _code: dict[int, Registry] = field(default_factory=dict)

    def code(self, version: int) -> Registry:
        """What is registered in a process with this version of the code; read once, as it is the same in each."""
        if version not in self._code:
            app = Holdfast("sqlite://", limits=_LIMITS)
            register(app, self.outside, version)
            register_company(app)
            register_chain(app, self.outside)
            register_graph(app, self.outside)
            register_family(app, self.outside)
            register_leased(app, self.outside)
            register_sieve(app, self.outside)
            self._code[version] = app.registry
        return self._code[version]


class Node:
    """One life of a process after the other, under one name. ``died`` is called with how, whenever it does."""

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
        """Of all lives."""
        self.clock = LoopClock(shared.loop)
        """The machine's."""
        self._estimate = LoopClock(shared.loop)
        """What it takes for the store's time: measured, and wrong by little."""
        self.config = self._settings()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def busy(self) -> bool:
        """Whether its worker has something, or keeps a place for it."""
        worker = self.opened.worker if self.opened is not None else None
        return self.alive and worker is not None and worker.occupied

    def task_of(self, instance: str, number: int) -> TaskRef | None:
        """The claim under which its worker runs the code of this run."""
        worker = self.opened.worker if self.opened is not None else None
        turns = () if worker is None else worker._table.snapshot().values()
        runs = ((turn.task, turn.claim.run) for turn in turns)
        return next((task for task, run in runs if (run.instance_id, run.number) == (instance, number)), None)

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
        """``process``: only if it is still that one."""
        dying = process or self.process
        if dying is None or not dying.alive:
            return
        dying.kill()
        if self.store is not None:
            self.store.hang_up()
        self._died(self, how)

    async def leave(self) -> None:
        """End in order, as a deploy does."""
        if self.opened is not None:
            await self.opened.close()

    def end(self) -> None:
        """Close what lives that were cut off have left in memory."""
        for opened in self._opened:
            if opened.worker is not None:
                opened.worker._cache.clear()

    def _boot(self) -> None:
        shared, life = self._shared, f"{self.name}.{self.lives}"
        runtime = Runtime(self.clock, SeededRandomness(mixed(shared.seed, life)))
        app = Holdfast("sqlite://", runtime=runtime, worker=self.config, limits=_LIMITS)
        app.registry = shared.code(self.version)
        longest = 1.5 * self.config.lease_ms / 1000
        self.store = NodeStore(
            life,
            shared.database,
            self._estimate,
            shared.faults,
            die=partial(self.kill, process=self.process),
            longest=longest,
        )
        timers = LoopTimers(self._estimate)
        store = cast("Store", self.store)
        self.opened = OpenApp(app, store, timers, InlineSpawn(), HostileHub(life, shared.faults))
        self._opened.append(self.opened)
        if self.works:
            self.opened.start_worker(self.config)

    def _settings(self) -> WorkerConfig:
        faults, draw = self._shared.faults, self._shared.faults.draw(f"settings.{self.name}")
        lease, poll, concurrency = draw.choice(_LEASES), draw.choice([0.4, 1.0]), draw.choice([3, 100])
        skew = draw.uniform(-_MOST_SKEW, _MOST_SKEW)
        if faults.has(Kind.SHORT_LEASE, self.name):
            lease = _SHORT_LEASE
        if faults.has(Kind.SKEW, self.name):
            self.clock.wrong_by = timedelta(seconds=skew)
            self._estimate.wrong_by = timedelta(seconds=skew * _MEASURED)
        return WorkerConfig(
            lease=lease,
            poll=poll,
            drain=0.5,
            concurrency=1 if faults.has(Kind.ONE_AT_A_TIME, self.name) else concurrency,
            cache=0 if faults.has(Kind.NO_CACHE, self.name) else 100,
        )
