"""Running step functions: one attempt each, with its time limit, its log lines and its transaction.

The function's outcome is reported once: when it ends, or when its time is up, whichever is first. Stopping user code
is best effort; what comes later is ignored here and could not be written anyway.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from holdfast.core import failure, traces
from holdfast.core.durations import describe
from holdfast.core.failure import Failure
from holdfast.core.model import StepType
from holdfast.errors import StoreError
from holdfast.kernel.attempt import Attempt, Beat, Outgoing, StepEngine, StepTx, Transaction, current_attempt
from holdfast.kernel.driver import Call, FailedAnswer, Outcome
from holdfast.kernel.requests import Requests
from holdfast.ports import Alarm, Spawn, Timers
from holdfast.store.protocol import Fact, FactState, LiveTransaction, Log, RunRecord

_log = logging.getLogger("holdfast")


@dataclass(slots=True, eq=False)
class Ports:
    """What running steps needs of the outside."""

    now_ms: Callable[[], int]
    timers: Timers
    spawn: Spawn
    requests: Requests
    begin: Callable[[], Awaitable[LiveTransaction]]
    """Opens a transaction for a step."""
    engine: StepEngine
    """For steps that ask for ``step_info()``."""
    function: Callable[[Call], Callable[..., Any]] = attrgetter("function")
    """What is called: the call's own function, unless a test puts something around it."""


class _InThread(partial[Any]):
    """The call of a plain function, which runs in a thread."""

    thread: int | None = None
    """The thread, once it runs."""

    def __call__(self) -> Any:
        self.thread = threading.get_ident()
        return super().__call__()


