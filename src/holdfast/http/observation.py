"""Routes that show the whole database: statistics, workers, queues, versions; the caller's own rights; metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Annotated, NotRequired

from fastapi import Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from holdfast._version import __version__
from holdfast.core.actor import current_actor
from holdfast.core.records import QueueInfo, Stats, WorkerInfo
from holdfast.http.admission import admitted, auth_request_of
from holdfast.http.auth import AuthContent, Authorize, Denied, HookTimeout, Scope, role_of
from holdfast.http.backend import Backend
from holdfast.http.queries import check_query
from holdfast.http.response_bodies import date, optional_date
from holdfast.http.responses import reply
from holdfast.http.session import session_of
from holdfast.http.spec import Spec
from holdfast.http.wire import Count, Date
from holdfast.http.wire_requests import optional

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class SlowStep(TypedDict):
    workflowName: str
    step: str
    count: Count
    meanMs: float
    maxMs: float
    p50Ms: float
    p95Ms: float


class StatsBody(TypedDict):
    runs: dict[str, dict[str, Count]]
    """Counts by workflow and status."""
    startedPerMinute: Count
    endedPerMinute: Count
    startedLastHour: Count
    endedLastHour: Count
    due: Count
    oldestDue: Date | None
    workers: Count
    errors: dict[str, Count]
    """Counts of the last hour by name of the error."""
    slowestSteps: list[SlowStep]
    stepP95Ms: dict[str, float]
    """95th percentile of the durations of steps in the latest runs, by workflow."""


class WorkerBody(TypedDict):
    id: str
    host: str
    pid: int
    queues: list[str]
    concurrency: Count
    startedAt: Date
    seenAt: Date
    alive: bool
    draining: bool
    """True if the worker claims nothing and gives up its runs."""
    held: Count
    """Number of runs and nodes that the worker executes."""
    version: NotRequired[str]


class WorkersBody(TypedDict):
    workers: list[WorkerBody]


class QueueBody(TypedDict):
    name: str
    due: Count
    oldestDue: Date | None
    running: Count
    workers: Count
    paused: bool


class QueuesBody(TypedDict):
    queues: list[QueueBody]


class VersionBody(TypedDict):
    version: str | None
    openRuns: Count
    workers: list[str]
    """Ids of the living workers."""
    alive: bool


class VersionsBody(TypedDict):
    versions: list[VersionBody]


class VersionsParams(BaseModel):
    """``workflow``: count only the open runs of this workflow."""

    workflow: str = optional(min_length=1)


class MeBody(TypedDict):
    address: str | None
    """The caller's network address, possibly that of a proxy."""
    actions: list[str]
    """The scopes that the caller has."""
    actor: str | None
    """The caller's name in audit records."""
    role: str | None
    """``viewer``, ``operator`` or ``admin``, if the scopes are exactly those of a role."""
    confined: bool
    """True if the caller sees only some instances: routes about all of them are forbidden."""
    authorization: bool
    """False if the app has no hooks, and every caller may do everything."""
    session: bool
    """True if a cookie of the dashboard authorizes this request."""
    expiresAt: Date | None
    csrfToken: str | None
    """The value of the header ``X-CSRF-Token``, which requests of a session that write need."""
    debug: bool
    """True if stacks and replays are enabled."""
    now: Date
    app: str
    """The name of the program."""
    version: str
    """The version of Holdfast."""
    example: bool


