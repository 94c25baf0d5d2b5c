"""Records what happened to the steps of a run: facts, and deliveries of events.

Each fact changes the progress in memory and belongs to the observed part of the current decision.
"""

from __future__ import annotations

from typing import Any

from holdfast.chain.progress import ChainStep, Progress
from holdfast.core.failure import Failure
from holdfast.core.model import StepType
from holdfast.kernel.driver import Outcome
from holdfast.store.protocol import Delivery, Fact, FactState, Observed

_RESULT = FactState.RESULT
_DO = StepType.DO


class StepRecorder:
    def __init__(self, progress: Progress, progressed_at: int) -> None:
        self.progressed_at = progressed_at
        """The time of the last fact, or of the run's start."""
        self.observed = Observed()
        """The observed part of the current decision."""
        self._progress = progress

    def begin_decision(self) -> None:
        self.observed = Observed()

    def record_failure(self, step: ChainStep, outcome: Outcome, error: Failure, next_at: int) -> None:
        """Record a failed attempt: another attempt becomes due, or the step is dead."""
        attempts = step.failed_attempts + 1
        if error.retryable is False or attempts >= step.max_attempts:
            self.record_result(step, outcome, ok=False, value=error.encode())
            return
        self._record(
            step, FactState.FAILURE, attempts, outcome.at, outcome.started_at,
            ok=False, value=error.encode(), attempts=attempts, wake_at=next_at,
        )  # fmt: skip

    def record_result(
        self, step: ChainStep, outcome: Outcome, *, ok: bool, value: bytes, event_type: str | None = None
    ) -> None:
        self._record(
            step, _RESULT, 0, outcome.at, outcome.started_at,
            seq=step.seq + 1, ok=ok, value=value, attempts=step.failed_attempts + (not ok),
            event_type=event_type,
        )  # fmt: skip

    def begin_wait(self, step: ChainStep, at: int, event_type: str, deadline: int) -> None:
        self._record(step, FactState.START, step.waits, at, at, wake_at=deadline, event_type=event_type)

    def end_wait(self, step: ChainStep, now_ms: int, event: int | None) -> None:
        """Record the end of a wait by the event with this number, or by the deadline if it is None."""
        self._record(
            step, FactState.WOKEN, step.wait.n, now_ms, step.wait.at, event_type=step.wait.event_type, event=event
        )

    def record_delivery(self, event: int, by: str, now_ms: int) -> None:
        self.observed.deliveries = [*self.observed.deliveries, Delivery(event, by, now_ms)]

    def _record(self, step: ChainStep, state: FactState, n: int, at: int, started_at: int, **fields: Any) -> None:
        fact = Fact(
            state, step.type, n, _DO, at, started_at,
            max_attempts=step.max_attempts, timeout_ms=step.timeout_ms, **fields,
        )  # fmt: skip
        self._progress.apply(fact)
        self.progressed_at = max(self.progressed_at, at)
        self.observed.facts = [*self.observed.facts, fact]
