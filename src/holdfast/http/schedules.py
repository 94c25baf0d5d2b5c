"""The routes of schedules: bodies, handlers and the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired

from fastapi import Path, Query
from pydantic import BaseModel, Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from holdfast.core.schedule_records import ScheduledRun, ScheduleInfo
from holdfast.core.schedule_spec import ScheduleSpec
from holdfast.http import wire
from holdfast.http.admission import admitted
from holdfast.http.auth import Scope
from holdfast.http.backend import Backend
from holdfast.http.handlers import Handlers
from holdfast.http.response_bodies import date, optional_date
from holdfast.http.responses import reply
from holdfast.http.spec import Spec
from holdfast.http.start_options import Duration, Priority, RetryFields, Search, Timeout, start_options
from holdfast.http.strict import strict
from holdfast.http.wire import Count, Date
from holdfast.http.wire_requests import Instant, PageSize, Reason, ReasonRequest, WholeNumber, optional

_LONG = (400, 404, 408, 409, 413, 415)

Text = Annotated[str, Field(min_length=1, max_length=500)]
Texts = Text | Annotated[list[Text], Field(max_length=100)]
ScheduleName = Annotated[str, Path(description="The name of a schedule.")]
OverlapName = Literal["skip", "queue_one", "queue_all", "cancel_running", "terminate_running", "allow"]


class ScheduleFields(TypedDict):
    """The options of a schedule; those of its runs are start options."""

    params: NotRequired[Any]
    cron: NotRequired[Texts | None]
    every: NotRequired[Duration | None]
    offset: NotRequired[Duration | None]
    calendar: NotRequired[Texts | None]
    exclude: NotRequired[Texts | None]
    timezone: NotRequired[Text]
    start: NotRequired[Instant | None]
    end: NotRequired[Instant | None]
    jitter: NotRequired[Duration | None]
    overlap: NotRequired[OverlapName]
    catchUp: NotRequired[Duration | None]
    """``"last"``, a duration, or null."""
    queue: NotRequired[Annotated[str, Field(min_length=1, max_length=200)]]
    priority: NotRequired[Priority]
    executionTimeout: NotRequired[Timeout | None]
    runTimeout: NotRequired[Timeout | None]
    taskTimeout: NotRequired[Timeout | None]
    retry: NotRequired[RetryFields | None]
    search: NotRequired[Search]
    memo: NotRequired[dict[str, Any]]
    context: NotRequired[dict[str, Any]]
    summary: NotRequired[Annotated[str, Field(max_length=1000)] | None]


@strict
class NewSchedule(ScheduleFields):
    name: Annotated[str, Field(max_length=64, pattern="^[a-zA-Z0-9_][a-zA-Z0-9_.-]*$")]
    workflow: str
    paused: NotRequired[bool]
    note: NotRequired[Reason]


@strict
class ScheduleChanges(ScheduleFields):
    """Options that are absent stay as they are; null removes one."""

    workflow: NotRequired[str]
    reason: NotRequired[Reason]


@strict
class NoteRequest(TypedDict):
    note: NotRequired[Reason]


@strict
class BackfillRequest(TypedDict):
    """The ticks from ``start`` to ``end``, both included."""

    start: Instant
    end: Instant
    overlap: NotRequired[OverlapName]
    reason: NotRequired[Reason]


class SpecBody(TypedDict):
    text: str
    cron: list[str]
    everyMs: Count | None
    offsetMs: Count
    calendar: list[str]
    exclude: list[str]
    timezone: str
    start: Date | None
    end: Date | None
    jitterMs: Count


class ScheduledRunBody(TypedDict):
    scheduledFor: Date
    id: str
    workflowName: str
    outcome: str
    cause: str
    at: Date


class ScheduledRetryBody(TypedDict):
    limit: Count | None
    delayMs: Count
    backoff: str
    maxDelayMs: Count
    jitter: float
    nonRetryable: list[str]


class ScheduledOptionsBody(TypedDict):
    """The start options of the runs; those without a value are absent."""

    executionTimeout: NotRequired[str]
    runTimeout: NotRequired[str]
    taskTimeout: NotRequired[str]
    retry: NotRequired[ScheduledRetryBody]
    search: NotRequired[dict[str, Any]]
    memo: NotRequired[dict[str, Any]]
    context: NotRequired[dict[str, Any]]
    summary: NotRequired[str]


class ScheduleBody(TypedDict):
    name: str
    workflowName: str
    paused: bool
    note: str | None
    spec: SpecBody
    overlap: str
    catchUp: str | None
    params: Any
    queue: str
    priority: int
    options: ScheduledOptionsBody
    declared: bool
    createdAt: Date
    updatedAt: Date
    nextTicks: list[Date]
    lastRuns: list[ScheduledRunBody]


class SchedulesBody(TypedDict):
    schedules: list[ScheduleBody]
    cursor: NotRequired[str]
    nextCursor: NotRequired[str]
    hasNextPage: bool


class TriggeredBody(TypedDict):
    id: str
    workflowName: str


class BackfilledBody(TypedDict):
    ticks: Count


class PreviewBody(TypedDict):
    ticks: list[Date]


class SchedulesParams(BaseModel):
    """The query of a list of schedules; missing fields are ``None``."""

    workflow: str = optional(min_length=1)
    pageSize: PageSize = 25
    cursor: str = optional(json_schema_extra={"pattern": "^n:[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,63}$"})
    runs: WholeNumber = Field(default=1, le=100)


class ScheduleParams(BaseModel):
    """The query of one schedule."""

    runs: WholeNumber = Field(default=10, le=100)


class PreviewParams(BaseModel):
    count: PageSize = Field(default=10, le=1000)


class Schedules(Handlers):
    """Stored schedules."""

    async def list_schedules(self, query: Annotated[SchedulesParams, Query()]) -> Response:
        """Schedules by name, each with its next tick and the outcomes of its last ``runs``."""
        limit = self._page_size(query.pageSize)
        page = await self._client().schedules.page(query.workflow, cursor=query.cursor, limit=limit, runs=query.runs)
        body: SchedulesBody = {
            "schedules": [_schedule(one) for one in page.items],
            "hasNextPage": page.cursor is not None,
        }
        if page.cursor is not None:
            body["cursor"] = body["nextCursor"] = page.cursor
        return reply(body)

    async def create(self, request: Request) -> Response:
        """Create a schedule."""
        body: NewSchedule = admitted(request).body
        given: dict[str, Any] = {key: value for key, value in body.items() if key in ("params", "paused", "note")}
        info = await self._client().schedules.create(body["name"], body["workflow"], **given, **_options(body))
        return reply(_schedule(info))

    async def get(self, schedule: ScheduleName, query: Annotated[ScheduleParams, Query()]) -> Response:
        """A schedule with its next five ticks and its last ``runs``."""
        return reply(_schedule(await self._client().schedules.get(schedule, runs=query.runs)))

    async def update(self, request: Request, schedule: ScheduleName) -> Response:
        """Replace some options of a schedule."""
        body: ScheduleChanges = admitted(request).body
        given: dict[str, Any] = {key: value for key, value in body.items() if key in ("params", "workflow", "reason")}
        return reply(_schedule(await self._client().schedules.update(schedule, **given, **_options(body))))

    async def delete(self, request: Request, schedule: ScheduleName) -> Response:
        """Delete a schedule. Its runs stay."""
        await self._client().schedules.delete(schedule, reason=_reason(request))
        return _done()

    async def pause(self, request: Request, schedule: ScheduleName) -> Response:
        """Pause a schedule: no more ticks are taken up."""
        await self._client().schedules.pause(schedule, _note(request))
        return _done()

    async def resume(self, request: Request, schedule: ScheduleName) -> Response:
        """Resume a schedule: ticks are taken up again, from the next one on."""
        await self._client().schedules.resume(schedule, _note(request))
        return _done()

    async def trigger(self, request: Request, schedule: ScheduleName) -> Response:
        """Start a run now, also of a paused schedule."""
        run = await self._client().schedules.trigger(schedule, reason=_reason(request))
        body: TriggeredBody = {"id": run.id, "workflowName": run.workflow}
        return reply(body)

    async def backfill(self, request: Request, schedule: ScheduleName) -> Response:
        """Start runs for the ticks of a period. Ticks that have a run start nothing new."""
        body: BackfillRequest = admitted(request).body
        ticks = await self._client().schedules.backfill(
            schedule, body["start"], body["end"], body.get("overlap"), reason=body.get("reason")
        )
        answer: BackfilledBody = {"ticks": ticks}
        return reply(answer)

    async def preview(self, schedule: ScheduleName, query: Annotated[PreviewParams, Query()]) -> Response:
        """The next ticks of a schedule, also of a paused one."""
        ticks = await self._client().schedules.preview(schedule, query.count)
        body: PreviewBody = {"ticks": [date(tick) for tick in ticks]}
        return reply(body)


_NEW = TypeAdapter(NewSchedule)
_CHANGES = TypeAdapter(ScheduleChanges)
_NOTE = TypeAdapter(NoteRequest)
_BACKFILL = TypeAdapter(BackfillRequest)
_REASON = TypeAdapter(ReasonRequest)


def schedule_routes(backend: Backend) -> Sequence[Spec]:
    routes, one = Schedules(backend), "/_schedules/{schedule}"
    return [
        Spec("GET", "/_schedules", "listSchedules", Scope.READ, routes.list_schedules, SchedulesBody, (400, 404)),
        Spec("POST", "/_schedules", "createSchedule", Scope.OPERATE, routes.create, ScheduleBody, _LONG, _NEW),
        Spec("GET", one, "getSchedule", Scope.READ, routes.get, ScheduleBody, (400, 404)),
        Spec("PATCH", one, "updateSchedule", Scope.OPERATE, routes.update, ScheduleBody, _LONG, _CHANGES),
        Spec(
            "DELETE", one, "deleteSchedule", Scope.OPERATE, routes.delete, wire.Done, _LONG, _REASON,
            body_required=False,
        ),
        Spec(
            "POST", f"{one}/pause", "pauseSchedule", Scope.OPERATE, routes.pause, wire.Done, _LONG, _NOTE,
            body_required=False,
        ),
        Spec(
            "POST", f"{one}/resume", "resumeSchedule", Scope.OPERATE, routes.resume, wire.Done, _LONG, _NOTE,
            body_required=False,
        ),
        Spec(
            "POST", f"{one}/trigger", "triggerSchedule", Scope.OPERATE, routes.trigger, TriggeredBody, _LONG, _REASON,
            body_required=False,
        ),
        Spec(
            "POST", f"{one}/backfill", "backfillSchedule", Scope.OPERATE, routes.backfill, BackfilledBody, _LONG,
            _BACKFILL,
        ),
        Spec("GET", f"{one}/preview", "previewSchedule", Scope.READ, routes.preview, PreviewBody, (400, 404)),
    ]  # fmt: skip


_OWN = {"cron": "cron", "every": "every", "offset": "offset", "calendar": "calendar", "exclude": "exclude",
        "timezone": "timezone", "start": "start", "end": "end", "jitter": "jitter", "overlap": "overlap",
        "catchUp": "catch_up"}  # fmt: skip


_REMOVABLE = {"executionTimeout": "execution_timeout", "runTimeout": "run_timeout", "taskTimeout": "task_timeout",
              "retry": "retry", "summary": "summary"}  # fmt: skip
"""Start options that null removes."""
_FIELDS = {option: field for field, option in _REMOVABLE.items()}


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    own = {_OWN[key]: value for key, value in body.items() if key in _OWN}
    removed = {name: None for key, name in _REMOVABLE.items() if key in body and body[key] is None}
    rest = {key: value for key, value in body.items() if key not in _OWN and _REMOVABLE.get(key) not in removed}
    return own | removed | start_options(rest)


def _reason(request: Request) -> str | None:
    body: ReasonRequest | None = admitted(request).body
    return None if not body else body.get("reason")


def _note(request: Request) -> str | None:
    body: NoteRequest | None = admitted(request).body
    return None if not body else body.get("note")


def _done() -> Response:
    body: wire.Done = {"ok": True}
    return reply(body)


def _schedule(info: ScheduleInfo) -> ScheduleBody:
    return {
        "name": info.name,
        "workflowName": info.workflow_name,
        "paused": info.paused,
        "note": info.note,
        "spec": _spec(info.spec),
        "overlap": info.overlap,
        "catchUp": info.catch_up,
        "params": info.params,
        "queue": info.queue,
        "priority": info.priority,
        "options": _shown_options(info.options),
        "declared": info.declared,
        "createdAt": date(info.created_at),
        "updatedAt": date(info.updated_at),
        "nextTicks": [date(tick) for tick in info.next_ticks],
        "lastRuns": [_run(run) for run in info.last_runs],
    }


def _shown_options(options: Mapping[str, Any]) -> ScheduledOptionsBody:
    shown: dict[str, Any] = {_FIELDS.get(name, name): value for name, value in options.items()}
    if (retry := options.get("retry")) is not None:
        shown["retry"] = ScheduledRetryBody(
            limit=None if math.isinf(retry.limit) else int(retry.limit), delayMs=retry.delay_ms, backoff=retry.backoff,
            maxDelayMs=retry.max_delay_ms, jitter=retry.jitter, nonRetryable=sorted(retry.non_retryable_names),
        )  # fmt: skip
    body: ScheduledOptionsBody = shown  # type: ignore[assignment]
    return body


def _spec(spec: ScheduleSpec) -> SpecBody:
    start, end = spec.period
    return {
        "text": spec.describe(),
        "cron": [*spec.cron],
        "everyMs": spec.every_ms,
        "offsetMs": spec.offset_ms,
        "calendar": [*spec.calendar],
        "exclude": [*spec.exclude],
        "timezone": spec.timezone,
        "start": optional_date(start),
        "end": optional_date(end),
        "jitterMs": spec.jitter_ms,
    }


def _run(run: ScheduledRun) -> ScheduledRunBody:
    return {
        "scheduledFor": date(run.scheduled_for),
        "id": run.id,
        "workflowName": run.workflow_name,
        "outcome": run.outcome,
        "cause": run.cause,
        "at": date(run.at),
    }
