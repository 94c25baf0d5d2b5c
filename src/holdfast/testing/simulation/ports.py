"""The ports of a simulated process: its clock, the execution of its steps, and unreliable notifications."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core import eager_tasks
from holdfast.kernel.notify import Hub
from holdfast.ports import WatchCallback
from holdfast.store.protocol import Signal
from holdfast.testing.simulation.faults import NOTIFICATION_FAULTS, Faults, NotificationFault

START = datetime(2030, 1, 1, tzinfo=UTC)
"""The time at the start of a simulation."""
_LATE_SECONDS = 0.4


class LoopClock:
    """A machine's clock: the time of the simulated loop plus an error."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.error = timedelta()
        self._loop = loop
        self._seconds = 0.0
        self._true = START
        """The time at ``_seconds``, cached because ``now`` is called many times while the loop's time stands still."""

    def now(self) -> datetime:
        seconds = self._loop.time()
        if seconds != self._seconds:
            self._seconds, self._true = seconds, START + timedelta(microseconds=round(seconds * 1e6))
        return self._true + self.error

    def monotonic(self) -> float:
        return self._loop.time()


class InlineSpawn:
    """Runs steps on the simulated loop. A plain function runs without interruption in its own callback."""

    def coroutine(self, coro: Any, context: contextvars.Context) -> asyncio.Future[Any] | None:
        return eager_tasks.start(coro, context, asyncio.get_running_loop())

    def watch(self, check: WatchCallback, seconds: float) -> None:
        """Do nothing: no step blocks in virtual time."""

    def function(self, call: Callable[[], Any], context: contextvars.Context) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        loop.call_soon(_run_into, future, call, context=context)
        return future

    def close(self) -> None: ...


def _run_into(future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
    with suppress(asyncio.InvalidStateError):  # the call was cancelled
        try:
            future.set_result(call())
        except Exception as error:  # an error of the step
            future.set_exception(error)


class UnreliableHub(Hub):
    """A hub that loses, repeats and delays notifications inside a process.

    Only notifications that the engine treats as hints are affected. The notification that a run has ended is reliable
    in the process that ended it.
    """

    def __init__(self, name: str, faults: Faults) -> None:
        super().__init__()
        self._name = name
        self._faults = faults
        self._count: Counter[str] = Counter()

    def work(self, due_at: int | None = None) -> None:
        self._notify("work", lambda: super(UnreliableHub, self).work(due_at))

    def outbox_written(self) -> None:
        self._notify("outbox_written", lambda: super(UnreliableHub, self).outbox_written())

    def signal(self, run: int, signal: Signal | None) -> None:
        if signal is None:
            super().signal(run, signal)
        else:
            self._notify("signal", lambda: super(UnreliableHub, self).signal(run, signal))

    def _notify(self, name: str, notify: Callable[[], None]) -> None:
        self._count[name] += 1
        kind = self._faults.at(NOTIFICATION_FAULTS, name, f"{self._name}.{name}#{self._count[name]}")
        if kind is NotificationFault.LATE:
            asyncio.get_running_loop().call_later(_LATE_SECONDS, notify)
        elif kind is not NotificationFault.LOST:
            notify()
            if kind is NotificationFault.TWICE:
                notify()
