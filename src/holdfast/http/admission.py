"""Lets a request in: asks the hooks, reads the body, and keeps the request to the instances its caller may reach.

In this order: the ``request`` hook, whether the route exists, the query and the body, the hook that refines the route,
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
from holdfast.http import answers, bodies
from holdfast.http.auth import AuthContent, Authorize, AuthRequest, Denied, Undecided, Unread
from holdfast.http.spec import Reach, Spec
from holdfast.kernel.definition import Registry

UNKNOWN = "unknown"
ADMITTED = "holdfast.admitted"
"""Where the gate leaves what it has read, in the ASGI scope."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What the gate has read of a request that it let in, for the route that serves it."""

    body: Any
    """As the type of the route's body; an empty object if there is none."""
    filters: Sequence[Filter]
    """For lists: what was asked for, and what the hooks confine it to. All must be met."""


def admitted(request: Request) -> Admitted:
    found: Admitted = request.scope[ADMITTED]
    return found


class Admission:
    """The decision about each request, over one policy."""

    def __init__(
        self, authorize: Authorize, *, registry: Registry, limits: Limits, client: Callable[[], Client]
    ) -> None:
        self._authorize = authorize
        self._registry = registry
        self._limits = limits
        self._client = client

    async def admit(self, request: Request, spec: Spec | None, params: Mapping[str, str]) -> Admitted | None:
        """What the route may serve. None if there is no route (``spec``): the hook has been asked all the same."""
        try:
            return await self._admit(request, spec, _asked(request, spec, params))
        except Denied as denied:
            raise answers.Problem(denied.status, denied.code, denied.message, headers=denied.headers) from None
        except Undecided:
            raise answers.unauthorized_in_time() from None

    async def _admit(self, request: Request, spec: Spec | None, asked: AuthRequest) -> Admitted | None:
        allowed = await self._authorize.ask_request(asked)
        if spec is None:
            return None
        if asked.workflow is not None and not asked.unread and not self._authorize.refines(asked):
            self._registry.get(asked.workflow)  # all hooks have allowed it: a body for nothing need not be read
        content = await self._read(request, spec)
        again, asked = asked.unread, replace(asked, content=content)
        if again:
            allowed = await self._authorize.ask_request(asked)
        allowed += await self._authorize.ask_refining(asked)
        if allowed:
            await self._confine(spec, asked, allowed)
        filters = allowed if content.filters is None else [content.filters, *allowed]
        return Admitted(content.body, filters)

    async def _read(self, request: Request, spec: Spec) -> AuthContent:
        body: Any = {}
        if spec.body is not None:
            body = await bodies.read(request, spec.body, self._limits.body, needed=spec.body_needed)
        content = AuthContent(body) if spec.content is None else spec.content(body)
        return content if spec.filter is None else replace(content, filters=spec.filter(request))

    async def _confine(self, spec: Spec, asked: AuthRequest, filters: Sequence[Filter]) -> None:
        """Refuse what the filters leave out. A list leaves it out itself."""
        if spec.reach is Reach.ALL:
            raise Denied(403, "this caller may reach only some instances, and this route is about all of them")
        if spec.reach is Reach.NEW:
            for one in asked.instances:
                _check_new(one.id, filters)
        if spec.reach is Reach.ONE:
            client = self._client()
            await client.check_within(*client.address(asked.workflow, str(asked.instance_id)), filters)


def _asked(request: Request, spec: Spec | None, params: Mapping[str, str]) -> AuthRequest:
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


def _check_new(id: str | None, filters: Sequence[Filter]) -> None:
    """A new instance has nothing but its id, so a filter by anything else cannot allow it."""
    for one in filters:
        if not one.by_id_only:
            raise Denied(
                403, "this caller may reach only instances with certain attributes, and a new one has none yet"
            )
        if one.id_prefix is not None and not (id or "").startswith(one.id_prefix):
            raise Denied(403, f"the id of an instance that this caller creates begins with {one.id_prefix!r}")
