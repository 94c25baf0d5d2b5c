"""The replay machine: facts, outcomes, events and the time in, decisions out.

Everything the code can observe (a step's result, a timer, an event) is a RESULT fact with a sequence number. The
machine delivers these facts one at a time, and between two deliveries it runs the code until every task waits. It does
so in the first execution exactly as on replay, so the code takes the same course each time, races included. A recorded
result that the code has not asked for yet is kept until the code asks for it; this is why code may gain and lose steps
while runs are open.

The machine's time is the time of the last delivered fact. The machine does no I/O and reads no clock.

The machine is made of parts. The code asks for something through ``StepCalls``, ``Waits``, ``Processes`` (with its
``Operations``) and the loop's timers (``LoopHost``); ``Keys`` holds what it asked for until ``FactDelivery`` delivers
the result. ``Execution`` runs the code, ``Position`` holds the last position, and ``DecisionBuffer`` collects what the
next decision contains.
"""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from holdfast.core import codec
from holdfast.core.limits import Limits
from holdfast.core.model import Level
from holdfast.kernel.attempt import NO_VALUES
from holdfast.kernel.driver import Call, Decision, Outcome
from holdfast.kernel.events import Decode
from holdfast.kernel.options import NO_OPTIONS, RunOptions
from holdfast.kernel.requests import Requests
from holdfast.store.protocol import (
    CANCEL,
    NOTHING_FOLLOWS,
    RESOLVE,
    Fact,
    Finish,
    Following,
    Park,
    RecordedOperation,
    RequestResult,
    RunRecord,
    Snapshot,
    StoredEvent,
)
from holdfast.workflow import naming
from holdfast.workflow.attempt_tracker import AttemptTracker
from holdfast.workflow.code_streams import CodeStreams
from holdfast.workflow.delivery import FactDelivery
from holdfast.workflow.ending import Ending
from holdfast.workflow.execution import Execution
from holdfast.workflow.inbox import Inbox
from holdfast.workflow.keys import Keys
from holdfast.workflow.loop import NO_HOST, WorkflowLoop
from holdfast.workflow.loop_host import LoopHost
from holdfast.workflow.mailbox import Consume, Mailbox
from holdfast.workflow.naming import Leftovers, StepNames
from holdfast.workflow.operations import Operations
from holdfast.workflow.pending import DecisionBuffer
from holdfast.workflow.position import Position
from holdfast.workflow.processes import Processes
from holdfast.workflow.randomness import Randomness
from holdfast.workflow.recorded_history import RecordedHistory
from holdfast.workflow.run_attributes import RunAttributes
from holdfast.workflow.run_log import RunLog
from holdfast.workflow.step_calls import StepCalls
from holdfast.workflow.versions import Versions
from holdfast.workflow.wait_queue import NO_TOPICS, WaitQueue
from holdfast.workflow.waits import Waits

_NOTHING_DUE = (None, False)


class Program(Protocol):
    """The workflow code, its options, and the decoders and encoders of its values."""

    name: str
    raises_cancel: bool
    """True if a cancel request raises ``CancelledError`` in the code; otherwise it is only an event."""
    trap_links: bool
    step_names: StepNames

    def main(self, machine: Machine) -> Coroutine[Any, Any, Any]: ...

    def event_decoder(self, type: str) -> Decode:
        """The decoder for payloads of an event type: that of the declared payload type, if there is one."""
        ...

    def decode_payload(self, event: StoredEvent) -> Any:
        """Decode the payload of an event to the type that the workflow declares for it, else to plain JSON."""
        ...

    def encode_params(self, value: Any) -> bytes | None: ...

    def encode_output(self, value: Any) -> bytes: ...


class MachineParts(NamedTuple):
    """The parts of a machine that an inspection reads."""

    history: RecordedHistory
    keys: Keys
    operations: Operations
    inbox: Inbox
    buffer: DecisionBuffer


