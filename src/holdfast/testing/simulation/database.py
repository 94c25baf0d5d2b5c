"""The database of a simulation: the SQLite store in memory, as a simulated process that executes calls one at a time.

Promises that must hold at every moment are checked as operations are executed, by SQL triggers and by watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, cast

from holdfast.core.model import to_ms
from holdfast.store.protocol import Committed, DeleteInstance, Migrated, PruneRuns, Store
from holdfast.store.protocol.blobs import GarbageBlobs, KnownBlobs, ReadChunk
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.live import Live
from holdfast.testing.simulation.fence_watch import FenceWatch
from holdfast.testing.simulation.flow_watch import FlowWatch
from holdfast.testing.simulation.loop import Process, SimulatedLoop
from holdfast.testing.simulation.operation_text import operation_name, operation_text
from holdfast.testing.simulation.ports import LoopClock
from holdfast.testing.simulation.progress_watch import ProgressWatch
from holdfast.testing.simulation.row_triggers import create_triggers
from holdfast.testing.simulation.trace import Trace
from holdfast.testing.simulation.watch import Watch

_NOTIFYING = frozenset({"create", "send", "control", "commit", "advance", "release", "reap", "change_schedules"})
"""Operations after which other processes are notified."""
_BLOB_READS = (ReadChunk, KnownBlobs, GarbageBlobs)


def _passes_lock(operation: str, args: tuple[Any, ...]) -> bool:
    """True for reads, and for the commit of a live transaction, which has the write lock already."""
    if operation == "blobs":
        return isinstance(args[0], _BLOB_READS)
    return operation == "read" or (operation == "commit" and args[0][0].observed.transaction is not None)


class _Store(SqliteStore):
    """A store whose schema is created once for all seeds, because creating it takes longer than a short seed run."""

    _image: ClassVar[bytes | None] = None

    def _check(self, connection: Any, migrate: bool) -> Migrated:
        if _Store._image is not None:
            connection.deserialize("main", _Store._image)
        migrated = super()._check(connection, migrate)
        if _Store._image is None:
            _Store._image = connection.serialize("main")
        return migrated


class SimulatedDatabase:
    """The database that all simulated processes share. Subclasses add watches."""

    def __init__(self, loop: SimulatedLoop, trace: Trace) -> None:
        self.process: Process = loop.start_process("database")
        self.listeners: dict[str, Callable[[], None]] = {}
        """Callbacks by process name, called when another process has written."""
        self.timed_out_transactions = 0
        """The number of live transactions that ended because they had no statement for too long."""
        self._clock = LoopClock(loop)
        self._store = _Store(None, clock=self._clock, spawn_thread=None)
        self._loop = loop
        self._trace = trace
        self._write_lock = asyncio.Lock()
        self._caller = "database"
        """The process whose call is being executed."""
        self._adding_late = False
        """True while late results are added to a run that has ended."""
        self.deleting: str | None = None
        """The operation that deletes ended runs, while it is executed."""
        self.watches: list[Watch] = [
            FenceWatch(self.rows, self._now_ms),
            ProgressWatch(self.rows),
            FlowWatch(self.rows, self._now_ms),
        ]

    @property
    def store(self) -> Store:
        """The store itself, for queries that are not part of the simulation."""
        return self._store

    async def open(self) -> None:
        await self._store.open()
        create_triggers(
            self.connection,
            violate=self.violate,
            now_ms=self._now_ms,
            adding_late=lambda: self._adding_late,
            deleting=lambda: self.deleting is not None,
        )

    def close(self) -> None:
        """Close the connection, which ends the reference cycle between it and the functions that it calls."""
        writer = self._store._writer
        if writer is not None:
            writer.tx.connection.close(force=True)

    def rows(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """Query the current rows, at once."""
        return list(self.connection.execute(sql, args))

    def call(
        self,
        caller: str,
        operation: str,
        args: tuple[Any, ...],
        options: dict[str, Any],
        on_done: Callable[[], None] = lambda: None,
    ) -> asyncio.Task[Any]:
        """Execute an operation in the database's process, also if the caller dies. Call ``on_done`` after it.

        As in a database file, all other writers wait while a live transaction is open.
        """
        task = self._loop.spawn(self.process, self._execute(caller, operation, args, options, on_done))
        task.add_done_callback(_retrieve_exception, context=self.process.context())
        return task

    def run_statement(self, statement: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a statement of the live transaction that has the write lock."""
        task = self._loop.spawn(self.process, statement)
        task.add_done_callback(_retrieve_exception, context=self.process.context())
        return task

    def roll_back(self, live: Live) -> None:
        """End a live transaction as the database does when a connection is lost."""
        self.process.context().run(live.request_end)

    @property
    def connection(self) -> Any:
        writer = self._store._writer
        if writer is None:
            raise RuntimeError("the database is not open")
        return writer.tx.connection

    async def _execute(
        self, caller: str, operation: str, args: tuple[Any, ...], options: dict[str, Any], on_done: Callable[[], None]
    ) -> Any:
        if operation == "begin":
            await self._begin(caller, *args)
            on_done()
            return None
        if _passes_lock(operation, args):
            answer = await self._execute_checked(caller, operation, args, options)
            on_done()
        else:
            async with self._write_lock:
                answer = await self._execute_checked(caller, operation, args, options)
                on_done()
        if operation in _NOTIFYING and answer:
            for name, notify in list(self.listeners.items()):
                if name != caller:
                    notify()
        return answer

    async def _begin(self, caller: str, opened: Callable[[Live], None]) -> None:
        """Open a live transaction, which has the write lock until it ends."""
        await self._write_lock.acquire()
        live = cast("Live", await self._store.begin())
        end = live._end

        def end_and_unlock(result: Committed) -> None:
            if live._end_result is None:
                self._write_lock.release()
                self.timed_out_transactions += "had no statement" in result.message
            end(result)

        live._end = end_and_unlock  # type: ignore[method-assign]
        self._note(caller, "begins a transaction of a step")
        opened(live)

    async def _execute_checked(
        self, caller: str, operation: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Execute an operation, and report violations of promises by it."""
        self._caller = caller
        self._adding_late |= operation == "add_late_results"
        deletes = bool(args) and isinstance(args[0], PruneRuns | DeleteInstance)
        if deletes:  # a read may be executed meanwhile
            self.deleting = operation
        states = [watch.before(operation, args) for watch in self.watches]
        try:
            answer = await getattr(self._store, operation)(*args, **options)
        except Exception as error:
            self._note(caller, f"{operation_name(operation, args)}: {type(error).__name__}: {error}")
            raise
        finally:
            self._adding_late &= operation != "add_late_results"
            if deletes:
                self.deleting = None
        for watch, state in zip(self.watches, states, strict=True):
            for violation in watch.after(operation, args, answer, state):
                self.violate(violation, caller)
        self._note(caller, operation_text(operation, args, answer))
        return answer

    def violate(self, violation: str, caller: str | None = None) -> None:
        """Report a violation by ``caller``, or by the process whose call is being executed."""
        self._trace.violate(self._loop.time(), caller or self._caller, violation)

    @property
    def now_ms(self) -> int:
        """The database's time in milliseconds."""
        return self._now_ms()

    def _now_ms(self) -> int:
        return to_ms(self._clock.now())

    def _note(self, process: str, text: str) -> None:
        self._trace.add(self._loop.time(), process, text)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Mark the exception as retrieved: if the caller died, asyncio would report it as never retrieved."""
    if not task.cancelled():
        task.exception()
