"""The machine of a chain: it takes outcomes and events, and returns the call of the current step or the end of the run.

The state of a run is derived from its facts. The plan that was stored at the start decides which step is next, so a run
continues with its original steps after the chain was changed; from the program the machine needs only the handler of
the current step. Each answer of a handler becomes a fact. The commit that writes it also makes the next step due, and
the same worker continues with that step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from holdfast.chain.answers import DeadAnswer, DoneAnswer, HandlerAnswer, RetryAnswer, WaitAnswer
from holdfast.chain.call import ChainCall, Handler
from holdfast.chain.ending import Ending, dead_step_error, link_down_error
from holdfast.chain.mailbox import Mailbox
from holdfast.chain.progress import ChainStep, Progress
from holdfast.chain.step_recorder import StepRecorder
from holdfast.chain.values import ChainTask, ChainTaskKind, Outputs
from holdfast.core import codec
from holdfast.core.event import Event
from holdfast.core.failure import Failure
from holdfast.core.limits import Limits
from holdfast.core.model import Level, Status, from_ms
from holdfast.core.retry import Retry
from holdfast.errors import ParamsInvalidError
from holdfast.kernel.attempt import NO_VALUES
from holdfast.kernel.driver import Decision, Outcome
from holdfast.kernel.logger import StepLogger
from holdfast.kernel.options import NO_OPTIONS, RunOptions
from holdfast.store.protocol import (
    CANCEL,
    NOTHING_FOLLOWS,
    RESOLVE,
    Finish,
    Following,
    Log,
    Park,
    RecordedOperation,
    RequestResult,
    RunRecord,
    Snapshot,
    StoredEvent,
    Watch,
)

DEFAULT_BACKOFF = Retry(delay="1 second", backoff="exponential", max_delay="5 minutes")
"""Delay before the next attempt of a step whose handler raised: 1 s, doubled each time, up to 5 minutes."""

LEASE_EXPIRED = Failure("LEASE_EXPIRED", "LEASE_EXPIRED", kind="Timeout")
"""The error of an attempt whose worker was lost: it did not renew the lease in time."""

_NO_TOPICS: frozenset[str] = frozenset()
_NO_HANDLER_LIMIT_MS = 10 * 60_000
"""Time for which a step without a handler is left to other workers. After that, the run is parked."""


class Program(Protocol):
    """The chain as defined in this process."""

    name: str
    limits: Limits
    log: StepLogger
    decode_params: Callable[[Any], Any]
    """Decodes the recorded params of a run."""

    def handler(self, step_type: str) -> Handler | None: ...


class ChainMachine:
    """One run of a chain in memory."""

    def __init__(self, program: Program, run: RunRecord, snapshot: Snapshot) -> None:
        self._program = program
        self._run = run
        options = NO_OPTIONS if run.options is None else RunOptions.decode(run.options)
        self._values = MappingProxyType(options.context) if options.context else NO_VALUES
        self._progress = Progress.of(snapshot.facts)
        self._recorder = StepRecorder(self._progress, max([run.started_at or 0, *(f.at for f in snapshot.facts)]))
        self._mailbox = Mailbox(snapshot)
        self._ending = Ending(run, options)
        self._begun = run.started_at is not None
        self._call_in_flight: ChainCall | None = None
        self._wait_opened: ChainStep | None = None
        """The step that began to wait in the current ``advance``."""
        self._halted = False
        self._logs: Sequence[Log] = ()

    # --- driven by the runner

    def advance(
        self,
        now_ms: int,
        outcomes: Sequence[Outcome] = (),
        events: Sequence[StoredEvent] = (),
        *,
        operation_results: Sequence[RequestResult] = (),
        lost: bool = False,
    ) -> Decision:
        self._recorder.begin_decision()
        self._logs, self._wait_opened = (), None
        self._mailbox.add(events)
        started_at = self._begin_once(now_ms)
        resolved_call = self._resolve_steps(now_ms)
        if lost:
            self._record_lost_attempt(now_ms)
        for outcome in outcomes:
            self._apply_outcome(outcome)
        end = None
        if not self._halted:
            end = self._end_by_steps(now_ms) or self._end_by_control_event(now_ms)
            if end is None:
                self._wake(now_ms)
        decision = self._decision(now_ms, started_at, end)
        return decision if resolved_call is None else replace(decision, cancelled=[resolved_call, *decision.cancelled])

    def number_operations(self, operations: Sequence[RecordedOperation]) -> None:
        """Do nothing: a chain has no operations."""

    def halt(self) -> None:
        self._halted = True

    def close(self) -> None:
        """Do nothing: a chain's machine holds no resources."""

    def _begin_once(self, now_ms: int) -> int | None:
        """Return the start time if the run has not begun before, else None."""
        if self._begun:
            return None
        self._begun, self._recorder.progressed_at = True, now_ms
        return now_ms

    def _resolve_steps(self, now_ms: int) -> str | None:
        """Record outcomes that were decided by hand. Returns the key of the call in flight if its step is resolved."""
        cancelled = None
        for event in self._mailbox.take_resolutions():
            self._recorder.record_delivery(event.n, RESOLVE, now_ms)
            content, step = codec.plain(event.payload), self._progress.current
            if step is None or step.type != content["step"] or step.result is not None:
                continue  # the step is not open any more
            value = codec.encode(content["value"], what="value")
            outcome = Outcome(step.type, step.failed_attempts, now_ms, now_ms)
            self._recorder.record_result(step, outcome, ok=content["ok"], value=value, event_type=RESOLVE)
            if self._call_in_flight is not None:
                cancelled, self._call_in_flight = self._call_in_flight.key, None
        return cancelled

    # --- outcomes of attempts

    def _apply_outcome(self, outcome: Outcome) -> None:
        step = self._progress.current
        if step is None or not _belongs_to(outcome, step):
            return  # the step is no longer at this attempt
        self._call_in_flight = None
        if outcome.logs:
            observed = self._recorder.observed
            observed.logs = [*observed.logs, *outcome.logs]
        if outcome.heartbeat is not None:
            self._progress.apply(outcome.heartbeat)
        if outcome.failure is not None:
            self._apply_error(step, outcome, outcome.failure)
        else:
            self._apply_answer(step, outcome, outcome.live)

    def _apply_answer(self, step: ChainStep, outcome: Outcome, answer: HandlerAnswer) -> None:
        recorder = self._recorder
        match answer:
            case DoneAnswer(value, outbox):
                recorder.record_result(step, outcome, ok=True, value=value)
                recorder.observed.outbox = outbox
            case WaitAnswer(event_type, timeout_ms, outbox):
                recorder.begin_wait(step, outcome.at, event_type, outcome.at + timeout_ms)
                self._wait_opened = step
                recorder.observed.outbox = outbox
            case RetryAnswer(backoff_ms, error):
                recorder.record_failure(step, outcome, error, outcome.at + backoff_ms)
            case DeadAnswer(error, outbox):
                recorder.record_result(step, outcome, ok=False, value=error.encode())
                recorder.observed.outbox = outbox

    def _apply_error(self, step: ChainStep, outcome: Outcome, error: Failure) -> None:
        delay = DEFAULT_BACKOFF.delay_after(step.failed_attempts + 1)
        self._recorder.record_failure(step, outcome, error, outcome.at + delay)

    def _record_lost_attempt(self, now_ms: int) -> None:
        """Record a failed attempt after the loss of the owner, unless no attempt can have been running."""
        step = self._progress.current
        if step is None or step.result is not None or step.waiting or step.not_before > now_ms:
            return
        attempt = Outcome(step.type, step.failed_attempts + 1, now_ms, now_ms)
        self._recorder.record_failure(step, attempt, LEASE_EXPIRED, now_ms)

    # --- waits

    def _wake(self, now_ms: int) -> None:
        """End the wait of the current step if its event has arrived, or if none was sent before the deadline."""
        step = self._progress.current
        if step is None or not step.waiting:
            return
        event = self._mailbox.oldest(step.wait.event_type)
        if event is not None and event.created_at <= step.wait.wake_at:
            self._mailbox.consume(event)
            self._recorder.record_delivery(event.n, step.type, now_ms)
            self._recorder.end_wait(step, now_ms, event.n)
        elif step is not self._wait_opened and (event is not None or step.wait.wake_at <= now_ms):
            # A wait does not time out in the advance that began it: an event sent in time may not have been read yet.
            self._recorder.end_wait(step, now_ms, None)

    # --- ends

    def _end_by_steps(self, now_ms: int) -> Finish | Park | None:
        """The end of the run if all steps are done, one is dead, or the run has no plan; else None."""
        if not self._progress.steps:
            return Park("NO_PLAN: the run was started without steps, by a process in which the chain is not registered")
        step = self._progress.current
        if step is None:
            return self._ending.completed(self._progress.steps[-1].result.value, now_ms)
        if step.result is None:
            return None
        return self._ending.errored(dead_step_error(step), now_ms)

    def _end_by_control_event(self, now_ms: int) -> Finish | None:
        """The end of the run by a cancellation or by the failure of a linked run; None if there is neither.

        The event that ends the run is not delivered: if the commit pauses the run, the run reads the event again.
        """
        while (event := self._mailbox.take_control_event()) is not None:
            content = codec.plain(event.payload)
            if event.type == CANCEL:
                return self._ending.cancelled(content["reason"])
            if content["watch"] & Watch.LINK and content["status"] != Status.COMPLETE:
                return self._ending.errored(link_down_error(event.sender or "", content), now_ms)
            self._recorder.record_delivery(event.n, event.type, now_ms)
        return None

    # --- the decision

    def _decision(self, now_ms: int, started_at: int | None, end: Finish | Park | None) -> Decision:
        step = self._progress.current
        calls: Sequence[ChainCall] = ()
        wake_at: int | None = None
        retrying, topics = False, _NO_TOPICS
        if end is None and step is not None and step.result is None and not self._halted:
            if step.waiting:
                wake_at, topics = step.wait.wake_at, frozenset({step.wait.event_type})
            elif step.not_before > now_ms:
                wake_at, retrying = step.not_before, True
            elif self._call_in_flight is None:
                calls, wake_at, end = self._due_call(step, now_ms)
        return Decision(
            observed=self._recorder.observed,
            following=Following(logs=self._logs) if self._logs else NOTHING_FOLLOWS,
            calls=calls,
            cancelled=[self._call_in_flight.key] if end is not None and self._call_in_flight is not None else (),
            wake_at=wake_at,
            retrying=retrying,
            topics=topics,
            end=end,
            started_at=started_at,
            lease_ms=step.lease_ms if calls and step is not None else None,
        )

    def _due_call(self, step: ChainStep, now_ms: int) -> tuple[Sequence[ChainCall], int | None, Park | None]:
        """The call that is due. If the step has no handler here: the time of the next check, or a ``Park``."""
        handler = self._program.handler(step.type)
        if handler is None:
            wake_at, park = self._release_unhandled(step, now_ms)
            return (), wake_at, park
        try:
            params = self._program.decode_params(codec.plain(self._run.params))
        except ParamsInvalidError as error:
            text = f"NON_DETERMINISTIC: the recorded params do not fit the chain's type any more: {error}"
            return (), None, self._park(text, now_ms)
        self._call_in_flight = ChainCall(
            step.type, step.failed_attempts + 1, step.timeout_ms, self._values, (self._task(step, params),),
            handler, self._program.limits, last=step is self._progress.steps[-1], max_attempts=step.max_attempts,
            progress=None if step.heartbeat is None else step.heartbeat.value,
        )  # fmt: skip
        return [self._call_in_flight], None, None

    def _task(self, step: ChainStep, params: Any) -> ChainTask:
        event = None if step.woken is None or step.woken.event is None else self._mailbox[step.woken.event]
        return ChainTask(
            kind=_kind(step),
            params=params,
            event=None if event is None else _event(event),
            attempt=step.failed_attempts + 1,
            outputs=Outputs(dict(self._progress.outputs)),
            workflow=self._run.workflow,
            instance_id=self._run.instance_id,
            run_number=self._run.number,
            step_type=step.type,
            step_seq=step.seq,
            log=self._program.log,
        )

    def _release_unhandled(self, step: ChainStep, now_ms: int) -> tuple[int | None, Park | None]:
        """Leave a step to other workers, whose code may have a handler for it; park the run after a time limit."""
        text = f"NO_HANDLER: this process has no handler for step {step.type!r} of chain {self._program.name!r}"
        unhandled_ms = now_ms - max(self._recorder.progressed_at, step.not_before)
        if unhandled_ms >= _NO_HANDLER_LIMIT_MS:
            return None, self._park(f"{text}; register one and resume the run", now_ms)
        self._log(Level.WARN, f"{text}; the step is left to other workers", now_ms)
        return now_ms + max(1000, unhandled_ms), None

    def _park(self, text: str, now_ms: int) -> Park:
        self._log(Level.ERROR, text, now_ms)
        return Park(text)

    def _log(self, level: Level, text: str, now_ms: int) -> None:
        """Add a log line of the engine."""
        line = Log(level, "system", text[: self._program.limits.log_message], None, now_ms)
        self._logs = [*self._logs, line]


def _belongs_to(outcome: Outcome, step: ChainStep) -> bool:
    """True if the outcome belongs to the attempt that the step is at."""
    if outcome.key != step.type or outcome.attempt != step.failed_attempts + 1:
        return False
    return step.result is None and not step.waiting and step.not_before <= outcome.at


def _kind(step: ChainStep) -> ChainTaskKind:
    if step.woken is None:
        return ChainTaskKind.RUN
    return ChainTaskKind.WAITING_TIMEOUT if step.woken.event is None else ChainTaskKind.EVENT


def _event(stored: StoredEvent) -> Event[Any]:
    return Event(stored.type, codec.plain(stored.payload), from_ms(stored.created_at), stored.sender)
