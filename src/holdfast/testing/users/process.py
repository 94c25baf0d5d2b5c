"""A process of a simulated user: the app, with a worker or as a client only, one life after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, cast
from uuid import UUID

from holdfast.app import Holdfast, OpenApp
from holdfast.client import Client
from holdfast.core.model import to_ms
from holdfast.ports import Alarm, Runtime
from holdfast.runner.config import WorkerConfig
from holdfast.store.protocol import Store
from holdfast.testing.harness import copy_of
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.loop import Process
from holdfast.testing.simulation.node_store import NodeStore
from holdfast.testing.simulation.ports import InlineSpawn, LoopClock
from holdfast.testing.simulation.streams import mixed
from holdfast.testing.users.calls import Calls, Plain
from holdfast.testing.users.loop import UsersLoop
from holdfast.testing.virtual import SeededRandomness

MOMENT = 5.0
"""How often somebody looks for news without being told: here everybody is told of everything."""


class UserProcess:
    """``died`` is called with how, whenever it does."""

    def __init__(
        self,
        name: str,
        app: Holdfast,
        loop: UsersLoop,
        database: SimulatedDatabase,
        faults: Faults,
        *,
        config: WorkerConfig | None = None,
        calls: Calls | None = None,
        died: Callable[[UserProcess, str], None] = lambda _process, _how: None,
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
        """Whether its worker has something at hand."""
        worker = self._lives[-1].worker if self._lives else None
        able = self.process is not None and self.process.alive and not self.process.stopped
        return able and worker is not None and bool(worker._reserved or worker._turns or worker._memories)

    async def do(self, asking: Any) -> Any:
        """Something in this process, by somebody in another."""
        if self.process is None:
            raise RuntimeError(f"{self.name} has not booted")
        return await self._loop.spawn(self.process, asking)

    def wake(self) -> None:
        """Let its worker look when something is due: what it set for that was before time was skipped."""
        if self.process is not None and self.process.alive:
            self.process.context().run(self._lives[-1].hub.work)

    def boot(self) -> None:
        self.lives += 1
        self.process = self._loop.start_process(self.name)
        self.process.context().run(self._boot)

    def kill(self, how: str, process: Process | None = None) -> None:
        """``process``: only if it is still that one."""
        dying = process or self.process
        if dying is None or not dying.alive or self._calls is None or self._calls.spare_worker():
            return
        self._calls.deaths += 1
        dying.kill()
        if self._store is not None:
            self._store.hang_up()
        self._died(self, how)

    def end(self) -> None:
        """Close what lives that were cut off have left in memory."""
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
            die=partial(self.kill, process=self.process),
            longest=0,
            moment=MOMENT,
        )
        app = copy_of(self._app, Runtime(clock, _Randomness(mixed(0, f"{self.name}.{self.lives}"))))
        opened = OpenApp(app, cast("Store", store), _Timers(self._loop, clock), _Spawn())
        self._lives.append(opened)
        if self._config is not None and self._calls is not None:
            opened.ports.function = self._calls.function
            opened.start_worker(self._config)


class _Randomness(SeededRandomness):
    """Processes have ids of their own, and runs draw the same numbers in all of them, and in all seeds."""

    def uuid4(self) -> UUID:
        return UUID(bytes=super().bytes(16), version=4)

    def bytes(self, n: int) -> bytes:
        return b"\0" * n


class _Spawn(InlineSpawn):
    """Plain functions take their time before they run whole."""

    def function(self, call: Callable[[], Any], context: Context) -> asyncio.Future[Any]:
        async def late() -> Any:
            function = call.func if isinstance(call, partial) else call
            if isinstance(function, Plain):
                await asyncio.sleep(function.delay())
            return call()

        return asyncio.get_running_loop().create_task(late(), context=context)


class _Timers:
    """At the very moment: the clock of a simulation is not set."""

    def __init__(self, loop: UsersLoop, clock: LoopClock) -> None:
        self._loop = loop
        self._clock = clock

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Alarm:
        return self._loop.call_later(max(0, when_ms - to_ms(self._clock.now())) / 1000, callback)
