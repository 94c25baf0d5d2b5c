"""The store of one simulated process: the shared database behind a slow and unreliable connection.

A failed call behaves as the store protocol says. After an error of ``commit`` or ``advance`` it is unknown whether the
call was written; if the caller repeats it, it receives the answer of the first call (a store keeps receipts for this).
Any other failed call may or may not have been executed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from holdfast.errors import StoreBusyError, StoreError, StoreFullError, StoreUnavailableError
from holdfast.store.protocol import Commit, Committed, Failovers, LiveTransaction
from holdfast.store.sqlite.live import Live
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.faults import (
    CALL_FAULTS,
    NOTIFICATION_FAULTS,
    UNREACHABLE,
    CallFault,
    Faults,
    NotificationFault,
)
from holdfast.testing.simulation.operation_text import operation_name
from holdfast.testing.simulation.ports import LoopClock
from holdfast.testing.simulation.streams import chance

_LATENCY = 0.003
_REQUEST_TIMEOUT = 0.5
"""Maximum time in seconds until the caller of a lost request receives an error."""
_MAX_WAIT = 0.6
"""Default maximum time in seconds of ``wait_for_change``."""
_WITH_RECEIPT = frozenset({"commit", "advance"})
_ERRORS: dict[CallFault, type[StoreError]] = {
    CallFault.REFUSED: StoreUnavailableError,
    CallFault.BUSY: StoreBusyError,
    CallFault.FULL: StoreFullError,
}


class RemoteTransaction:
    """The interface of a process to its live transaction. A lost connection ends the transaction.

    ``run_statement`` sends a statement to the database, under a name.
    """

    dialect = "sqlite"

    def __init__(
        self,
        database: SimulatedDatabase,
        run_statement: Callable[[str, Callable[[], Coroutine[Any, Any, Any]]], Awaitable[Any]],
    ) -> None:
        self._database = database
        self._run_statement = run_statement
        self._live: Live | None = None
        self._disconnected = False

    def opened(self, live: Live) -> None:
        self._live = live
        if self._disconnected:
            self._database.roll_back(live)

    def disconnect(self) -> None:
        """Roll the transaction back, unless it has ended."""
        self._disconnected = True
        if self._live is not None and self._live._end_result is None:
            self._database.roll_back(self._live)

    def with_live(self, commit: Commit) -> Commit:
        """The commit with the database's transaction in place of this object."""
        return replace(commit, observed=replace(commit.observed, transaction=self._live))

    async def execute(self, sql: str, args: tuple[Any, ...]) -> int:
        return cast("int", await self._statement("execute", lambda live: live.execute(sql, args)))

    async def fetch(self, sql: str, args: tuple[Any, ...]) -> Sequence[Mapping[str, Any]]:
        rows = await self._statement("fetch", lambda live: live.fetch(sql, args))
        return cast("Sequence[Mapping[str, Any]]", rows)

    async def rollback(self) -> None:
        self.disconnect()

    async def _statement(self, name: str, statement: Callable[[Live], Coroutine[Any, Any, Any]]) -> Any:
        live = self._live
        if live is None:
            raise RuntimeError("the transaction is not open")
        try:
            return await self._run_statement(name, lambda: statement(live))
        except StoreUnavailableError:
            self.disconnect()
            raise


