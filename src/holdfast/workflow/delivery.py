"""Delivery of facts to the code of one run: recorded results, outcomes, results of operations, events and due times.

Facts are delivered one at a time, and after each the code runs until every task waits. A new fact is recorded when it
is delivered, with the next sequence number, so a replay delivers the same facts in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core import codec
from holdfast.core.model import Level, StepType
from holdfast.errors import DamagedRunError, ParamsInvalidError
from holdfast.kernel.driver import Outcome
from holdfast.store.protocol import RESOLVE, Delivery, Fact, FactState, RequestResult, StoredEvent
from holdfast.workflow.attempt_tracker import AttemptTracker
from holdfast.workflow.code_streams import CodeStreams
from holdfast.workflow.execution import Execution
from holdfast.workflow.inbox import MORE_FOLLOW, Inbox
from holdfast.workflow.keys import Keys
from holdfast.workflow.operations import Operations
from holdfast.workflow.pending import DecisionBuffer, Pending, PendingStep, PendingTimer, PendingWait
from holdfast.workflow.position import Position
from holdfast.workflow.recorded_history import RecordedHistory
from holdfast.workflow.run_log import RunLog
from holdfast.workflow.step_calls import StepCalls
from holdfast.workflow.wait_queue import WaitQueue
from holdfast.workflow.waits import Waits


def _misfit(step: PendingStep, value: Any) -> str | None:
    """The reason why a value cannot be the result of a step; None: it can."""
    try:
        step.spec.decode(value)
    except ParamsInvalidError as error:
        return f"the value does not fit the function's return annotation: {error}"
    return None


class FactDelivery:
    """Delivers facts to the code of one run, and runs the code after each."""

    __slots__ = (
        "_attempts",
        "_buffer",
        "_execution",
        "_history",
        "_inbox",
        "_keys",
        "_log",
        "_operations",
        "_position",
        "_steps",
        "_streams",
        "_wait_queue",
        "_waits",
    )

    def __init__(
        self,
        execution: Execution,
        position: Position,
        history: RecordedHistory,
        buffer: DecisionBuffer,
        keys: Keys,
        attempts: AttemptTracker,
        steps: StepCalls,
        waits: Waits,
        operations: Operations,
        wait_queue: WaitQueue,
        inbox: Inbox,
        log: RunLog,
        streams: CodeStreams,
    ) -> None:
        self._log = log
        self._streams = streams
        self._execution = execution
        self._position = position
        self._history = history
        self._buffer = buffer
        self._keys = keys
        self._attempts = attempts
        self._steps = steps
        self._waits = waits
        self._operations = operations
        self._wait_queue = wait_queue
        self._inbox = inbox

    # --- what is delivered

    def replay(self) -> None:
        """Deliver the recorded results."""
        results = self._history.results
        while results and not self._execution.ended:
            self._deliver(results.popleft(), None)

    def replay_next(self) -> Fact | None:
        """Deliver the next recorded result and return it. None: there is none, or the code has ended."""
        results = self._history.results
        if not results or self._execution.ended:
            return None
        fact = results.popleft()
        self._position.wall_ms = max(self._position.wall_ms, fact.at)
        self._deliver(fact, None)
        return fact

    def deliver_operation_results(self, results: Sequence[RequestResult]) -> None:
        """Deliver the results of the last commit's operations."""
        for fact in self._operations.take_results(results):
            if self._execution.ended or self._execution.halted:
                return
            self._deliver(fact, None)

    def deliver_outcome(self, outcome: Outcome) -> None:
        """Record the outcome of an attempt; deliver it if it is the step's result."""
        fact = self._attempts.record(outcome)
        if fact is not None:
            self._observe(fact, outcome.live)

    def deliver_resolutions(self) -> None:
        """Deliver the outcomes that were decided by hand. An outcome of a step that is not open has no effect."""
        for event in self._wait_queue.take_type(RESOLVE):
            self._buffer.add_delivery(Delivery(event.n, RESOLVE, self._position.wall_ms))
            content = codec.plain(event.payload)
            step = self._keys.pending.get(content["step"])
            if not isinstance(step, PendingStep) or self._execution.ended:
                continue
            if content["ok"] and (problem := _misfit(step, content["value"])) is not None:
                self._log.system(Level.WARN, f"the decision on step {step.key!r} is ignored: {problem}")
            else:
                fact = self._attempts.resolved(
                    step, ok=content["ok"], value=codec.encode(content["value"], what="value")
                )
                self._observe(fact, None)

    def deliver_due(self, now_ms: int) -> None:
        """Deliver timers and events in the order of their times: a deadline comes before every later event."""
        execution, wait_queue, inbox = self._execution, self._wait_queue, self._inbox
        while not execution.ended and not execution.divergence:
            if wait_queue.has_failed_steps and (refused := self._attempts.refuse_exhausted(now_ms)):
                self._observe(refused, None)
                continue
            pending = wait_queue.due_wait(now_ms) if wait_queue.due else None
            event = inbox.next_event() if wait_queue.events or wait_queue.waits or inbox.has_mailbox else None
            if event is not None and (pending is None or event.created_at <= pending.due):
                self._deliver_event(event, None if pending is None else pending.due)
            elif pending is not None:
                self._deliver_elapsed(pending, now_ms)
            else:
                return

    def _deliver_event(self, event: StoredEvent, due: int | None) -> None:
        wait = self._wait_queue.take_event(event)
        if wait is None:
            self._deliver_to_channel(event, due)
            return
        try:
            received = self._waits.receive(wait, event)
        except DamagedRunError as error:  # the event stays in the mailbox, and is delivered after the resume
            self._execution.note_damage(f"the payload of event {event.type!r}", error)
            return
        self._observe(received, None)

    def _deliver_to_channel(self, event: StoredEvent, due: int | None) -> None:
        """Deliver an event to its channel, or a system event to ``Processes``.

        Code runs after each system event, and after the last of consecutive events to channels.
        """
        fact = self._inbox.arrival_fact(event)
        self._position.advance(fact)
        self._inbox.deliver(event)
        if self._inbox.more_follow(event, due):
            self._buffer.add_fact(fact._replace(attempts=MORE_FOLLOW))
        else:
            self._buffer.add_fact(fact)
            self._execution.run()

    def _deliver_elapsed(self, pending: PendingWait | PendingTimer, now_ms: int) -> None:
        seq = self._position.seq + 1
        if isinstance(pending, PendingTimer):
            fact = pending.result(seq, now_ms)
        else:
            fact = pending.result(seq, now_ms, ok=pending.kind is StepType.SLEEP)
        self._observe(fact, None)

    # --- how it is delivered

    def _observe(self, fact: Fact, live: Any) -> None:
        """Record a new fact and deliver it. A halted machine only records it."""
        self._buffer.add_fact(fact)
        if self._execution.halted:
            self._position.advance(fact)
            self._keys.pending.pop(fact.key, None)
        else:
            self._deliver(fact, live)

    def _deliver(self, fact: Fact, live: Any) -> None:
        if fact.event is None:
            self._position.receive(fact)
        else:
            self._position.advance(fact)
            if fact.kind != StepType.WAIT:
                self._inbox.redeliver(self._history.events[fact.event])
                if fact.attempts != MORE_FOLLOW:
                    self._execution.run()
                return
            self._inbox.remove(self._waits.event_of(fact))
            self._position.count(fact.value)
        if self._streams.closers and fact.ok:
            self._streams.delivered(fact.key)
        pending = self._keys.settle(fact)
        if pending is None:  # kept until the code asks for it
            if fact.state == FactState.START and fact.ok and not self._operations.is_requested(fact.key):
                self._inbox.processes.start_recorded(fact)
            return
        self._resolve(pending, fact, live)
        del pending  # an error's traceback refers to this frame: the frame must not refer to the error
        self._execution.run()

    def _resolve(self, pending: Pending, fact: Fact, live: Any) -> None:
        """Resume the code that waits for the fact. ``live``: the value of a step's result, if it is known."""
        if isinstance(pending, PendingTimer):
            self._execution.loop.fire(pending.timer)
        elif pending.future.done():
            return  # cancelled just before
        elif live is not None:
            pending.future.set_result(live)
        elif isinstance(pending, PendingStep):
            self._steps.resolve(pending, fact)
        else:
            pending.future.set_result(fact)
