"""Store calls of a process, which wait until the schedule executes them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.errors import StoreUnavailableError
from holdfast.testing.simulation.faults import CallFault
from holdfast.testing.simulation.loop import Process
from holdfast.testing.simulation.node_store import NodeStore


class CallEnd(StrEnum):
    """The ways in which a call can continue."""

    NORMAL = "normal"
    REFUSED = "refused"
    """The call is not executed, and the caller receives an error."""
    LOST_REPLY = "lost reply"
    """The call is executed, and the caller receives an error."""
    CRASH_AFTER = "crash after"
    """The process dies after the execution, before it receives the reply."""
    STALL_AFTER = "stall after"
    """The process stops after the execution, before it receives the reply, for longer than its lease."""
    SLOW_REQUEST = "slow request"
    """The request arrives later; time moves on meanwhile."""
    SLOW_REPLY = "slow reply"
    """The reply arrives later; time moves on meanwhile."""


class ProcessFault(StrEnum):
    """Faults of a process between two calls."""

    CRASH = "crash"
    STALL = "stall"
    """The process stops for longer than its lease, and then continues."""


FaultKind = CallEnd | ProcessFault
ALL_FAULTS: tuple[FaultKind, ...] = (*(end for end in CallEnd if end is not CallEnd.NORMAL), *ProcessFault)


class CallId(NamedTuple):
    """A call of a process: the life of the process, and the number of the call in it."""

    life: str
    number: int
    operation: str

    def __str__(self) -> str:
        return f"{self.life} {self.operation}#{self.number}"


@dataclass(slots=True, eq=False)
class Call:
    id: CallId
    process: Process
    permission: asyncio.Future[CallEnd]
    """Resolved when the call is executed."""
    release: asyncio.Future[None] | None = None
    """Resolved when a slow reply arrives. None: the reply is not held."""
    slow_since: int | None = None
    """The number of moves of time before the request or the reply became slow."""


@dataclass(slots=True)
class CallTable:
    """The calls of all processes that have not received their replies."""

    pending: dict[CallId, Call] = field(default_factory=dict)
    """Calls that were not executed yet, in the order in which they were made."""
    held: dict[CallId, Call] = field(default_factory=dict)
    """Executed calls whose replies are slow."""
    histories: dict[str, bytes] = field(default_factory=dict)
    """For each life of a process: the hash of everything that it received, which determines its state."""
    late_notifications: bool = False
    """True: the schedule determines when a notification arrives."""
    notifications: dict[str, ExploredStore] = field(default_factory=dict)
    """Late notifications that have not arrived, by the life of the process."""
    made: int = 0
    """The number of calls that were made."""
    moves: int = 0
    """The number of moves of time."""
    _last: dict[str, str] = field(default_factory=dict)

    def received(self, life: str, what: str) -> None:
        """Add to the history of a process.

        The same reply twice in a row, at the same time, leaves a process in the same state: an empty claim after an
        empty claim. It is added once.
        """
        if self._last.get(life) != what:
            self._last[life] = what
            self.histories[life] = hashlib.blake2b(
                self.histories.get(life, b"") + what.encode(), digest_size=16
            ).digest()


class ExploredStore(NodeStore):
    """The store of a process. The schedule determines when its calls are executed."""

    table: CallTable
    process: Process

    def _on_notification(self) -> None:
        if self.table.late_notifications:
            self.table.notifications[self._name] = self
        else:
            self.notify()

    def notify(self) -> None:
        """Let the process notice that another one has written."""
        self.table.received(self._name, f"{self._loop_time()} notification")
        super()._on_notification()

    async def _send(
        self, operation: str, request: Callable[[CallFault | None], Awaitable[Any]], args: tuple[Any, ...] = ()
    ) -> Any:
        self._calls["all"] += 1
        id_ = CallId(self._name, self._calls["all"], operation)
        call = Call(id_, self.process, asyncio.get_running_loop().create_future())
        self.table.pending[id_] = call
        self.table.made += 1
        try:
            end = await call.permission
        except asyncio.CancelledError:
            self.table.pending.pop(id_, None)
            raise
        try:
            answer = await self._finish(end, call, request, args)
        except Exception as error:
            self.table.received(self._name, f"{self._loop_time()} {operation} {error!r}")
            raise
        self.table.received(self._name, f"{self._loop_time()} {operation} {answer!r}")
        return answer

    async def _finish(
        self,
        end: CallEnd,
        call: Call,
        request: Callable[[CallFault | None], Awaitable[Any]],
        args: tuple[Any, ...],
    ) -> Any:
        operation = call.id.operation
        if end is CallEnd.REFUSED:
            raise StoreUnavailableError(f"explored: {operation} was refused")
        answer = await request(CallFault.CRASH_AFTER if end is CallEnd.CRASH_AFTER else None)
        if end is CallEnd.STALL_AFTER or end is CallEnd.SLOW_REPLY:
            call.release = asyncio.get_running_loop().create_future()
            call.slow_since = self.table.moves
            self.table.held[call.id] = call
            if end is CallEnd.STALL_AFTER:
                self.process.stopped = True
            await call.release
        if end is CallEnd.LOST_REPLY:
            self.keep_receipt(operation, args, answer)
            raise StoreUnavailableError(f"explored: the reply of {operation} was lost")
        return answer

    def _loop_time(self) -> float:
        return round(self.clock.monotonic(), 6)
