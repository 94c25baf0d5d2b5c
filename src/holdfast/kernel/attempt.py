"""The attempt that user code is running in: where its log lines and its transaction go.

A step function finds its attempt through a context variable, which follows it into tasks and into its thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from holdfast.errors import InputError
from holdfast.kernel.startable import Startable
from holdfast.store.protocol import LiveTransaction, Log, NewEvent, NewRun, RunRecord, Statement

if TYPE_CHECKING:
    from holdfast.kernel.driver import Call
    from holdfast.kernel.logger import StepLogger

T = TypeVar("T")


class Beat(NamedTuple):
    """A heartbeat of an attempt: when it was, and the progress so far as JSON."""

    at: int
    progress: bytes | None


@dataclass(slots=True, eq=False)
class StepEngine:
    """What running steps can reach of the engine."""

    log: StepLogger
    now_ms: Callable[[], int]
    heartbeat_limit: int


@dataclass(slots=True, eq=False)
class Attempt:
    """One running attempt of a step."""

    key: str
    number: int
    run: RunRecord
    call: Call
    started_at: int
    engine: StepEngine
    logs: Sequence[Log] = ()
    flushed: int = 0
    """How many of the lines are stored already."""
    heartbeat: Beat | None = None
    """The last one."""

    @property
    def pid(self) -> str:
        return self.run.pid

    def log(self, line: Log) -> None:
        if isinstance(self.logs, list):
            self.logs.append(line)
        else:
            self.logs = [line]  # most attempts never get here


NO_VALUES: Mapping[str, Any] = MappingProxyType({})

current_attempt: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)


class Outgoing(NamedTuple):
    """How what a step sends and starts gets its form."""

    new_run: Callable[..., NewRun]
    new_event: Callable[..., NewEvent]
    """Takes the pid it goes to; the run of the step is its sender."""


class _Outgoing:
    """What a step's transaction sends and starts."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._new_run, self._new_event = outgoing
        self.starts: list[NewRun] = []
        self.sends: list[NewEvent] = []

    def send(self, pid: str, topic: str, payload: Any = None) -> None:
        """Send an event to another run (``workflow/instance_id``) with the step."""
        self.sends.append(self._new_event(pid, topic, payload))

    @overload
    def start(self, workflow: Startable[None, Any], params: None = ..., *, id: str | None = ...) -> str: ...

    @overload
    def start(self, workflow: Startable[T, Any], params: T, *, id: str | None = ...) -> str: ...

    @overload
    def start(self, workflow: str, params: Any = ..., *, id: str | None = ...) -> str: ...

    def start(self, workflow: Startable[Any, Any] | str, params: Any = None, *, id: str | None = None) -> str:
        """Start a run with the step and return its pid. An id that exists already is left as it is."""
        run = self._new_run(workflow, params, id=id)
        self.starts.append(run)
        return f"{run.workflow}/{run.instance_id}"


class StepTx(_Outgoing):
    """The transaction of a step: what is added here commits with the step's result, or not at all.

    Statements are buffered while the function runs and executed after it returned, in the order they were added;
    they run once, not on replay, and are dropped when the attempt fails. A step that has to *read* does so in the
    ordinary way, before.

    Example::

        @app.step
        async def reserve(tx: StepTx, item: str) -> str:
            tx.execute("INSERT INTO reservation (item) VALUES (?)", item)
            return item
    """

    def __init__(self, outgoing: Outgoing) -> None:
        super().__init__(outgoing)
        self.statements: list[Statement] = []

    def execute(self, sql: str, *args: Any) -> None:
        """Run a statement with the step, in the database's own placeholder style (``?`` or ``$1``)."""
        self.statements.append(Statement(_checked(sql), args))


class Transaction(_Outgoing):
    """An open transaction for an async step that has to read before it writes.

    The step's result is recorded in it as it commits, so both are there exactly once, also after a crash in the very
    moment. It is rolled back when the attempt fails, times out or lost its lease. Keep it short: on SQLite all other
    writers of the file wait for it, and so does whatever the step itself asks of the app.

    Example::

        @app.step
        async def reserve(tx: Transaction, item: str) -> int:
            [row] = await tx.fetch("SELECT left FROM stock WHERE item = ?", item)
            await tx.execute("UPDATE stock SET left = left - 1 WHERE item = ?", item)
            return row["left"] - 1
    """

    def __init__(self, live: LiveTransaction, outgoing: Outgoing) -> None:
        super().__init__(outgoing)
        self._live = live

    async def execute(self, sql: str, *args: Any) -> int:
        """Run a statement now; how many rows it changed."""
        return await self._live.execute(_checked(sql), args)

    async def fetch(self, sql: str, *args: Any) -> Sequence[Mapping[str, Any]]:
        """Run a query now; its rows, each by column name."""
        return await self._live.fetch(_checked(sql), args)


def _checked(sql: Any) -> str:
    if not isinstance(sql, str) or not sql.strip():
        raise InputError(f"a transaction needs a SQL statement, not {sql!r}")
    return sql


def context_values() -> Mapping[str, Any]:
    """The propagated context of the run this step belongs to; empty outside a step."""
    attempt = current_attempt.get()
    return NO_VALUES if attempt is None else attempt.call.values
