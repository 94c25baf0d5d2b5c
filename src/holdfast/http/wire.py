"""The wire format: the types of all request and response bodies, in camelCase.

Nullable fields are present as ``null``; fields marked ``NotRequired`` are absent when empty. The OpenAPI document is
generated from these types. ``response_bodies.py`` converts records to response bodies.
"""

# ruff: noqa: N815  (the contract is in camelCase)

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from holdfast.core.durations import MAX_MS
from holdfast.core.model import Level, Status, StepStatus
from holdfast.core.outbound import OutboxState
from holdfast.http.start_options import StartFields, integral

Date = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]

_STRICT = ConfigDict(extra="forbid", strict=True)
_MAX_REASON_LENGTH = 2000

# --- requests


class NewInstance(StartFields):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    id: NotRequired[str]
    params: NotRequired[Any]


class BatchEntry(StartFields):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    id: str
    params: NotRequired[Any]


class NewBatch(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    instances: list[BatchEntry]


class NewEvent(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    type: str
    payload: NotRequired[Any]
    id: NotRequired[Annotated[str, Field(min_length=1, max_length=200)]]


def _check_length(text: str) -> str:
    """Refuse a text that is too long. Pydantic's ``max_length`` would also refuse lone surrogates."""
    if len(text) > _MAX_REASON_LENGTH:
        raise PydanticCustomError("string_too_long", "has more than {limit} characters", {"limit": _MAX_REASON_LENGTH})
    return text


Reason = Annotated[str, AfterValidator(_check_length), Field(json_schema_extra={"maxLength": _MAX_REASON_LENGTH})]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_MS), BeforeValidator(integral)]


class KillRequest(TypedDict):
    """The reason is stored with the tombstone."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    reason: NotRequired[Reason]


class MoveRequest(TypedDict):
    """The version (``WorkerConfig.version``) of the workers that are to execute the run."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    version: Annotated[str, Field(min_length=1, max_length=100, pattern="^[!-~]+$")]


class CancelRequest(TypedDict):
    """The reason, and the time after which a run that has not ended is terminated."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    reason: NotRequired[Reason]
    deadlineMs: NotRequired[Milliseconds]


class RetryRequest(TypedDict):
    """The reason is part of the audit record."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    reason: NotRequired[Reason]


class ResolveRequest(TypedDict):
    """Either ``result`` or ``error``: a message, or ``{"name", "message"}``. Without both, the result is null."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    stepKey: str
    result: NotRequired[Any]
    error: NotRequired[str | dict[str, str]]
    reason: NotRequired[Reason]


class ForkRequest(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    before: str
    id: NotRequired[str]
    outputs: NotRequired[dict[str, Any]]
    """Results of earlier steps, by step key."""
    params: NotRequired[Any]
    reason: NotRequired[Reason]


def _instant(value: object) -> object:
    """Accept ISO 8601 text with a time zone only: pydantic would also accept numbers."""
    if isinstance(value, str):
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            when = None
        if when is not None and when.tzinfo is not None:
            return when
    raise PydanticCustomError("date_invalid", "must be a date and time in ISO 8601 with a time zone")


Instant = Annotated[datetime, BeforeValidator(_instant)]
FilterText = Annotated[str, Field(min_length=1, max_length=1000)]


class BulkFilter(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    workflow: NotRequired[FilterText]
    status: NotRequired[Annotated[Status, Field(strict=False)]]
    search: NotRequired[dict[str, Any]]
    """By attribute: a value to equal, or a pair of an operator and a value, such as ``[">=", 100]``."""
    error: NotRequired[FilterText]
    createdAfter: NotRequired[Instant]
    createdBefore: NotRequired[Instant]
    endedAfter: NotRequired[Instant]
    endedBefore: NotRequired[Instant]
    idPrefix: NotRequired[Annotated[str, Field(pattern="^[a-zA-Z0-9_][a-zA-Z0-9_-]*$")]]
    version: NotRequired[FilterText]
    queue: NotRequired[FilterText]


BulkAction = Literal["pause", "resume", "cancel", "terminate", "restart", "retry", "sendEvent", "delete"]


class BulkRequest(TypedDict):
    """An action on all instances that match a filter with at least one condition."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    action: BulkAction
    filter: BulkFilter
    dryRun: NotRequired[bool]
    reason: NotRequired[Reason]
    rate: NotRequired[Annotated[float, Field(gt=0, le=10_000)]]
    """Instances per second."""
    arguments: NotRequired[dict[str, Any]]
    """For ``sendEvent``: ``type``, ``payload`` and ``id``; for ``cancel``: ``deadlineMs``."""


