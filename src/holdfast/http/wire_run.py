"""The wire format of a run's details: timeline, facts, mailbox, family. ``run_bodies.py`` makes these bodies."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast.core.model import Level, Status, StepStatus
from holdfast.http.wire import Count, Date, Event, Failure, Step
from holdfast.http.wire_requests import PageSize, WholeNumber, optional

Milliseconds = Annotated[int, Field(json_schema_extra={"description": "Milliseconds since 1970 in UTC."})]


class OneRunParams(BaseModel):
    """The current run, or the run with the number ``runNumber``."""

    runNumber: WholeNumber = optional()


class TimelineParams(OneRunParams):
    """``since``: only items that changed after this version of the timeline."""

    since: WholeNumber = optional(le=2**62)


class StepParams(OneRunParams):
    """``key``: the step key."""

    key: str = ""


class FactPageParams(OneRunParams):
    pageSize: PageSize = 25
    cursor: str = optional(json_schema_extra={"pattern": "^f[0-9]{1,18}$"})


class MailboxParams(OneRunParams):
    pageSize: PageSize = 25
    cursor: str = optional(json_schema_extra={"pattern": "^e[0-9]{1,18}$"})
    order: Literal["asc", "desc"] = "asc"


class LastHeartbeat(TypedDict):
    at: Milliseconds
    progress: Any


class TimelineAttempt(TypedDict):
    n: Count
    start: Milliseconds
    end: Milliseconds | None
    outcome: Literal["ok", "failed", "lost", "running"]
    error: NotRequired[Failure]
    worker: NotRequired[str]
    """Known for attempts that ran for a second or longer."""
    retryAt: NotRequired[Milliseconds]
    heartbeat: NotRequired[LastHeartbeat]


class TimelineItem(TypedDict):
    key: str
    name: str
    type: str
    status: StepStatus
    start: Milliseconds
    end: Milliseconds | None
    attempts: NotRequired[list[TimelineAttempt]]
    """Absent for waits, and for a step whose only attempt was successful and is not known in more detail."""
    wakeAt: NotRequired[Milliseconds]
    eventType: NotRequired[str]
    event: NotRequired[Count]
    """The number of the event that the step consumed."""
    child: NotRequired[str]
    maxAttempts: NotRequired[Count]
    timeoutMs: NotRequired[Count]
    state: NotRequired[str]
    resolved: NotRequired[Literal[True]]
    parallel: NotRequired[Count]
    """Items with the same number were started together."""


class TimelineHolder(TypedDict):
    worker: str
    start: Milliseconds
    end: Milliseconds | None
    lost: bool


class TimelineMessage(TypedDict):
    n: Count
    type: str
    at: Milliseconds
    takenAt: Milliseconds | None
    by: NotRequired[str]
    sender: NotRequired[str]


class TimelineLog(TypedDict):
    at: Milliseconds
    level: Level
    isReplay: NotRequired[Literal[True]]


class Timeline(TypedDict):
    runNumber: Count
    now: Milliseconds
    start: Milliseconds
    end: Milliseconds | None
    workingMs: Count
    version: Count
    """The value of ``since`` for the changes after this response."""
    total: Count
    """The number of all items of the run."""
    items: list[TimelineItem]
    holders: list[TimelineHolder]
    messages: list[TimelineMessage]
    """The first thousand."""
    logs: list[TimelineLog]
    """The last thousand."""


class OneStep(TypedDict):
    step: Step | None
    """``null`` if the run has no such step."""


class StoredFact(TypedDict):
    state: str
    key: str
    n: Count
    kind: str
    at: Date
    startedAt: Date
    seq: int | None
    ok: bool
    value: Any
    name: str | None
    attempts: Count
    maxAttempts: int | None
    timeoutMs: int | None
    wakeAt: Date | None
    eventType: str | None
    event: int | None


class FactPage(TypedDict):
    facts: list[StoredFact]
    """In the order of their times."""
    total: Count
    cursor: NotRequired[str]
    nextCursor: NotRequired[str]
    hasNextPage: bool


class MailboxReply(TypedDict):
    ok: bool
    """False if the ask was rejected."""
    payload: Any


class MailboxEvent(Event):
    n: Count
    ask: NotRequired[Literal[True]]
    """The sender asked for a reply."""
    reply: NotRequired[MailboxReply]
    engine: NotRequired[Literal[True]]
    """A message of the engine, such as the end of a watched run."""


class Mailbox(TypedDict):
    events: list[MailboxEvent]
    awaited: list[str]
    """The types of events that wake the run."""
    cursor: NotRequired[str]
    nextCursor: NotRequired[str]
    hasNextPage: bool


class Relative(TypedDict):
    pid: str
    workflowName: str
    id: str
    runNumber: Count
    status: Status
    createdAt: Date
    completedAt: Date | None


class Family(TypedDict):
    itself: Relative
    ancestors: list[Relative]
    """The root first."""
    children: list[Relative]
    """At most a hundred, the oldest first."""
    links: list[Relative]
    monitors: list[Relative]
    watchedBy: list[Relative]
    forks: list[Relative]
