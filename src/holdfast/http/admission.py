"""Admission of requests: run the hooks, read the body, and confine the request to instances its caller may access.

The order is: the ``request`` hook, the existence of the route, the query and the body, the hook of the route's scope,
the filters that the hooks returned. Nothing is read from the store before the hooks have allowed the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

from holdfast.client import Client
from holdfast.core.filters import Filter
from holdfast.core.limits import Limits
from holdfast.http import bodies, responses
from holdfast.http.auth import AuthContent, Authorize, AuthRequest, Denied, HookTimeout, Scope, Unread
from holdfast.http.spec import Reach, Spec
from holdfast.kernel.definition import Registry

UNKNOWN = "unknown"
ADMITTED = "holdfast.admitted"
"""Key of the ``Admitted`` value that the gate puts into the ASGI scope."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The content of an admitted request, passed from the gate to the route."""

    body: Any
    """The body, as the route's body type; an empty object if there is no body."""
    filters: Sequence[Filter]
    """For lists: the filter in the query and the filters that the hooks returned. An instance must fit all of them."""


def admitted(request: Request) -> Admitted:
    value: Admitted = request.scope[ADMITTED]
    return value


class Admission:
    """Admits or refuses each request according to one ``Authorize`` policy."""

    def __init__(
        self, authorize: Authorize, *, registry: Registry, limits: Limits, client: Callable[[], Client]
    ) -> None:
        self._authorize = authorize
        self._registry = registry
        self._limits = limits
        self._client = client

    async def admit(self, request: Request, spec: Spec | None, params: Mapping[str, str]) -> Admitted | None:
        """Return the content of an allowed request, or None if there is no route (``spec`` is None).

        The ``request`` hook runs in both cases, so that a refused caller does not learn which routes exist.
        """
        try:
            return await self._admit(request, spec, _auth_request(request, spec, params))
        except Denied as denied:
            raise responses.Problem(denied.status, denied.code, denied.message, headers=denied.headers) from None
        except HookTimeout:
            raise responses.authorization_timeout() from None

    async def _admit(self, request: Request, spec: Spec | None, auth_request: AuthRequest) -> Admitted | None:
        filters_of_hooks = await self._authorize.run_request_hook(auth_request)
        if spec is None:
            return None
        if auth_request.workflow is not None and not auth_request.unread and not self._authorize.refines(auth_request):
            # All hooks have allowed the request. An unknown workflow is an error now, before the body is read.
            self._registry.get(auth_request.workflow)
        content = await self._read(request, spec)
        ask_again, auth_request = auth_request.unread, replace(auth_request, content=content)
        if ask_again:
            filters_of_hooks = await self._authorize.run_request_hook(auth_request)
        filters_of_hooks += await self._authorize.run_scope_hook(auth_request)
        for also in () if spec.also is None else sorted(spec.also(content.body)):
            other_scope = replace(auth_request, scope=also)
            filters_of_hooks += await self._authorize.run_request_hook(other_scope)
            filters_of_hooks += await self._authorize.run_scope_hook(other_scope)
        if filters_of_hooks:
            await self._confine(spec, auth_request, filters_of_hooks)
        filters = filters_of_hooks if content.filters is None else [content.filters, *filters_of_hooks]
        return Admitted(content.body, filters)

    async def _read(self, request: Request, spec: Spec) -> AuthContent:
        body: Any = {}
        if spec.body is not None:
            body = await bodies.read(request, spec.body, self._limits.body, required=spec.body_required)
        content = AuthContent(body) if spec.content is None else spec.content(body)
        return content if spec.filter is None else replace(content, filters=spec.filter(request))

    async def _confine(self, spec: Spec, auth_request: AuthRequest, filters: Sequence[Filter]) -> None:
        """Refuse a request for instances outside the filters. Routes that list instances apply the filters."""
        if spec.reach is Reach.ALL:
            raise Denied(403, "this caller may access only some instances, and this route is about all of them")
        if spec.reach is Reach.NEW:
            for instance in auth_request.instances:
                _check_new(auth_request.workflow, instance.id, filters)
            _check_policy(auth_request.body, filters)
        if spec.reach is Reach.ONE:
            client = self._client()
            address = client.instances.address(auth_request.workflow, str(auth_request.instance_id))
            await client.instances.check_within(*address, filters)


def _auth_request(request: Request, spec: Spec | None, params: Mapping[str, str]) -> AuthRequest:
    client = request.scope.get("client")
    nothing_to_read = spec is None or (spec.body is None and spec.filter is None)
    return AuthRequest(
        route=UNKNOWN if spec is None else spec.name,
        method=request.method,
        workflow=params.get("workflow"),
        instance_id=params.get("instance_id"),
        headers=request.headers,
        scope=None if spec is None else spec.scope,
        query=request.query_params,
        client=client[0] if client else None,
        content=AuthContent() if nothing_to_read else Unread(),
    )


def auth_request_of(request: Request, route: str, scope: Scope) -> AuthRequest:
    """A request as a hook would see it on a route of this scope, without a body."""
    return replace(_auth_request(request, None, {}), route=route, scope=scope)


def _check_new(workflow: str | None, id: str | None, filters: Sequence[Filter]) -> None:
    """Refuse a new instance that does not fit the filters.

    A new instance has an id and no attributes yet, so only filters by id can allow it.
    """
    for allowed in filters:
        if not allowed.by_id_only:
            raise Denied(
                403, "this caller may access only instances with certain attributes, and a new instance has none yet"
            )
        if allowed.workflow not in (None, workflow):
            raise Denied(403, f"this caller may create only instances of workflow {allowed.workflow!r}")
        if allowed.id_prefix is not None and not (id or "").startswith(allowed.id_prefix):
            raise Denied(403, f"the id of an instance that this caller creates must begin with {allowed.id_prefix!r}")


def _check_policy(body: Any, filters: Sequence[Filter]) -> None:
    """Refuse a singleton. Singletons with one key may belong to several callers: it would return or end theirs."""
    if "singleton" in body and any(allowed.id_prefix is not None for allowed in filters):
        raise Denied(
            403,
            "this caller may access only some instances, and a singleton may return or replace the others; "
            "start it without singleton",
        )
