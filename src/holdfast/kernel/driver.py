"""The interface between the runner and an authoring model.

A **driver** opens a machine for a run from the stored snapshot. A **machine** takes outcomes of attempts, events and
the time, runs the code until it waits or ends, and returns a **decision**: what to write and what to do. A machine does
no I/O, so everything about a run except its side effects can be tested without a database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.failure import Failure
from holdfast.kernel.attempt import ReportedFailure, StepTx, Transaction
from holdfast.store.protocol import (
    Fact,
    Finish,
    Following,
    LimitKey,
    LiveTransaction,
    Log,
    NewEvent,
    NewRun,
    Observed,
    Park,
    RecordedOperation,
    RequestResult,
    RunRecord,
    Snapshot,
    Statement,
    StoredEvent,
)

if TYPE_CHECKING:
    from holdfast.kernel.requests import Requests


class Call(Protocol):
    """A step function to be called now."""

    key: str
    values: Mapping[str, Any]
    """The run's propagated context."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    progress: bytes | None
    """The progress in the last heartbeat of an earlier attempt."""

    @property
    def max_attempts(self) -> int | None:
        """None: no limit."""
        ...

    @property
    def attempt(self) -> int:
        """The number of the attempt to make, from 1."""
        ...

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def timeout_ms(self) -> int | None: ...

    @property
    def limited_by(self) -> Sequence[LimitKey]:
        """The limits under which the call runs. Computing keys may call user code, which may raise."""
        ...

    @property
    def wants_tx(self) -> type[StepTx] | type[Transaction] | None:
        """The type of the function's transaction parameter; None if it has none."""
        ...

    def arguments(self, tx: StepTx | Transaction) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments of the call, with the transaction inserted."""
        ...

    def record(self, value: Any) -> tuple[bytes, Any]:
        """The bytes to store for a result, and the value as a replay will return it.

        Raises an error if the value cannot be stored.
        """
        ...

    def start_fact(self, attempt: int, at: int) -> Fact | None:
        """The START fact that shows this attempt while it runs; None if it is recorded already or not needed."""
        ...


@dataclass(slots=True, eq=False)
class StepWrites:
    """The writes of a step besides its result, in the same transaction."""

    starts: Sequence[NewRun]
    sends: Sequence[NewEvent]
    statements: Sequence[Statement] = ()
    transaction: LiveTransaction | None = None

    def __bool__(self) -> bool:
        return bool(self.statements or self.starts or self.sends or self.transaction)


@dataclass(slots=True, eq=False)
class Outcome:
    """The outcome of a call. ``failure`` is None if the call succeeded."""

    key: str
    attempt: int
    started_at: int
    at: int
    value: bytes | None = None
    live: Any = None
    """The result as the code receives it; ``value`` is its stored form."""
    logs: Sequence[Log] = ()
    failure: Failure | None = None
    heartbeat: Fact | None = None
    """With a failure or a ``ReportedFailure``: the last heartbeat of the attempt, if it had one."""
    writes: StepWrites | None = None
    """Writes that may be rejected; an outcome with such writes is committed alone. None: there are none."""
    streamed: bool = False
    """The attempt has written to streams."""
    closes: tuple[str, ...] = ()
    """The streams that the attempt closed."""

    @property
    def transaction(self) -> LiveTransaction | None:
        return None if self.writes is None else self.writes.transaction

    @property
    def succeeded(self) -> bool:
        return self.failure is None and not isinstance(self.live, ReportedFailure)

    def failed(self, failure: Failure) -> Outcome:
        """The outcome of the same attempt with a failure instead of the result."""
        return Outcome(
            self.key,
            self.attempt,
            self.started_at,
            self.at,
            failure=failure,
            logs=self.logs,
            heartbeat=self.heartbeat,
            streamed=self.streamed,
        )


@dataclass(slots=True, eq=False)
class Decision:
    """The decision of a machine: rows to commit, calls to start, the next wake-up time, or the end of the run."""

    observed: Observed
    following: Following
    calls: Sequence[Call]
    """Calls to start after this decision is committed."""
    cancelled: Sequence[str]
    """Keys of calls that the code no longer waits for."""
    wake_at: int | None
    """The next time at which a timer, a deadline or a retry is due; None: there is none."""
    retrying: bool
    """True if ``wake_at`` is the time of a retry."""
    topics: frozenset[str]
    """Event types that the code waits for."""
    end: Finish | Park | None = None
    started_at: int | None = None
    lease_ms: int | None = None
    """Lease of the task while the calls run; None: the worker's lease."""

    @property
    def transactional(self) -> bool:
        """True if the observed part has writes that may be rejected."""
        return self.observed.transactional

    @property
    def empty(self) -> bool:
        """True if nothing has to be written before the turn continues."""
        o, f = self.observed, self.following
        if f.streams:
            return False
        return not (o.facts or o.deliveries or o.logs or f.facts or f.logs or f.operations or f.attributes or self.end)


class Machine(Protocol):
    """One run in memory."""

    def advance(
        self,
        now_ms: int,
        outcomes: Sequence[Outcome] = (),
        events: Sequence[StoredEvent] = (),
        *,
        operation_results: Sequence[RequestResult] = (),
        lost: bool = False,
    ) -> Decision:
        """Process outcomes, events and the time; run the code until it waits or ends.

        ``operation_results``: results of the operations in the last commit. ``lost``: the task was taken over, so its
        unfinished attempts are lost.
        """
        ...

    def number_operations(self, operations: Sequence[RecordedOperation]) -> None:
        """Set ``seq`` in the facts of operations that are about to be written.

        ``seq`` is the position of a result in the order in which the code receives results.
        """
        ...

    def halt(self) -> None:
        """Run no more code: from now on ``advance`` only records outcomes and events.

        The machine is dropped afterwards.
        """
        ...

    def close(self) -> None:
        """Discard the machine. Another machine continues the run by a replay."""
        ...


class Driver(Protocol):
    """The part of an authoring model that opens machines."""

    def open(self, run: RunRecord, snapshot: Snapshot | None, requests: Requests, *, strict: bool = False) -> Machine:
        """A machine for the run, replayed from the snapshot (None: a new run).

        ``requests`` encodes the machine's requests to other runs. ``strict``: replay is strict, whatever mode the
        definition has.
        """
        ...
