"""A process of the simulated system: the app with a worker, or as a client only. A killed process boots again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, cast
from uuid import UUID

from holdfast.app import Holdfast
from holdfast.client import Client
from holdfast.core.model import to_ms
from holdfast.open_app import OpenApp
from holdfast.ports import Alarm, Runtime
from holdfast.runner.config import WorkerConfig
from holdfast.store.protocol import Store
from holdfast.testing.driven_engine import copy_of
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.loop import Process
from holdfast.testing.simulation.node_store import NodeStore
from holdfast.testing.simulation.ports import InlineSpawn, LoopClock
from holdfast.testing.simulation.scenario_loop import ScenarioLoop
from holdfast.testing.simulation.step_calls import PlainFunction, StepCalls
from holdfast.testing.simulation.streams import mixed
from holdfast.testing.virtual import SeededRandomness

WORKER_POLL_SECONDS = 5.0
"""Polling interval. Long, because every process of the simulation receives all notifications."""


class AppProcess:
    """A process with the app. ``died`` is called with this process and the circumstances when the process is killed."""

    def __init__(
        self,
        name: str,
        app: Holdfast,
        loop: ScenarioLoop,
        database: SimulatedDatabase,
        faults: Faults,
        *,
        config: WorkerConfig | None = None,
        calls: StepCalls | None = None,
        died: Callable[[AppProcess, str], None] = lambda _process, _how: None,
    ) -> None:
        self.name = name
        self.lives = 0
        self._app = app
        self._loop = loop
        self._database = database
        self._faults = faults
        self._config = config
        self._calls = calls
        self._died = died
        self._lives: list[OpenApp] = []
        self._store: NodeStore | None = None
        self.process: Process | None = None

    @property
    def client(self) -> Client:
        return self._lives[-1].client

    @property
    def busy(self) -> bool:
        """True if the process is running and its worker has turns, reserved slots or graph runs in memory."""
        worker = self._lives[-1].worker if self._lives else None
        able = self.process is not None and self.process.alive and not self.process.stopped
        return able and worker is not None and worker.occupied

    async def do(self, coroutine: Any) -> Any:
        """Run a coroutine in this process, for another one."""
        if self.process is None:
            raise RuntimeError(f"{self.name} has not booted")
        return await self._loop.spawn(self.process, coroutine)

    def wake(self) -> None:
        """Let the worker check when the next task is due: its timer was set before time was skipped."""
        if self.process is not None and self.process.alive:
            self.process.context().run(self._lives[-1].hub.work)

    def boot(self) -> None:
        self.lives += 1
        self.process = self._loop.start_process(self.name)
        self.process.context().run(self._boot)

    def kill(self, how: str, process: Process | None = None) -> None:
        """Kill the current process, or ``process`` if it is still alive."""
        dying = process or self.process
        if dying is None or not dying.alive or self._calls is None or self._calls.spare_worker():
            return
        self._calls.deaths += 1
        dying.kill()
        if self._store is not None:
            self._store.disconnect()
        self._died(self, how)

    def end(self) -> None:
        """Close the cached runs that killed processes left in memory."""
        for opened in self._lives:
            if opened.worker is not None:
                opened.worker._cache.clear()

    def _boot(self) -> None:
        clock = LoopClock(self._loop)
        self._store = store = NodeStore(
            f"{self.name}.{self.lives}",
            self._database,
            clock,
            self._faults,
            kill=partial(self.kill, process=self.process),
            max_delay=0,
            max_wait=WORKER_POLL_SECONDS,
        )
        app = copy_of(self._app, Runtime(clock, _Randomness(mixed(0, f"{self.name}.{self.lives}"))))
        # Nonces are random, and the simulation reads the rows itself.
        opened = OpenApp(app, cast("Store", store), _Timers(self._loop, clock), _Spawn(), plain=True)
        self._lives.append(opened)
        if self._config is not None and self._calls is not None:
            opened.ports.function = self._calls.function
            opened.start_worker(self._config)


class _Randomness(SeededRandomness):
    """Gives each process its own ids, and each run the same random numbers in all processes and seeds."""

    _has_root = False

    def uuid4(self) -> UUID:
        return UUID(bytes=super().bytes(16), version=4)

    def bytes(self, n: int) -> bytes:
        """The first bytes are the root of the seeds of all runs, equal everywhere; ids are made of later ones."""
        if self._has_root:
            return super().bytes(n)
        self._has_root = True
        return b"\0" * n


class _Spawn(InlineSpawn):
    """Delays plain functions, which then run without interruption."""

    def function(self, call: Callable[[], Any], context: Context) -> asyncio.Future[Any]:
        async def delayed() -> Any:
            function = call.func if isinstance(call, partial) else call
            if isinstance(function, PlainFunction):
                await asyncio.sleep(function.delay())
            return call()

        return asyncio.get_running_loop().create_task(delayed(), context=context)


class _Timers:
    """Timers without a check of the clock: the clock of a simulation is never adjusted."""

    def __init__(self, loop: ScenarioLoop, clock: LoopClock) -> None:
        self._loop = loop
        self._clock = clock

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Alarm:
        return self._loop.call_later(max(0, when_ms - to_ms(self._clock.now())) / 1000, callback)
