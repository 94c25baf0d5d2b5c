"""The wire format: the types of all request and response bodies, in camelCase.

Nullable fields are present as ``null``; fields marked ``NotRequired`` are absent when empty. The OpenAPI document is
generated from these types, and the type checker checks the functions that fill them.
"""

# ruff: noqa: N815  (the contract is in camelCase)

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from holdfast.client import HistoryPage
from holdfast.core.durations import MAX_MS
from holdfast.core.model import (
    DEFAULT_KIND,
    EventRecord,
    InstanceDescription,
    InstanceStatus,
    InstanceSummary,
    Level,
    LogLine,
    Page,
    Status,
    StepRecord,
    StepStatus,
    StepType,
)
from holdfast.core.outbound import OutboxRecord, OutboxState
from holdfast.errors import ErrorInfo

Date = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]

_STRICT = ConfigDict(extra="forbid", strict=True)
_MAX_REASON_LENGTH = 2000

# --- requests


class NewInstance(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    id: NotRequired[str]
    params: NotRequired[Any]


class BatchEntry(TypedDict):
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


def _integral(value: object) -> object:
    """Accept 5.0 as 5: JSON does not distinguish integers from other numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(text: str) -> str:
    """Limit the length. Pydantic's ``max_length`` would also refuse lone surrogates."""
    if len(text) > _MAX_REASON_LENGTH:
        raise PydanticCustomError("string_too_long", "has more than {limit} characters", {"limit": _MAX_REASON_LENGTH})
    return text


Reason = Annotated[str, AfterValidator(_short), Field(json_schema_extra={"maxLength": _MAX_REASON_LENGTH})]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_MS), BeforeValidator(_integral)]


class KillRequest(TypedDict):
    """The reason is stored with the tombstone."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    reason: NotRequired[Reason]


class CancelRequest(TypedDict):
    """The reason, and the time after which a run that has not ended is terminated."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    reason: NotRequired[Reason]
    deadlineMs: NotRequired[Milliseconds]


def _whole_number(value: object) -> object:
    """Accept digits only: ``int`` alone would also accept signs, spaces and underscores, and round fractions."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 100 else value


def _flag(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _optional(**rules: Any) -> Any:
    """An optional field, ``None`` if it is missing; ``null`` is not a valid value."""
    return Field(default=None, **rules)


def _cursor(prefix: str) -> Any:
    """A cursor. The pattern is documented, not enforced here: the client reports an invalid cursor (INVALID_CURSOR)."""
    return _optional(json_schema_extra={"pattern": f"^{prefix}[0-9]{{1,18}}$"})


WholeNumber = Annotated[int, Field(strict=True, ge=0), BeforeValidator(_whole_number)]
PageSize = Annotated[int, Field(strict=True, ge=1), BeforeValidator(_whole_number)]
Flag = Annotated[bool, Field(strict=True), BeforeValidator(_flag)]


class ListParams(BaseModel):
    """The query of a list; missing fields are ``None``."""

    status: Status = _optional()
    idPrefix: str = _optional(pattern="^[a-zA-Z0-9_][a-zA-Z0-9_-]*$")
    pageSize: PageSize = 25
    cursor: str = _cursor("i")


class RunParams(BaseModel):
    """The query of one run's history."""

    pageSize: PageSize = 25
    order: Literal["asc", "desc"] = "asc"
    stepsCursor: str = _cursor("s")
    eventsCursor: str = _cursor("e")
    includeLogs: Flag = False
    logsCursor: str = _cursor("l")
    logLevel: Level = _optional()
    logCategory: str = _optional(min_length=1, pattern="^[^\\x00]+$")


class HistoryParams(RunParams):
    """The query of the history of the current run, or of the run with the number ``runNumber``."""

    runNumber: WholeNumber = _optional()


class FactsParams(BaseModel):
    """The query of a graph's facts."""

    prefix: str = ""


Bound = Annotated[int, Field(ge=0, le=1_000_000), BeforeValidator(_integral)]


