"""Requests of workflow code that are pending (steps, sleeps, events, operations, timers), and the next decision."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from holdfast.core.event import Event
from holdfast.core.failure import Failure
from holdfast.core.model import StepType, from_ms
from holdfast.core.typed import untyped
from holdfast.errors import EventInvalidError
from holdfast.kernel.attempt import NO_VALUES, StepTx, Transaction
from holdfast.kernel.driver import Outcome
from holdfast.kernel.events import Decode, read_payload
from holdfast.store.protocol import (
    Delivery,
    Fact,
    FactState,
    LimitKey,
    Log,
    Observed,
    Operation,
    RecordedOperation,
    StoredEvent,
)
from holdfast.workflow.loop import WorkflowTimer
from holdfast.workflow.steps import StepSpec

T = TypeVar("T")

_Items = list[T] | tuple[()]

_RESULT = FactState.RESULT
_DO = StepType.DO


class Pending:
    """Something that the code waits for. ``closed`` is set when the wait is over or cancelled."""

    __slots__ = ("closed", "future", "key", "started_at")

    def __init__(self, key: str, future: asyncio.Future[Any], started_at: int) -> None:
        self.key = key
        self.future = future
        self.started_at = started_at
        self.closed = False


class PendingStep(Pending):
    """A step call that is running, or due at ``not_before``. The runner gets it as the ``Call`` to run."""

    __slots__ = (
        "args",
        "failures",
        "kwargs",
        "limit",
        "name",
        "not_before",
        "progress",
        "running",
        "spec",
        "started_attempt",
        "values",
    )

    def __init__(
        self,
        key: str,
        name: str | None,
        future: asyncio.Future[Any],
        started_at: int,
        spec: StepSpec,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        values: Mapping[str, Any] = NO_VALUES,
        limit: int = 0,
    ) -> None:
        """``limit``: the maximum size of the result in bytes."""
        self.key = key
        self.future = future
        self.started_at = started_at
        self.closed = False
        self.name = name
        """The name of the registered step function; None for a step called by ``ctx.do``."""
        self.spec = spec
        self.args = args
        self.kwargs = kwargs
        self.values = values
        self.limit = limit
        self.failures = 0
        self.not_before = 0
        self.running = False
        self.started_attempt = 0
        """The number of the last attempt that has a START fact."""
        self.progress: bytes | None = None

    @property
    def attempt(self) -> int:
        return self.failures + 1

    @property
    def max_attempts(self) -> int | None:
        return self.spec.retry.max_attempts

    @property
    def is_async(self) -> bool:
        return self.spec.is_async

    @property
    def timeout_ms(self) -> int | None:
        return self.spec.timeout_ms

    @property
    def limited_by(self) -> Sequence[LimitKey]:
        return self.spec.limited_by(self.args, self.kwargs) if self.spec.limits else ()

    @property
    def wants_tx(self) -> type[StepTx] | type[Transaction] | None:
        return self.spec.tx_kind

    @property
    def function(self) -> Any:
        return self.spec.function

    def arguments(self, tx: StepTx | Transaction) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return self.spec.arguments(self.args, self.kwargs, tx)

    def record(self, value: Any) -> tuple[bytes, Any]:
        return self.spec.record(self.key, self.limit, value)

    def start_fact(self, attempt: int, at: int) -> Fact | None:
        if self.closed or not self.running or attempt != self.attempt or self.started_attempt >= attempt:
            return None
        self.started_attempt = attempt
        return self.fact(FactState.START, attempt, at, at, attempts=attempt)

    def result(self, outcome: Outcome, seq: int) -> Fact:
        """The RESULT fact of a successful attempt."""
        spec = self.spec
        return Fact(
            _RESULT, self.key, 0, _DO, outcome.at, outcome.started_at, seq, True, outcome.value, self.name,
            outcome.attempt, spec.retry.max_attempts, spec.timeout_ms,
        )  # fmt: skip

    def fact(self, state: FactState, n: int, at: int, started_at: int, **fields: Any) -> Fact:
        spec = self.spec
        return Fact(
            state, self.key, n, StepType.DO, at, started_at, name=self.name,
            max_attempts=spec.retry.max_attempts, timeout_ms=spec.timeout_ms, **fields,
        )  # fmt: skip


class PendingWait(Pending):
    """A sleep, or a wait for an event until a deadline. ``n`` counts the waits of its key from 0."""

    __slots__ = ("decode", "due", "event", "event_type", "kind", "n")

    def __init__(self, key: str, kind: StepType, future: asyncio.Future[Any], started_at: int, due: int) -> None:
        super().__init__(key, future, started_at)
        self.kind = kind
        self.due = due
        self.event_type: str | None = None
        self.decode: Decode = untyped
        self.event: Event[Any] | None = None
        """The decoded event, if the wait ended in this process."""
        self.n = 0

    def received(self, event: StoredEvent, seq: int, at: int) -> Fact:
        """The result fact of the wait: the event, or the error if its payload does not match the expected type."""
        try:
            payload = read_payload(event.type, event.payload, self.decode)
        except EventInvalidError as error:
            return self.result(seq, at, ok=False, event=event.n)._replace(value=Failure.of(error).encode())
        self.event = Event(event.type, payload, from_ms(event.created_at), event.sender)
        return self.result(seq, at, event=event.n)

    def result(self, seq: int, at: int, *, ok: bool = True, event: int | None = None) -> Fact:
        return Fact(
            FactState.RESULT, self.key, 0, self.kind, at, self.started_at, seq=seq, ok=ok,
            wake_at=self.due, event_type=self.event_type, event=event,
        )  # fmt: skip


class PendingOperation(Pending):
    """An operation for the next commit. The code may wait for its result."""

    __slots__ = ("kind", "name", "operation", "state")

    def __init__(
        self, key: str, future: asyncio.Future[Any], started_at: int, described: tuple[StepType, str, Operation]
    ) -> None:
        super().__init__(key, future, started_at)
        self.kind, self.name, self.operation = described
        self.state = FactState.RESULT

    def to_recorded(self, at: int) -> RecordedOperation:
        """The operation with its fact. The commit assigns the fact's sequence number."""
        fact = Fact(self.state, self.key, 0, self.kind, at, self.started_at, name=self.name)
        return RecordedOperation(self.operation, fact)


