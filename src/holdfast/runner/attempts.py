"""Running step functions: one attempt each, with its time limit, its log lines and its transaction.

The function's outcome is reported once: when it ends, or when its time is up, whichever is first. Stopping user code
is best effort; what comes later is ignored here and could not be written anyway.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.core import failure
from holdfast.core.durations import describe
from holdfast.core.failure import Failure
from holdfast.kernel.attempt import Attempt, StepTx, current_attempt
from holdfast.kernel.driver import Call, Outcome
from holdfast.kernel.requests import Requests
from holdfast.ports import Alarm, Spawn, Timers
from holdfast.store.protocol import Fact, Log


@dataclass(frozen=True, slots=True)
class Ports:
    """What running steps needs of the outside."""

    now_ms: Callable[[], int]
    timers: Timers
    spawn: Spawn
    requests: Requests


class Running:
    """An attempt under way."""

    def __init__(self, call: Call, instance: str, ports: Ports, report: Callable[[Outcome], None]) -> None:
        self._call = call
        self._ports = ports
        self._report = report
        self._attempt = Attempt(call.key, call.attempt, instance)
        self._tx: StepTx | None = None
        self._over = False
        self._alarm: Alarm | None = None
        self.started_at = ports.now_ms()
        self._future = self._start()
        self._future.add_done_callback(self._ended)
        self._set_alarm()

    @property
    def key(self) -> str:
        return self._call.key

    @property
    def number(self) -> int:
        return self._call.attempt

    def cancel(self) -> None:
        """Nobody wants the outcome any more."""
        self._finish()
        self._future.cancel()

    def news(self) -> tuple[list[Fact], list[Log]]:
        """What is worth showing of an attempt that takes its time: that it runs, and its log lines so far."""
        fact = self._call.note(self.started_at)
        lines = self._attempt.logs[self._attempt.flushed :]
        self._attempt.flushed += len(lines)
        return ([fact] if fact is not None else []), lines

    # --- running

    def _start(self) -> asyncio.Future[Any]:
        call = self._call
        context = contextvars.copy_context()
        context.run(current_attempt.set, self._attempt)
        args, kwargs = call.args, call.kwargs
        if call.bind is not None:
            self._tx = StepTx(self._ports.requests.new_run, self._ports.requests.new_event)
            args, kwargs = call.bind(args, kwargs, self._tx)
        if call.is_async:
            return self._ports.spawn.coroutine(_contained(call.function, args, kwargs), context)
        return self._ports.spawn.function(partial(call.function, *args, **kwargs), context)

    def _set_alarm(self) -> None:
        if self._call.timeout_ms is not None:
            self._deadline = self.started_at + self._call.timeout_ms
            self._alarm = self._ports.timers.call_at(self._deadline, self._time_is_up)

    def _time_is_up(self) -> None:
        if self._over:
            return
        if self._ports.now_ms() < self._deadline:
            # Woken early: timers do not trust one long delay.
            self._alarm = self._ports.timers.call_at(self._deadline, self._time_is_up)
            return
        text = describe(self._call.timeout_ms or 0)
        self._settle(self._failed(failure.timeout(self.key, text)))
        self._future.cancel()

    def _ended(self, future: asyncio.Future[Any]) -> None:
        if self._over:
            if not future.cancelled():
                future.exception()  # seen: a late error is nobody's
            return
        self._settle(self._outcome_of(future))

    def _outcome_of(self, future: asyncio.Future[Any]) -> Outcome:
        if future.cancelled():
            return self._failed(Failure("CancelledError", "the step was cancelled from inside"))
        error = future.exception()
        if error is not None:
            return self._failed(Failure.of(error))
        try:
            value, live = self._call.record(future.result())
        except Exception as unfit:
            return self._failed(Failure.of(unfit))
        outcome = self._outcome()
        outcome.value, outcome.live = value, live
        if self._tx is not None:
            outcome.statements, outcome.starts, outcome.sends = (
                self._tx.statements,
                self._tx.starts,
                self._tx.sends,
            )
        return outcome

    def _failed(self, error: Failure) -> Outcome:
        outcome = self._outcome()
        outcome.failure = error
        return outcome

    def _outcome(self) -> Outcome:
        lines = self._attempt.logs[self._attempt.flushed :]
        return Outcome(self.key, self.number, self.started_at, self._ports.now_ms(), logs=lines)

    def _settle(self, outcome: Outcome) -> None:
        self._finish()
        self._report(outcome)

    def _finish(self) -> None:
        self._over = True
        if self._alarm is not None:
            self._alarm.cancel()


async def _contained(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Await a step. ``sys.exit()`` in one is that step's failure, not the end of the worker."""
    try:
        return await function(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the step raised {type(error).__name__}: {error}") from error
