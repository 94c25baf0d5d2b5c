"""The harness: the real engine and the real SQL (SQLite in memory), driven by the test in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar, Unpack, cast, overload

from holdfast.app import Holdfast
from holdfast.client import Handle
from holdfast.core.durations import Duration, describe, to_ms
from holdfast.core.model import Status, from_ms
from holdfast.core.model import to_ms as time_ms
from holdfast.errors import RunFailedError, WaitForEventTimeoutError
from holdfast.kernel.requests import StartOptions
from holdfast.kernel.startable import Startable
from holdfast.open_app import OpenApp
from holdfast.ports import Clock, Runtime
from holdfast.runner.worker import Worker
from holdfast.store.protocol import (
    Store,
)
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.counting_store import CountingStore
from holdfast.testing.driven_client import DriveCounter, DrivenClient, HarnessError
from holdfast.testing.due_times import next_due
from holdfast.testing.fakes import Fakes, Steps
from holdfast.testing.run_outline import RunOutline
from holdfast.testing.settling import settle
from holdfast.testing.step_activity import TrackingSpawn
from holdfast.testing.virtual import SeededRandomness, VirtualClock, VirtualTimers, later

R = TypeVar("R")
T = TypeVar("T")

Drive = Callable[["Harness", Handle[Any]], Awaitable[None]]
MakeStore = Callable[[Clock], Store]

_MAX_PASSES = 100_000
_MAX_ADVANCES = 10_000
_NO_EVENTS = (
    "h.run() sends no events: start the run with h.start(), send what it waits for with run.send_event(), and drive it "
    "with h.run_until_idle() and h.advance()"
)


class CrashMismatch(AssertionError):  # noqa: N818  (reads like the assertion it is)
    """A run whose worker was lost ended differently from the run without a crash."""


class Harness:
    """Runs an app's workflows in a test.

    Time moves and runs continue only when the test calls ``tick``, ``run_until_idle``, ``advance`` or ``run``.
    ``steps`` maps steps, chain steps, graph nodes and functions passed to ``ctx.do`` to fakes that are called in their
    place. ``store`` is called with the harness's clock and returns the empty store to run on; the default is SQLite in
    memory. ``real_timeout`` is the real time for which the harness waits for a step that works in a thread, a process
    or on a socket, before it raises ``HarnessError``.

    While the harness is open, the app itself uses the harness's store: ``app.start``, ``app.get`` and the app's HTTP
    API, also when routes of a web application call them. ``async with app:`` and ``app.lifespan`` open nothing.
    """

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

    async def __aenter__(self) -> Harness:
        self._own_app.registry.check()
        await self._store.open()
        self._spawn.track_steps(asyncio.get_running_loop())
        self._open = OpenApp(self._own_app, cast("Store", self._store), self._timers, self._spawn, client=DrivenClient)
        self._open.ports.function = self._fakes.function
        cast("DrivenClient", self._open.client).drives = self._drives
        self._own_app._lifetime.opened = self._open
        self._app._lifetime.harnesses.append(self._open)
        self._worker = self._new_worker()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._drop_worker()
        await self._opened().stop_manual_worker()
        self._own_app._lifetime.opened = None
        self._app._lifetime.harnesses.remove(self._opened())
        self._spawn.close()
        await self._store.close()

    # --- public methods

    @property
    def app(self) -> Holdfast:
        """The app on the harness's store: ``h.app.list()``, ``h.app.get(...)``."""
        return self._own_app

    @overload
    async def start(
        self, workflow: Startable[None, R], params: None = ..., **options: Unpack[StartOptions]
    ) -> Handle[R]: ...

    @overload
    async def start(self, workflow: Startable[T, R], params: T, **options: Unpack[StartOptions]) -> Handle[R]: ...

    @overload
    async def start(self, workflow: str, params: Any = ..., **options: Unpack[StartOptions]) -> Handle[Any]: ...

    async def start(
        self, workflow: Startable[Any, Any] | str, params: Any = None, **options: Unpack[StartOptions]
    ) -> Handle[Any]:
        """Start a run as ``app.start`` does. The run begins when the test next drives the harness."""
        return await self._own_app.start(workflow, params, **options)

    @overload
    async def run(self, workflow: Startable[None, R], params: None = ..., **options: Unpack[StartOptions]) -> R: ...

    @overload
    async def run(self, workflow: Startable[T, R], params: T, **options: Unpack[StartOptions]) -> R: ...

    @overload
    async def run(self, workflow: str, params: Any = ..., **options: Unpack[StartOptions]) -> Any: ...

    async def run(
        self, workflow: Startable[Any, Any] | str, params: Any = None, **options: Unpack[StartOptions]
    ) -> Any:
        """Start a run, advance virtual time until it has ended, and return its result.

        Raises what ``run.result()`` raises if the run fails, and ``HarnessError`` with the run's ``why`` if the run
        waits for an event or for ``resume``. Virtual time advances through timeouts, including that of
        ``wait_for_event``.
        """
        run = await self.start(workflow, params, **options)
        await self._advance_to_end(run)
        try:
            return await run.result()
        except RunFailedError as error:
            if error.error.name == WaitForEventTimeoutError.__name__:
                error.add_note(_NO_EVENTS)
            raise

    async def _advance_to_end(self, run: Handle[Any]) -> None:
        for _ in range(_MAX_ADVANCES):
            await self.run_until_idle()
            if Status((await run.status()).status).terminal:
                return
            if not await self._advance_to_next():
                raise HarnessError(
                    f"{run.pid} does not end without an event or a request: {(await run.describe()).why}. {_NO_EVENTS}"
                )
        why = (await run.describe()).why
        raise HarnessError(f"{run.pid} has not ended after {_MAX_ADVANCES:,} advances to the next due time: {why}")

    def now(self) -> datetime:
        return self._clock.now()

    async def tick(self) -> int:
        """Run what is due now, once; return the number of claimed tasks plus that of attempted outbound deliveries."""
        with self._drives.call():
            await self._keep_leases()
            claimed = await self._store.unless_cut(self._the_worker().claim_due(1000)) or 0
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

    @overload
    async def crash_everywhere(
        self, workflow: Startable[None, R], params: None = ..., *, drive: Drive | None = ...
    ) -> R: ...

    @overload
    async def crash_everywhere(self, workflow: Startable[T, R], params: T, *, drive: Drive | None = ...) -> R: ...

    @overload
    async def crash_everywhere(self, workflow: str, params: Any = ..., *, drive: Drive | None = ...) -> Any: ...

    async def crash_everywhere(
        self, workflow: Startable[Any, Any] | str, params: Any = None, *, drive: Drive | None = None
    ) -> Any:
        """Run the workflow once for each of its commits, losing the worker right after that commit.

        Checks that the result and the committed steps are the same every time, and returns the result. ``drive`` is
        called with the harness and the handle whenever the run waits, to send events and the like; it may be called
        several times in one run.

        Each takeover costs virtual time: another worker continues the run when the lost worker's lease has expired,
        after 30 seconds or the time of ``WorkerConfig(lease=)``. A workflow that compares times, or has shorter
        timeouts, may end differently for this reason alone.
        """
        lease_ms = to_ms(self._own_app.worker_config.lease)
        expected, commits = await self._run_with_crash(workflow, params, None, drive)
        for n in self._crash_points(commits):
            actual, _ = await self._run_with_crash(workflow, params, n, drive)
            if actual != expected:
                raise CrashMismatch(
                    f"after losing the worker right after commit {n} of {commits}:\n  {tuple(actual)}\n"
                    f"without a crash:\n  {tuple(expected)}\n"
                    f"The takeover took {describe(lease_ms)} of virtual time, the lease of the lost worker"
                )
        if expected.status != Status.COMPLETE:
            raise CrashMismatch(f"the run did not complete but is {expected.status}: {expected.error}")
        return self._own_app.registry.get(_name(workflow)).decode_output(expected.output)

    def _crash_points(self, commits: int) -> Iterable[int]:
        """Numbers of the commits after which ``crash_everywhere`` loses the worker."""
        return range(1, commits + 1)

    # --- driving

    async def _settle(self) -> None:
        await settle(self._the_worker(), self._store, self._spawn, self._real_seconds)

    async def _next_due(self) -> int | None:
        return await next_due(self._own_app, self._store, self._timers)

    async def _drop_worker(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.stop(drain_ms=0)

    async def _run_with_crash(
        self, workflow: Startable[Any, Any] | str, params: Any, crash_after: int | None, drive: Drive | None
    ) -> tuple[RunOutline, int]:
        async with Harness(
            self._app, seed=self._seed, steps=self._steps, store=self._make_store, real_timeout=self._real_seconds
        ) as h:
            run = await h.start(workflow, params, id="crash-everywhere")
            h._store.drop_after = crash_after
            await h._run_to_end(run, drive)
            return await RunOutline.of(run), h._store.commits

    async def _run_to_end(self, run: Handle[Any], drive: Drive | None) -> None:
        while not Status((await run.status()).status).terminal:
            await self.run_until_idle()
            if self._store.dropped:
                await self._lose_worker()
                continue
            if Status((await run.status()).status).terminal:
                return
            before = self._store.commits
            if drive is not None:
                await drive(self, run)
                await self.run_until_idle()
            if Status((await run.status()).status).terminal:
                return
            if self._store.commits != before or self._store.dropped:
                continue
            if not await self._advance_to_next():
                raise CrashMismatch(f"the run waits for something that never happens: {(await run.describe()).why}")

    async def _advance_to_next(self) -> bool:
        """Move the clock to the next due time; return False if nothing is due any more."""
        due = await self._next_due()
        if due is None:
            return False
        await self.advance((due - time_ms(self._clock.now())) / 1000)
        return True

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
    copy.program = app.program
    return copy


def _name(workflow: Any) -> str:
    return workflow if isinstance(workflow, str) else workflow.name
