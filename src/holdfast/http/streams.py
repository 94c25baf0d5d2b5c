"""The routes of streams: the list of a run's streams, and one stream as server-sent events.

``id:`` is the offset of an item, so that a client that reconnects with ``Last-Event-ID`` continues after the last item
it received. ``event: end`` says that the stream is closed or the run has ended. A connection that ends without it, as
when the server stops, is to be opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated

from fastapi import Query
from fastapi.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from holdfast.core.stream_records import StreamInfo, StreamItem
from holdfast.errors import InvalidOptionError
from holdfast.http.auth import Authorize, Scope
from holdfast.http.backend import Backend
from holdfast.http.handlers import Handlers, Id, Name
from holdfast.http.hiding import current_redaction
from holdfast.http.live import Broadcaster
from holdfast.http.live_routes import still_allowed
from holdfast.http.queries import check_query
from holdfast.http.response_bodies import date
from holdfast.http.responses import encoded, reply
from holdfast.http.spec import Spec
from holdfast.http.wire_views import ExportParams, StreamParams

_PING_S = 15.0
_PING = b": ping\n\n"
_END = b"event: end\ndata: {}\n\n"


class OneStream(TypedDict):
    name: str
    items: int
    """Number of items, those of failed attempts included. A close counts as an item."""
    size: int
    closed: bool


class StreamList(TypedDict):
    streams: list[OneStream]


class Streams(Handlers):
    def __init__(self, backend: Backend, authorize: Authorize, broadcaster: Broadcaster) -> None:
        super().__init__(backend)
        self._authorize = authorize
        self._closing = broadcaster.closing

    async def list_streams(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[ExportParams, Query()]
    ) -> Response:
        """The streams of a run, in the order of their names."""
        check_query(request, query)
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        found = await client.streams.infos(*address, query.runNumber)
        body: StreamList = {"streams": [_info(info) for info in found]}
        return reply(body)

    async def stream(
        self, request: Request, workflow: Name, instance_id: Id, stream: str, query: Annotated[StreamParams, Query()]
    ) -> Response:
        """The items of a stream as server-sent events, until the stream is closed or the run has ended.

        ``data:`` is ``{"value", "stepKey", "attempt", "at"}``, and with ``attempts=all`` also ``"failed": true`` for an
        item of a failed attempt.
        """
        check_query(request, query)
        client = self._client()
        after = _last_event_id(request, query.after)
        client.streams.check(stream, after, query.attempts)
        address = client.instances.address(workflow, instance_id)
        run = await client.streams.run_of(*address, query.runNumber)
        batches = client.streams.batches(run, stream, after, query.attempts)
        allowed = still_allowed(self._backend, self._authorize, request, "getStream")
        events = self._events(batches, allowed)
        return EventSourceResponse(events, headers={"x-accel-buffering": "no"})

    async def _events(
        self, batches: AsyncGenerator[list[StreamItem], None], allowed: Callable[[], Awaitable[str | None]]
    ) -> AsyncIterator[bytes]:
        current_redaction.set(self._backend.redaction)
        closing = asyncio.ensure_future(self._closing.wait())
        following: asyncio.Task[list[StreamItem] | None] | None = None
        try:
            yield b": open\n\n"
            while not self._closing.is_set():
                following = following or asyncio.ensure_future(_next(batches))
                await asyncio.wait([following, closing], timeout=_PING_S, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    batch, following = following.result(), None
                    yield _END if batch is None else b"".join(map(_event, batch))
                    if batch is None:
                        return
                elif not self._closing.is_set():
                    if await allowed() is not None:
                        return
                    yield _PING
        finally:
            closing.cancel()
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            await batches.aclose()


async def _next(batches: AsyncIterator[list[StreamItem]]) -> list[StreamItem] | None:
    return await anext(batches, None)


def _event(item: StreamItem) -> bytes:
    body = {"value": item.value, "stepKey": item.step_key, "attempt": item.attempt, "at": date(item.at)}
    if item.failed:
        body["failed"] = True
    return f"id: {item.offset}\ndata: {encoded(body)}\n\n".encode()


def _info(info: StreamInfo) -> OneStream:
    return {"name": info.name, "items": info.items, "size": info.size, "closed": info.closed}


def _last_event_id(request: Request, after: int) -> int:
    text = request.headers.get("last-event-id", "")
    if not text:
        return after
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidOptionError("Last-Event-ID must be the offset of an item")
    return int(text)


def stream_routes(backend: Backend, authorize: Authorize, broadcaster: Broadcaster) -> Sequence[Spec]:
    streams = Streams(backend, authorize, broadcaster)
    path = "/{workflow}/instances/{instance_id}/streams"
    return [
        Spec("GET", path, "listStreams", Scope.READ, streams.list_streams, StreamList, (400, 404)),
        Spec("GET", path + "/{stream}", "getStream", Scope.READ, streams.stream, str, (400, 404), streams=True),
    ]
