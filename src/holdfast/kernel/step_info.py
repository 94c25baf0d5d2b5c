"""``step_info()``: information about the running step, and heartbeats, by which a step reports progress.

A heartbeat is kept in memory with its attempt. The worker stores the latest heartbeat of each attempt twice a second,
and once more when the attempt fails. A step may therefore report as often as it likes, and after a failure, a timeout
or the loss of the worker the next attempt receives the progress of the last one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Generator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.core import codec
from holdfast.core.model import from_ms
from holdfast.core.scheduled_start import tick_of
from holdfast.kernel.attempt import Attempt, StepHeartbeat, current_attempt
from holdfast.kernel.logger import StepLogger
from holdfast.store.protocol import RunRecord

if TYPE_CHECKING:
    from holdfast.kernel.streams import Stream


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Information about the attempt that the calling code belongs to."""

    workflow: str
    instance_id: str
    run_number: int
    step_key: str
    attempt: int
    """Number of this attempt, from 1."""
    max_attempts: int | None
    """None: no limit."""
    idempotency_key: str
    """A key that all attempts and replays of this step in this run share, and no other step or run has."""
    deadline: datetime | None
    """The time at which this attempt times out; None: it has no timeout."""
    log: StepLogger = field(repr=False)
    previous_heartbeat: Any
    """The last progress that an earlier attempt reported; None if there is none."""
    scheduled_for: datetime | None
    """The tick, in a run that a schedule started."""
    _attempt: Attempt = field(repr=False, compare=False)

    def heartbeat(self, progress: Any = None) -> Awaitable[None]:
        """Report that the step is alive, and its progress. Await it in an async step; a plain step only calls it.

        ``progress`` is any JSON value of at most ``Limits.heartbeat`` bytes; None keeps the last reported progress.
        Awaiting lets other tasks run, and is the point at which a step that timed out or was cancelled stops.
        """
        self._attempt.heartbeat = self._new_heartbeat(progress)
        return _YieldOnce()

    def stream(self, name: str) -> Stream:
        """The stream of the run with this name, to write to: see ``Stream``. Readers use ``run.stream(name)``."""
        attempt = self._attempt
        streams = attempt.streams or attempt.open_streams()
        return streams.open(name, attempt.loop)

    def _new_heartbeat(self, progress: Any) -> StepHeartbeat:
        attempt = self._attempt
        now = attempt.engine.now_ms()
        if progress is None:
            last = attempt.heartbeat
            return StepHeartbeat(now, attempt.call.progress if last is None else last.progress)
        what = f"progress of step {self.step_key!r}"
        return StepHeartbeat(now, codec.encode(progress, what=what, limit=attempt.engine.heartbeat_limit))


class _YieldOnce:
    """Suspends the awaiting task once. Not a coroutine, because a plain step does not await it."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


def step_info() -> StepInfo:
    """Information about the running step; works in its tasks and threads too. ``RuntimeError`` outside a step.

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
        scheduled_for=tick_of(run.options).scheduled_for,
        _attempt=attempt,
    )


def idempotency_key(run: RunRecord, step_key: str) -> str:
    """The idempotency key of a step. It includes the run's random seed, so equal ids in two databases have two keys."""
    text = f"{run.seed}/{run.pid}/{run.key_number}/{step_key}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