def _whole_number(value: object) -> object:
    """Accept digits only: ``int`` alone would also accept signs, spaces and underscores, and round fractions."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 100 else value


def _flag(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def optional(**rules: Any) -> Any:
    """An optional field, ``None`` if it is missing; ``null`` is not a valid value."""
    return Field(default=None, **rules)


def _cursor(prefix: str) -> Any:
    """A cursor. The pattern is documented, not enforced here: the client reports an invalid cursor (INVALID_CURSOR)."""
    return optional(json_schema_extra={"pattern": f"^{prefix}[0-9]{{1,18}}$"})


WholeNumber = Annotated[int, Field(strict=True, ge=0), BeforeValidator(_whole_number)]
PageSize = Annotated[int, Field(strict=True, ge=1), BeforeValidator(_whole_number)]
Flag = Annotated[bool, Field(strict=True), BeforeValidator(_flag)]


class ListParams(BaseModel):
    """The query of a list; missing fields are ``None``."""

    status: Status = optional()
    idPrefix: str = optional(pattern="^[a-zA-Z0-9_][a-zA-Z0-9_-]*$")
    pageSize: PageSize = 25
    cursor: str = _cursor("i")


class AllParams(ListParams):
    """The query of a list of all instances; missing fields are ``None``."""

    workflow: str = optional(min_length=1)
    error: str = optional(min_length=1, max_length=1000)
    createdAfter: Instant = optional()
    createdBefore: Instant = optional()
    endedAfter: Instant = optional()
    endedBefore: Instant = optional()
    version: str = optional(min_length=1, max_length=1000)
    queue: str = optional(min_length=1, max_length=1000)
    order: Literal["asc", "desc"] = "desc"


class AuditParams(BaseModel):
    """The query of audit records."""

    pageSize: PageSize = 25
    cursor: str = _cursor("a")


class RunParams(BaseModel):
    """The query of one run's history."""

    pageSize: PageSize = 25
    order: Literal["asc", "desc"] = "asc"
    stepsCursor: str = _cursor("s")
    eventsCursor: str = _cursor("e")
    includeLogs: Flag = False
    logsCursor: str = _cursor("l")
    logLevel: Level = optional()
    logCategory: str = optional(min_length=1, pattern="^[^\\x00]+$")


class HistoryParams(RunParams):
    """The query of the history of the current run, or of the run with the number ``runNumber``."""

    runNumber: WholeNumber = optional()


class ResultParams(BaseModel):
    """The query of a run's result: how long to wait for the end, at most a minute."""

    wait: str = Field(default="0s", max_length=100, json_schema_extra={"pattern": "^([1-5]?[0-9]s|60s)$"})


class FactsParams(BaseModel):
    """The query of a graph's facts."""

    prefix: str = ""


Bound = Annotated[int, Field(ge=0, le=1_000_000), BeforeValidator(integral)]


class TickRequest(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    maxInstances: NotRequired[Bound]
    maxSteps: NotRequired[Bound]


# --- responses


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


class WhyParts(WhyPart):
    others: NotRequired[list[WhyPart]]
    """What other tasks of the run wait for."""


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


class DescribedInstance(Instance):
    meta: Meta


class FoundInstance(ListedInstance):
    workflowName: str
    why: str
    meta: Meta


class FoundInstances(TypedDict):
    instances: list[FoundInstance]
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


class BulkAccepted(TypedDict):
    """The id of a queued action, or the count and a sample of a dry run."""

    id: NotRequired[str]
    count: NotRequired[Count]
    sample: NotRequired[list[ListedInstance]]


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
