"""The engine of a harness: an app on a store of its own, whose worker runs only while the test drives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, Self, cast

from holdfast.app import Holdfast
from holdfast.core.durations import Duration, to_ms
from holdfast.core.model import from_ms
from holdfast.core.model import to_ms as time_ms
from holdfast.open_app import OpenApp
from holdfast.ports import Clock, Runtime
from holdfast.runner.worker import Worker
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.counting_store import CountingStore
from holdfast.testing.driven_client import DriveCounter, DrivenClient
from holdfast.testing.due_times import next_due
from holdfast.testing.fakes import Fakes, Steps
from holdfast.testing.settling import settle
from holdfast.testing.step_activity import TrackingSpawn
from holdfast.testing.virtual import SeededRandomness, VirtualClock, VirtualTimers, later

MakeStore = Callable[[Clock], Store]

_MAX_PASSES = 100_000


class DrivenEngine:
    """Opens the app, its store and its worker. Time passes and work is done only in calls of the test."""

    def __init__(
        self,
        app: Holdfast,
        *,
        seed: int = 0,
        steps: Steps | None = None,
        store: MakeStore | None = None,
        real_timeout: Duration = "30 seconds",
    ) -> None:
        self._app = app
        self._steps = steps or {}
        self._fakes = Fakes(self._steps)
        self._drives = DriveCounter()
        self._real_seconds = to_ms(real_timeout, "real_timeout") / 1000
        self._seed = seed
        self._clock = VirtualClock()
        self._timers = VirtualTimers(self._clock)
        self._spawn = TrackingSpawn()
        self._make_store = store or _sqlite_in_memory
        self._store = CountingStore(self._make_store(self._clock))
        self._own_app: Holdfast = copy_of(app, Runtime(self._clock, SeededRandomness(seed)))
        self._open: OpenApp | None = None
        self._worker: Worker | None = None
        self._leases_kept_at: datetime | None = None

    async def __aenter__(self) -> Self:
        self._own_app.registry.check()
        await self._store.open()
        self._spawn.track_steps(asyncio.get_running_loop())
        self._open = OpenApp(self._own_app, cast("Store", self._store), self._timers, self._spawn, client=DrivenClient)
        self._open.ports.function = self._fakes.function
        cast("DrivenClient", self._open.client).drives = self._drives
        self._own_app._lifetime.opened = self._open
        self._app._lifetime.harnesses.append(self._open)
        await self._open.reconcile()
        self._worker = self._new_worker()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._drop_worker()
        await self._opened().stop_manual_worker()
        self._own_app._lifetime.opened = None
        self._app._lifetime.harnesses.remove(self._opened())
        self._spawn.close()
        await self._store.close()

    @property
    def app(self) -> Holdfast:
        """The app on the harness's store: ``h.app.list()``, ``h.app.get(...)``."""
        return self._own_app

    # --- time and work

    def now(self) -> datetime:
        return self._clock.now()

    async def tick(self) -> int:
        """Run the due tasks once; return the number of claimed tasks plus that of attempted outbound deliveries."""
        with self._drives.call():
            await self._keep_leases()
            claimed = await self._store.unless_disconnected(self._the_worker().take_up_schedules()) or 0
            claimed += await self._store.unless_disconnected(self._the_worker().claim_due(1000)) or 0
            await self._settle()
            if not self._store.dropped:
                claimed += await self._the_worker().deliver_due()
            return claimed

    async def _keep_leases(self) -> None:
        """Renew the worker's leases and free expired tasks. A lease can only expire when time has passed."""
        worker, now = self._the_worker(), self._clock.now()
        time_has_passed, self._leases_kept_at = now != self._leases_kept_at, now
        if time_has_passed or worker.busy:
            await worker.keep_leases()
        if time_has_passed:
            await worker.reap()

    async def run_until_idle(self) -> None:
        """Work until nothing is due now, and wait for steps that work in threads, processes or on sockets.

        The harness does not wait for steps that await something inside the event loop, such as an event or a queue:
        only the test, or a timeout of the virtual clock, can end such a wait.
        """
        for _ in range(_MAX_PASSES):
            before = self._store.commits  # a commit during the tick may make more tasks due
            if self._store.dropped:
                return
            claimed = await self.tick()
            if not claimed and self._the_worker().blocked() and self._store.commits == before:
                return
        raise RuntimeError("tasks become due again and again at the same time: a workflow never waits")

    async def advance(self, duration: Duration, *, run: bool = True) -> None:
        """Move the clock, stopping at every due time on the way. With ``run=False`` only the clock moves.

        At the end, finished runs that are older than their ``Retention`` are deleted.
        """
        target = later(self._clock.now(), to_ms(duration))
        if run:
            await self.run_until_idle()
            while (due := await self._next_due()) is not None and due <= time_ms(target):
                if self._store.dropped:
                    return
                self._clock.move_to(from_ms(due))
                self._timers.fire_due()
                await self._settle()
                await self.run_until_idle()
        self._clock.move_to(target)
        if run:
            self._timers.fire_due()
            await self._settle()
            await self.run_until_idle()
            if not self._store.dropped:
                await self._the_worker().prune()

    async def restart(self) -> None:
        """Drop the worker and its memory, and release its tasks. Runs continue with a replay."""
        await self._drop_worker()
        self._worker = self._new_worker()

    # --- the worker

    async def _settle(self) -> None:
        await settle(self._the_worker(), self._store, self._spawn, self._real_seconds)

    async def _next_due(self) -> int | None:
        return await next_due(self._own_app, self._store, self._timers)

    async def _drop_worker(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.stop(drain_ms=0)

    async def _lose_worker(self) -> None:
        """Abandon the worker, let its leases expire and start another worker, which takes over."""
        lease_ms = self._the_worker().longest_lease_ms
        self._the_worker().abandon()
        await asyncio.sleep(0)
        self._store.reconnect()
        self._worker = self._new_worker()
        await self.advance(lease_ms / 1000, run=False)

    def _new_worker(self) -> Worker:
        """Create a worker whose loops do not run. It is notified of events, pauses and ends as in an open app."""
        self._leases_kept_at = None
        worker = self._opened().new_worker(self._own_app.worker_config)
        worker.subscribe(_on_this_loop)
        return worker

    def _opened(self) -> OpenApp:
        if self._open is None:
            raise RuntimeError("use the harness inside `async with`")
        return self._open

    def _the_worker(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("use the harness inside `async with`")
        return self._worker


def _on_this_loop(listener: Callable[..., None]) -> Callable[..., None]:
    """Wrap a listener so that it runs on this loop when another loop calls it, such as Starlette's ``TestClient``."""
    loop = asyncio.get_running_loop()

    def call(*args: Any) -> None:
        if asyncio.get_running_loop() is loop:
            listener(*args)
        else:
            loop.call_soon_threadsafe(listener, *args)

    return call


def _sqlite_in_memory(clock: Clock) -> Store:
    return SqliteStore(None, clock=clock)


def copy_of(app: Holdfast, runtime: Runtime) -> Holdfast:
    """Return a new app with the same definitions on another runtime."""
    copy = Holdfast(
        "sqlite://", runtime=runtime, worker=app.worker_config, limits=app.limits, authorize=app.authorize,
        telemetry=app.telemetry,
    )  # fmt: skip
    copy.registry = app.registry
    copy.payloads = app.payloads
    copy.program = app.program
    return copy
