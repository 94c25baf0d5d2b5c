"""The records of a read-only replay: stacks, what the code waits for, and one position in the history of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.core.records import CodePosition, LogLine
from holdfast.errors import ErrorInfo


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """One frame of a suspended task."""

    file: str
    line: int
    function: str
    source: str
    """The text of the line, without indentation; empty if the source file is not available."""
    locals: dict[str, str] = field(default_factory=dict)
    """Bounded, redacted text of each local variable, by name."""


@dataclass(frozen=True, slots=True)
class TaskStack:
    """A task of the code that has not ended."""

    name: str
    frames: list[FrameInfo]
    """From the outermost function of the task to the await in which it is suspended."""
    waiting_for: str | None = None
    """The wait of the task, such as ``step 'charge'``; None if it waits for another task or a lock."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The tasks of a run's code that have not ended. A run that has ended, or has not started, has none."""

    tasks: list[TaskStack] = field(default_factory=list)
    difference: str | None = None
    """The difference between the history and the code of this process; None if they fit."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """Something that the code waits for."""

    step_key: str
    type: str
    """A type of step (``do``, ``sleep``, ``waitForEvent``, ``child`` …), or ``timer`` or ``message``."""
    name: str
    wake_at: datetime | None = None
    wait_event_type: str | None = None
    attempts: int = 0
    """Number of failed attempts of a step so far."""
    recorded: bool = False
    """True if the history has a fact under this key."""
    position: CodePosition | None = None

    def __str__(self) -> str:
        return _described(self.type, self.name, self.wait_event_type)


@dataclass(frozen=True, slots=True)
class FactRecord:
    """One fact of a run's history, as the code received it."""

    step_key: str
    type: str
    name: str
    ok: bool
    result: Any
    error: ErrorInfo | None
    at: datetime
    state: str = "result"
    """``result``; in chains and graphs also ``start``, ``failure``, ``woken``, ``item`` and ``tombstone``."""


@dataclass(frozen=True, slots=True)
class FactPosition:
    """The line of code that a fact resumed."""

    fact: int
    """Number of facts that the code had received then, this one included."""
    step_key: str
    ok: bool
    position: CodePosition


@dataclass(frozen=True, slots=True)
class ReplayView:
    """A run after a number of its facts."""

    position: int
    """Number of facts that the code has received."""
    total: int
    fact: FactRecord | None
    """The last fact that the code has received; None before the first."""
    stack: Stack
    pending: list[PendingRequest]
    logs: list[LogLine]
    """Lines logged until this position, those of steps included."""

    @property
    def difference(self) -> str | None:
        """The difference between the history and the code of this process; None if they fit so far."""
        return self.stack.difference


_NOUNS = {"do": "step", "sleep": "sleep", "waitForEvent": "event", "timer": "timer", "message": "message"}


def _described(type: str, name: str, event_type: str | None) -> str:
    if type == "timer":
        return "a timer"
    return f"{_NOUNS.get(type, type)} {event_type or name!r}" if type != "waitForEvent" else f"event {event_type!r}"
