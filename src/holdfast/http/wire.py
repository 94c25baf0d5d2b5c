"""The words of the contract: every body that comes in or goes out, field by field, in camelCase.

Nullable fields are present as ``null``; fields marked ``NotRequired`` are absent when empty. The types are what the
OpenAPI document shows, and the functions that fill them are checked against them.
"""

# ruff: noqa: N815  (the contract is in camelCase)

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from holdfast.client import HistoryPage
from holdfast.core.chains import ChainStatus, StepState
from holdfast.core.durations import MAX_MS
from holdfast.core.model import (
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
NodeState: TypeAlias = Literal["pending", "started", "retrying", "ok", "error", "skipped"]

_STRICT = ConfigDict(extra="forbid", strict=True)
_LONGEST_REASON = 2000

WORKFLOW = "workflow"
"""The kind of which nothing is said where kinds are no matter."""


# --- what comes in


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
    """JSON has one kind of number: 5.0 is 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(text: str) -> str:
    """Pydantic's own limit would refuse lone surrogates too."""
    if len(text) > _LONGEST_REASON:
        raise PydanticCustomError("string_too_long", "has more than {most} characters", {"most": _LONGEST_REASON})
    return text


Reason = Annotated[str, AfterValidator(_short), Field(json_schema_extra={"maxLength": _LONGEST_REASON})]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_MS), BeforeValidator(_integral)]


class KillRequest(TypedDict):
    """Why: it is written on the tombstone."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    reason: NotRequired[Reason]


class CancelRequest(TypedDict):
    """Why it is to cancel, and how long it may take: then it is terminated."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    reason: NotRequired[Reason]
    deadlineMs: NotRequired[Milliseconds]


def _whole_number(value: object) -> object:
    """Digits only: ``int`` alone would take signs, spaces, underscores and fractions too."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 100 else value


def _flag(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _optional(**rules: Any) -> Any:
    """A field that may be missing, and is ``None`` then; ``null`` is no value for it."""
    return Field(default=None, **rules)


def _cursor(letter: str) -> Any:
    """The form is documented, not enforced: a wrong one is INVALID_CURSOR, and the client says so."""
    return _optional(json_schema_extra={"pattern": f"^{letter}[0-9]{{1,18}}$"})


WholeNumber = Annotated[int, Field(strict=True, ge=0), BeforeValidator(_whole_number)]
PageSize = Annotated[int, Field(strict=True, ge=1), BeforeValidator(_whole_number)]
Flag = Annotated[bool, Field(strict=True), BeforeValidator(_flag)]


class ListParams(BaseModel):
    """The query of a list; fields without a value are ``None``."""

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
    """The query of the current run's history, or of another one's."""

    runNumber: WholeNumber = _optional()


class FactsParams(BaseModel):
    """The query of a graph's facts."""

    prefix: str = ""


Bound = Annotated[int, Field(ge=0, le=1_000_000), BeforeValidator(_integral)]


