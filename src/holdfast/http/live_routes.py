"""The route of live updates: a stream of server-sent events for one page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import Query
from fastapi.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.filters import Filter
from holdfast.errors import InvalidOptionError
from holdfast.http import responses
from holdfast.http.admission import admitted, auth_request_of
from holdfast.http.auth import AuthContent, Authorize, Denied, HookTimeout, Scope
from holdfast.http.backend import Backend
from holdfast.http.handlers import Handlers
from holdfast.http.live import Broadcaster, Reader
from holdfast.http.live_topics import ChangeReader, ListQuery, ListReader, OverviewReader, RunReader
from holdfast.http.queries import all_filter, check_query
from holdfast.http.session import session_of
from holdfast.http.spec import Spec
from holdfast.http.wire_requests import AllParams, optional


class LiveParams(AllParams):
    """The topic of a stream. ``instances`` takes the query of ``_instances``, ``run`` a ``workflow`` and an ``id``."""

    topic: Literal["overview", "instances", "run", "workers", "workflows"] = "overview"
    id: str = optional(min_length=1, max_length=200)


def live_filter(request: Request) -> Filter:
    """The filter in the query of a list; other topics have none."""
    return all_filter(request) if request.query_params.get("topic") == "instances" else Filter()


class Live(Handlers):
    def __init__(self, backend: Backend, authorize: Authorize, broadcaster: Broadcaster) -> None:
        super().__init__(backend)
        self._authorize = authorize
        self._broadcaster = broadcaster

    async def live(self, request: Request, query: Annotated[LiveParams, Query()]) -> Response:
        """Changes of what a page shows, as server-sent events; at most five per second."""
        check_query(request, query)
        key, reader = await self._topic(request, query)
        last_id = request.headers.get("last-event-id", "")
        allowed = still_allowed(self._backend, self._authorize, request, "getLive")
        stream = self._broadcaster.stream(key, reader, last_id, allowed)
        return EventSourceResponse(stream, headers={"x-accel-buffering": "no"})

    async def _topic(self, request: Request, query: LiveParams) -> tuple[Hashable, Reader]:
        filters = admitted(request).filters
        if query.topic == "instances":
            listed = await self._list_query(query, filters)
            return ("instances", repr(listed)), ListReader(listed)
        if query.topic == "run":
            client = self._client()
            if query.workflow is None or query.id is None:  # missing optional fields are None
                raise InvalidOptionError("the topic 'run' needs workflow= and id=")
            address = client.instances.address(query.workflow, query.id)
            await client.instances.check_within(*address, filters[1:])
            await client.instances.find(*address)
            return ("run", *address), RunReader(*address)
        if filters[1:]:
            raise responses.Problem(
                403,
                responses.FORBIDDEN,
                "this caller may access only some instances, and this topic is about all of them",
            )
        return query.topic, OverviewReader() if query.topic == "overview" else ChangeReader(query.topic)

    async def _list_query(self, query: LiveParams, filters: Sequence[Filter]) -> ListQuery:
        """The page as it is now: its first row is the place from which later reads begin."""
        limit, ascending = self._page_size(query.pageSize), query.order == "asc"
        page = await self._client().instances.page(filters, cursor=query.cursor, limit=limit, ascending=ascending)
        first = page.items[0].instance if page.items else None
        cursor = query.cursor
        if first is not None:
            cursor = f"i{first - 1 if ascending else first + 1}"
        return ListQuery(tuple(filters), cursor, first, limit, ascending)


def still_allowed(
    backend: Backend, authorize: Authorize, request: Request, operation: str
) -> Callable[[], Awaitable[str | None]]:
    """A function that checks whether the caller may still read, by the hooks and the session.

    It returns the code of the reason why not, or None.
    """
    session = session_of(request)
    asked = replace(auth_request_of(request, operation, Scope.READ), content=AuthContent())

    async def check() -> str | None:
        if session is not None and (session.ended or backend.now() >= session.expires_at):
            return "UNAUTHORIZED"
        try:
            await authorize.run_request_hook(asked)
            await authorize.run_scope_hook(asked)
        except Denied as denied:
            return denied.code
        except HookTimeout:
            return None
        return None

    return check


def live_routes(live: Live) -> Sequence[Spec]:
    return [
        Spec(
            "GET", "/_live", "getLive", Scope.READ, live.live, str, (400, 404), filter=live_filter, streams=True,
        )
    ]  # fmt: skip
