"""The gate in front of every route: it checks Host and Origin, admits the request and adds response headers.

The gate matches a request with the same route objects that serve it, so the route that was allowed is the route that
runs. The checks of Host and Origin come first, then ``admission``. Nothing is written before both have passed.

The gate itself calls a handler that takes no more than the request and names of the path. The router would match the
route again, and FastAPI would solve the dependencies of the handler: a third of the processor time of a create.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import urlsplit

from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from holdfast.core.actor import current_actor
from holdfast.core.redaction import Redaction
from holdfast.http import responses
from holdfast.http.admission import ADMITTED, Admission
from holdfast.http.exposure import on_loopback
from holdfast.http.hiding import current_redaction
from holdfast.http.spec import Spec

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

_GIVEN_BY_GATE = frozenset({"request", "workflow", "instance_id"})
_HEADERS: Sequence[tuple[bytes, bytes]] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


class GatedRoute(Route):
    r"""A route with its ``spec``.

    FastAPI takes about a millisecond to inspect the signature of a handler, so the inspection waits for the first
    request. The path pattern ends with ``\Z``, because ``$`` also matches before a trailing newline.
    """

    def __init__(self, path: str, spec: Spec) -> None:
        super().__init__(path, spec.handler, name=spec.name)
        self.spec = spec
        self.methods = {spec.method}
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z")

    async def handle(self, scope: Connection, receive: Receive, send: Send) -> None:
        await self._route.handle(scope, receive, send)

    @cached_property
    def arguments(self) -> Sequence[str] | None:
        """The parameters of a handler that the gate calls itself; None: FastAPI converts and checks the parameters."""
        names = tuple(inspect.signature(self.spec.handler).parameters)
        return names if _GIVEN_BY_GATE.issuperset(names) else None

    async def call(self, request: Request, params: Mapping[str, Any]) -> Response:
        """Call a handler that has ``arguments``."""
        request.scope.update(route=self, endpoint=self.spec.handler, path_params=params)
        given = {"request": request, **params}
        return await self.spec.handler(**{name: given[name] for name in self.arguments or ()})

    @cached_property
    def _route(self) -> APIRoute:
        spec = self.spec
        return APIRoute(self.path, spec.handler, methods=[spec.method], name=spec.name, response_model=None)


class Gate:
    """ASGI middleware around the router."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: Sequence[BaseRoute],
        admission: Admission,
        hosts: Iterable[str],
        redaction: Redaction | None = None,
    ) -> None:
        """``redaction``: hides values in all responses; None: values are shown."""
        self._app = app
        self._redaction = redaction
        self._routes = routes
        self._admission = admission
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in hosts}

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "lifespan":
            await self._app(connection, receive, send)
        elif connection["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # the API has no websockets
        else:
            await self._respond(connection, receive, _ResponseSender(send))

    async def _respond(self, connection: Connection, receive: Receive, sender: _ResponseSender) -> None:
        actor = current_actor.set(None)  # a hook names the actor of this request
        redaction = current_redaction.set(self._redaction)
        try:
            request = Request(connection, receive)
            route, params = await self._admit(request)
            if route is None or route.arguments is None:
                await self._app(connection, receive, sender)
            else:
                response = await route.call(request, params)
                await response(connection, receive, sender)
        except Exception as error:  # also for unexpected errors: the response shows no internals
            problem = responses.problem_of(error)
            if sender.started:
                raise
            await problem.response()(connection, receive, sender)
        finally:
            current_redaction.reset(redaction)
            current_actor.reset(actor)

    async def _admit(self, request: Request) -> tuple[GatedRoute | None, dict[str, Any]]:
        """Admit the request; returns its route and the parameters in its path."""
        connection = request.scope
        if on_loopback(connection):
            self._check_host_and_origin(request.headers)
        route, params, allowed = self._match(connection)
        spec = None if route is None else route.spec
        if spec is not None and spec.scope is None:
            return route, params  # needs no authorization
        admitted = await self._admission.admit(request, spec, params)
        if admitted is None:
            raise _no_route(connection["method"], allowed)
        connection[ADMITTED] = admitted
        return route, params

    def _match(self, connection: Connection) -> tuple[GatedRoute | None, dict[str, Any], Collection[str]]:
        """Return the route that serves the request and its path parameters, or the methods that the path allows."""
        partial: list[Route] = []
        for route in self._routes:
            match, child = route.matches(connection)
            if match is Match.FULL and isinstance(route, GatedRoute):
                return route, child["path_params"], ()
            if match is Match.PARTIAL and isinstance(route, Route):
                partial.append(route)
        # ".../instances/batch" also matches ".../instances/{instance_id}": only methods of the first path count
        methods = {method for route in partial if route.path == partial[0].path for method in route.methods or ()}
        return None, {}, methods

    def _check_host_and_origin(self, headers: Headers) -> None:
        """Refuse requests with unknown host names, as a protection against DNS rebinding.

        Another site may resolve its own host name to this machine; the requests of its pages still carry that name.
        """
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _host_name(f"//{hosts[0]}") not in self._hosts:
            raise responses.Problem(
                403, responses.FORBIDDEN, "this host name is not allowed (Host); app.asgi(hosts=...) allows more names"
            )
        for origin in headers.getlist("origin"):
            if _host_name(origin) not in self._hosts:
                raise responses.Problem(403, responses.FORBIDDEN, "requests from other sites are refused (Origin)")


class _ResponseSender:
    """ASGI ``send`` that adds the headers of every response."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = [*message["headers"], *_HEADERS]
        await self._send(message)


def _no_route(method: str, allowed: Collection[str]) -> responses.Problem:
    if not allowed:
        return responses.Problem(404, responses.NOT_FOUND, "no route has this path")
    methods = ", ".join(sorted(allowed))
    return responses.Problem(
        405,
        responses.METHOD_NOT_ALLOWED,
        f"{method[:20]} is not allowed at this path; allowed: {methods}",
        headers={"allow": methods},
    )


@lru_cache(maxsize=256)
def _host_name(url: str) -> str | None:
    """The host name in a URL, without the port; None if there is no valid one."""
    try:
        parts = urlsplit(url)
        name, _ = parts.hostname, parts.port  # reading an invalid port raises ValueError
    except ValueError:
        return None
    if name is None or parts.username is not None or parts.path not in ("", "/"):
        return None
    return f"[{name}]" if ":" in name else name