class TickRequest(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    maxInstances: NotRequired[Bound]
    maxSteps: NotRequired[Bound]


# --- responses


class Failure(TypedDict):
    name: str
    message: str
    traceback: NotRequired[str]
    """Frames of user code only, at most 16 KB."""
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


class Step(CurrentStep):
    id: str
    runNumber: Count
    result: Any
    createdAt: Date
    updatedAt: Date


class Child(TypedDict):
    pid: str
    status: Status


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
    links: NotRequired[list[str]]
    monitors: NotRequired[list[str]]


class DescribedInstance(Instance):
    meta: Meta


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


# --- from records to bodies


def workflows(names: list[str]) -> Workflows:
    return {"workflows": [{"name": name} for name in names]}


def details(status: InstanceStatus) -> Details:
    body: Details = {"status": Status(status.status)}
    if status.error is not None:
        body["error"] = failure(status.error)
    if status.output is not None:
        body["output"] = status.output
    return body


def failure(error: ErrorInfo) -> Failure:
    body: Failure = {"name": error.name, "message": error.message}
    if error.traceback is not None:
        body["traceback"] = error.traceback
    if error.causes:
        body["causes"] = [failure(cause) for cause in error.causes]
    return body


def instance(summary: InstanceSummary) -> Instance:
    return {"id": summary.id, "details": details(summary.details)}


def batch(summaries: list[InstanceSummary]) -> Batch:
    return {"instances": [instance(summary) for summary in summaries]}


def listed_instance(summary: InstanceSummary) -> ListedInstance:
    body: ListedInstance = {
        "id": summary.id,
        "details": details(summary.details),
        "createdAt": date(summary.created_at),
    }
    if summary.details.kind != DEFAULT_KIND:
        body["kind"] = summary.details.kind
    if summary.details.native_status is not None:
        body["nativeStatus"] = summary.details.native_status
    return body


def instance_list(page: Page[InstanceSummary]) -> InstanceList:
    body: InstanceList = {
        "instances": [listed_instance(summary) for summary in page.items],
        "hasNextPage": page.cursor is not None,
    }
    if page.cursor is not None:
        body["cursor"] = body["nextCursor"] = page.cursor
    return body


def described_instance(description: InstanceDescription) -> DescribedInstance:
    meta: Meta = {
        "workflowName": description.workflow_name,
        "kind": description.kind,
        "runNumber": description.run_number,
        "params": description.params,
        "createdAt": date(description.created_at),
        "updatedAt": date(description.updated_at),
        "startedAt": optional_date(description.started_at),
        "completedAt": optional_date(description.completed_at),
        "why": description.why,
    }
    if description.current_step is not None:
        meta["currentStep"] = current_step(description.current_step)
    _add_model_fields(meta, description)
    _add_optional_fields(meta, description)
    status = InstanceStatus(description.status, description.error, description.output)
    return {"id": description.id, "details": details(status), "meta": meta}


def _add_model_fields(meta: Meta, description: InstanceDescription) -> None:
    """Add the fields of chains and graphs."""
    if description.workflow_version is not None:
        meta["workflowVersion"] = description.workflow_version
    if description.native_status is not None:
        meta["nativeStatus"] = description.native_status
    if description.killed:
        meta["killed"] = True


def _add_optional_fields(meta: Meta, description: InstanceDescription) -> None:
    """Add the fields that are absent when empty."""
    if description.attempt > 1:
        meta["attempt"] = description.attempt
    if description.summary is not None:
        meta["summary"] = description.summary
    if description.memo:
        meta["memo"] = description.memo
    if description.search:
        meta["search"] = description.search
    if description.parent is not None:
        meta["parent"] = description.parent
    if description.children:
        meta["children"] = [{"pid": child.pid, "status": Status(child.status)} for child in description.children]
    if description.links:
        meta["links"] = description.links
    if description.monitors:
        meta["monitors"] = description.monitors


def current_step(record: StepRecord) -> CurrentStep:
    body: CurrentStep = {
        "stepKey": record.step_key,
        "name": record.name,
        "type": record.type,
        "status": StepStatus(record.status),
        "attempts": record.attempts,
        "maxAttempts": _max_attempts(record),
        "timeoutMs": record.timeout_ms,
        "nextRetryAt": optional_date(record.next_retry_at),
        "wakeAt": optional_date(record.wake_at),
        "waitEventType": record.wait_event_type,
    }
    if record.error is not None:
        body["error"] = failure(record.error)
    if record.state is not None:
        body["state"] = record.state
    if record.step_seq is not None:
        body["stepSeq"] = record.step_seq
    if record.heartbeat_at is not None:
        body["progress"] = record.progress
        body["heartbeatAt"] = date(record.heartbeat_at)
    return body


def _max_attempts(record: StepRecord) -> int | None:
    """Maximum number of attempts: 1 for a sleep or a wait.

    It is None for a step that is retried without limit, and for a node that has not failed yet.
    """
    retryable = record.type in (StepType.DO, StepType.NODE)
    return 1 if record.max_attempts is None and not retryable else record.max_attempts


def step(record: StepRecord) -> Step:
    return {
        "id": record.id,
        "runNumber": record.run_number,
        **current_step(record),
        "result": record.result,
        "createdAt": date(record.created_at),
        "updatedAt": date(record.updated_at),
    }


def event(record: EventRecord) -> Event:
    body: Event = {
        "id": record.id,
        "runNumber": record.run_number,
        "type": record.type,
        "payload": record.payload,
        "createdAt": date(record.created_at),
        "deliveredAt": optional_date(record.delivered_at),
        "consumedByStepKey": record.consumed_by_step_key,
    }
    if record.sender is not None:
        body["sender"] = record.sender
    return body


def log(line: LogLine) -> Log:
    return {
        "id": line.id,
        "runNumber": line.run_number,
        "stepKey": line.step_key,
        "attempt": line.attempt,
        "level": Level(line.level),
        "category": line.category,
        "message": line.message,
        "data": line.data,
        "isReplay": line.is_replay,
        "createdAt": date(line.created_at),
    }


def history(page: HistoryPage) -> History:
    body: History = {
        "runNumber": page.run_number,
        "steps": [step(record) for record in page.steps.items],
        "stepsHasNextPage": page.steps.more,
        "events": [event(record) for record in page.events.items],
        "eventsHasNextPage": page.events.more,
    }
    if page.steps.more:
        body["stepsCursor"] = page.steps.cursor
    if page.events.more:
        body["eventsCursor"] = page.events.cursor
    if page.logs is not None:
        body["logs"] = [log(line) for line in page.logs.items]
        body["logsCursor"] = page.logs.cursor  # also on the last page: a caller that follows the log continues from it
        body["logsHasNextPage"] = page.logs.more
    return body


def outbox(records: Iterable[OutboxRecord]) -> Outbox:
    return {"events": [_outbox_event(record) for record in records]}


def _outbox_event(record: OutboxRecord) -> OutboxEvent:
    return {
        "id": record.id,
        "type": record.type,
        "payload": record.payload,
        "step": record.step,
        "state": OutboxState(record.state),
        "attempts": record.attempts,
        "error": record.error,
        "createdAt": date(record.created_at),
        "nextAttemptAt": optional_date(record.next_attempt_at),
        "deliveredAt": optional_date(record.delivered_at),
        "parkedAt": optional_date(record.parked_at),
    }


def date(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def optional_date(when: datetime | None) -> str | None:
    return None if when is None else date(when)
