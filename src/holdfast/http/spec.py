"""A route as a value: where it is, who may use it, what it reads, and what the document says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
    """The instances that a route shows or changes: how a filter of a hook confines it."""

    ONE = "one"
    """The instance in its path: any other one does not exist."""
    NEW = "new"
    """Those that it creates: their ids must fit."""
    LIST = "list"
    """Those that it lists: the route itself applies the filters."""
    NONE = "none"
    """None at all: there is nothing to confine."""
    ALL = "all"
    """All of them: a caller who may reach only some may not use it."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One route."""

    method: str
    path: str
    name: str
    scope: Scope | None
    """None: open to all, whatever the hooks say."""
    handler: Handler
    result: Any
    """The type of a good answer; ``str`` is plain text, all else JSON."""
    errors: tuple[int, ...] = ()
    body: TypeAdapter[Any] | None = None
    body_needed: bool = True
    kind: str | None = None
    """Only of what is of this kind; None: of everything."""
    content: Callable[[Any], AuthContent] | None = None
    """The body as the hooks see it, if there is more to it than its fields."""
    filter: Callable[[Request], Filter] | None = None
    """The query of a list as a filter."""
    impersonal: bool = False
    """It neither shows nor changes anything of an instance."""

    @property
    def reach(self) -> Reach:
        """A new route reaches all instances, and so is closed to confined callers, unless it says otherwise."""
        if "{instance_id}" in self.path:
            return Reach.ONE
        if self.scope is Scope.CREATE:
            return Reach.NEW
        if self.filter is not None:
            return Reach.LIST
        return Reach.NONE if self.impersonal else Reach.ALL
