"""Log lines of one run: those of its code, and those of the engine about it."""

from __future__ import annotations

from typing import Any

from holdfast.core.limits import Limits
from holdfast.core.model import Level, StepType
from holdfast.store.protocol import Fact, FactState, Log
from holdfast.workflow.execution import Execution
from holdfast.workflow.keys import ANONYMOUS
from holdfast.workflow.pending import DecisionBuffer
from holdfast.workflow.position import Position
from holdfast.workflow.recorded_history import RecordedHistory


class RunLog:
    """Adds the log lines of a run to the next decision."""

    __slots__ = ("_buffer", "_count", "_execution", "_history", "_longest", "_position")

    def __init__(
        self,
        execution: Execution,
        position: Position,
        history: RecordedHistory,
        buffer: DecisionBuffer,
        limits: Limits,
    ) -> None:
        self._execution = execution
        self._position = position
        self._history = history
        self._buffer = buffer
        self._longest = limits.log_message
        self._count = 0
        """Number of lines that the code has written."""

    def write(self, level: Level, category: str, message: str, data: bytes | None) -> None:
        """Add a line of workflow code. A line that a replay repeats is marked as such."""
        if self._execution.ended:
            return
        self._count += 1
        is_replay = self._count <= self._history.log_count
        self._buffer.add_log(Log(level, category, message, data, self._position.wall_ms, is_replay=is_replay))

    def system(self, level: Level, message: str) -> None:
        """Add a line of the engine."""
        line = Log(level, "system", message[: self._longest], None, self._position.wall_ms)
        self._buffer.add_log(line)

    def warn_once(self, topic: str, message: str) -> None:
        """Add a warning once per run: a NOTE fact keeps replays from repeating it."""
        key = f"{ANONYMOUS}{StepType.NOTE} {topic}"
        if key in self._history.kinds:
            return
        self._history.kinds[key] = StepType.NOTE
        now = self._position.wall_ms
        self._buffer.add_opened(Fact(FactState.RESULT, key, 0, StepType.NOTE, now, now))
        self.system(Level.WARN, message)

    def report(self, context: dict[str, Any]) -> None:
        """Add a line about an exception that no code retrieved."""
        error = context.get("exception")
        text = context.get("message", "unhandled error")
        self.system(Level.ERROR, f"{text}: {error!r}" if error is not None else text)
