"""Authorization over HTTP: the hooks of an app, and a ready-made policy for bearer tokens.

This module decides whether a request is allowed. ``holdfast.http.gate`` and ``holdfast.http.admission`` request that
decision before they do anything else, and read the body that a hook may inspect.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any, TypeAlias

from holdfast.core.actor import check_actor, current_actor
from holdfast.core.checks import is_whole_number
from holdfast.core.durations import Duration, describe, to_ms
from holdfast.core.filters import Filter
from holdfast.core.functions import is_async
from holdfast.errors import InvalidOptionError

_log = logging.getLogger("holdfast.http")

_MIN_TOKEN_LENGTH = 16
_FORBIDDEN = 403
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


class Scope(StrEnum):
    """The kind of access that a route needs. Its value is the name of the hook that refines such routes."""

    READ = "read"
    CREATE = "create"
    MANAGE = "manage"
    SEND_EVENT = "send_event"
    TICK = "tick"
    DEBUG = "debug"
    OPERATE = "operate"
    """Settings that concern many runs: workers, queues, limits, schedules."""


ROLES: Mapping[str, frozenset[Scope]] = {
    "viewer": frozenset({Scope.READ}),
    "operator": frozenset({Scope.READ, Scope.CREATE, Scope.MANAGE, Scope.SEND_EVENT}),
    "admin": frozenset(Scope),
}
"""Names of sets of scopes. A token may have a role instead of scopes."""


def role_of(scopes: Iterable[str]) -> str | None:
    """The role with exactly these scopes; None if there is none. The scope ``tick`` is for programs and is ignored."""
    given = frozenset(map(Scope, scopes)) - {Scope.TICK}
    return next((role for role, granted in ROLES.items() if granted - {Scope.TICK} == given), None)


@dataclass(frozen=True, slots=True)
class AuthInstance:
    """An instance that a request creates. Its params are plain JSON, not yet checked against the workflow."""

    id: str | None
    """None: the server generates an id."""
    params: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AuthEvent:
    """An event that a request sends."""

    type: str
    payload: Any = field(default=None, repr=False)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class AuthContent:
    """The content of a request's query and body, read and checked."""

    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    instances: Sequence[AuthInstance] = ()
    event: AuthEvent | None = None
    filters: Filter | None = None

    def read(self) -> AuthContent:
        return self


