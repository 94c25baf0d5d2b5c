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
from holdfast.http.gate import Gate, GatedRoute
from holdfast.http.observation import Observation, metrics_route, observation_routes
from holdfast.http.routes import route_table
from holdfast.http.spec import Spec

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def make_api(backend: Backend, *, base: str, authorize: Authorize, hosts: Iterable[str], lifespan: Lifespan) -> FastAPI:
    """Build the API under ``base``. Every request, including a request for an unknown path, passes the gate."""
    base = _check_base(base)
    api = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan)

    async def openapi(request: Request) -> Response:
        """This document."""
        return responses.reply(document.mounted_at(request.scope.get("root_path", "")))

    openapi_spec = Spec("GET", "/openapi.json", "getOpenapi", Scope.READ, openapi, dict, no_instances=True)
    specs = [*route_table(backend), *observation_routes(Observation(backend, authorize)), openapi_spec]
    document = Document(specs, backend, base, authorize)
    api.router.routes.extend(GatedRoute(path, spec) for spec in specs for path in _paths(base, spec))
    if backend.metrics is not None:
        api.router.routes.append(GatedRoute("/metrics", metrics_route(backend.metrics)))

    for error_type in (HoldfastError, responses.Problem, RequestValidationError):
        api.add_exception_handler(error_type, responses.error_response)
    admission = Admission(authorize, registry=backend.registry, limits=backend.limits, client=backend.client)
    api.add_middleware(Gate, routes=api.router.routes, admission=admission, hosts=tuple(hosts))
    return api


def _paths(base: str, spec: Spec) -> list[str]:
    """The paths of a route. The root has two: with and without a trailing slash."""
    return [f"{base}/", base] if base and not spec.path else [base + (spec.path or "/")]


def _check_base(base: str) -> str:
    if not isinstance(base, str) or not (base in ("", "/") or re.fullmatch(r"(/[\w.~-]+)+/?", base)):
        raise InvalidOptionError(f"api= must be a path such as '/api/workflows', or '' for the root, not {base!r}")
    return base.rstrip("/")
