"""The wire format of stack, replay and export. ``view_bodies.py`` converts records to these bodies."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast.core.stream_records import MAX_OFFSET
from holdfast.http.wire import CodePosition, Count, Date, Failure, Log
from holdfast.http.wire_requests import Flag, WholeNumber, optional


class StackParams(BaseModel):
    """The query of a stack. ``all``: also frames of libraries and of the engine."""

    all: Flag = False


class ExportParams(BaseModel):
    """The query of an export: the current run, or the run with the number ``runNumber``."""

    runNumber: WholeNumber = optional()


class StreamParams(ExportParams):
    """The query of a stream: the offset after which it begins, and whose items it has.

    The header ``Last-Event-ID`` overrides ``after``.
    """

    after: WholeNumber = Field(default=0, le=MAX_OFFSET)
    attempts: Literal["successful", "all"] = "successful"


class ReplayParams(StackParams, ExportParams):
    """The query of a replay: after ``until`` facts; without it, after all facts."""

    until: WholeNumber = optional()


class Frame(TypedDict):
    file: str
    line: Count
    function: str
    source: str
    locals: dict[str, str]
    """Bounded, redacted text of each local variable."""


class TaskStack(TypedDict):
    name: str
    frames: list[Frame]
    """From the outermost function of the task to the await in which it is suspended."""
    waitingFor: str | None


class Stack(TypedDict):
    tasks: list[TaskStack]
    difference: NotRequired[str]
    """The difference between the history and the code of the server; absent if they fit."""


class FactPosition(TypedDict):
    fact: Count
    """Number of facts that the code had received then, this one included."""
    stepKey: str
    ok: bool
    position: CodePosition


class FactPositions(TypedDict):
    positions: list[FactPosition]


class Fact(TypedDict):
    stepKey: str
    type: str
    name: str
    ok: bool
    result: Any
    error: NotRequired[Failure]
    at: Date
    state: str


class Pending(TypedDict):
    stepKey: str
    type: str
    name: str
    wakeAt: Date | None
    waitEventType: str | None
    attempts: Count
    recorded: bool
    position: NotRequired[CodePosition]


class Replay(TypedDict):
    position: Count
    total: Count
    fact: Fact | None
    stack: Stack
    pending: list[Pending]
    logs: list[Log]
