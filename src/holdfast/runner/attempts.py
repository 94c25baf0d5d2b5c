"""Attempts: calls of step functions, each with its timeout, log lines and transaction.

The outcome of an attempt is reported once: when the function ends or when the timeout expires, whichever is first.
Stopping user code is best effort. A later result of the function is ignored, and the fence would refuse it anyway.
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

from holdfast.core import failure, tracebacks
from holdfast.core.durations import describe
from holdfast.core.failure import Failure
from holdfast.core.model import StepType
from holdfast.errors import StoreError
from holdfast.kernel.attempt import (
    Attempt,
    RequestFactory,
    StepEngine,
    StepHeartbeat,
    StepTx,
    Transaction,
    current_attempt,
)
from holdfast.kernel.driver import Call, Outcome, ReportedFailure, StepWrites
from holdfast.kernel.requests import Requests
from holdfast.kernel.telemetry import Telemetry
from holdfast.ports import Alarm, Spawn, Timers
from holdfast.store.protocol import Fact, FactState, LiveTransaction, Log, RunRecord

_log = logging.getLogger("holdfast")


@dataclass(slots=True, eq=False)
class Ports:
    """Clock, timers, threads and store access for running steps."""

    now_ms: Callable[[], int]
    timers: Timers
    spawn: Spawn
    requests: Requests
    begin_transaction: Callable[[], Awaitable[LiveTransaction]]
    """Open a live transaction for a step."""
    engine: StepEngine
    """The part of the engine that ``step_info()`` uses."""
    function: Callable[[Call], Callable[..., Any]] = attrgetter("function")
    """Select the function to call: the call's own function, or a wrapper in tests."""
    telemetry: Telemetry | None = None


class _ThreadCall(partial[Any]):
    """The call of a plain (not async) function, which runs in a thread."""

    thread: int | None = None
    """Identifier of the thread, once the call runs."""

    def __call__(self) -> Any:
        self.thread = threading.get_ident()
        return super().__call__()