class PendingTimer(Pending):
    """An unnamed timer of the loop, such as that of ``asyncio.sleep``."""

    __slots__ = ("due", "timer")

    def __init__(self, key: str, timer: WorkflowTimer, started_at: int, due: int) -> None:
        super().__init__(key, None, started_at)  # type: ignore[arg-type]  # the loop calls the timer: no future
        self.timer = timer
        self.due = due

    def result(self, seq: int, at: int) -> Fact:
        return Fact(FactState.RESULT, self.key, 0, StepType.TIMER, at, self.started_at, seq=seq, wake_at=self.due)


class DecisionBuffer:
    """Results and actions since the last decision, which the next decision takes.

    An empty buffer holds tuples: a list costs time in every garbage collection, and a process has many waiting runs.
    """

    __slots__ = ("_deliveries", "_facts", "_outcomes", "cancelled", "logs", "opened")

    def __init__(self) -> None:
        self._facts: _Items[Fact] = ()
        self.opened: _Items[Fact] = ()
        self.logs: _Items[Log] = ()
        self.cancelled: _Items[str] = ()
        self._deliveries: _Items[Delivery] = ()
        self._outcomes: _Items[Outcome] = ()

    def add_fact(self, fact: Fact) -> None:
        if self._facts:
            self._facts.append(fact)
        else:
            self._facts = [fact]

    def add_opened(self, fact: Fact) -> None:
        """Add a fact that opens or cancels a wait, or a note."""
        self.opened = _added(self.opened, fact)

    def add_log(self, log: Log) -> None:
        self.logs = _added(self.logs, log)

    def add_cancelled(self, key: str) -> None:
        self.cancelled = _added(self.cancelled, key)

    def add_delivery(self, delivery: Delivery) -> None:
        self._deliveries = _added(self._deliveries, delivery)

    def add_outcome(self, outcome: Outcome) -> None:
        """Add an outcome with log lines, or with more to write than its result."""
        self._outcomes = _added(self._outcomes, outcome)

    def take_observed(self) -> Observed:
        observed = Observed(self._facts, self._deliveries)
        self._facts = self._deliveries = ()
        if self._outcomes:
            outcomes, self._outcomes = self._outcomes, ()
            for outcome in outcomes:
                _add_to_observed(outcome, observed)
        return observed

    def take_opened(self) -> Sequence[Fact]:
        opened, self.opened = self.opened, ()
        return opened

    def take_logs(self) -> Sequence[Log]:
        logs, self.logs = self.logs, ()
        return logs

    def take_cancelled(self) -> Sequence[str]:
        cancelled, self.cancelled = self.cancelled, ()
        return cancelled


def _added(items: _Items[T], item: T) -> list[T]:
    if not items:
        return [item]
    items.append(item)
    return items


def _add_to_observed(outcome: Outcome, observed: Observed) -> None:
    observed.logs = [*observed.logs, *outcome.logs]
    writes = outcome.writes
    if outcome.failure is None and writes is not None:
        observed.statements = writes.statements
        observed.starts = writes.starts
        observed.sends = writes.sends
        observed.transaction = writes.transaction
