"""Attempts of steps: which failed, which were lost, when the next one is due. Counts; calls nothing."""

from __future__ import annotations

from random import Random

from holdfast.core import failure
from holdfast.core.failure import Failure
from holdfast.core.model import StepType
from holdfast.kernel.driver import Outcome
from holdfast.store.protocol import Fact, FactState
from holdfast.workflow.agenda import Agenda
from holdfast.workflow.asked import AskedStep
from holdfast.workflow.past import Past


class Tries:
    """The attempts of one run's steps."""

    def __init__(self, past: Past, agenda: Agenda, news: list[Fact], seed: int) -> None:
        self._past = past
        self._agenda = agenda
        self._news = news
        """Where facts go that have to be written."""
        self._seed = seed

    def resume(self, asked: AskedStep) -> None:
        """Go on counting where the history has got to."""
        last = self._past.failures.get(asked.key)
        if last is not None:
            asked.failures = last.n
            asked.not_before = last.wake_at or 0
        asked.noted = asked.failures + ((asked.key, asked.attempt) in self._past.starts)
        beat = self._past.heartbeats.get(asked.key)
        if beat is not None:
            asked.progress = beat.value

    def failed(self, asked: AskedStep, outcome: Outcome, error: Failure, seq: int) -> Fact | None:
        """An attempt failed. The step's result if that was the last one; else another one is due later."""
        retry = asked.spec.retry
        most = retry.max_attempts
        final = error.retryable is False or not retry.retries(error.lineage or (error.name,))
        if final or (most is not None and outcome.attempt >= most):
            return asked.fact(
                FactState.RESULT, 0, outcome.at, outcome.started_at,
                seq=seq, ok=False, value=error.encode(), attempts=outcome.attempt,
            )  # fmt: skip
        jitter = Random(f"{self._seed}/{asked.key}/{outcome.attempt}").random()  # noqa: S311  (spreads retries)
        next_at = outcome.at + retry.delay_after(outcome.attempt, jitter)
        self.count(asked, error, next_at, outcome.at, outcome.started_at)
        if outcome.heartbeat is not None:
            asked.progress = outcome.heartbeat.value
        self._agenda.ready.append(asked)
        return None

    def lost(self, asked: AskedStep, now_ms: int) -> None:
        """An attempt that was under way when the last worker was lost counts as one."""
        self.count(asked, failure.lost(asked.key), now_ms, now_ms, asked.started_at)

    def cancelled(self, asked: AskedStep, now_ms: int) -> None:
        """The code does not want it any more."""
        self.count(asked, failure.cancelled(asked.key), None, now_ms, asked.started_at)

    def refused(self, asked: AskedStep, now_ms: int, seq: int) -> Fact:
        """The guard before a call: a step whose attempts are gone fails instead of being started."""
        error = failure.attempts_used_up(asked.key, asked.failures)
        return asked.fact(
            FactState.RESULT, 0, now_ms, asked.started_at,
            seq=seq, ok=False, value=error.encode(), attempts=asked.failures,
        )  # fmt: skip

    def count(self, asked: AskedStep, error: Failure, next_at: int | None, at: int, started_at: int) -> None:
        asked.failures += 1
        asked.running = False
        asked.not_before = next_at or 0
        n = asked.failures
        fact = asked.fact(
            FactState.FAILURE, n, at, started_at, ok=False, value=error.encode(), attempts=n, wake_at=next_at
        )
        self._past.failures[asked.key] = fact
        self._past.kinds[asked.key] = StepType.DO
        self._news.append(fact)
