"""The ends of a run of a chain: its result or error, and the successor that follows from the run's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.chain.progress import ChainStep
from holdfast.core.failure import Failure
from holdfast.core.jitter import retry_jitter
from holdfast.core.model import Status
from holdfast.errors import LinkDownError
from holdfast.kernel.options import RunOptions
from holdfast.store.protocol import Finish, RunRecord


class Ending:
    def __init__(self, run: RunRecord, options: RunOptions) -> None:
        self._run = run
        self._options = options

    def completed(self, output: bytes, now_ms: int) -> Finish:
        return self._with_successor(Finish(Status.COMPLETE, output=output), now_ms)

    def errored(self, error: Failure, now_ms: int) -> Finish:
        retry = self._options.retry
        names = error.lineage or (error.name,)
        retryable = error.retryable is not False and retry is not None and retry.retries(names)
        return self._with_successor(Finish(Status.ERRORED, error=error.encode()), now_ms, retryable=retryable)

    def cancelled(self, reason: str | None) -> Finish:
        error = Failure("CancelledError", reason or "no reason given", kind="Cancelled", retryable=False)
        return Finish(Status.CANCELLED, error=error.encode())

    def _with_successor(self, finish: Finish, now_ms: int, *, retryable: bool = False) -> Finish:
        if self._options.retry is None and self._options.cron is None:
            return finish
        chance = retry_jitter(self._run.seed, "", self._run.attempt)
        successor = self._options.successor(self._run, finish, retryable=retryable, now=now_ms, chance=chance)
        return replace(finish, next=successor)


def dead_step_error(step: ChainStep) -> Failure:
    """The error of a chain whose step is dead, with the step and its attempts in the message."""
    error = Failure.decode(step.result.value)
    count = "1 attempt" if step.failed_attempts == 1 else f"{step.failed_attempts} attempts"
    message = f"step {step.type!r} is dead after {count}: {error.message}"
    return replace(error, message=message, args=None, cause=replace(error, traceback=None))


def link_down_error(pid: str, content: Mapping[str, Any]) -> Failure:
    """The error of a chain whose linked run failed; ``content`` is the payload of the exit event."""
    if content["error"] is None:
        why = f"linked run {pid} ended {content['status']}: {content['note'] or 'no reason given'}"
    else:
        error = Failure.from_content(content["error"])
        first = error.name == LinkDownError.__name__  # the message names the run that failed first
        why = error.message if first else f"linked run {pid} ended {content['status']}: {error.name}: {error.message}"
    return Failure.of(LinkDownError(why))
