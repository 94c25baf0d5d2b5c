"""Routes of the overview: groups of runs that need attention, and starts and ends over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

from fastapi import Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from holdfast.client.overview import Series
from holdfast.core.model import from_ms
from holdfast.core.records import AttentionGroup
from holdfast.http import response_bodies
from holdfast.http.auth import Scope
from holdfast.http.backend import Backend
from holdfast.http.handlers import Handlers
from holdfast.http.queries import check_query
from holdfast.http.response_bodies import date, optional_date
from holdfast.http.responses import reply
from holdfast.http.spec import Spec
from holdfast.http.wire import Count, Date, Failure
from holdfast.http.wire_requests import optional

AttentionKind = Literal["diverged", "parked", "no_worker", "lost", "errored", "failing", "outbox", "overdue"]


class SampleRun(TypedDict):
    pid: str
    workflowName: str
    id: str


class AttentionBody(TypedDict):
    kind: AttentionKind
    workflowName: str
    count: Count
    since: Date | None
    lastAt: Date | None
    why: str
    error: NotRequired[Failure]
    stepKey: NotRequired[str]
    version: NotRequired[str]
    """The only release whose runs have the error."""
    queue: NotRequired[str]
    action: Literal["retry", "resume", "redeliver", "queue", "open"]
    """The usual next action."""
    samples: list[SampleRun]
    filter: dict[str, str]
    """The query of ``_instances`` that shows the runs."""


class AttentionGroups(TypedDict):
    groups: list[AttentionBody]
    """The most severe first."""
    runs: Count


class SeriesParams(BaseModel):
    """The query of a series: its window, and the workflow."""

    window: Literal["1h", "6h", "24h", "7d"] = "1h"
    workflow: str = optional(min_length=1)


class WorkflowSeries(TypedDict):
    ended: list[Count]
    errored: list[Count]


class FirstSeen(TypedDict):
    version: str
    at: Date


class SeriesBody(TypedDict):
    """Lists of equal length: one number per bucket, the oldest first. The last bucket is not finished."""

    start: Date
    stepMs: Count
    started: list[Count]
    complete: list[Count]
    errored: list[Count]
    cancelled: list[Count]
    terminated: list[Count]
    workflows: dict[str, WorkflowSeries]
    versions: list[FirstSeen]
    """Releases, and when the oldest worker of each that is known started, within the window."""


class OverviewRoutes(Handlers):
    async def attention(self) -> Response:
        """Runs that need attention, grouped by cause; at most five seconds old. Errors are those of the last day."""
        return reply(attention_body(await self._client().overview.attention()))

    async def series(self, request: Request, query: Annotated[SeriesParams, Query()]) -> Response:
        """Runs started and ended per minute, or per 5, 15 or 120 minutes in longer windows."""
        check_query(request, query)
        client = self._client()
        series = await client.overview.series(query.window, query.workflow)
        seen: dict[str, Any] = {}
        for worker in await client.workers():
            if worker.version is not None and worker.started_at >= from_ms(series.start):
                seen[worker.version] = min(seen.get(worker.version, worker.started_at), worker.started_at)
        return reply(_series(series, seen))


def overview_routes(backend: Backend) -> Sequence[Spec]:
    routes = OverviewRoutes(backend)
    return [
        Spec("GET", "/_attention", "getAttention", Scope.READ, routes.attention, AttentionGroups),
        Spec("GET", "/_series", "getSeries", Scope.READ, routes.series, SeriesBody, (400,)),
    ]


def attention_body(groups: Sequence[AttentionGroup]) -> AttentionGroups:
    return {"groups": [_group(group) for group in groups], "runs": sum(group.count for group in groups)}


def _group(group: AttentionGroup) -> AttentionBody:
    body: AttentionBody = {
        "kind": group.kind,  # type: ignore[typeddict-item]  # one of the kinds
        "workflowName": group.workflow,
        "count": group.count,
        "since": optional_date(group.since),
        "lastAt": optional_date(group.last_at),
        "why": group.why,
        "action": group.action,  # type: ignore[typeddict-item]  # one of the actions
        "samples": [
            {"pid": f"{run.workflow}/{run.id}", "workflowName": run.workflow, "id": run.id} for run in group.samples
        ],
        "filter": group.filter,
    }
    if group.error is not None:
        body["error"] = response_bodies.failure(group.error)
    if group.step_key is not None:
        body["stepKey"] = group.step_key
    if group.version is not None:
        body["version"] = group.version
    if group.queue is not None:
        body["queue"] = group.queue
    return body


def _series(series: Series, seen: dict[str, Any]) -> SeriesBody:
    nothing = [0] * len(series.totals["started"])
    return {
        "start": date(from_ms(series.start)),
        "stepMs": series.step_ms,
        "started": series.totals["started"],
        "complete": series.totals["complete"],
        "errored": series.totals["errored"],
        "cancelled": series.totals["cancelled"],
        "terminated": series.totals["terminated"],
        "workflows": {
            name: {"ended": ended, "errored": series.errored.get(name, nothing)}
            for name, ended in sorted(series.ended.items())
        },
        "versions": [{"version": version, "at": date(at)} for version, at in sorted(seen.items(), key=lambda e: e[1])],
    }
