"""What workflow code waits for: steps, sleeps and events, anonymous timers. And what a rest will report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.core.event import Event
from holdfast.core.failure import Failure
from holdfast.core.model import StepType, from_ms
from holdfast.core.typed import untyped
from holdfast.errors import EventInvalidError
from holdfast.kernel.attempt import NO_VALUES, StepTx, Transaction
from holdfast.kernel.driver import Outcome
from holdfast.kernel.events import Decode, read_payload
from holdfast.store.protocol import Act, Deed, Delivery, Fact, FactState, Log, Mail, Observed
from holdfast.workflow.loop import WorkflowTimer
from holdfast.workflow.steps import StepSpec

T = TypeVar("T")


class Asked:
    """Something the code waits for."""

    __slots__ = ("closed", "future", "key", "started_at")

    def __init__(self, key: str, future: asyncio.Future[Any], started_at: int) -> None:
        self.key = key
        self.future = future
        self.started_at = started_at
        self.closed = False


class AskedStep(Asked):
    """A step call: running, or due (again) at ``not_before``. It is also what the runner is given to run."""

    __slots__ = (
        "args",
        "failures",
        "kwargs",
        "limit",
        "name",
        "not_before",
        "noted",
        "progress",
        "running",
        "spec",
        "values",
    )

    def __init__(
        self, key: str, name: str | None, future: asyncio.Future[Any], started_at: int, spec: StepSpec
    ) -> None:
        self.key = key
        self.future = future
        self.started_at = started_at
        self.closed = False
        self.name = name
        """Of the registered function; None for a name given to ``ctx.do``."""
        self.spec = spec
        self.args: tuple[Any, ...] = ()
        self.kwargs: Mapping[str, Any] = {}
        self.values: Mapping[str, Any] = NO_VALUES
        self.limit = 0
        self.failures = 0
        self.not_before = 0
        self.running = False
        self.noted = 0
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
    def wants_tx(self) -> type[StepTx] | type[Transaction] | None:
        return self.spec.tx_kind

    @property
    def function(self) -> Any:
        return self.spec.function

    def arguments(self, tx: StepTx | Transaction) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return self.spec.arguments(self.args, self.kwargs, tx)

    def record(self, value: Any) -> tuple[bytes, Any]:
        return self.spec.record(self.key, self.limit, value)

    def note(self, attempt: int, at: int) -> Fact | None:
        if self.closed or not self.running or attempt != self.attempt or self.noted >= attempt:
            return None
        self.noted = attempt
        return self.fact(FactState.START, attempt, at, at, attempts=attempt)

    def fact(self, state: FactState, n: int, at: int, started_at: int, **rest: Any) -> Fact:
        spec = self.spec
        return Fact(
            state, self.key, n, StepType.DO, at, started_at, name=self.name,
            max_attempts=spec.retry.max_attempts, timeout_ms=spec.timeout_ms, **rest,
        )  # fmt: skip


class AskedWait(Asked):
    """A sleep, or a wait for an event until a deadline. ``n`` counts the waits of its key from 0."""

    __slots__ = ("decode", "due", "event", "event_type", "kind", "n")

    def __init__(self, key: str, kind: StepType, future: asyncio.Future[Any], started_at: int, due: int) -> None:
        super().__init__(key, future, started_at)
        self.kind = kind
        self.due = due
        self.event_type: str | None = None
        self.decode: Decode = untyped
        self.event: Event[Any] | None = None
        """The event that ended the wait in this process."""
        self.n = 0

    def received(self, mail: Mail, seq: int, at: int) -> Fact:
        """The result of the wait: the event, or the error of an event whose payload does not fit."""
        try:
            payload = read_payload(mail.type, mail.payload, self.decode)
        except EventInvalidError as error:
            return self.result(seq, at, ok=False, event=mail.n)._replace(value=Failure.of(error).encode())
        self.event = Event(mail.type, payload, from_ms(mail.created_at), mail.sender)
        return self.result(seq, at, event=mail.n)

    def result(self, seq: int, at: int, *, ok: bool = True, event: int | None = None) -> Fact:
        return Fact(
            FactState.RESULT, self.key, 0, self.kind, at, self.started_at, seq=seq, ok=ok,
            wake_at=self.due, event_type=self.event_type, event=event,
        )  # fmt: skip


class AskedAct(Asked):
    """Something that is to be done to another run, with the next commit."""

    __slots__ = ("deed", "kind", "name", "state")

    def __init__(self, key: str, future: asyncio.Future[Any], started_at: int, act: tuple[StepType, str, Deed]) -> None:
        super().__init__(key, future, started_at)
        self.kind, self.name, self.deed = act
        self.state = FactState.RESULT

    def act(self, at: int) -> Act:
        """Its place in the order is not known yet."""
        return Act(self.deed, Fact(self.state, self.key, 0, self.kind, at, self.started_at, name=self.name))


class AskedTimer(Asked):
    """An anonymous timer of the loop, such as ``asyncio.sleep``."""

    __slots__ = ("due", "timer")

    def __init__(self, key: str, timer: WorkflowTimer, started_at: int, due: int) -> None:
        super().__init__(key, None, started_at)  # type: ignore[arg-type]  # the loop calls it; nobody awaits it
        self.timer = timer
        self.due = due

    def result(self, seq: int, at: int) -> Fact:
        return Fact(FactState.RESULT, self.key, 0, StepType.TIMER, at, self.started_at, seq=seq, wake_at=self.due)


@dataclass(slots=True, eq=False)
class News:
    """What has become known or was done since the last rest. Each list is taken at the next, most of them empty."""

    facts: list[Fact] = field(default_factory=list)
    opened: list[Fact] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    """Those with log lines or with more to write than their result."""

    def observed(self) -> Observed:
        observed = Observed(facts=taken(self.facts), deliveries=taken(self.deliveries))
        for outcome in taken(self.outcomes):
            observed.logs = [*observed.logs, *outcome.logs]
            if outcome.failure is None and outcome.transactional:
                observed.statements = outcome.statements
                observed.starts = outcome.starts
                observed.sends = outcome.sends
                observed.transaction = outcome.transaction
        return observed


def taken(items: list[T]) -> Sequence[T]:
    """What is in the list, which is empty afterwards."""
    if not items:
        return ()
    found = items[:]
    items.clear()
    return found
