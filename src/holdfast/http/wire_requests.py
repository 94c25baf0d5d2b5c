"""The wire format of requests: the types of bodies and queries, in camelCase. ``wire.py`` has those of responses."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from holdfast.core.durations import MAX_MS
from holdfast.core.model import Level, Status
from holdfast.http.start_options import PolicyFields, StartFields, integral
from holdfast.http.strict import strict

_MAX_REASON_LENGTH = 2000


def _check_length(text: str) -> str:
    """Refuse a text that is too long. Pydantic's ``max_length`` would also refuse lone surrogates."""
    if len(text) > _MAX_REASON_LENGTH:
        raise PydanticCustomError("string_too_long", "has more than {limit} characters", {"limit": _MAX_REASON_LENGTH})
    return text


Reason = Annotated[str, AfterValidator(_check_length), Field(json_schema_extra={"maxLength": _MAX_REASON_LENGTH})]


@strict
class NewInstance(PolicyFields):
    """With a ``reason``, which may be empty, the start is audited."""

    id: NotRequired[str]
    params: NotRequired[Any]
    reason: NotRequired[Reason]


@strict
class BatchEntry(StartFields):
    id: str
    params: NotRequired[Any]


@strict
class NewBatch(TypedDict):
    instances: list[BatchEntry]


EventId = Annotated[str, Field(min_length=1, max_length=200)]


@strict
class NewEvent(TypedDict):
    """With a ``reason``, which may be empty, the event is audited."""

    type: str
    payload: NotRequired[Any]
    id: NotRequired[EventId]
    reason: NotRequired[Reason]


Milliseconds = Annotated[int, Field(ge=0, le=MAX_MS), BeforeValidator(integral)]


@strict
class KillRequest(TypedDict):
    """The reason is stored with the tombstone."""

    reason: NotRequired[Reason]


Version = Annotated[str, Field(min_length=1, max_length=100, pattern="^[!-~]+$")]


@strict
class MoveRequest(TypedDict):
    """The version (``WorkerConfig.version``) of the workers that are to execute the run."""

    version: Version
    reason: NotRequired[Reason]


@strict
class CancelRequest(TypedDict):
    """The reason, and the time after which a run that has not ended is terminated."""

    reason: NotRequired[Reason]
    deadlineMs: NotRequired[Milliseconds]


@strict
class ReasonRequest(TypedDict):
    """The reason is part of the audit record."""

    reason: NotRequired[Reason]


@strict
class ResolveRequest(TypedDict):
    """Either ``result`` or ``error``: a message, or ``{"name", "message"}``. Without both, the result is null."""

    stepKey: str
    result: NotRequired[Any]
    error: NotRequired[str | dict[str, str]]
    reason: NotRequired[Reason]


@strict
class ReplyRequest(TypedDict):
    """Either ``payload`` or ``error``, a message that rejects the ask. Without both, the payload is null."""

    eventId: Annotated[str, Field(max_length=40, json_schema_extra={"pattern": "^[0-9]{1,9}:[0-9]{1,9}$"})]
    payload: NotRequired[Any]
    error: NotRequired[Annotated[str, Field(min_length=1, max_length=10_000)]]
    reason: NotRequired[Reason]


@strict
class ForkRequest(TypedDict):
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


@strict
class BulkFilter(TypedDict):
    workflow: NotRequired[FilterText]
    status: NotRequired[Annotated[Status, Field(strict=False)]]
    search: NotRequired[dict[str, Any]]
    """Conditions by attribute: a value to equal, or a pair of an operator and a value, such as ``[">=", 100]``."""
    error: NotRequired[FilterText]
    createdAfter: NotRequired[Instant]
    createdBefore: NotRequired[Instant]
    endedAfter: NotRequired[Instant]
    endedBefore: NotRequired[Instant]
    idPrefix: NotRequired[Annotated[str, Field(pattern="^[a-zA-Z0-9_][a-zA-Z0-9_-]*$")]]
    version: NotRequired[FilterText]
    queue: NotRequired[FilterText]


BulkAction = Literal[
    "pause", "resume", "cancel", "terminate", "restart", "retry", "fork", "move", "sendEvent", "delete"
]


@strict
class BulkRequest(TypedDict):
    """An action on all instances that match a filter with at least one condition."""

    action: BulkAction
    filter: BulkFilter
    dryRun: NotRequired[bool]
    reason: NotRequired[Reason]
    rate: NotRequired[Annotated[float, Field(gt=0, le=10_000)]]
    """Instances per second."""
    arguments: NotRequired[dict[str, Any]]
    """For ``sendEvent``: ``type``, ``payload`` and ``id``; for ``cancel``: ``deadlineMs``; for ``fork``: ``before``,
    ``suffix`` and ``outputs``; for ``move``: ``version``."""


@strict
class NoArguments(TypedDict):
    """The arguments of a bulk action that takes none."""


@strict
class CancelArguments(TypedDict):
    deadlineMs: NotRequired[Milliseconds]


@strict
class EventArguments(TypedDict):
    type: str
    payload: NotRequired[Any]
    id: NotRequired[EventId]


@strict
class ForkArguments(TypedDict):
    before: str
    suffix: NotRequired[Annotated[str, Field(min_length=1, max_length=200)]]
    outputs: NotRequired[dict[str, Any]]


@strict
class MoveArguments(TypedDict):
    version: Version


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
    cursor: str = _cursor("[ip]")
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


@strict
class TickRequest(TypedDict):
    maxInstances: NotRequired[Bound]
    maxSteps: NotRequired[Bound]
