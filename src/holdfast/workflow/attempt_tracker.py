"""The attempts of steps: their outcomes, the failed, lost and cancelled ones, and the time of the next one."""

from __future__ import annotations

from holdfast.core import failure
from holdfast.core.failure import Failure
from holdfast.core.jitter import retry_jitter
from holdfast.core.model import StepType
from holdfast.kernel.driver import Outcome
from holdfast.store.protocol import RESOLVE, Fact, FactState
from holdfast.workflow.execution import Execution
from holdfast.workflow.keys import Keys
from holdfast.workflow.pending import DecisionBuffer, PendingStep
from holdfast.workflow.position import Position
from holdfast.workflow.recorded_history import RecordedHistory
from holdfast.workflow.wait_queue import WaitQueue


class AttemptTracker:
    """The attempts of one run's steps."""

    __slots__ = ("_buffer", "_execution", "_history", "_keys", "_position", "_seed", "_wait_queue")

    def __init__(
        self,
        keys: Keys,
        execution: Execution,
        position: Position,
        history: RecordedHistory,
        wait_queue: WaitQueue,
        buffer: DecisionBuffer,
        seed: int,
    ) -> None:
        self._keys = keys
        self._execution = execution
        self._position = position
        self._history = history
        self._wait_queue = wait_queue
        self._buffer = buffer
        self._seed = seed

    # --- outcomes of attempts

    def record(self, outcome: Outcome) -> Fact | None:
        """Record the outcome of an attempt. Returns the step's result, if the attempt was the last one."""
        step = self._keys.pending.get(outcome.key)
        execution = self._execution
        over = execution.ended and not execution.halted
        if over or not isinstance(step, PendingStep) or step.failures + 1 != outcome.attempt:
            if outcome.logs and step is None and self._keys.result(outcome.key) is None:
                cancelled = failure.cancelled(outcome.key)
                self._buffer.add_outcome(outcome.failed(cancelled))  # keeps its log lines
            return None  # the step was cancelled while the attempt ran: its late result is discarded
        if outcome.logs or outcome.writes is not None:
            self._buffer.add_outcome(outcome)
        if outcome.failure is not None:
            return self._failed(step, outcome, outcome.failure)
        return step.result(outcome, self._position.seq + 1)

    def _failed(self, step: PendingStep, outcome: Outcome, error: Failure) -> Fact | None:
        """Count a failed attempt. Returns the step's result after the last attempt, else schedules the next one."""
        retry = step.spec.retry
        max_attempts = retry.max_attempts
        final = error.retryable is False or not retry.retries(error.lineage or (error.name,))
        if final or (max_attempts is not None and outcome.attempt >= max_attempts):
            return step.fact(
                FactState.RESULT, 0, outcome.at, outcome.started_at,
                seq=self._position.seq + 1, ok=False, value=error.encode(), attempts=outcome.attempt,
            )  # fmt: skip
        jitter = retry_jitter(self._seed, step.key, outcome.attempt)
        next_at = outcome.at + retry.delay_after(outcome.attempt, jitter)
        self._count(step, error, next_at, outcome.at, outcome.started_at)
        if outcome.heartbeat is not None:
            step.progress = outcome.heartbeat.value
        self._wait_queue.ready.append(step)
        return None

    def resolved(self, step: PendingStep, *, ok: bool, value: bytes) -> Fact:
        """The RESULT of a step whose outcome was decided by hand. A running attempt is cancelled."""
        if step.running:
            self._buffer.add_cancelled(step.key)
        now = self._position.wall_ms
        return step.fact(
            FactState.RESULT, 0, now, step.started_at,
            seq=self._position.seq + 1, ok=ok, value=value, attempts=step.failures, event_type=RESOLVE,
        )  # fmt: skip

    def count_losses(self, now_ms: int) -> None:
        """Count as failed the attempts that were running when the previous owner of the task was lost."""
        for step in self._keys.pending_steps():
            if step.not_before <= now_ms:
                self._count(step, failure.worker_lost(step.key), now_ms, now_ms, step.started_at)

    def cancel(self, step: PendingStep) -> None:
        """Cancel the running attempt, if any, of a step that the code cancelled, and count the attempt as failed."""
        if step.running:
            self._buffer.add_cancelled(step.key)
            self._count(step, failure.cancelled(step.key), None, self._position.wall_ms, step.started_at)

    def cancel_running(self) -> None:
        """Cancel all running attempts when the run ends."""
        for step in self._keys.pending_steps():
            if step.running:
                self._buffer.add_cancelled(step.key)

    def _count(self, step: PendingStep, error: Failure, next_at: int | None, at: int, started_at: int) -> None:
        step.failures += 1
        step.running = False
        self._wait_queue.has_failed_steps = True
        step.not_before = next_at or 0
        n = step.failures
        fact = step.fact(
            FactState.FAILURE, n, at, started_at, ok=False, value=error.encode(), attempts=n, wake_at=next_at
        )
        self._history.failures[step.key] = fact
        self._history.kinds[step.key] = StepType.DO
        self._buffer.add_fact(fact)

    # --- the next attempt

    def add(self, step: PendingStep) -> None:
        """Queue the next attempt of a step that the code requests, after those in its recorded history."""
        if step.key in self._history.kinds:
            self._resume(step)
        self._wait_queue.ready.append(step)

    def _resume(self, step: PendingStep) -> None:
        last = self._history.failures.get(step.key)
        if last is not None:
            step.failures = last.n
            self._wait_queue.has_failed_steps = True
            step.not_before = last.wake_at or 0
        step.started_attempt = step.failures + ((step.key, step.attempt) in self._history.starts)
        heartbeat = self._history.heartbeats.get(step.key)
        if heartbeat is not None:
            step.progress = heartbeat.value

    def refuse_exhausted(self, now_ms: int) -> Fact | None:
        """The failed RESULT of a due step that has no attempts left; None if there is no such step."""
        step = self._wait_queue.exhausted_step()
        if step is None:
            return None
        error = failure.max_attempts_exceeded(step.key, step.failures)
        return step.fact(
            FactState.RESULT, 0, now_ms, step.started_at,
            seq=self._position.seq + 1, ok=False, value=error.encode(), attempts=step.failures,
        )  # fmt: skip

    def start_due(self, now_ms: int) -> list[PendingStep]:
        """Take the attempts to start now."""
        steps = self._wait_queue.due_steps(now_ms)
        for step in steps:
            step.running = True
            if step.failures:
                step.started_at = now_ms
        return steps