class NodeStore:
    """The store of one process.

    ``kill`` kills the process; ``max_delay`` is the maximum delay of a call in seconds; ``max_wait`` is the maximum
    time of ``wait_for_change`` in seconds.
    """

    def __init__(
        self,
        name: str,
        database: SimulatedDatabase,
        clock: LoopClock,
        faults: Faults,
        *,
        kill: Callable[[str], None],
        max_delay: float,
        max_wait: float = _MAX_WAIT,
    ) -> None:
        self.clock = clock
        self.failovers = Failovers()
        self.writers = 1
        self.unreachable = False
        """True while this process cannot reach the database."""
        self._name = name
        self._database = database
        self._faults = faults
        self._kill = kill
        self._max_delay = max_delay
        self._max_wait = max_wait
        self._calls: Counter[str] = Counter()
        self._receipts: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self._transactions: list[RemoteTransaction] = []
        self._version = 0
        self._missed = False
        self._changed = asyncio.Event()
        database.listeners[name] = self._on_notification

    def __getattr__(self, operation: str) -> Any:
        if not hasattr(self._database.store, operation):
            raise AttributeError(operation)
        return partial(self._call, operation)

    async def close(self) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Close all connections of the process."""
        self._database.listeners.pop(self._name, None)
        for transaction in self._transactions:
            transaction.disconnect()
        self._transactions.clear()

    async def wait_for_change(self, since: int | None, *, streams: bool = False) -> int:  # noqa: ARG002  (any write)
        """Wait for a notification of the database. A lost notification takes effect when the wait times out."""
        if since == self._version:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), self._max_wait)
            except TimeoutError:
                self._version += self._missed
                self._missed = False
        return self._version

    def _on_notification(self) -> None:
        self._calls["notification"] += 1
        place = f"{self._name}.notification#{self._calls['notification']}"
        kind = self._faults.at(NOTIFICATION_FAULTS, "notification", place)
        if kind is NotificationFault.LOST:
            self._missed = True
        elif kind is NotificationFault.LATE:
            asyncio.get_running_loop().call_later(chance(self._faults.seed, f"late.{place}"), self._publish_change)
        else:
            self._publish_change()

    def _publish_change(self) -> None:
        self._version += 1
        self._changed.set()

    async def begin(self) -> LiveTransaction:
        transaction = RemoteTransaction(self._database, self._run_statement)
        self._transactions.append(transaction)
        try:
            await self._call("begin", transaction.opened)
        except BaseException:
            transaction.disconnect()  # the database may have opened it, or may open it later
            raise
        return transaction

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        transaction = commits[0].observed.transaction
        if not isinstance(transaction, RemoteTransaction):
            return cast("list[Committed]", await self._call("commit", commits))
        try:
            carried = [transaction.with_live(commit) for commit in commits]
            return cast("list[Committed]", await self._call("commit", carried))
        finally:
            transaction.disconnect()  # a commit ends the transaction, also if it fails

    async def _run_statement(self, operation: str, statement: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def request(kind: CallFault | None) -> Any:
            answer = await asyncio.shield(self._database.run_statement(statement()))
            if kind is CallFault.CRASH_AFTER:
                await self._crash(f"after its {operation} was done")
            return answer

        return await self._send(operation, request)

    async def _call(self, operation: str, *args: Any, **options: Any) -> Any:
        name = operation_name(operation, args)
        return await self._send(name, lambda kind: self._request(operation, args, options, kind), args)

    async def _send(
        self, operation: str, request: Callable[[CallFault | None], Awaitable[Any]], args: tuple[Any, ...] = ()
    ) -> Any:
        """Send a request to the database with the latency and the fault that the seed has for this call."""
        self._calls[operation] += 1
        place = f"{self._name}.{operation}#{self._calls[operation]}"
        kind = self._faults.at(CALL_FAULTS, operation, place)
        slowness = chance(self._faults.seed, f"late.{place}")
        await asyncio.sleep(_LATENCY * slowness)
        if kind is CallFault.LATE_REQUEST:
            await asyncio.sleep(self._max_delay * slowness)
        if self.unreachable:
            self._faults.counts[UNREACHABLE, operation] += 1
        if kind is CallFault.LOST_REQUEST or self.unreachable:
            await asyncio.sleep(_REQUEST_TIMEOUT * slowness)
            raise StoreUnavailableError(f"simulated: {operation} did not arrive")
        if kind is not None and kind in _ERRORS:
            raise _ERRORS[kind](f"simulated: {operation} was refused")
        if kind is CallFault.CRASH_BEFORE:
            await self._crash(f"before its {operation} was sent")
        answer = await request(kind)
        if kind is CallFault.LATE_ANSWER:
            await asyncio.sleep(self._max_delay * slowness)
        if kind is CallFault.AMBIGUOUS:
            self.keep_receipt(operation, args, answer)
            raise StoreUnavailableError(f"simulated: the connection was lost after {operation} was executed")
        return answer

    def keep_receipt(self, operation: str, args: tuple[Any, ...], answer: Any) -> None:
        """Keep the answer of a call whose caller receives an error, for a repetition of the call."""
        if operation in _WITH_RECEIPT:
            self._receipts[_receipt_key(args)] = args, answer

    async def _request(
        self, operation: str, args: tuple[Any, ...], options: dict[str, Any], kind: CallFault | None
    ) -> Any:
        if operation in _WITH_RECEIPT:
            receipt = self._receipts.pop(_receipt_key(args), None)
            if receipt is not None:
                return receipt[1]

        def on_done() -> None:
            if kind is CallFault.CRASH_AFTER:
                self._kill(f"after its {operation_name(operation, args)} was written")

        return await asyncio.shield(self._database.call(self._name, operation, args, options, on_done))

    async def _crash(self, how: str) -> None:
        self._kill(how)
        await asyncio.get_running_loop().create_future()


def _receipt_key(args: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(id(commit) for commit in args[0])