class Running:
    """An attempt under way."""

    def __init__(self, call: Call, run: RunRecord, ports: Ports, report: Callable[[Outcome], None]) -> None:
        self.key = call.key
        self.number = call.attempt
        self.started_at = ports.now_ms()
        self._call = call
        self._ports = ports
        self._report = report
        self._attempt = Attempt(call.key, call.attempt, run, call, self.started_at, ports.engine)
        self._recorded: Beat | None = None
        """The heartbeat that was handed out last, to be stored."""
        self._tx: StepTx | Transaction | None = None
        self._live: LiveTransaction | None = None
        """Open, and not handed on yet."""
        self._plain: _InThread | None = None
        self._over = False
        self._alarm: Alarm | None = None
        self._future = self._start()
        self._set_alarm()

    @property
    def pid(self) -> str:
        return self._attempt.pid

    @property
    def in_transaction(self) -> bool:
        """It has, or waits for, a transaction of its own, for which others may wait."""
        return self._call.wants_tx is Transaction

    def cancel(self) -> None:
        """Nobody wants the outcome any more."""
        self._finish()
        self._future.cancel()

    def news(self) -> tuple[list[Fact], Sequence[Log]]:
        """What is worth showing of an attempt that takes its time: that it runs, and its log lines so far."""
        fact = self._call.note(self.number, self.started_at)
        return ([fact] if fact is not None else []), self.take_lines()

    def take_lines(self) -> Sequence[Log]:
        """The log lines that are not stored yet; the caller stores them."""
        lines = self._attempt.logs[self._attempt.flushed :]
        self._attempt.flushed += len(lines)
        return lines

    def heartbeat(self) -> Fact | None:
        """The heartbeat that came since the last look; None: there was none."""
        beat = self._attempt.heartbeat
        if beat is self._recorded or beat is None:
            return None
        self._recorded = beat
        return self._heartbeat_fact(beat)

    def _heartbeat_fact(self, beat: Beat) -> Fact:
        return Fact(
            FactState.HEARTBEAT, self.key, self.number, StepType.DO, beat.at, self.started_at, value=beat.progress,
            attempts=self.number, max_attempts=self._call.max_attempts, timeout_ms=self._call.timeout_ms,
        )  # fmt: skip

    # --- running

    def _start(self) -> asyncio.Future[Any]:
        call, spawn = self._call, self._ports.spawn
        context = contextvars.copy_context()
        context.run(current_attempt.set, self._attempt)
        if call.wants_tx is Transaction:
            return spawn.coroutine(self._run_in_transaction(), context)
        function, args, kwargs = self._ports.function(call), call.args, call.kwargs
        if call.wants_tx is StepTx:
            self._tx = StepTx(self._outgoing())
            args, kwargs = call.arguments(self._tx)
        if call.is_async:
            return spawn.coroutine(self._run(function, args, kwargs), context)
        self._plain = _InThread(function, *args, **kwargs)
        future = spawn.function(self._plain, context)
        future.add_done_callback(self._returned)
        return future

    def _outgoing(self) -> Outgoing:
        requests = self._ports.requests
        return Outgoing(requests.new_run, partial(requests.event_to, sender=self._attempt.pid))

    async def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Await a step. Whatever it raises, ``sys.exit()`` included, is its own failure and not the worker's."""
        try:
            value = await function(*args, **kwargs)
        except BaseException as error:
            if not self._over:
                self._settle(self._failed(_failure(error)))
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            if not self._over:
                self._settle(self._worked(value))

    async def _run_in_transaction(self) -> None:
        """Await a step inside an open transaction, which is then the turn's to commit."""
        try:
            self._live = await self._ports.begin()
            self._tx = tx = Transaction(self._live, self._outgoing())
            args, kwargs = self._call.arguments(tx)
            await self._run(self._ports.function(self._call), args, kwargs)
        except Exception as error:  # the store's: there is no transaction to be had
            if not self._over:
                self._settle(self._failed(_failure(error)))
        finally:
            await self._undo()

    async def _undo(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            try:
                await live.rollback()
            except StoreError as error:  # gone with its connection, then
                step, run = self.key, self._attempt.pid
                _log.warning("could not roll back the transaction of step %r of run %s: %s", step, run, error)

    def _returned(self, future: asyncio.Future[Any]) -> None:
        """A step in a thread has come to its end."""
        if future.cancelled():
            return
        error = future.exception()
        if self._over:
            return  # too late
        self._settle(self._failed(_failure(error)) if error is not None else self._worked(future.result()))

    def _set_alarm(self) -> None:
        timeout_ms = self._call.timeout_ms
        if timeout_ms is not None and not self._over:
            self._deadline = self.started_at + timeout_ms
            self._alarm = self._ports.timers.call_at(self._deadline, self._time_is_up)

    def _time_is_up(self) -> None:
        if self._over:
            return
        if self._ports.now_ms() < self._deadline:
            # Woken early: timers do not trust one long delay.
            self._alarm = self._ports.timers.call_at(self._deadline, self._time_is_up)
            return
        text = describe(self._call.timeout_ms or 0)
        self._settle(self._failed(failure.timeout(self.key, text, self._stack())))
        self._future.cancel()

    def _stack(self) -> str | None:
        """Where the function is now."""
        if isinstance(self._future, asyncio.Task):
            return traces.stack(traces.coroutine_frames(self._future.get_coro()))
        thread = None if self._plain is None else self._plain.thread
        return traces.stack(traces.thread_frames(thread, _InThread.__call__.__code__))

    # --- the outcome

    def _worked(self, value: Any) -> Outcome:
        try:
            data, live = self._call.record(value)
        except Exception as unfit:  # NotSerializable, PayloadTooLarge, a user's own serializer
            return self._failed(Failure.of(unfit))
        outcome = self._outcome()
        outcome.value, outcome.live = data, live
        if isinstance(live, FailedAnswer):
            self._keep_heartbeat(outcome)
        tx = self._tx
        if tx is not None:
            outcome.starts, outcome.sends = tx.starts, tx.sends
            if isinstance(tx, StepTx):
                outcome.statements = tx.statements
            outcome.transaction, self._live = self._live, None
        return outcome

    def _failed(self, error: Failure) -> Outcome:
        outcome = self._outcome()
        outcome.failure = error
        self._keep_heartbeat(outcome)
        return outcome

    def _keep_heartbeat(self, outcome: Outcome) -> None:
        if self._attempt.heartbeat is not None:
            outcome.heartbeat = self._heartbeat_fact(self._attempt.heartbeat)

    def _outcome(self) -> Outcome:
        attempt = self._attempt
        return Outcome(
            self.key, self.number, self.started_at, self._ports.now_ms(), logs=attempt.logs[attempt.flushed :]
        )

    def _settle(self, outcome: Outcome) -> None:
        self._finish()
        self._report(outcome)

    def _finish(self) -> None:
        self._over = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None  # or the two would keep each other until the next garbage collection


def _failure(error: BaseException) -> Failure:
    if isinstance(error, asyncio.CancelledError):
        return Failure("CancelledError", "the step was cancelled from inside")
    return Failure.of(error)