class Observation:
    """Handlers of these routes."""

    def __init__(self, backend: Backend, authorize: Authorize) -> None:
        self._backend = backend
        self._authorize = authorize

    async def stats(self) -> Response:
        """Runs by workflow and status, throughput, due tasks, errors and slow steps; at most five seconds old."""
        return reply(stats_body(await self._backend.client().stats.read()))

    async def workers(self) -> Response:
        """The workers, the oldest first, including those that died within the last day."""
        body: WorkersBody = {"workers": [_worker(worker) for worker in await self._backend.client().workers()]}
        return reply(body)

    async def queues(self) -> Response:
        """The queues that have tasks or living workers, and the paused ones."""
        body: QueuesBody = {"queues": [_queue(queue) for queue in await self._backend.client().queues()]}
        return reply(body)

    async def versions(self, request: Request, query: Annotated[VersionsParams, Query()]) -> Response:
        """The releases that have open runs or living workers; runs and workers without a version come last."""
        check_query(request, query)
        body: VersionsBody = {
            "versions": [
                {
                    "version": one.version,
                    "openRuns": one.open_runs,
                    "workers": [*one.workers],
                    "alive": bool(one.workers),
                }
                for one in await self._backend.client().versions(query.workflow)
            ]
        }
        return reply(body)

    async def me(self, request: Request) -> Response:
        """The address of the caller, and the actions that the hooks allow the caller."""
        client, session, actor = request.scope.get("client"), session_of(request), current_actor.get()
        actions = [scope.value for scope in Scope if await self._allows(request, scope)]
        body: MeBody = {
            "address": client[0] if client else None,
            "actions": actions,
            "actor": actor,
            "role": role_of(actions),
            "confined": bool(admitted(request).filters),
            "authorization": not self._authorize.open,
            "session": session is not None,
            "expiresAt": None if session is None else date(session.expires_at),
            "csrfToken": None if session is None else session.csrf_token,
            "debug": self._backend.debug,
            "now": date(self._backend.now()),
            "app": self._backend.title,
            "version": __version__,
            "example": self._backend.example,
        }
        return reply(body)

    async def _allows(self, request: Request, scope: Scope) -> bool:
        asked = replace(auth_request_of(request, "getMe", scope), content=AuthContent())
        try:
            await self._authorize.run_request_hook(asked)
            await self._authorize.run_scope_hook(asked)
        except (Denied, HookTimeout):
            return False
        return True


def observation_routes(routes: Observation) -> Sequence[Spec]:
    return [
        Spec("GET", "/_stats", "getStats", Scope.READ, routes.stats, StatsBody),
        Spec("GET", "/_workers", "listWorkers", Scope.READ, routes.workers, WorkersBody),
        Spec("GET", "/_queues", "listQueues", Scope.READ, routes.queues, QueuesBody),
        Spec("GET", "/_versions", "listVersions", Scope.READ, routes.versions, VersionsBody, (400,)),
        Spec("GET", "/_me", "getMe", Scope.READ, routes.me, MeBody, no_instances=True),
    ]


def metrics_route(text: Callable[[], Awaitable[str]]) -> Spec:
    """The route for Prometheus. It is not below the API's base, and not in the OpenAPI document."""

    async def metrics() -> Response:
        return Response(await text(), media_type=_PROMETHEUS)

    return Spec("GET", "/metrics", "getMetrics", Scope.READ, metrics, str)


def stats_body(stats: Stats) -> StatsBody:
    return {
        "runs": stats.runs,
        "startedPerMinute": stats.started_per_minute,
        "endedPerMinute": stats.ended_per_minute,
        "startedLastHour": stats.started_last_hour,
        "endedLastHour": stats.ended_last_hour,
        "due": stats.due,
        "oldestDue": optional_date(stats.oldest_due),
        "workers": stats.workers,
        "errors": stats.errors,
        "slowestSteps": [
            {
                "workflowName": step.workflow,
                "step": step.step,
                "count": step.count,
                "meanMs": round(step.mean * 1000, 3),
                "maxMs": round(step.max * 1000, 3),
                "p50Ms": round(step.p50 * 1000, 3),
                "p95Ms": round(step.p95 * 1000, 3),
            }
            for step in stats.slowest_steps
        ],
        "stepP95Ms": {workflow: round(seconds * 1000, 3) for workflow, seconds in stats.step_p95.items()},
    }


def _worker(worker: WorkerInfo) -> WorkerBody:
    body: WorkerBody = {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "queues": [*worker.queues],
        "concurrency": worker.concurrency,
        "startedAt": date(worker.started_at),
        "seenAt": date(worker.seen_at),
        "alive": worker.alive,
        "draining": worker.draining,
        "held": worker.held,
    }
    if worker.version is not None:
        body["version"] = worker.version
    return body


def _queue(queue: QueueInfo) -> QueueBody:
    return {
        "name": queue.name,
        "due": queue.due,
        "oldestDue": optional_date(queue.oldest_due),
        "running": queue.running,
        "workers": queue.workers,
        "paused": queue.paused,
    }
