"""The harness: the real engine and the real SQL (SQLite in memory), driven by the test in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, Unpack, overload

from holdfast.client import Handle
from holdfast.core.durations import describe, to_ms
from holdfast.core.model import Status
from holdfast.core.model import to_ms as time_ms
from holdfast.errors import RunFailedError, WaitForEventTimeoutError
from holdfast.kernel.requests import StartOptions
from holdfast.kernel.startable import Startable
from holdfast.testing.driven_client import HarnessError
from holdfast.testing.driven_engine import DrivenEngine
from holdfast.testing.run_outline import RunOutline

R = TypeVar("R")
T = TypeVar("T")

Drive = Callable[["Harness", Handle[Any]], Awaitable[None]]

_MAX_ADVANCES = 10_000
_NO_EVENTS = (
    "h.run() sends no events: start the run with h.start(), send what it waits for with run.send_event(), and drive it "
    "with h.run_until_idle() and h.advance()"
)


class CrashMismatch(AssertionError):
    """A run whose worker was lost ended differently from the run without a crash."""


class Harness(DrivenEngine):
    """Runs an app's workflows in a test.

    Time moves and runs continue only when the test calls ``tick``, ``run_until_idle``, ``advance`` or ``run``.
    ``steps`` maps steps, chain steps, graph nodes and functions passed to ``ctx.do`` to fakes that are called in their
    place. ``store`` is called with the harness's clock and returns the empty store to run on; the default is SQLite in
    memory. ``real_timeout`` is the real time for which the harness waits for a step that works in a thread, a process
    or on a socket, before it raises ``HarnessError``.

    While the harness is open, the app itself uses the harness's store: ``app.start``, ``app.get`` and the app's HTTP
    API, also when routes of a web application call them. ``async with app:`` and ``app.lifespan`` open nothing.
    """

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


def _name(workflow: Any) -> str:
    return workflow if isinstance(workflow, str) else workflow.name
