"""What a chain has come to, from its facts: the steps that were planned, and the state that each is in.

Owns the derivation, for the machine that runs a chain and for all who show one. Nothing here is stored or run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.core import codec, history
from holdfast.core.failure import Failure
from holdfast.core.model import Status, StepRecord, StepStatus, StepType, from_ms, optional_from_ms
from holdfast.errors import ErrorInfo

# The store's fact states; spelled out here because this module stands below the store.
_RESULT, _START, _FAILURE, _PLAN, _WOKEN, _HEARTBEAT = 0, 1, 2, 3, 4, 7

_KEPT_AS = {_RESULT: "result", _START: "wait", _FAILURE: "failure", _WOKEN: "woken", _HEARTBEAT: "heartbeat"}

CHAIN = "chain"
"""The kind of a run."""


class StepState(StrEnum):
    """The states of a chain's step."""

    PENDING = "PENDING"
    READY = "READY"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    DONE = "DONE"
    DEAD = "DEAD"


class ChainStatus(StrEnum):
    """The states of a chain."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


_STATUS = {
    Status.COMPLETE: ChainStatus.COMPLETED,
    Status.ERRORED: ChainStatus.FAILED,
    Status.CANCELLED: ChainStatus.CANCELED,
    Status.TERMINATED: ChainStatus.CANCELED,
}


def native_status(kind: str, status: Status) -> str | None:
    """The status of a run in the words of its kind, where that has its own."""
    return _STATUS.get(status, ChainStatus.RUNNING).value if kind == CHAIN else None


class Place(NamedTuple):
    """Where a run is in the queue."""

    held: bool = False
    """Somebody has it."""
    run_at: int | None = None
    """When it is due; None: not by itself."""


class ChainStep:
    """One step of a chain, as far as its facts go."""

    __slots__ = (
        "failure", "heartbeat", "lease_ms", "max_attempts", "planned_at", "result", "seq", "timeout_ms", "type", "wait",
        "woken",
    )  # fmt: skip

    def __init__(self, plan: Any) -> None:
        self.seq: int = plan.n
        self.type: str = plan.key
        self.max_attempts: int = plan.max_attempts
        self.timeout_ms: int | None = plan.timeout_ms
        self.lease_ms: int | None = None if plan.value is None else codec.plain(plan.value)["leaseMs"]
        self.planned_at: int = plan.at
        self.result: Any = None
        self.failure: Any = None
        """The last one."""
        self.wait: Any = None
        """The last wait that began."""
        self.woken: Any = None
        """How the last wait ended that did."""
        self.heartbeat: Any = None
        """The last one."""

    @property
    def attempts(self) -> int:
        """How many have failed."""
        if self.result is not None:
            return int(self.result.attempts)
        return 0 if self.failure is None else int(self.failure.n)

    @property
    def waits(self) -> int:
        """How often it has waited."""
        return 0 if self.wait is None else int(self.wait.n) + 1

    @property
    def waiting(self) -> bool:
        return self.wait is not None and (self.woken is None or self.woken.n < self.wait.n)

    @property
    def not_before(self) -> int:
        """When it may be run (again), if it does not wait."""
        return 0 if self.failure is None else self.failure.wake_at or 0

    def apply(self, fact: Any) -> None:
        """Facts of one state come in the order of their numbers."""
        setattr(self, _KEPT_AS[fact.state], fact)

    def state(self, current: ChainStep | None, place: Place) -> StepState:
        if self.result is not None:
            return StepState.DONE if self.result.ok else StepState.DEAD
        if self is not current:
            return StepState.PENDING
        if place.held:
            return StepState.RUNNING
        if self.waiting and (place.run_at is None or place.run_at >= self.wait.wake_at):
            return StepState.WAITING
        return StepState.READY


@dataclass(slots=True, eq=False)
class Progress:
    """All steps of a chain, and which of them is its current one."""

    steps: list[ChainStep] = field(default_factory=list)
    _by_type: dict[str, ChainStep] = field(default_factory=dict)
    _at: int = 0

    @classmethod
    def of(cls, facts: Iterable[Any]) -> Progress:
        facts = list(facts)
        steps = [ChainStep(f) for f in sorted((f for f in facts if f.state == _PLAN), key=lambda f: f.n)]
        progress = cls(steps, {step.type: step for step in steps})
        for fact in facts:
            if fact.state != _PLAN:
                progress.apply(fact)
        return progress

    @property
    def current(self) -> ChainStep | None:
        """The first step that is not done; a dead one is where the chain stays. None: all are done."""
        while self._at < len(self.steps):
            step = self.steps[self._at]
            if step.result is None or not step.result.ok:
                return step
            self._at += 1
        return None

    def apply(self, fact: Any) -> None:
        self._by_type[fact.key].apply(fact)


def records(run_number: int, facts: Iterable[Any], place: Place) -> list[StepRecord]:
    """All steps as people read them, those to come included."""
    progress = Progress.of(facts)
    current = progress.current
    return [_record(run_number, step, step.state(current, place)) for step in progress.steps]


def current_record(steps: list[StepRecord]) -> StepRecord | None:
    """The step a chain is at; the last one when all are done."""
    at = next((step for step in steps if step.state != StepState.DONE), None)
    return at if at is not None else (steps[-1] if steps else None)


def without_handler(facts: Iterable[Any], run_at: int | None) -> str | None:
    """The type of a step that the last worker gave back because it has no handler for it.

    ``run_at``: of a run that began, waits, and is due again then. A step that waits for an event, or for its next
    attempt, is due at that time and not later.
    """
    step = Progress.of(facts).current
    if step is None or step.result is not None or step.waiting or run_at is None:
        return None
    return step.type if run_at > step.not_before else None


def is_open(step: StepRecord) -> bool:
    """Whether it runs, or waits for an event or its next attempt. One that is only due says nothing."""
    return step.state in (StepState.RUNNING, StepState.WAITING) or step.next_retry_at is not None


def _record(run_number: int, step: ChainStep, state: StepState) -> StepRecord:
    waiting = state is StepState.WAITING
    retry_at = step.not_before if state is StepState.READY else 0
    return StepRecord(
        id=f"{run_number}:{step.type}",
        run_number=run_number,
        step_key=step.type,
        name=step.type,
        type=StepType.DO,
        status=StepStatus.WAITING if retry_at else _STEP_STATUS[state],
        attempts=step.attempts,
        max_attempts=step.max_attempts,
        timeout_ms=step.timeout_ms,
        next_retry_at=optional_from_ms(retry_at or None),
        wake_at=from_ms(step.wait.wake_at) if waiting else None,
        wait_event_type=step.wait.event_type if waiting else None,
        result=codec.plain(step.result.value) if state is StepState.DONE else None,
        error=_error(step),
        created_at=from_ms(step.planned_at),
        updated_at=from_ms(_updated(step)),
        state=state.value,
        step_seq=step.seq,
        **history.heartbeat(step.heartbeat, _STEP_STATUS[state]),
    )


_STEP_STATUS = {
    StepState.PENDING: StepStatus.PENDING,
    StepState.READY: StepStatus.PENDING,
    StepState.RUNNING: StepStatus.PENDING,
    StepState.WAITING: StepStatus.WAITING,
    StepState.DONE: StepStatus.COMPLETED,
    StepState.DEAD: StepStatus.ERRORED,
}


def _error(step: ChainStep) -> ErrorInfo | None:
    """Of a dead step, or of the last attempt that failed; what is done has none."""
    last = step.failure if step.result is None else step.result
    return None if last is None or last.ok else Failure.decode(last.value).info


def _updated(step: ChainStep) -> int:
    facts = (step.result, step.failure, step.wait, step.woken, step.heartbeat)
    return max(step.planned_at, *(int(fact.at) for fact in facts if fact is not None), 0)