class RunningAttempt(Attempt):
    """A running attempt of a step. ``report`` receives its outcome, possibly before ``start`` returns."""

    __slots__ = (
        "_alarm", "_finished", "_future", "_live", "_ports", "_recorded", "_report", "_thread_call", "_tx"
    )  # fmt: skip

    def __init__(self, call: Call, run: RunRecord, ports: Ports, report: Callable[[Outcome], None]) -> None:
        super().__init__(call.key, call.attempt, run, call, ports.now_ms(), ports.engine)
        self._ports = ports
        self._report = report
        self._recorded: StepHeartbeat | None = None
        """The heartbeat that ``new_heartbeat`` returned last."""
        self._tx: StepTx | Transaction | None = None
        self._live: LiveTransaction | None = None
        """The open transaction, until an outcome takes it over."""
        self._thread_call: _ThreadCall | None = None
        self._finished = False
        self._alarm: Alarm | None = None
        self._future: asyncio.Future[Any] | None = None
        """The running function; None: it has not suspended, or the attempt is finished."""

    def start(self) -> None:
        """Call the function. An async function runs at once until it first suspends."""
        future = self._call_function()
        if future is None:
            return
        if self._finished:  # cancelled by the first part of the function itself
            future.cancel()
            return
        self._future = future
        self._set_alarm()

    @property
    def in_transaction(self) -> bool:
        """True if the attempt has, or waits for, a live transaction, whose locks other commits may wait for."""
        return self.call.wants_tx is Transaction

    def cancel(self) -> None:
        """Stop the attempt without reporting an outcome."""
        telemetry = self._ports.telemetry
        if telemetry is not None and telemetry.observes_attempts and not self._finished:
            telemetry.attempt_ended(self, None)
        future = self._future
        self._mark_finished()
        if future is not None:
            future.cancel()

    def new_records(self) -> tuple[list[Fact], Sequence[Log]]:
        """The START fact, if it is not recorded yet, and the log lines that are not stored yet."""
        fact = self.call.start_fact(self.number, self.started_at)
        return ([fact] if fact is not None else []), self.take_logs()

    def take_logs(self) -> Sequence[Log]:
        """Return the log lines that are not stored yet. The caller must store them."""
        lines = self.logs[self.flushed :]
        self.flushed += len(lines)
        return lines

    def new_heartbeat(self) -> Fact | None:
        """The heartbeat since the last call of this method; None: there was none."""
        beat = self.heartbeat
        if beat is self._recorded or beat is None:
            return None
        self._recorded = beat
        return self._heartbeat_fact(beat)

    def _heartbeat_fact(self, beat: StepHeartbeat) -> Fact:
        return Fact(
            FactState.HEARTBEAT, self.key, self.number, StepType.DO, beat.at, self.started_at, value=beat.progress,
            attempts=self.number, max_attempts=self.call.max_attempts, timeout_ms=self.call.timeout_ms,
        )  # fmt: skip

    # --- running

    def _call_function(self) -> asyncio.Future[Any] | None:
        """Call the function. None: it has ended, and its outcome is reported."""
        call, spawn = self.call, self._ports.spawn
        context = contextvars.copy_context()
        context.run(current_attempt.set, self)
        telemetry = self._ports.telemetry
        if telemetry is not None and telemetry.observes_attempts:
            context.run(telemetry.attempt_began, self)
        args, kwargs = call.args, call.kwargs
        if (tx_kind := call.wants_tx) is not None:
            if tx_kind is Transaction:
                return spawn.coroutine(self._run_in_transaction(), context)
            self._tx = StepTx(self._request_factory())
            args, kwargs = call.arguments(self._tx)
        function = self._ports.function(call)
        if call.is_async:
            return spawn.coroutine(self._run(function, args, kwargs), context)
        self._thread_call = _ThreadCall(function, *args, **kwargs)
        future = spawn.function(self._thread_call, context)
        future.add_done_callback(self._thread_done)
        return future

    def _request_factory(self) -> RequestFactory:
        requests = self._ports.requests
        return RequestFactory(requests.new_run, partial(requests.event_to, sender=self.pid))

    async def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Await an async step. Any exception, ``SystemExit`` included, fails the step and not the worker."""
        try:
            value = await function(*args, **kwargs)
        except BaseException as error:
            if not self._finished:
                self._report_outcome(self._failed(_failure(error)))
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            if not self._finished:
                self._report_outcome(self._succeeded(value))

    async def _run_in_transaction(self) -> None:
        """Await a step inside a live transaction. A successful outcome hands the transaction over to the turn."""
        try:
            self._live = await self._ports.begin_transaction()
            self._tx = tx = Transaction(self._live, self._request_factory())
            args, kwargs = self.call.arguments(tx)
            await self._run(self._ports.function(self.call), args, kwargs)
        except Exception as error:  # the store could not open a transaction
            if not self._finished:
                self._report_outcome(self._failed(_failure(error)))
        finally:
            await self._rollback()

    async def _rollback(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            try:
                await live.rollback()
            except StoreError as error:  # the transaction ends with its connection
                step, run = self.key, self.pid
                _log.warning("could not roll back the transaction of step %r of run %s: %s", step, run, error)

    def _thread_done(self, future: asyncio.Future[Any]) -> None:
        """Report the outcome of a plain function."""
        if future.cancelled():
            return
        error = future.exception()
        if self._finished:
            return  # the attempt has timed out or was cancelled
        self._report_outcome(self._failed(_failure(error)) if error is not None else self._succeeded(future.result()))

    def _set_alarm(self) -> None:
        timeout_ms = self.call.timeout_ms
        if timeout_ms is not None:
            self._alarm = self._ports.timers.call_at(self.started_at + timeout_ms, self._on_timeout)

    def _on_timeout(self) -> None:
        timeout_ms = self.call.timeout_ms
        if self._finished or timeout_ms is None:
            return
        if self._ports.now_ms() < self.started_at + timeout_ms:
            self._set_alarm()  # timers may call early: they split a long delay into shorter ones
            return
        future = self._future
        self._report_outcome(self._failed(failure.timeout(self.key, describe(timeout_ms), self._stack())))
        if future is not None:
            future.cancel()

    def _stack(self) -> str | None:
        """The current stack of the function."""
        if isinstance(self._future, asyncio.Task):
            return tracebacks.format_stack(tracebacks.coroutine_frames(self._future.get_coro()))
        thread = None if self._thread_call is None else self._thread_call.thread
        return tracebacks.format_stack(tracebacks.thread_frames(thread, _ThreadCall.__call__.__code__))

    # --- the outcome

    def _succeeded(self, value: Any) -> Outcome:
        try:
            data, live = self.call.record(value)
        except Exception as error:  # NotSerializable, PayloadTooLarge, a user's own serializer
            return self._failed(Failure.of(error))
        outcome = Outcome(
            self.key, self.number, self.started_at, self._ports.now_ms(), data, live, self.logs[self.flushed :]
        )
        if isinstance(live, ReportedFailure):
            self._keep_heartbeat(outcome)
        if self._tx is not None:
            outcome.writes = self._writes(self._tx)
        return outcome

    def _writes(self, tx: StepTx | Transaction) -> StepWrites | None:
        live, self._live = self._live, None
        writes = StepWrites(tx.starts, tx.sends, tx.statements if isinstance(tx, StepTx) else (), live)
        return writes or None

    def _failed(self, error: Failure) -> Outcome:
        outcome = Outcome(self.key, self.number, self.started_at, self._ports.now_ms(), logs=self.logs[self.flushed :])
        outcome.failure = error
        self._keep_heartbeat(outcome)
        return outcome

    def _keep_heartbeat(self, outcome: Outcome) -> None:
        if self.heartbeat is not None:
            outcome.heartbeat = self._heartbeat_fact(self.heartbeat)

    def _report_outcome(self, outcome: Outcome) -> None:
        self._mark_finished()
        telemetry = self._ports.telemetry
        if telemetry is not None and telemetry.observes_attempts:
            telemetry.attempt_ended(self, outcome)
        self._report(outcome)

    def _mark_finished(self) -> None:
        self._finished = True
        self._future = None  # its context refers to this attempt, which would be a reference cycle
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None  # likewise


def _failure(error: BaseException) -> Failure:
    if isinstance(error, asyncio.CancelledError):
        return Failure("CancelledError", "the step function raised CancelledError, but the step was not cancelled")
    return Failure.of(error)
