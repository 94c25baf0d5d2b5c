"""The wire format of responses: the types of their bodies, in camelCase. ``wire_requests.py`` has those of requests.

Nullable fields are present as ``null``; fields marked ``NotRequired`` are absent when empty. The OpenAPI document is
generated from these types. ``response_bodies.py`` converts records to response bodies.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from holdfast.core.model import Level, Status, StepStatus
from holdfast.core.outbound import OutboxState
from holdfast.http.wire_requests import BulkAction

Date = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]


class Failure(TypedDict):
    name: str
    message: str
    traceback: NotRequired[str]
    """Trimmed: frames of libraries and of the engine are folded. At most 16 KB."""
    causes: NotRequired[list[Failure]]
    """The exceptions of an exception group, and the cause of the error."""


class Details(TypedDict):
    status: Status
    error: NotRequired[Failure]
    output: NotRequired[Any]


class WorkflowName(TypedDict):
    name: str


class Workflows(TypedDict):
    workflows: list[WorkflowName]


class Instance(TypedDict):
    id: str
    details: Details


class ListedInstance(Instance):
    createdAt: Date
    kind: NotRequired[str]
    """Absent for workflows."""
    nativeStatus: NotRequired[str]
    """The status in the terms of the authoring model; absent if the model has none. The document lists the values."""


class InstanceList(TypedDict):
    instances: list[ListedInstance]
    cursor: NotRequired[str]
    nextCursor: NotRequired[str]
    hasNextPage: bool


class Batch(TypedDict):
    instances: list[Instance]


class CurrentStep(TypedDict):
    stepKey: str
    name: str
    type: str
    status: StepStatus
    attempts: Count
    maxAttempts: int | None
    timeoutMs: int | None
    nextRetryAt: Date | None
    wakeAt: Date | None
    waitEventType: str | None
    error: NotRequired[Failure]
    state: NotRequired[str]
    """The state in the terms of the authoring model; absent if the model has none. The document lists the values."""
    stepSeq: NotRequired[Count]
    """Chains only: the position of the step."""
    progress: NotRequired[Any]
    """The value reported by the last heartbeat of a step that is not completed; present with ``heartbeatAt``."""
    heartbeatAt: NotRequired[Date]
    resolved: NotRequired[Literal[True]]
    """The outcome of the step was decided by hand."""


class Step(CurrentStep):
    id: str
    runNumber: Count
    result: Any
    createdAt: Date
    updatedAt: Date


class Child(TypedDict):
    pid: str
    status: Status


class CodePosition(TypedDict):
    file: str
    line: Count


class WhyPart(TypedDict):
    kind: str
    stepKey: NotRequired[str]
    name: NotRequired[str]
    eventType: NotRequired[str]
    until: NotRequired[Date]
    position: NotRequired[CodePosition]
    """Absent if the server does not have the code."""
    attempt: NotRequired[Count]
    """The failed attempt before a retry."""
    maxAttempts: NotRequired[Count]
    error: NotRequired[Failure]
    """The error of the failed attempt, without a traceback."""
    code: NotRequired[str]
    """The reason for which the run is parked, such as ``NON_DETERMINISTIC`` or ``WORKER_LOST``."""


class WhyParts(WhyPart):
    others: NotRequired[list[WhyPart]]
    """Waits of the other tasks of the run."""


class Origin(TypedDict):
    """The run whose history a run continues."""

    action: Literal["retry", "fork", "resolve"]
    pid: str
    runNumber: Count
    at: Date
    actor: str | None
    reason: str | None


class Meta(TypedDict):
    workflowName: str
    kind: str
    runNumber: Count
    params: Any
    createdAt: Date
    updatedAt: Date
    startedAt: Date | None
    completedAt: Date | None
    currentStep: NotRequired[CurrentStep]
    why: str
    whyParts: WhyParts
    workflowVersion: NotRequired[int]
    """The version of the chain or graph that started this run."""
    nativeStatus: NotRequired[str]
    """The status in the terms of the authoring model; absent if the model has none. The document lists the values."""
    killed: NotRequired[Literal[True]]
    """Graphs only: the run has a tombstone."""
    attempt: NotRequired[Count]
    """The attempt of the workflow as a whole; absent for the first."""
    summary: NotRequired[str]
    memo: NotRequired[dict[str, Any]]
    search: NotRequired[dict[str, Any]]
    parent: NotRequired[str]
    children: NotRequired[list[Child]]
    origin: NotRequired[Origin]
    """The run that was retried or forked; absent if this run began with no history."""
    forks: NotRequired[list[str]]
    """The instances that were forked from this one."""
    links: NotRequired[list[str]]
    monitors: NotRequired[list[str]]
    queue: NotRequired[str]
    """Absent for the queue ``default``."""
    version: NotRequired[str]
    """The release that started the run."""
    owner: NotRequired[str]
    """The worker that holds the run."""


class DescribedInstance(Instance):
    meta: Meta


class FoundInstance(ListedInstance):
    workflowName: str
    why: str
    meta: Meta


class FoundInstances(TypedDict):
    instances: list[FoundInstance]
    previousCursor: NotRequired[str]
    """The cursor of the page before; absent on the first page."""
    cursor: NotRequired[str]
    nextCursor: NotRequired[str]
    hasNextPage: bool


class AuditRecord(TypedDict):
    at: Date
    actor: str | None
    action: str
    target: str
    """The instance, as ``workflow/id``."""
    reason: str | None
    outcome: str


class AuditRecords(TypedDict):
    records: list[AuditRecord]
    cursor: NotRequired[str]
    nextCursor: NotRequired[str]
    hasNextPage: bool


class SampledInstance(ListedInstance):
    """An instance that a bulk action would visit."""

    workflowName: str


class BulkAccepted(TypedDict):
    """The id of a queued action, or the count and a sample of a dry run."""

    id: NotRequired[str]
    count: NotRequired[Count]
    sample: NotRequired[list[SampledInstance]]


class BulkFailure(TypedDict):
    pid: str
    message: str


class BulkJob(TypedDict):
    id: str
    action: BulkAction
    status: Literal["running", "complete"]
    total: Count
    done: Count
    failed: Count
    skipped: Count
    errors: list[BulkFailure]
    actor: str | None
    reason: str | None
    createdAt: Date
    endedAt: Date | None


class Done(TypedDict):
    ok: Literal[True]


class SentEvent(TypedDict):
    status: Details
    accepted: Literal[True]


class Event(TypedDict):
    id: str
    runNumber: Count
    type: str
    payload: Any
    createdAt: Date
    deliveredAt: Date | None
    consumedByStepKey: str | None
    sender: NotRequired[str]
    """The run that sent the event; absent for events from outside."""


class Log(TypedDict):
    id: str
    runNumber: Count
    stepKey: str | None
    attempt: int | None
    level: Level
    category: str
    message: str
    data: Any
    isReplay: bool
    createdAt: Date


class History(TypedDict):
    runNumber: Count
    origin: NotRequired[Origin]
    steps: list[Step]
    events: list[Event]
    stepsCursor: NotRequired[str]
    stepsHasNextPage: bool
    eventsCursor: NotRequired[str]
    eventsHasNextPage: bool
    logs: NotRequired[list[Log]]
    logsCursor: NotRequired[str]
    logsHasNextPage: NotRequired[bool]


class Facts(TypedDict):
    facts: dict[str, Any]


class OutboxEvent(TypedDict):
    id: str
    type: str
    payload: Any
    step: str
    state: OutboxState
    attempts: Count
    error: str | None
    createdAt: Date
    nextAttemptAt: Date | None
    deliveredAt: Date | None
    parkedAt: Date | None


class Outbox(TypedDict):
    events: list[OutboxEvent]


class Redelivered(TypedDict):
    redelivered: Count


class Ticked(TypedDict):
    processed: Count


class Health(TypedDict):
    status: Literal["ok"]


class Issue(TypedDict):
    path: list[str | int]
    message: str
    type: str


class Error(TypedDict):
    message: str
    code: str
    issues: NotRequired[list[Issue]]
