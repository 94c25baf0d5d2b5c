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
from holdfast.errors import StateError, StoreError
from holdfast.kernel.attempt import (
    Attempt,
    ReportedFailure,
    RequestFactory,
    StepEngine,
    StepHeartbeat,
    StepTx,
    Transaction,
    current_attempt,
)
from holdfast.kernel.driver import Call, Outcome, StepWrites
from holdfast.kernel.requests import Requests
from holdfast.kernel.streams import AttemptStreams
from holdfast.kernel.telemetry import Telemetry
from holdfast.ports import Alarm, Spawn, Timers
from holdfast.store.protocol import Fact, FactState, LiveTransaction, Log, RunRecord, TaskRef

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
    on_end: Callable[[], object] | None = None
    """Called in the thread when the function has returned, also after the attempt was cancelled."""

    def __call__(self) -> Any:
        self.thread = threading.get_ident()
        try:
            return super().__call__()
        finally:
            if self.on_end is not None:
                self.on_end()


class RunningAttempt(Attempt):
    """A running attempt of a step. ``report`` receives its outcome, possibly before ``start`` returns."""

    __slots__ = (
        "_alarm", "_finished", "_future", "_live", "_permit", "_ports", "_recorded", "_records_written", "_report",
        "_task", "_thread_call", "_tx", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        run: RunRecord,
        task: TaskRef,
        ports: Ports,
        report: Callable[[Outcome], None],
        records_written: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``records_written``: waits until no commit of the turn is under way, before a live transaction begins."""
        super().__init__(call.key, call.attempt, run, call, ports.now_ms(), ports.engine)
        self._records_written = records_written
        self._task = task
        self._ports = ports
        self._report = report
        self._recorded: StepHeartbeat | None = None
        """The heartbeat that ``new_heartbeat`` returned last."""
        self._tx: StepTx | Transaction | None = None
        self._live: LiveTransaction | None = None
        """The open transaction, until an outcome takes it over."""
        self._thread_call: _ThreadCall | None = None
        self._finished = False
        self.waiting = False
        """The attempt waits for its permit; the function is not called yet."""
        self._permit: Callable[[], None] | None = None
        """Returns the permit."""
        self._alarm: Alarm | None = None
        self._future: asyncio.Future[Any] | None = None
        """The running function; None: it has not suspended, or the attempt is finished."""

    def start(self) -> None:
        """Call the function. An async function runs at once until it first suspends."""
        future = self._call_function()
        if self._permit is not None:
            _return_permit_after(future, self._thread_call, self._permit)
        if future is None:
            return
        if self._finished:  # cancelled by the first part of the function itself
            future.cancel()
            return
        self._future = future
        self._set_alarm()

    def start_limited(self, acquire: Callable[[], Awaitable[bool]], give_back: Callable[[], None]) -> None:
        """Call the function once ``acquire`` returns True. ``give_back`` is called when the function has ended.

        While the attempt waits, its timeout does not run.
        """
        self.waiting, self._permit = True, give_back
        future = self._ports.spawn.coroutine(self._wait_for_permit(acquire), contextvars.copy_context())
        if future is not None and self.waiting:
            self._future = future

    async def _wait_for_permit(self, acquire: Callable[[], Awaitable[bool]]) -> None:
        try:
            granted = await acquire()
        except Exception as error:
            self.waiting = False
            if not self._finished:
                self._report_outcome(self._failed(_failure(error)))
            return
        self.waiting = False
        if granted and not self._finished:
            self._future = None
            self.started_at = self._ports.now_ms()
            self.start()
        elif granted and self._permit is not None:
            self._permit()

    @property
    def in_transaction(self) -> bool:
        """True if the attempt has, or waits for, a live transaction, whose locks other commits may wait for."""
        return self.call.wants_tx is Transaction and not self.waiting

    def cancel(self) -> None:
        """Stop the attempt without reporting an outcome."""
        telemetry = self._ports.telemetry
        if telemetry is not None and telemetry.observes_attempts and not self._finished:
            telemetry.attempt_ended(self, None)
        future = self._future
        self._mark_finished()
        if self.streams is not None:
            self.streams.abandon()
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
        return _heartbeat_fact(self, beat)

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
            self._tx = StepTx(_request_factory(self._ports, self.pid))
            args, kwargs = call.arguments(self._tx)
        function = self._ports.function(call)
        if call.is_async:
            return spawn.coroutine(self._run(function, args, kwargs), context)
        self.loop = asyncio.get_running_loop()
        self._thread_call = _ThreadCall(function, *args, **kwargs)
        if self._permit is not None:
            loop, give_back = asyncio.get_running_loop(), self._permit
            self._thread_call.on_end = lambda: loop.call_soon_threadsafe(give_back)
        future = spawn.function(self._thread_call, context)
        future.add_done_callback(self._thread_done)
        return future

    async def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Await an async step. Any exception, ``SystemExit`` included, fails the step and not the worker."""
        try:
            value = await function(*args, **kwargs)
            if self.streams is not None:
                await self.streams.store()
        except BaseException as error:
            if self.streams is not None and isinstance(error, Exception):
                await _store_rest(self, self.streams)
            if not self._finished:
                self._report_outcome(self._failed(_failure(error)))
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            if not self._finished:
                self._report_outcome(self._succeeded(value))

    def open_streams(self) -> AttemptStreams:
        port = self.engine.streams
        if port is None:
            raise StateError("this step does not run in a worker")
        if self.call.wants_tx is Transaction:
            raise StateError(
                f"step {self.key!r} has a Transaction, so it cannot write to streams: the item would wait for the "
                "end of the transaction. Write from another step, or use StepTx"
            )
        self.streams = AttemptStreams(self.pid, self._task, self.key, self.number, port)
        return self.streams

    async def _run_in_transaction(self) -> None:
        """Await a step inside a live transaction. A successful outcome hands the transaction over to the turn."""
        try:
            if self._records_written is not None:
                await self._records_written()
            self._live = await self._ports.begin_transaction()
            self._tx = tx = Transaction(self._live, _request_factory(self._ports, self.pid))
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
        if self.streams is not None and self.streams.used:
            self._future = self._ports.spawn.coroutine(
                self._thread_streamed(future, self.streams), contextvars.copy_context()
            )
            return
        self._report_outcome(self._failed(_failure(error)) if error is not None else self._succeeded(future.result()))

    async def _thread_streamed(self, future: asyncio.Future[Any], streams: AttemptStreams) -> None:
        """Report the outcome of a plain function that wrote to streams, once its items are stored."""
        error = future.exception()
        try:
            await streams.store()
        except Exception as failed:  # the attempt fails with it
            error = error or failed
        if not self._finished:
            outcome = self._failed(_failure(error)) if error is not None else self._succeeded(future.result())
            self._report_outcome(outcome)

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
            outcome.heartbeat = _heartbeat_fact(self, self.heartbeat)

    def _report_outcome(self, outcome: Outcome) -> None:
        self._mark_finished()
        if self.streams is not None:
            outcome.streamed, outcome.closes = self.streams.used, self.streams.closes
            self.streams.abandon()
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


def _return_permit_after(
    future: asyncio.Future[Any] | None, thread_call: _ThreadCall | None, give_back: Callable[[], None]
) -> None:
    """Return the permit when the function has ended, which may be later than the end of the attempt."""
    if future is None:
        give_back()
    elif thread_call is None:
        future.add_done_callback(lambda _: give_back())
    else:
        future.add_done_callback(lambda _: give_back() if thread_call.thread is None else None)


def _request_factory(ports: Ports, sender: str) -> RequestFactory:
    requests = ports.requests
    return RequestFactory(requests.new_run, partial(requests.event_to, sender=sender))


def _heartbeat_fact(attempt: RunningAttempt, beat: StepHeartbeat) -> Fact:
    call = attempt.call
    return Fact(
        FactState.HEARTBEAT, attempt.key, attempt.number, StepType.DO, beat.at, attempt.started_at, value=beat.progress,
        attempts=attempt.number, max_attempts=call.max_attempts, timeout_ms=call.timeout_ms,
    )  # fmt: skip


async def _store_rest(attempt: RunningAttempt, streams: AttemptStreams) -> None:
    """Store the last items of a failed attempt, which only readers of all attempts see."""
    try:
        await streams.store()
    except (StateError, StoreError) as error:
        _log.debug("could not store the last items of step %r of run %s: %s", attempt.key, attempt.pid, error)


def _failure(error: BaseException) -> Failure:
    if isinstance(error, asyncio.CancelledError):
        return Failure("CancelledError", "the step function raised CancelledError, but the step was not cancelled")
    return Failure.of(error)
