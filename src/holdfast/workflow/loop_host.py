"""The parts of a machine that its loop uses."""

from __future__ import annotations

from typing import Any

from holdfast.workflow.keys import ANONYMOUS, Keys
from holdfast.workflow.loop import WorkflowTimer
from holdfast.workflow.pending import PendingTimer
from holdfast.workflow.position import Position
from holdfast.workflow.run_log import RunLog
from holdfast.workflow.step_calls import StepCalls
from holdfast.workflow.wait_queue import WaitQueue


class LoopHost:
    """The replayed time, durable timers, step calls and error reports for the loop of one run."""

    __slots__ = ("_keys", "_log", "_position", "_wait_queue", "steps")

    def __init__(self, position: Position, keys: Keys, wait_queue: WaitQueue, steps: StepCalls, log: RunLog) -> None:
        self._position = position
        self._keys = keys
        self._wait_queue = wait_queue
        self._log = log
        self.steps = steps
        """For ``Step``, which finds the run by its loop."""

    @property
    def now_ms(self) -> int:
        return self._position.now_ms

    def open_timer(self, handle: WorkflowTimer, due_ms: int) -> None:
        pending = PendingTimer(f"{ANONYMOUS}{handle.number}", handle, self._position.now_ms, due_ms)
        self._keys.pending[pending.key] = pending
        self._wait_queue.wait_until(due_ms, pending)

    def close_timer(self, handle: WorkflowTimer) -> None:
        pending = self._keys.pending.pop(f"{ANONYMOUS}{handle.number}", None)
        if pending is not None:
            pending.closed = True

    def report(self, context: dict[str, Any]) -> None:
        self._log.report(context)