class Machine:
    """One run of replayed code in memory. Workflow code uses its public parts, the runner its methods."""

    def __init__(
        self,
        program: Program,
        run: RunRecord,
        snapshot: Snapshot | None,
        limits: Limits,
        requests: Requests,
        *,
        strict: bool = False,
    ) -> None:
        """``strict``: park the run instead of logging a warning about a step that may have been renamed."""
        self.program = program
        self.run = run
        self.limits = limits
        self._strict = strict
        self._is_new = run.started_at is None
        self._closed = False
        self._versions: Versions | None = None
        self._randomness: Randomness | None = None
        self._options = NO_OPTIONS if run.options is None else RunOptions.decode(run.options)
        self.values = MappingProxyType(self._options.context) if self._options.context else NO_VALUES
        self.attributes = RunAttributes(self._options, run, limits)

        self.loop = loop = WorkflowLoop(NO_HOST, run.seed)  # type: ignore[abstract]  # its module adds the methods
        loop.run = run
        self.execution = execution = Execution(loop)
        self.position = position = Position(run.started_at)
        self._history = history = RecordedHistory(snapshot)
        self._buffer = buffer = DecisionBuffer()
        self._wait_queue = queue = WaitQueue()
        self._leftovers = Leftovers(program.step_names)
        self._keys = keys = Keys(history, self._leftovers, execution, limits)

        self.log = log = RunLog(execution, position, history, buffer, limits)
        self.streams = CodeStreams(run, position, snapshot, limits)
        self._attempts = AttemptTracker(keys, execution, position, history, queue, buffer, run.seed)
        self.steps = StepCalls(
            keys, self._attempts, execution, position, log, limits,
            aliases=program.step_names.aliases(history.kinds), values=self.values,
        )  # fmt: skip
        self.waits = waits = Waits(keys, execution, position, history, queue, buffer)
        self._operations = operations = Operations(keys, execution, position, history)
        self._requests = requests
        self._inbox = Inbox(queue, keys, position, buffer, waits, self._make_processes)
        self._delivery = FactDelivery(
            execution,
            position,
            history,
            buffer,
            keys,
            self._attempts,
            self.steps,
            waits,
            operations,
            queue,
            self._inbox,
            log,
            self.streams,
        )
        loop.host = LoopHost(position, keys, queue, self.steps, log)

    @property
    def versions(self) -> Versions:
        if self._versions is None:
            self._versions = Versions(self._history, self._buffer, self.position, self.limits)
        return self._versions

    @property
    def randomness(self) -> Randomness:
        if self._randomness is None:
            self._randomness = Randomness(self.run, self.loop)
        return self._randomness

    def _make_processes(self, consume: Consume) -> Processes:
        return Processes(
            self.program, self.run, self.values, self._requests, self._operations, self.waits, self.execution, consume
        )

    @property
    def mailbox(self) -> Mailbox:
        return self._inbox.mailbox

    @property
    def processes(self) -> Processes:
        return self._inbox.processes

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
        execution, delivery = self.execution, self._delivery
        self.position.wall_ms = now_ms
        for event in events:
            self._wait_queue.receive(event)
        started_at = self._begin(now_ms) if execution.main is None else None
        if RESOLVE in self._wait_queue.events:
            delivery.deliver_resolutions()
        if lost:
            self._attempts.count_losses(now_ms)
        if operation_results:
            delivery.deliver_operation_results(operation_results)
        if outcomes:
            self.streams.note_closes(outcomes)
        for outcome in outcomes:
            delivery.deliver_outcome(outcome)
        if not execution.halted:
            delivery.deliver_due(now_ms)
        return self._decide(now_ms, started_at)

    def number_operations(self, operations: Sequence[RecordedOperation]) -> None:
        self._operations.number(operations)

    def halt(self) -> None:
        """Stop running code: from now on ``advance`` only records outcomes and events. Drop it afterwards."""
        self.execution.halted = True

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.execution.close()
        self.steps.close()
        # Break the reference cycles, so that the machine is freed without the garbage collector.
        self._keys.clear()
        self._wait_queue.clear()
        self._inbox.clear()

    # --- inspection: a replay in single steps, on a machine that no turn drives

    def parts(self) -> MachineParts:
        return MachineParts(self._history, self._keys, self._operations, self._inbox, self._buffer)

    def begin_replay(self, started_ms: int) -> None:
        """Start the code without delivering a recorded result."""
        self.position.wall_ms = started_ms
        if self._is_new:
            self.position.start(started_ms)
        self.position.replaying = not self._is_new
        self.execution.start(self.program.main(self))

    def deliver_next(self) -> Fact | None:
        """Deliver the next recorded result and return it. None: there is none, or the code has ended."""
        return self._delivery.replay_next()

    # --- the start

    def _begin(self, now_ms: int) -> int | None:
        """Start the code and deliver the recorded results. Returns the start time in the run's first execution."""
        started_at = None
        if self._is_new:
            if self._cancelled_before_start():
                return None
            started_at = now_ms
            self.position.start(now_ms)
        self.position.replaying = not self._is_new
        self.execution.start(self.program.main(self))
        self._delivery.replay()
        self.position.replaying = False
        return started_at

    def _cancelled_before_start(self) -> bool:
        """End a run that received a cancel request before any of its code ran; True if it did."""
        event = self._wait_queue.first(CANCEL) if self.program.raises_cancel else None
        if event is None:
            return False
        self._inbox.consume(event, CANCEL)
        self.execution.cancel_before_start(codec.plain(event.payload)["reason"])
        return True

    # --- the decision

    def _decide(self, now_ms: int, started_at: int | None) -> Decision:
        queue = self._wait_queue
        calls = self._due_calls(now_ms) if queue.ready else ()
        execution = self.execution
        may_end = execution.ended or execution.divergence is not None or not self._keys.pending
        end = self._end() if may_end and not execution.halted else None
        wake_at, retrying = queue.next_due() if queue.due or queue.ready else _NOTHING_DUE
        if end is not None:
            self._attempts.cancel_running()
        buffer, inbox = self._buffer, self._inbox
        observed = buffer.take_observed()
        follows = (
            buffer.opened or buffer.logs or self.attributes.changed or self._operations.new or self.streams.changed
        )
        following = self._following() if follows else NOTHING_FOLLOWS
        cancelled = buffer.take_cancelled() if buffer.cancelled else ()
        topics = inbox.topics if queue.waits or inbox.has_mailbox else NO_TOPICS
        return Decision(observed, following, calls, cancelled, wake_at, retrying, topics, end, started_at)

    def _following(self) -> Following:
        opened, logs, halted = self.waits.take_opened(), self._buffer.take_logs(), self.execution.halted
        attributes = None if halted else self.attributes.take_changes()
        operations = () if halted else self._operations.take()
        return Following(opened, logs, attributes, operations, streams=() if halted else self.streams.take())

    def _due_calls(self, now_ms: int) -> Sequence[Call]:
        execution = self.execution
        if execution.ended or execution.halted:
            return ()
        if self._leftovers.by_key and execution.divergence is None:
            self._compare_names(now_ms)
        return self._attempts.start_due(now_ms) if execution.divergence is None else ()

    def _compare_names(self, now_ms: int) -> None:
        """Warn or diverge before unrecorded steps are called while there are results of steps that the app lacks.

        A step without a record may be a renamed one, whose result is recorded under the old name.
        """
        new = [step.name or step.key for step in self._wait_queue.new_steps(now_ms, self._history.kinds)]
        for name, old in itertools.product(dict.fromkeys(new), self._leftovers.names()):
            if self._strict:
                self.execution.note_divergence(naming.divergence(name, old))
            else:
                self.log.warn_once(f"renamed {old} {name}", naming.warning(name, old))

    # --- the end

    def _end(self) -> Finish | Park | None:
        if self.execution.divergence is not None:
            return self._park(f"{self.execution.divergence_code}: {self.execution.divergence}")
        if self.execution.ended:
            damage = self.execution.damage
            return self._finish() if damage is None else self._park(f"{damage.code}: {damage}")
        if not self._keys.pending and (unused := self._keys.unused_results()) and not self._inbox.awaits_runs:
            keys = ", ".join(map(repr, unused))
            return self._park(
                f"NON_DETERMINISTIC: the history has results for {keys} which the code never asked for, "
                "and the code waits for nothing"
            )
        return None

    def _park(self, reason: str) -> Park:
        self.log.system(Level.ERROR, reason)
        return Park(reason)

    def _finish(self) -> Finish:
        wall_ms, cancel_reason = self.position.wall_ms, self.execution.cancel_reason
        ending = Ending(self.run, self._options, self.attributes, wall_ms, self.program.encode_output, cancel_reason)
        end = self.execution.finish(ending)
        if end.next is not None and end.next.continues:
            self.loop.run_inside(self._inbox.prepare_successor)
        self.loop.tasks.report_unretrieved(self.log.report)
        self.steps.report_unstarted()
        return end
