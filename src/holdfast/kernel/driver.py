"""The seam between the runner and an authoring model: observations in, a rest out.

A **driver** opens a machine for a run from what the store knows. A **machine** is told what became known (outcomes of
attempts, mail, the time), runs its code until it rests, and answers with what has to be written and done. It does no
I/O, so everything about a run except its side effects can be tested without a database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.failure import Failure
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.store.protocol import (
    Act,
    Answer,
    Fact,
    Finish,
    Follows,
    LiveTransaction,
    Log,
    Mail,
    NewEvent,
    NewRun,
    Observed,
    Park,
    RunRecord,
    Snapshot,
    Statement,
)

if TYPE_CHECKING:
    from holdfast.kernel.requests import Requests


class Call(Protocol):
    """A step that has to be run now."""

    key: str
    values: Mapping[str, Any]
    """The run's propagated context."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    progress: bytes | None
    """What the last heartbeat of an earlier attempt reported."""

    @property
    def max_attempts(self) -> int | None:
        """None: without a limit."""
        ...

    @property
    def attempt(self) -> int:
        """The number of the attempt that is due, from 1."""
        ...

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def timeout_ms(self) -> int | None: ...

    @property
    def wants_tx(self) -> type[StepTx] | type[Transaction] | None:
        """Which kind of transaction the function has a parameter for."""
        ...

    def arguments(self, tx: StepTx | Transaction) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments with the transaction in its place."""
        ...

    def record(self, value: Any) -> tuple[bytes, Any]:
        """The bytes to store for a result, and the value as a replay will see it. Raises what makes it unfit."""
        ...

    def note(self, attempt: int, at: int) -> Fact | None:
        """The START fact that shows this attempt while it runs; None if that is known already, or it is over."""
        ...


class FailedAnswer:
    """Base of recorded values by which a step that returned reports a failed attempt; its heartbeat is kept."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Outcome:
    """What came of a call. ``failure`` is None when it worked."""

    key: str
    attempt: int
    started_at: int
    at: int
    value: bytes | None = None
    live: Any = None
    failure: Failure | None = None
    logs: Sequence[Log] = ()
    statements: Sequence[Statement] = ()
    starts: Sequence[NewRun] = ()
    sends: Sequence[NewEvent] = ()
    transaction: LiveTransaction | None = None
    heartbeat: Fact | None = None
    """With a failure or a ``FailedAnswer``: the last heartbeat of the attempt, if it had one."""

    @property
    def transactional(self) -> bool:
        """It writes more than itself, which may be refused: such an outcome is committed alone."""
        return bool(self.statements or self.starts or self.sends or self.transaction)

    def failed(self, failure: Failure) -> Outcome:
        """The same attempt with a failure in place of its result."""
        return Outcome(
            self.key, self.attempt, self.started_at, self.at, failure=failure, logs=self.logs, heartbeat=self.heartbeat
        )


@dataclass(slots=True, eq=False)
class Rest:
    """Where the code came to rest, and what follows from it."""

    observed: Observed
    follows: Follows
    calls: Sequence[Call]
    """To be started once this rest is committed."""
    cancelled: Sequence[str]
    """Keys of calls that the code no longer waits for."""
    wake_at: int | None
    """When something becomes due by itself: a timer, a deadline, a retry."""
    retrying: bool
    """That something is a retry."""
    topics: frozenset[str]
    """Types of event the code is waiting for."""
    end: Finish | Park | None = None
    started_at: int | None = None
    lease_ms: int | None = None
    """How long the task stays claimed without a heartbeat while the calls run; None: the worker's lease."""

    @property
    def transactional(self) -> bool:
        return self.observed.transactional

    @property
    def empty(self) -> bool:
        """Nothing that has to be written before the turn goes on."""
        o, f = self.observed, self.follows
        return not (o.facts or o.deliveries or o.logs or f.facts or f.logs or f.acts or f.attributes or self.end)


class Machine(Protocol):
    """One run in memory."""

    def advance(
        self,
        now_ms: int,
        outcomes: Sequence[Outcome] = (),
        mail: Sequence[Mail] = (),
        *,
        acted: Sequence[Answer] = (),
        lost: bool = False,
    ) -> Rest:
        """Tell it what became known, run it to rest.

        ``acted``: what came of the acts that were written last. ``lost``: whoever ran it before was lost with its
        attempts.
        """
        ...

    def seal(self, acts: Sequence[Act]) -> None:
        """These acts are about to be written: their facts get their places in the order of what the code sees."""
        ...

    def hold(self) -> None:
        """Run no more code.

        From now on ``advance`` only writes down what became known. The machine is dropped afterwards.
        """
        ...

    def close(self) -> None:
        """Drop it; what it would have done next is done by the machine that replays the run."""
        ...


class Driver(Protocol):
    """An authoring model's way to run its definitions."""

    def open(self, run: RunRecord, snapshot: Snapshot | None, requests: Requests, *, strict: bool = False) -> Machine:
        """A machine for the run: replayed from the snapshot, or new (None). ``requests``: of what it asks of others.

        ``strict``: the worker has strict replay, whatever the definition says.
        """
        ...