class TickRequest(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    maxInstances: NotRequired[Bound]
    maxSteps: NotRequired[Bound]


# --- what goes out


class Failure(TypedDict):
    name: str
    message: str
    traceback: NotRequired[str]
    """Trimmed to frames of user code, at most 16 KB."""
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
    """Unless it is a workflow."""
    nativeStatus: NotRequired[ChainStatus]
    """Of a chain: its status in the words of chains."""


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
    state: NotRequired[StepState | NodeState]
    """Of a chain's step, or of a graph's node, in the words of its kind."""
    stepSeq: NotRequired[Count]
    """Of a chain's step: its place."""
    progress: NotRequired[Any]
    """What the last heartbeat of a step that is not completed reported; with heartbeatAt."""
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
    """Of the chain or graph that it was started by."""
    nativeStatus: NotRequired[ChainStatus]
    """Of a chain: its status in the words of chains."""
    killed: NotRequired[Literal[True]]
    """Of a graph: it has a tombstone."""
    attempt: NotRequired[Count]
    """Of the workflow as a whole, from the second on."""
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
    """The run that sent it, if one did."""


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
    shown: Details = {"status": Status(status.status)}
    if status.error is not None:
        shown["error"] = failure(status.error)
    if status.output is not None:
        shown["output"] = status.output
    return shown


def failure(error: ErrorInfo) -> Failure:
    shown: Failure = {"name": error.name, "message": error.message}
    if error.traceback is not None:
        shown["traceback"] = error.traceback
    if error.causes:
        shown["causes"] = [failure(one) for one in error.causes]
    return shown


def instance(summary: InstanceSummary) -> Instance:
    return {"id": summary.id, "details": details(summary.details)}


def batch(summaries: list[InstanceSummary]) -> Batch:
    return {"instances": [instance(one) for one in summaries]}


def listed_instance(summary: InstanceSummary) -> ListedInstance:
    shown: ListedInstance = {
        "id": summary.id,
        "details": details(summary.details),
        "createdAt": date(summary.created_at),
    }
    if summary.details.kind != WORKFLOW:
        shown["kind"] = summary.details.kind
    if summary.details.native_status is not None:
        shown["nativeStatus"] = ChainStatus(summary.details.native_status)
    return shown


def instance_list(page: Page[InstanceSummary]) -> InstanceList:
    shown: InstanceList = {
        "instances": [listed_instance(one) for one in page.items],
        "hasNextPage": page.cursor is not None,
    }
    if page.cursor is not None:
        shown["cursor"] = shown["nextCursor"] = page.cursor
    return shown


def described_instance(found: InstanceDescription) -> DescribedInstance:
    meta: Meta = {
        "workflowName": found.workflow_name,
        "kind": found.kind,
        "runNumber": found.run_number,
        "params": found.params,
        "createdAt": date(found.created_at),
        "updatedAt": date(found.updated_at),
        "startedAt": optional_date(found.started_at),
        "completedAt": optional_date(found.completed_at),
        "why": found.why,
    }
    if found.current_step is not None:
        meta["currentStep"] = current_step(found.current_step)
    _add_of_kind(meta, found)
    _add_dealings(meta, found)
    status = InstanceStatus(found.status, found.error, found.output)
    return {"id": found.id, "details": details(status), "meta": meta}


def _add_of_kind(meta: Meta, found: InstanceDescription) -> None:
    """What only chains and graphs have."""
    if found.workflow_version is not None:
        meta["workflowVersion"] = found.workflow_version
    if found.native_status is not None:
        meta["nativeStatus"] = ChainStatus(found.native_status)
    if found.killed:
        meta["killed"] = True


def _add_dealings(meta: Meta, found: InstanceDescription) -> None:
    """What most instances do not have: it is absent there."""
    if found.attempt > 1:
        meta["attempt"] = found.attempt
    if found.summary is not None:
        meta["summary"] = found.summary
    if found.memo:
        meta["memo"] = found.memo
    if found.search:
        meta["search"] = found.search
    if found.parent is not None:
        meta["parent"] = found.parent
    if found.children:
        meta["children"] = [{"pid": child.pid, "status": Status(child.status)} for child in found.children]
    if found.links:
        meta["links"] = found.links
    if found.monitors:
        meta["monitors"] = found.monitors


def current_step(record: StepRecord) -> CurrentStep:
    shown: CurrentStep = {
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
        shown["error"] = failure(record.error)
    if record.state is not None:
        shown["state"] = cast("StepState | NodeState", record.state)
    if record.step_seq is not None:
        shown["stepSeq"] = record.step_seq
    if record.heartbeat_at is not None:
        shown["progress"] = record.progress
        shown["heartbeatAt"] = date(record.heartbeat_at)
    return shown


def _max_attempts(record: StepRecord) -> int | None:
    """A sleep or a wait happens once; what may be retried for ever has no number, nor has a node before it failed."""
    tried = record.type in (StepType.DO, StepType.NODE)
    return 1 if record.max_attempts is None and not tried else record.max_attempts


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
    shown: Event = {
        "id": record.id,
        "runNumber": record.run_number,
        "type": record.type,
        "payload": record.payload,
        "createdAt": date(record.created_at),
        "deliveredAt": optional_date(record.delivered_at),
        "consumedByStepKey": record.consumed_by_step_key,
    }
    if record.sender is not None:
        shown["sender"] = record.sender
    return shown


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
    shown: History = {
        "runNumber": page.run_number,
        "steps": [step(one) for one in page.steps.items],
        "stepsHasNextPage": page.steps.more,
        "events": [event(one) for one in page.events.items],
        "eventsHasNextPage": page.events.more,
    }
    if page.steps.more:
        shown["stepsCursor"] = page.steps.cursor
    if page.events.more:
        shown["eventsCursor"] = page.events.cursor
    if page.logs is not None:
        shown["logs"] = [log(one) for one in page.logs.items]
        shown["logsCursor"] = page.logs.cursor  # also on the last page, so that following works
        shown["logsHasNextPage"] = page.logs.more
    return shown


def outbox(records: Iterable[OutboxRecord]) -> Outbox:
    return {"events": [_outbox_event(one) for one in records]}


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
