"""The progress of a chain, derived from its facts: the planned steps and the state of each.

The machine that runs a chain and the views of a chain use the same derivation. Nothing here is stored or run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.core import codec, history
from holdfast.core.failure import Failure
from holdfast.core.model import Status, StepStatus, StepType, from_ms, optional_from_ms
from holdfast.core.records import StepRecord
from holdfast.errors import ErrorInfo
from holdfast.store.protocol import RESOLVE, Fact, FactState

_ATTRIBUTE: Mapping[int, str] = {
    FactState.RESULT: "result",
    FactState.START: "wait",
    FactState.FAILURE: "failure",
    FactState.WOKEN: "woken",
    FactState.HEARTBEAT: "heartbeat",
}
"""The attribute of ``ChainStep`` that keeps the last fact of a state."""

CHAIN = "chain"
"""The kind of a chain's runs."""


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


def native_status(status: Status) -> ChainStatus:
    """The state of a chain whose run has this status."""
    return _STATUS.get(status, ChainStatus.RUNNING)


class TaskState(NamedTuple):
    """The state of a run's task."""

    owned: bool = False
    """True if a worker owns the task."""
    run_at: int | None = None
    """The time at which the task is due. None: no time is set."""


class ChainStep:
    """One step of a chain, with the facts recorded for it."""

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
        """The last FAILURE fact."""
        self.wait: Any = None
        """The START fact of the last wait."""
        self.woken: Any = None
        """The fact that ended the last finished wait."""
        self.heartbeat: Any = None
        """The last HEARTBEAT fact."""

    @property
    def failed_attempts(self) -> int:
        """Number of failed attempts."""
        if self.result is not None:
            return int(self.result.attempts)
        return 0 if self.failure is None else int(self.failure.n)

    @property
    def waits(self) -> int:
        """Number of waits that were started."""
        return 0 if self.wait is None else int(self.wait.n) + 1

    @property
    def waiting(self) -> bool:
        return self.wait is not None and (self.woken is None or self.woken.n < self.wait.n)

    @property
    def not_before(self) -> int:
        """The earliest time of the next attempt of a step that does not wait for an event."""
        return 0 if self.failure is None else self.failure.wake_at or 0

    def apply(self, fact: Fact) -> None:
        """Keep a fact. Facts of one state must be applied in the order of their numbers."""
        setattr(self, _ATTRIBUTE[fact.state], fact)

    def state(self, current: ChainStep | None, task: TaskState) -> StepState:
        if self.result is not None:
            return StepState.DONE if self.result.ok else StepState.DEAD
        if self is not current:
            return StepState.PENDING
        if task.owned:
            return StepState.RUNNING
        if self.waiting and (task.run_at is None or task.run_at >= self.wait.wake_at):
            return StepState.WAITING
        return StepState.READY


@dataclass(slots=True, eq=False)
class Progress:
    """The steps of a chain, and its current step."""

    steps: list[ChainStep] = field(default_factory=list)
    _by_type: dict[str, ChainStep] = field(default_factory=dict)
    outputs: dict[str, bytes | None] = field(default_factory=dict)
    """Encoded outputs of the steps before the current one, by step type; complete after a read of ``current``."""
    _at: int = 0

    @classmethod
    def of(cls, facts: Iterable[Fact]) -> Progress:
        facts = list(facts)
        steps = [ChainStep(f) for f in sorted((f for f in facts if f.state == FactState.PLAN), key=lambda f: f.n)]
        progress = cls(steps, {step.type: step for step in steps})
        for fact in facts:
            if fact.state != FactState.PLAN:
                progress.apply(fact)
        return progress

    @property
    def current(self) -> ChainStep | None:
        """The first step that is not done. A dead step stays the current step. None: all steps are done."""
        while self._at < len(self.steps):
            step = self.steps[self._at]
            if step.result is None or not step.result.ok:
                return step
            self.outputs[step.type] = step.result.value
            self._at += 1
        return None

    def apply(self, fact: Fact) -> None:
        self._by_type[fact.key].apply(fact)


def records(run_number: int, facts: Iterable[Fact], task: TaskState) -> list[StepRecord]:
    """The records of all steps, including those that have not started."""
    progress = Progress.of(facts)
    current = progress.current
    return [_record(run_number, step, step.state(current, task)) for step in progress.steps]


def current_record(steps: Sequence[StepRecord]) -> StepRecord | None:
    """The first step that is not done; the last step if all are done."""
    current = next((step for step in steps if step.state != StepState.DONE), None)
    return current if current is not None else (steps[-1] if steps else None)


def step_without_handler(facts: Iterable[Fact], run_at: int | None) -> str | None:
    """The type of the current step, if the last worker released the run because it has no handler for the step.

    ``run_at``: the time at which a run that has started and is not owned is due. A step that waits for an event or for
    its next attempt is due at exactly that time; a run without a handler is due later.
    """
    step = Progress.of(facts).current
    if step is None or step.result is not None or step.waiting or run_at is None:
        return None
    return step.type if run_at > step.not_before else None


def is_open(step: StepRecord) -> bool:
    """True if the step is running, or waits for an event or its next attempt. A step that is only due is not open."""
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
        attempts=step.failed_attempts,
        max_attempts=step.max_attempts,
        timeout_ms=step.timeout_ms,
        next_retry_at=optional_from_ms(retry_at or None),
        wake_at=from_ms(step.wait.wake_at) if waiting else None,
        wait_event_type=step.wait.event_type if waiting else None,
        result=codec.displayed(step.result.value) if state is StepState.DONE else None,
        error=_error(step),
        created_at=from_ms(step.planned_at),
        updated_at=from_ms(_updated(step)),
        state=state.value,
        step_seq=step.seq,
        resolved=step.result is not None and step.result.event_type == RESOLVE,
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
    """The error of a dead step, or of the last failed attempt. A step that is done has none."""
    last = step.failure if step.result is None else step.result
    return None if last is None or last.ok else Failure.displayed(last.value).info


def _updated(step: ChainStep) -> int:
    facts = (step.result, step.failure, step.wait, step.woken, step.heartbeat)
    return max(step.planned_at, *(int(fact.at) for fact in facts if fact is not None), 0)
