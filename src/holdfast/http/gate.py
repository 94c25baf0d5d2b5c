"""The one gate in front of every route: who asks, by which name, and what leaves.

It finds the route with the same objects that serve it, so what was allowed is what is run. In this order: the
names in Host and Origin, then what ``admission`` decides. Nothing is read from the store or written before.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from holdfast.http import answers
from holdfast.http.admission import ADMITTED, Admission
from holdfast.http.spec import Spec

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

_HEADERS: Sequence[tuple[bytes, bytes]] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


class GatedRoute(Route):
    """A route that says what it does (``spec``).

    FastAPI reads the signature of a handler in about a millisecond, so that is left to the first request. The path
    ends where it ends: ``$`` alone would also let a newline follow.
    """

    def __init__(self, path: str, spec: Spec) -> None:
        super().__init__(path, spec.handler, name=spec.name)
        self.spec = spec
        self.methods = {spec.method}
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z")

    async def handle(self, scope: Connection, receive: Receive, send: Send) -> None:
        await self._route.handle(scope, receive, send)

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
    ) -> None:
        self._app = app
        self._routes = routes
        self._admission = admission
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in hosts}

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "lifespan":
            await self._app(connection, receive, send)
        elif connection["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # there are none
        else:
            await self._answer(connection, receive, _Exit(send))

    async def _answer(self, connection: Connection, receive: Receive, leave: _Exit) -> None:
        try:
            await self._let_in(connection, receive)
            await self._app(connection, receive, leave)
        except Exception as error:  # the last line of defence: whatever it was, the answer shows nothing of it
            problem = answers.problem_of(error)
            if leave.started:
                raise
            await problem.answer()(connection, receive, leave)

    async def _let_in(self, connection: Connection, receive: Receive) -> None:
        if _on_loopback(connection):
            self._check_names(Headers(scope=connection))
        route, params, allowed = self._find(connection)
        spec = None if route is None else route.spec
        if spec is not None and spec.scope is None:
            return  # open to all
        admitted = await self._admission.admit(Request(connection, receive), spec, params)
        if admitted is None:
            raise _no_route(connection["method"], allowed)
        connection[ADMITTED] = admitted

    def _find(self, connection: Connection) -> tuple[GatedRoute | None, dict[str, Any], Collection[str]]:
        """The route that will serve this, as the router finds it; else the methods that the path has."""
        near: list[Route] = []
        for route in self._routes:
            match, child = route.matches(connection)
            if match is Match.FULL and isinstance(route, GatedRoute):
                return route, child["path_params"], ()
            if match is Match.PARTIAL and isinstance(route, Route):
                near.append(route)
        # ".../instances/batch" is a path of its own, although an instance may have that name
        return None, {}, {method for route in near if route.path == near[0].path for method in route.methods or ()}

    def _check_names(self, headers: Headers) -> None:
        """A page of another site may have its name point to this machine; its requests still carry that name."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _host_name(f"//{hosts[0]}") not in self._hosts:
            raise answers.Problem(
                403, answers.FORBIDDEN, "this server has no such name (Host); app.asgi(hosts=...) gives it more"
            )
        for origin in headers.getlist("origin"):
            if _host_name(origin) not in self._hosts:
                raise answers.Problem(403, answers.FORBIDDEN, "requests from other sites are refused (Origin)")


class _Exit:
    """Sends what leaves, with the headers that every answer has."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = [*message["headers"], *_HEADERS]
        await self._send(message)


def _no_route(method: str, allowed: Collection[str]) -> answers.Problem:
    if not allowed:
        return answers.Problem(404, answers.NOT_FOUND, "there is nothing at this path")
    methods = ", ".join(sorted(allowed))
    return answers.Problem(
        405, answers.METHOD_NOT_ALLOWED, f"{method[:20]} is not possible here; {methods} is", headers={"allow": methods}
    )


def _on_loopback(connection: Connection) -> bool:
    """Whether the connection came in at an address that only this machine has."""
    server = connection.get("server")
    host = server[0] if server else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return bool(host == "localhost")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _host_name(url: str) -> str | None:
    """The host in an URL as it is written there, without the port; None if there is none."""
    try:
        parts = urlsplit(url)
        name, _ = parts.hostname, parts.port  # a port that is no number raises
    except ValueError:
        return None
    if name is None or parts.username is not None or parts.path not in ("", "/"):
        return None
    return f"[{name}]" if ":" in name else name
