"""The current attempt of a step: its log lines, its heartbeats and the transaction types.

A step function reaches its attempt through a context variable, which its tasks and its thread inherit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from holdfast.core.limits import Limits
from holdfast.core.statement import Statement
from holdfast.errors import InputError
from holdfast.kernel.startable import Startable

if TYPE_CHECKING:
    import asyncio

    from holdfast.kernel.driver import Call
    from holdfast.kernel.logger import StepLogger
    from holdfast.kernel.streams import AttemptStreams, StreamPort
    from holdfast.store.protocol import LiveTransaction, Log, NewEvent, NewRun, RunRecord

T = TypeVar("T")


class StepHeartbeat(NamedTuple):
    """A heartbeat of an attempt: its time, and the progress as JSON."""

    at: int
    progress: bytes | None


@dataclass(slots=True, eq=False)
class StepEngine:
    """The part of the engine that running steps use."""

    log: StepLogger
    now_ms: Callable[[], int]
    heartbeat_limit: int
    limits: Limits = field(default_factory=Limits)
    streams: StreamPort | None = None
    """Set by the worker."""


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
    """Number of log lines that are stored already."""
    heartbeat: StepHeartbeat | None = None
    """The last heartbeat; None: there was none."""
    streams: AttemptStreams | None = None
    """The streams that the step writes to; None: it has not used any."""
    loop: asyncio.AbstractEventLoop | None = None
    """The worker's event loop, if the step runs in a thread."""

    def open_streams(self) -> AttemptStreams:
        """The streams of the attempt. Only attempts of a worker have streams."""
        raise NotImplementedError

    @property
    def pid(self) -> str:
        return self.run.pid

    def log(self, line: Log) -> None:
        if isinstance(self.logs, list):
            self.logs.append(line)
        else:
            self.logs = [line]  # the list is created late, because most attempts write no log line


class ReportedFailure:
    """Base class of recorded values that report a failed attempt although the function returned.

    The last heartbeat of such an attempt is stored, as after an exception.
    """

    __slots__ = ()


NO_VALUES: Mapping[str, Any] = MappingProxyType({})

current_attempt: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)
current_run: ContextVar[RunRecord | None] = ContextVar("holdfast_run", default=None)
"""The run whose turn is running, for the fields of log lines."""


class RequestFactory(NamedTuple):
    """Functions that check and encode the runs that a step starts and the events that it sends."""

    new_run: Callable[..., NewRun]
    new_event: Callable[..., NewEvent]
    """The first argument is the receiver's pid; the sender is the step's run."""


class _StepTransaction:
    """Common base of ``StepTx`` and ``Transaction``: starts and sends that commit with the step."""

    def __init__(self, factory: RequestFactory) -> None:
        self._new_run, self._new_event = factory
        self.starts: list[NewRun] = []
        self.sends: list[NewEvent] = []

    def send(self, pid: str, topic: str, payload: Any = None) -> None:
        """Send an event to another run (``workflow/instance_id``) when the step commits."""
        self.sends.append(self._new_event(pid, topic, payload))

    @overload
    def start(self, workflow: Startable[None, Any], params: None = ..., *, id: str | None = ...) -> str: ...

    @overload
    def start(self, workflow: Startable[T, Any], params: T, *, id: str | None = ...) -> str: ...

    @overload
    def start(self, workflow: str, params: Any = ..., *, id: str | None = ...) -> str: ...

    def start(self, workflow: Startable[Any, Any] | str, params: Any = None, *, id: str | None = None) -> str:
        """Start a run when the step commits; returns its pid. An instance that exists already is left unchanged."""
        run = self._new_run(workflow, params, id=id)
        self.starts.append(run)
        return f"{run.workflow}/{run.instance_id}"


class StepTx(_StepTransaction):
    """The buffered transaction of a step: statements, starts and sends commit with the step's result, or not at all.

    Statements are buffered while the function runs and executed after it has returned, in the order in which they were
    added. They are executed once, not on replay, and are dropped when the attempt fails. ``StepTx`` cannot read; see
    ``Transaction``.

    Example::

        @app.step
        async def reserve(tx: StepTx, item: str) -> str:
            tx.execute("INSERT INTO reservation (item) VALUES (?)", item)
            return item
    """

    def __init__(self, factory: RequestFactory) -> None:
        super().__init__(factory)
        self.statements: list[Statement] = []

    def execute(self, sql: str, *args: Any) -> None:
        """Execute a statement when the step commits. Placeholders are those of the database (``?`` or ``$1``)."""
        self.statements.append(Statement(_checked(sql), args))


class Transaction(_StepTransaction):
    """A live transaction for an async step that has to read before it writes.

    The step's result is recorded in the same transaction, so both are written exactly once, even if the process crashes
    during the commit. The transaction is rolled back when the attempt fails, times out or loses its lease. Keep it
    short: on SQLite all other writers of the file wait for it, and so do calls of the app made by the step itself.

    Example::

        @app.step
        async def reserve(tx: Transaction, item: str) -> int:
            [row] = await tx.fetch("SELECT left FROM stock WHERE item = ?", item)
            await tx.execute("UPDATE stock SET left = left - 1 WHERE item = ?", item)
            return row["left"] - 1
    """

    def __init__(self, live: LiveTransaction, factory: RequestFactory) -> None:
        super().__init__(factory)
        self._live = live

    async def execute(self, sql: str, *args: Any) -> int:
        """Execute a statement now; returns the number of changed rows."""
        return await self._live.execute(_checked(sql), args)

    async def fetch(self, sql: str, *args: Any) -> Sequence[Mapping[str, Any]]:
        """Execute a query now; returns its rows as mappings from column names to values."""
        return await self._live.fetch(_checked(sql), args)


def _checked(sql: Any) -> str:
    if not isinstance(sql, str) or not sql.strip():
        raise InputError(f"a transaction needs a SQL statement, not {sql!r}")
    return sql


def context_values() -> Mapping[str, Any]:
    """The propagated context of the run that the current step belongs to; empty outside a step."""
    attempt = current_attempt.get()
    return NO_VALUES if attempt is None else attempt.call.values
