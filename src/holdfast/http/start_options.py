"""Start options over HTTP: their fields in a request body, and their conversion to the options of ``app.start``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import combinations, product
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, Field, WithJsonSchema
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from holdfast.core.retry import Retry
from holdfast.core.show import shown
from holdfast.core.start_policies import Debounce, Dedupe
from holdfast.errors import InvalidOptionError
from holdfast.http.strict import strict

_MAX_SECONDS = 3_155_760_000  # 100 years


def integral(value: object) -> object:
    """Accept 5.0 as 5: JSON does not distinguish integers from other numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


DurationText = Annotated[str, Field(max_length=100, json_schema_extra={"pattern": "^[1-9][0-9]{0,3}(s|m|h|d)$"})]
Duration = DurationText | Annotated[float, Field(ge=0, le=_MAX_SECONDS)]
"""A text such as "500 ms", "1h30m", "7 days", or a number of seconds. The pattern documents the simplest form."""
Timeout = DurationText | Annotated[float, Field(ge=0.001, le=_MAX_SECONDS)]
_WHEN = "^20[2-9][0-9]-(0[1-9]|1[0-2])-[01][1-9]T[01][0-9]:[0-5][0-9]:[0-5][0-9]Z$"
When = Annotated[str, Field(max_length=100, json_schema_extra={"pattern": _WHEN})]
"""A date and time with a time zone. The pattern documents the simplest form."""
_CRON = "^[1-5]?[0-9] 1?[0-9] \\* \\* \\*$"
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31), BeforeValidator(integral)]
Retries = Annotated[int, Field(ge=0, le=1_000_000), BeforeValidator(integral)]
Search = Annotated[dict[str, Any], WithJsonSchema({
    "type": "object",
    "maxProperties": 100,
    "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_.-]{0,63}$"},
    "additionalProperties": {"anyOf": [
        {"type": "string", "maxLength": 200, "pattern": "^[ -~]*$"},
        {"type": "number", "minimum": -(2**53), "maximum": 2**53},
        {"type": "boolean"},
    ]},
})]  # fmt: skip
"""The engine checks the attributes; the schema documents the common ones."""
Names = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=100)]


@strict
class RetryFields(TypedDict):
    """The retry policy of the workflow as a whole; a missing limit is 5, ``null`` means unlimited."""

    limit: NotRequired[Retries | None]
    delay: NotRequired[Duration]
    backoff: NotRequired[Literal["constant", "linear", "exponential"]]
    maxDelay: NotRequired[Duration]
    jitter: NotRequired[Annotated[float, Field(ge=0, le=1)]]
    nonRetryable: NotRequired[Names]


Key = Annotated[str, Field(min_length=1, max_length=200)]


@strict
class MessageFields(TypedDict):
    """An event that is in the mailbox of the run before anything else."""

    type: str
    payload: NotRequired[Any]


Messages = Annotated[list[MessageFields], Field(max_length=100), WithJsonSchema({
    "type": "array",
    "maxItems": 100,
    "items": {
        "type": "object",
        "properties": {"type": {"type": "string"}, "payload": {}},
        "required": ["type"],
        "additionalProperties": False,
    },
})]  # fmt: skip


@strict
class DedupeFields(TypedDict):
    """Starts with the key make one run: while it is open, and for the period after its start."""

    key: Key
    period: NotRequired[Timeout]


@strict
class DebounceFields(TypedDict):
    """The run starts when no further start with the key came for this time; the last params win."""

    wait: Timeout
    maxWait: NotRequired[Timeout]
    key: NotRequired[Key]


