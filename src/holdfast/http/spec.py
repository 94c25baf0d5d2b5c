"""The specification of a route: path, scope, body, and the data for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.filters import Filter
from holdfast.http.auth import AuthContent, Scope

Handler = Callable[..., Awaitable[Response]]


class Reach(StrEnum):
    """The instances that a route shows or changes. It determines how the filters of hooks apply to the route."""

    ONE = "one"
    """The instance in the path. An instance outside the filters is reported as not found."""
    NEW = "new"
    """The instances that the route creates. Their ids must fit the filters."""
    LIST = "list"
    """The instances that the route lists. The route applies the filters."""
    NONE = "none"
    """No instances. Filters have no effect."""
    ALL = "all"
    """All instances. A caller confined by a filter may not use the route."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One route."""

    method: str
    path: str
    name: str
    scope: Scope | None
    """None: the route needs no authorization; no hook is called."""
    handler: Handler
    result: Any
    """The type of a successful response: ``str`` is plain text, any other type JSON."""
    errors: tuple[int, ...] = ()
    body: TypeAdapter[Any] | None = None
    body_required: bool = True
    needs_units: bool = False
    """True if the route exists only for definitions whose runs consist of units."""
    content: Callable[[Any], AuthContent] | None = None
    """Converts the body to the content that hooks see; None: hooks see only the plain body."""
    filter: Callable[[Request], Filter] | None = None
    """Converts the query of a list to a filter."""
    also: Callable[[Any], Collection[Scope]] | None = None
    """The scopes that the body needs besides the route's own; None: none."""
    pending: bool = False
    """True if the route may answer 202, with a body of the same type."""
    lists: bool = False
    """True if the route applies the filter in ``AuthContent.filters`` and those of hooks to the instances it finds."""
    streams: bool = False
    """True if the response is a stream of server-sent events, which does not end by itself."""
    no_instances: bool = False
    """True if the route neither shows nor changes instances."""

    @property
    def reach(self) -> Reach:
        """The instances that the route shows or changes.

        The default is ``ALL``, so that a newly added route is closed to confined callers.
        """
        if "{instance_id}" in self.path:
            return Reach.ONE
        if self.scope is Scope.CREATE:
            return Reach.NEW
        if self.filter is not None or self.lists:
            return Reach.LIST
        return Reach.NONE if self.no_instances else Reach.ALL
