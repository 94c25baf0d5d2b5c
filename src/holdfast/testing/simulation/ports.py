"""The ports of a simulated process: its clock, how its steps run, and notifications that go astray."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.kernel.notify import Hub
from holdfast.ports import WatchCallback
from holdfast.store.protocol import Signal
from holdfast.testing.simulation.faults import OF_A_NOTIFICATION, Faults, Kind

_START = datetime(2030, 1, 1, tzinfo=UTC)
_LATE_SECONDS = 0.4


class LoopClock:
    """The time of the simulated loop, and what this machine's clock is wrong by."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wrong_by = timedelta()
        self._loop = loop
        self._seconds = 0.0
        self._true = _START
        """The right time then: it is asked for many times while none goes by."""

    def now(self) -> datetime:
        seconds = self._loop.time()
        if seconds != self._seconds:
            self._seconds, self._true = seconds, _START + timedelta(microseconds=round(seconds * 1e6))
        return self._true + self.wrong_by

    def monotonic(self) -> float:
        return self._loop.time()


class InlineSpawn:
    """Steps on the simulated loop; a plain function runs whole, in a turn of its own."""

    def coroutine(self, coro: Any, context: contextvars.Context) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_task(coro, context=context)

    def watch(self, check: WatchCallback, seconds: float) -> None:
        """Nothing blocks in virtual time."""

    def function(self, call: Callable[[], Any], context: contextvars.Context) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        loop.call_soon(_run_into, future, call, context=context)
        return future

    def close(self) -> None: ...


def _run_into(future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
    with suppress(asyncio.InvalidStateError):  # nobody waits any more
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001, RUF100  (it is the step's)
            future.set_exception(error)


class HostileHub(Hub):
    """Notifications inside a process that get lost, come twice, or late.

    Only those that the engine calls hints; that a run has ended is told by the process that ended it, always.
    """

    def __init__(self, name: str, faults: Faults) -> None:
        super().__init__()
        self._name = name
        self._faults = faults
        self._count: Counter[str] = Counter()

    def work(self, due_at: int | None = None) -> None:
        self._tell("work", lambda: super(HostileHub, self).work(due_at))

    def outbox_written(self) -> None:
        self._tell("outbox_written", lambda: super(HostileHub, self).outbox_written())

    def signal(self, run: int, signal: Signal | None) -> None:
        if signal is None:
            super().signal(run, signal)
        else:
            self._tell("signal", lambda: super(HostileHub, self).signal(run, signal))

    def _tell(self, what: str, tell: Callable[[], None]) -> None:
        self._count[what] += 1
        kind = self._faults.at(OF_A_NOTIFICATION, what, f"{self._name}.{what}#{self._count[what]}")
        if kind is Kind.NOTIFY_LATE:
            asyncio.get_running_loop().call_later(_LATE_SECONDS, tell)
        elif kind is not Kind.NOTIFY_LOST:
            tell()
            if kind is Kind.NOTIFY_TWICE:
                tell()