class StartFields(TypedDict):
    """Fields of a start besides its id and params."""

    queue: NotRequired[Annotated[str, Field(min_length=1, max_length=200)]]
    priority: NotRequired[Priority]
    delay: NotRequired[Duration]
    startAt: NotRequired[When]
    timeout: NotRequired[Timeout]
    """The same as ``executionTimeout``."""
    executionTimeout: NotRequired[Timeout]
    runTimeout: NotRequired[Timeout]
    taskTimeout: NotRequired[Timeout]
    retry: NotRequired[RetryFields]
    cron: NotRequired[Annotated[str, Field(max_length=200, json_schema_extra={"pattern": _CRON})]]
    search: NotRequired[Search]
    memo: NotRequired[dict[str, Any]]
    context: NotRequired[dict[str, Any]]
    messages: NotRequired[Messages]
    summary: NotRequired[Annotated[str, Field(max_length=1000)]]
    onConflict: NotRequired[Literal["use_existing", "fail", "terminate_existing"]]
    onReuse: NotRequired[Literal["use_existing", "allow", "allow_if_failed", "reject", "retry_if_failed"]]
    key: NotRequired[Key]


class PolicyFields(StartFields):
    """Fields of a single start: also those that decide whether it makes a run."""

    dedupe: NotRequired[DedupeFields]
    singleton: NotRequired[Literal["skip", "queue", "cancel_running", "replace_waiting"]]
    debounce: NotRequired[DebounceFields]
    onLimit: NotRequired[Literal["wait", "drop", "reject"]]


EXCLUSIVE = (
    ("timeout", "executionTimeout"),
    ("delay", "startAt"),
    *combinations(("dedupe", "singleton", "debounce", "onLimit"), 2),
    *product(("dedupe", "debounce"), ("id", "onConflict", "onReuse")),
    *product(("debounce", "onLimit"), ("delay", "startAt", "cron")),
    *product(("messages",), ("singleton", "debounce", "onLimit")),
)
"""Pairs of fields of which a start has at most one."""


def _when(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise InvalidOptionError(f"startAt must be a date and time with a time zone in ISO 8601, not {shown(text)}")
    return when


def _retry(fields: RetryFields) -> Retry:
    limit = fields.get("limit", 5)
    return Retry(
        math.inf if limit is None else limit,
        fields.get("delay", "10 seconds"),
        fields.get("backoff", "exponential"),
        max_delay=fields.get("maxDelay"),
        jitter=fields.get("jitter", 0.0),
        non_retryable=fields.get("nonRetryable", ()),
    )


def _dedupe(fields: DedupeFields) -> Dedupe:
    return Dedupe(fields["key"], fields.get("period"))


def _debounce(fields: DebounceFields) -> Debounce:
    return Debounce(fields["wait"], fields.get("maxWait"), fields.get("key"))


def _messages(fields: Sequence[MessageFields]) -> list[tuple[str, Any]]:
    return [(message["type"], message.get("payload")) for message in fields]


def _same(value: Any) -> Any:
    return value


_OPTIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "queue": ("queue", _same),
    "priority": ("priority", _same),
    "delay": ("delay", _same),
    "startAt": ("start_at", _when),
    "timeout": ("execution_timeout", _same),
    "executionTimeout": ("execution_timeout", _same),
    "runTimeout": ("run_timeout", _same),
    "taskTimeout": ("task_timeout", _same),
    "retry": ("retry", _retry),
    "cron": ("cron", _same),
    "search": ("search", _same),
    "memo": ("memo", _same),
    "context": ("context", _same),
    "messages": ("messages", _messages),
    "summary": ("summary", _same),
    "onConflict": ("on_conflict", _same),
    "onReuse": ("on_reuse", _same),
    "key": ("key", _same),
    "dedupe": ("dedupe", _dedupe),
    "singleton": ("singleton", _same),
    "debounce": ("debounce", _debounce),
    "onLimit": ("on_limit", _same),
}


def start_options(body: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``app.start`` in a request body; fields that are not options are ignored."""
    for one, other in EXCLUSIVE:
        if one in body and other in body:
            raise InvalidOptionError(f"{one} and {other} exclude each other; give one of them")
    return {_OPTIONS[name][0]: _OPTIONS[name][1](value) for name, value in body.items() if name in _OPTIONS}
