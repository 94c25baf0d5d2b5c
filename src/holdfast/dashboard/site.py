"""The ASGI application of the dashboard: the page, its files, and the HTTP API behind sessions.

All paths are relative to the mount point, and the page uses relative URLs only, so that the application works under any
root path and behind a proxy that removes a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from holdfast.dashboard.assets import Asset, Assets
from holdfast.dashboard.session_gate import SessionGate
from holdfast.dashboard.sessions import Sessions
from holdfast.http.api import make_api
from holdfast.http.auth import Authorize
from holdfast.http.backend import Backend
from holdfast.http.exposure import Exposure
from holdfast.ports import Runtime

API = "/_api"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
_FOR_EVER = "public, max-age=31536000, immutable"
_REVALIDATE = "no-cache"


class Lifespan(Protocol):
    def __call__(self, app: Any, /) -> AbstractAsyncContextManager[None]: ...


def make_dashboard(
    backend: Backend,
    *,
    authorize: Authorize,
    runtime: Runtime,
    hosts: Iterable[str],
    insecure: bool,
    lifespan: Lifespan,
    assets: Assets | None = None,
) -> Starlette:
    """The dashboard of the app that ``backend`` describes. ``insecure``: serve every address also without hooks."""
    api = make_api(backend, base="", authorize=authorize, hosts=hosts, lifespan=lifespan)
    gate = SessionGate(api, sessions=Sessions(runtime), authorize=authorize)
    pages = _Pages(assets or Assets())
    routes = [
        Mount(API, app=gate),
        Route("/", pages.index),
        Route("/static/{name:path}", pages.file),
    ]
    site = Starlette(routes=routes, lifespan=lifespan)
    site.state.live = api.state.live
    site.add_middleware(_Headers)
    site.add_middleware(_Guard, exposure=Exposure(authorize, insecure=insecure))
    return site


class _Pages:
    def __init__(self, assets: Assets) -> None:
        self._assets = assets

    async def index(self, request: Request) -> Response:
        return _file(request, self._assets.index, _REVALIDATE)

    async def file(self, request: Request) -> Response:
        asset = self._assets.get(request.path_params["name"])
        return (
            Response("not found", 404, media_type="text/plain") if asset is None else _file(request, asset, _FOR_EVER)
        )


def _file(request: Request, asset: Asset, caching: str) -> Response:
    headers = {"cache-control": caching, "etag": asset.etag, "vary": "accept-encoding"}
    if _has_tag(request.headers.get("if-none-match", ""), asset.etag):
        return Response(None, 304, headers)
    if asset.compressed is not None and _accepts_gzip(request.headers):
        return Response(asset.compressed, 200, headers | {"content-encoding": "gzip"}, asset.media_type)
    return Response(asset.content, 200, headers, asset.media_type)


def _has_tag(given: str, etag: str) -> bool:
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in given.split(","))


def _accepts_gzip(headers: Headers) -> bool:
    return any(part.split(";")[0].strip().lower() == "gzip" for part in headers.get("accept-encoding", "").split(","))


class _Headers:
    """ASGI middleware that adds the security headers to the page and its files. The API has headers of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in _HEADERS if one[0] not in present)]
            await send(message)

        await self._app(connection, receive, with_headers)


class _Guard:
    """ASGI middleware that refuses requests from other machines to an app without hooks."""

    def __init__(self, app: ASGIApp, *, exposure: Exposure) -> None:
        self._app = app
        self._exposure = exposure

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] != "http" or self._exposure.allows(connection):
            await self._app(connection, receive, send)
            return
        text = "the dashboard of an app without authorize hooks is served on loopback addresses only\n"
        headers: Mapping[str, str] = {"cache-control": "no-store"}
        await Response(text, 403, headers, "text/plain")(connection, receive, send)
