"""``step_info()``: what a running step can know about itself, and the heartbeats by which it reports progress.

A heartbeat is kept in memory with its attempt; the worker writes the latest one of each attempt twice a second, and
once more when the attempt fails. So a step may report as often as it likes, and the next attempt finds the progress of
the last one after a failure, a timeout or the loss of the worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Generator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.core import codec
from holdfast.core.model import from_ms
from holdfast.kernel.attempt import Attempt, Beat, current_attempt
from holdfast.kernel.logger import StepLogger
from holdfast.store.protocol import RunRecord


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The attempt that the calling code belongs to."""

    workflow: str
    instance_id: str
    run_number: int
    step_key: str
    attempt: int
    """Number of this attempt, from 1."""
    max_attempts: int | None
    """None: without a limit."""
    idempotency_key: str
    """The same for all attempts and replays of this step in this run, different for every other step and run."""
    deadline: datetime | None
    """When this attempt times out; None: never."""
    log: StepLogger = field(repr=False)
    previous_heartbeat: Any
    """The last progress that an earlier attempt reported; None if there is none."""
    _attempt: Attempt = field(repr=False, compare=False)

    def heartbeat(self, progress: Any = None) -> Awaitable[None]:
        """Report that the step is alive and how far it is. Await it in an async step; a plain step only calls it.

        ``progress`` is any JSON value of at most ``Limits.heartbeat`` bytes; without one, the last one stands. To
        await it lets other tasks run, and is where a step that timed out or was cancelled ends.
        """
        self._attempt.heartbeat = self._beat(progress)
        return _Pause()

    def _beat(self, progress: Any) -> Beat:
        attempt = self._attempt
        now = attempt.engine.now_ms()
        if progress is None:
            last = attempt.heartbeat
            return Beat(now, attempt.call.progress if last is None else last.progress)
        what = f"progress of step {self.step_key!r}"
        return Beat(now, codec.encode(progress, what=what, limit=attempt.engine.heartbeat_limit))


class _Pause:
    """Suspends its task once. Not a coroutine: a plain step may drop it."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


def step_info() -> StepInfo:
    """The running step: also in its tasks and threads. Raises ``RuntimeError`` where no step is running.

    Example::

        @app.step
        async def pay(order: Order) -> str:
            return await gateway.charge(order.total, idempotency_key=step_info().idempotency_key)
    """
    attempt = current_attempt.get()
    if attempt is None:
        raise RuntimeError("step_info() was called outside a step; in workflow code use ctx.info")
    run, call = attempt.run, attempt.call
    timeout_ms = call.timeout_ms
    return StepInfo(
        workflow=run.workflow,
        instance_id=run.instance_id,
        run_number=run.number,
        step_key=attempt.key,
        attempt=attempt.number,
        max_attempts=call.max_attempts,
        idempotency_key=idempotency_key(run, attempt.key),
        deadline=None if timeout_ms is None else from_ms(attempt.started_at + timeout_ms),
        log=attempt.engine.log,
        previous_heartbeat=codec.plain(call.progress),
        _attempt=attempt,
    )


def idempotency_key(run: RunRecord, step_key: str) -> str:
    """The seed of a run is random, so equal ids in two databases have different keys."""
    text = f"{run.seed}/{run.pid}/{run.number}/{step_key}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
