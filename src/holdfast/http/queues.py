"""The routes that pause, resume and move queues: bodies, handlers and the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NotRequired

from fastapi import Path
from pydantic import ConfigDict, Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from holdfast.http.admission import admitted
from holdfast.http.auth import Scope
from holdfast.http.backend import Backend
from holdfast.http.responses import reply
from holdfast.http.spec import Spec
from holdfast.http.wire import Count
from holdfast.http.wire_requests import Reason, ReasonRequest

_STRICT = ConfigDict(extra="forbid", strict=True)

QueueName = Annotated[str, Path(description="The name of a queue.")]


class MoveQueueRequest(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    to: Annotated[str, Field(min_length=1, max_length=200)]
    reason: NotRequired[Reason]


class PausedBody(TypedDict):
    name: str
    paused: bool


class MovedBody(TypedDict):
    source: str
    target: str
    moved: Count


class QueueRoutes:
    """Pauses, resumes and moves queues."""

    def __init__(self, backend: Backend) -> None:
        self._client = backend.client

    async def pause(self, request: Request, queue: QueueName) -> Response:
        """Let no worker claim from a queue. Work that workers own goes on."""
        await self._client().flow.pause_queue(queue, reason=_reason(request))
        return reply(PausedBody(name=queue, paused=True))

    async def resume(self, request: Request, queue: QueueName) -> Response:
        """Let workers claim from a queue again."""
        await self._client().flow.resume_queue(queue, reason=_reason(request))
        return reply(PausedBody(name=queue, paused=False))

    async def move(self, request: Request, queue: QueueName) -> Response:
        """Move the runs of a queue that no worker executes to another queue."""
        body: MoveQueueRequest = admitted(request).body
        moved = await self._client().flow.move_queue(queue, body["to"], reason=body.get("reason"))
        return reply(MovedBody(source=queue, target=body["to"], moved=moved))


def queue_routes(backend: Backend) -> Sequence[Spec]:
    routes, reason, move = QueueRoutes(backend), TypeAdapter(ReasonRequest), TypeAdapter(MoveQueueRequest)
    errors = (400, 408, 413, 415)
    path, scope = "/_queues/{queue}", Scope.OPERATE
    return [
        Spec(
            "POST", f"{path}/pause", "pauseQueue", scope, routes.pause, PausedBody, errors, reason, body_required=False
        ),
        Spec(
            "POST", f"{path}/resume", "resumeQueue", scope, routes.resume, PausedBody, errors, reason,
            body_required=False,
        ),
        Spec("POST", f"{path}/move", "moveQueue", scope, routes.move, MovedBody, errors, move),
    ]  # fmt: skip


def _reason(request: Request) -> str | None:
    body: ReasonRequest = admitted(request).body
    return body.get("reason")
