"""The routes that pause, resume and move queues, and drain workers: bodies, handlers and the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NotRequired

from fastapi import Path
from pydantic import Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from holdfast.http.admission import admitted
from holdfast.http.auth import Scope
from holdfast.http.backend import Backend
from holdfast.http.responses import reply
from holdfast.http.spec import Spec
from holdfast.http.strict import strict
from holdfast.http.wire import Count
from holdfast.http.wire_requests import Reason, ReasonRequest

QueueName = Annotated[str, Path(description="The name of a queue.")]
WorkerId = Annotated[str, Path(description="The id of a worker.")]


@strict
class MoveQueueRequest(TypedDict):
    to: Annotated[str, Field(min_length=1, max_length=200)]
    reason: NotRequired[Reason]


class PausedBody(TypedDict):
    name: str
    paused: bool


class DrainingBody(TypedDict):
    id: str
    draining: bool


class MovedBody(TypedDict):
    source: str
    target: str
    moved: Count


class QueueRoutes:
    """Pauses, resumes and moves queues; drains workers."""

    def __init__(self, backend: Backend) -> None:
        self._client = backend.client

    async def pause(self, request: Request, queue: QueueName) -> Response:
        """Pause a queue: no worker claims from it. Work that workers own continues."""
        await self._client().flow.pause_queue(queue, reason=_reason(request))
        return reply(PausedBody(name=queue, paused=True))

    async def resume(self, request: Request, queue: QueueName) -> Response:
        """Resume a queue: workers claim from it again."""
        await self._client().flow.resume_queue(queue, reason=_reason(request))
        return reply(PausedBody(name=queue, paused=False))

    async def move(self, request: Request, queue: QueueName) -> Response:
        """Move the runs of a queue that no worker executes to another queue."""
        body: MoveQueueRequest = admitted(request).body
        moved = await self._client().flow.move_queue(queue, body["to"], reason=body.get("reason"))
        return reply(MovedBody(source=queue, target=body["to"], moved=moved))

    async def drain(self, request: Request, worker: WorkerId) -> Response:
        """Drain a worker: it claims nothing more, and gives up its runs once their steps in flight have ended."""
        await self._client().flow.drain_worker(worker, reason=_reason(request))
        return reply(DrainingBody(id=worker, draining=True))

    async def end_drain(self, request: Request, worker: WorkerId) -> Response:
        """End the drain of a worker: it claims again."""
        await self._client().flow.resume_worker(worker, reason=_reason(request))
        return reply(DrainingBody(id=worker, draining=False))


_REASON = TypeAdapter(ReasonRequest)
_MOVE = TypeAdapter(MoveQueueRequest)


def queue_routes(backend: Backend) -> Sequence[Spec]:
    routes = QueueRoutes(backend)
    errors = (400, 408, 413, 415)
    path, worker, scope = "/_queues/{queue}", "/_workers/{worker}", Scope.OPERATE
    return [
        Spec(
            "POST", f"{path}/pause", "pauseQueue", scope, routes.pause, PausedBody, errors, _REASON, body_required=False
        ),
        Spec(
            "POST", f"{path}/resume", "resumeQueue", scope, routes.resume, PausedBody, errors, _REASON,
            body_required=False,
        ),
        Spec("POST", f"{path}/move", "moveQueue", scope, routes.move, MovedBody, errors, _MOVE),
        Spec(
            "POST", f"{worker}/drain", "drainWorker", scope, routes.drain, DrainingBody, (*errors, 404), _REASON,
            body_required=False,
        ),
        Spec(
            "POST", f"{worker}/resume", "resumeWorker", scope, routes.end_drain, DrainingBody, (*errors, 404), _REASON,
            body_required=False,
        ),
    ]  # fmt: skip


def _reason(request: Request) -> str | None:
    body: ReasonRequest = admitted(request).body
    return body.get("reason")
