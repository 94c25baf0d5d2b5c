"""The ASGI application, assembled from routes, gate and OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import HoldfastError, InvalidOptionError
from holdfast.http import responses
from holdfast.http.admission import Admission
from holdfast.http.auth import Authorize, Scope
from holdfast.http.backend import Backend
from holdfast.http.document import Document
from holdfast.http.example import example_routes
from holdfast.http.gate import Gate, GatedRoute
from holdfast.http.limits import limit_routes
from holdfast.http.live import Broadcaster
from holdfast.http.live_routes import Live, live_routes
from holdfast.http.observation import Observation, metrics_route, observation_routes
from holdfast.http.overview import overview_routes
from holdfast.http.queues import queue_routes
from holdfast.http.routes import route_table
from holdfast.http.schedules import schedule_routes
from holdfast.http.shapes import shape_routes
from holdfast.http.spec import Spec
from holdfast.http.streams import stream_routes

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def make_api(backend: Backend, *, base: str, authorize: Authorize, hosts: Iterable[str], lifespan: Lifespan) -> FastAPI:
    """Build the API under ``base``. Every request, including a request for an unknown path, passes the gate."""
    base = _check_base(base)
    api = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan)

    async def openapi(request: Request) -> Response:
        """This document."""
        return responses.reply(document.mounted_at(request.scope.get("root_path", "")))

    broadcaster = Broadcaster(backend.client, backend.boot, backend.redaction)
    live = Live(backend, authorize, broadcaster)
    api.state.live = broadcaster
    openapi_spec = Spec("GET", "/openapi.json", "getOpenapi", Scope.READ, openapi, dict, no_instances=True)
    specs = [
        *route_table(backend),
        *schedule_routes(backend),
        *limit_routes(backend),
        *queue_routes(backend),
        *observation_routes(Observation(backend, authorize)),
        *overview_routes(backend),
        *live_routes(live),
        *stream_routes(backend, authorize, broadcaster),
        *shape_routes(backend),
        *example_routes(backend),
        openapi_spec,
    ]
    document = Document(specs, backend, base, authorize)
    api.router.routes.extend(GatedRoute(path, spec) for spec in specs for path in _paths(base, spec))
    if backend.metrics is not None:
        api.router.routes.append(GatedRoute("/metrics", metrics_route(backend.metrics)))

    for error_type in (HoldfastError, responses.Problem, RequestValidationError):
        api.add_exception_handler(error_type, responses.error_response)
    admission = Admission(authorize, registry=backend.registry, limits=backend.limits, client=backend.client)
    api.add_middleware(
        Gate, routes=api.router.routes, admission=admission, hosts=tuple(hosts), redaction=backend.redaction
    )
    return api


def _paths(base: str, spec: Spec) -> list[str]:
    """The paths of a route. The root has two: with and without a trailing slash."""
    return [f"{base}/", base] if base and not spec.path else [base + (spec.path or "/")]


def _check_base(base: str) -> str:
    if not isinstance(base, str) or not (base in ("", "/") or re.fullmatch(r"(/[\w.~-]+)+/?", base)):
        raise InvalidOptionError(f"api= must be a path such as '/api/workflows', or '' for the root, not {base!r}")
    return base.rstrip("/")