class Unread:
    """The content of a request whose body has not been read. Records whether a hook accessed the content."""

    accessed = False

    def read(self) -> AuthContent:
        self.accessed = True
        raise RuntimeError("the body of this request has not been read yet; the hook is called again when it has been")


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """A request as a hook sees it.

    The ``request`` hook is called before the body is read, so that refusing a request costs little. If the hook
    accesses ``instances``, ``event``, ``filters`` or ``body`` at that time, the access raises, and the hook is called
    again when the body has been read.
    """

    route: str
    """The name of the route, such as ``createInstance``; ``unknown`` for a path or method that does not exist."""
    method: str
    workflow: str | None
    """The name in the path: not checked, possibly not registered."""
    instance_id: str | None
    headers: Mapping[str, str] = field(repr=False)
    """Looked up by name, case-insensitively."""
    scope: str | None = None
    """The name of the hook that refines this route: ``read``, ``create``, ``manage`` …; None for an unknown route."""
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The query parameters as they were sent: not checked."""
    client: str | None = None
    """The peer address of the connection, if the server knows it; possibly that of a proxy."""
    content: AuthContent | Unread = field(default_factory=AuthContent, repr=False)

    def act_as(self, actor: str) -> None:
        """Name the caller: the actor in the audit records of this request."""
        current_actor.set(check_actor(actor))

    @property
    def unread(self) -> bool:
        """True if a hook accessed the content before it was read."""
        return isinstance(self.content, Unread) and self.content.accessed

    @property
    def instances(self) -> Sequence[AuthInstance]:
        """The instances that this request creates: one, those of a batch, or none on other routes."""
        return self.content.read().instances

    @property
    def event(self) -> AuthEvent | None:
        """The event that this request sends; None on other routes."""
        return self.content.read().event

    @property
    def filters(self) -> Filter | None:
        """The filter in the query of a list; None on routes that list no instances."""
        return self.content.read().filters

    @property
    def body(self) -> Mapping[str, Any]:
        """The body as plain JSON, with its fields checked; empty if there is no body."""
        return self.content.read().body


class Denied(Exception):
    """Raised by a hook to refuse a request.

    ``status`` is any 4xx: 401 (no valid credentials), 403 (not permitted), 404 (hides that the instance exists), 429
    with a ``Retry-After`` header. ``code`` is the error code in the response; the default is the name of the status,
    such as ``TOO_MANY_REQUESTS``.
    """

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None, code: str | None = None
    ) -> None:
        if not is_whole_number(status, 400, 499):
            raise InvalidOptionError(f"Denied(status, ...) takes a status from 400 to 499, not {status!r}")
        super().__init__(message)
        self.status = status
        self.message = str(message)
        self.headers = _check_headers(headers or {})
        self.code = code or _name_of(status)


class HookTimeout(Exception):
    """A hook took longer than ``Authorize.timeout``."""


Hook: TypeAlias = Callable[[AuthRequest], Awaitable[Filter | None]]


@dataclass(frozen=True)
class Authorize:
    """Async hooks that allow a request by returning ``None`` or a ``Filter``, or raise ``Denied``.

    The ``request`` hook covers every route; each other hook refines the routes of its scope. Once any hook is set, a
    request to a route that no hook covers is denied, and so is a request whose hook raises another exception than
    ``Denied``. If a hook takes longer than ``timeout``, the response is 503. Without hooks every request is allowed.

    A filter confines the request to the instances that fit it: lists show only these, any other instance is reported
    as not found, and the id of a new instance must fit.

    Example::

        async def my_tenant(request: AuthRequest) -> Filter:
            tenant = TENANTS.get(request.headers.get("authorization", ""))
            if tenant is None:
                raise Denied(401, "a token is needed")
            return Filter(id_prefix=f"{tenant}-")

        app = Holdfast(authorize=Authorize(request=my_tenant))
    """

    request: Hook | None = None
    create: Hook | None = None
    manage: Hook | None = None
    send_event: Hook | None = None
    tick: Hook | None = None
    debug: Hook | None = None
    operate: Hook | None = None
    read: Hook | None = None
    timeout: Duration = "5 seconds"
    """The time limit of each hook call."""

    def __post_init__(self) -> None:
        for name in ("request", *Scope):
            hook = getattr(self, name)
            if hook is not None and not (callable(hook) and is_async(hook)):
                raise InvalidOptionError(f"Authorize({name}=...) takes an async function, not {hook!r}")
        if not to_ms(self.timeout, "Authorize(timeout=...)"):
            raise InvalidOptionError("Authorize(timeout=...) must be more than 0")

    @property
    def open(self) -> bool:
        """True if no hook is set."""
        return not any(getattr(self, name) for name in ("request", *Scope))

    async def run_request_hook(self, request: AuthRequest) -> list[Filter]:
        """Run the ``request`` hook and return its filters. Raise ``Denied`` also if no hook covers the route."""
        if self.request is None and not self.refines(request) and not self.open:
            raise Denied(_FORBIDDEN, "no rule allows this request")
        return await self._run(self.request, request)

    async def run_scope_hook(self, request: AuthRequest) -> list[Filter]:
        """Run the hook that refines this route and return its filters."""
        return await self._run(self._scope_hook(request), request)

    def refines(self, request: AuthRequest) -> bool:
        """True if a hook besides ``request`` covers this route."""
        return self._scope_hook(request) is not None

    def _scope_hook(self, request: AuthRequest) -> Hook | None:
        hook: Hook | None = None if request.scope is None else getattr(self, request.scope)
        return hook

    async def _run(self, hook: Hook | None, request: AuthRequest) -> list[Filter]:
        if hook is None:
            return []
        allowed = await _call_hook(hook, request, to_ms(self.timeout))
        return [] if allowed is None else [allowed]


def check_authorize(policy: Any) -> None:
    """Raise if the policy of an app has another type: treating it as no policy would leave the API open."""
    if not isinstance(policy, Authorize):
        raise InvalidOptionError(f"authorize= takes an Authorize, not {type(policy).__name__}")


async def _call_hook(hook: Hook, request: AuthRequest, timeout_ms: int) -> Filter | None:
    result: object = None
    limit = asyncio.timeout(timeout_ms / 1000)
    try:
        async with limit:
            result = await hook(request)
    except Exception as error:
        result = error
    if request.unread:  # the result does not count: the hook is called again when the body has been read
        return None
    if isinstance(result, Denied):
        raise result
    if limit.expired():  # a result does not count either: the hook may have caught the cancellation
        shown_timeout = describe(timeout_ms)
        _log.error(
            "an authorization hook took longer than %s on route %s; the response is 503", shown_timeout, request.route
        )
        raise HookTimeout
    if result is None or isinstance(result, Filter):
        return result
    raised = result if isinstance(result, Exception) else None
    problem = "raised an exception" if raised else "returned neither None nor a Filter"
    _log.error("an authorization hook %s on route %s; the request is denied", problem, request.route, exc_info=raised)
    raise Denied(_FORBIDDEN, "the request could not be authorized")


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise InvalidOptionError(f"Denied(headers=...): names and values are text, not {name!r}: {value!r}")
        if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            raise InvalidOptionError(f"Denied(headers=...): {name!r}: {value!r} is not a valid HTTP header")
    return dict(headers)


def _name_of(status: int) -> str:
    return HTTPStatus(status).name if status in {*HTTPStatus} else "DENIED"


class BearerTokens(Authorize):
    """A policy for ``Authorization: Bearer TOKEN``, with the permitted scopes of each token, or its role.

    A viewer reads, an operator also starts and controls runs and sends events, an admin may do everything.

    The policy keeps only digests of the tokens, and compares each of them in constant time.

    Example::

        app = Holdfast(authorize=BearerTokens.from_environment())
        # HOLDFAST_TOKENS="3f9c…:viewer,81d0…:operator,c07a…:admin,55e1…:read+create"
    """

    VARIABLE = "HOLDFAST_TOKENS"

    _grants: Mapping[bytes, frozenset[Scope]]

    def __init__(self, tokens: Mapping[str, Iterable[str] | str]) -> None:
        if not tokens:
            raise InvalidOptionError("BearerTokens needs at least one token; with none it would deny every request")
        grants = {_digest(_check_token(token)): _check_scopes(scopes) for token, scopes in tokens.items()}
        object.__setattr__(self, "_grants", grants)  # the base class is frozen
        super().__init__(request=self._check_scope)

    @classmethod
    def from_environment(cls, variable: str = VARIABLE) -> BearerTokens:
        """Read tokens written as ``token:scope+scope,token:scope``; a missing or empty variable is an error."""
        tokens: dict[str, list[str]] = {}
        for entry in filter(None, (part.strip() for part in os.environ.get(variable, "").split(","))):
            token, separator, scopes = entry.rpartition(":")
            if not separator:
                raise InvalidOptionError(f"${variable}: every entry must be token:scope+scope; one has no scopes")
            tokens[token] = scopes.split("+")
        if not tokens:
            raise InvalidOptionError(f"${variable} has no tokens; write it as token:scope+scope,token:scope")
        return cls(tokens)

    def __repr__(self) -> str:
        return f"<BearerTokens with {len(self._grants)}>"

    async def _check_scope(self, request: AuthRequest) -> None:
        scopes = self._scopes_of(request)
        if request.scope is not None and request.scope not in scopes:
            raise Denied(_FORBIDDEN, f"this token has no scope {str(request.scope)!r}")

    def _scopes_of(self, request: AuthRequest) -> frozenset[Scope]:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        digest = _digest(token.strip()) if scheme.lower() == "bearer" else b""
        granted: frozenset[Scope] | None = None
        for known_digest, scopes in self._grants.items():
            if hmac.compare_digest(known_digest, digest):  # no early exit: the duration must not reveal the position
                granted = scopes
        if granted is None:
            raise Denied(401, "a valid bearer token is needed", headers={"WWW-Authenticate": "Bearer"})
        request.act_as(f"token {digest.hex()[:8]}")
        return granted


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _check_token(token: object) -> str:
    """Check a token. The error never contains the token, not even an invalid one."""
    if not isinstance(token, str) or len(token) < _MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable():
        raise InvalidOptionError(f"a token has at least {_MIN_TOKEN_LENGTH} printable ASCII characters; make it random")
    if " " in token:
        raise InvalidOptionError("a token must not contain spaces")
    return token


def _check_scopes(scopes: Iterable[str] | str) -> frozenset[Scope]:
    known = [scope.value for scope in Scope]
    chosen = [scopes] if isinstance(scopes, str) else list(scopes)
    if not chosen or scopes in known or any(scope not in (*known, *ROLES) for scope in chosen):
        raise InvalidOptionError(f"the scopes of a token are some of {', '.join(known)}, or a role: {', '.join(ROLES)}")
    return frozenset(one for scope in chosen for one in ROLES.get(scope, (Scope(scope),) if scope in known else ()))
