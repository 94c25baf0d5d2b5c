"""Who may do what over HTTP: the hooks of an app, and a ready-made policy for bearer tokens.

Owns the decision. Asking for it before anything else happens, and reading what a hook may look at, is the gate's job
(``holdfast.http.gate``, ``holdfast.http.admission``).
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

from holdfast.core.durations import Duration, describe, to_ms
from holdfast.core.filters import Filter
from holdfast.core.functions import is_async
from holdfast.errors import InvalidOptionError

_log = logging.getLogger("holdfast.http")

_SHORTEST_TOKEN = 16
_FORBIDDEN = 403
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


class Scope(StrEnum):
    """What a route does; every route has one, named like the hook that refines it."""

    READ = "read"
    CREATE = "create"
    MANAGE = "manage"
    SEND_EVENT = "send_event"
    TICK = "tick"


@dataclass(frozen=True, slots=True)
class AuthInstance:
    """An instance that a request wants to create. Its params are plain JSON, not yet checked by the workflow."""

    id: str | None
    """None: the server makes one."""
    params: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AuthEvent:
    """An event that a request wants to send."""

    type: str
    payload: Any = field(default=None, repr=False)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class AuthContent:
    """What the query and the body of a request ask for, read and checked."""

    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    instances: Sequence[AuthInstance] = ()
    event: AuthEvent | None = None
    filters: Filter | None = None

    def read(self) -> AuthContent:
        return self


class Unread:
    """The content of a request whose body has not been read. Notes whether a hook wanted to look at it."""

    wanted = False

    def read(self) -> AuthContent:
        self.wanted = True
        raise RuntimeError("the body of this request has not been read yet; the hook is asked again when it has been")


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """A request as a hook sees it.

    The ``request`` hook is asked before the body is read, so that a request can be refused for nothing. If it looks at
    ``instances``, ``event``, ``filters`` or ``body`` then, it is stopped, and asked again when the body has been read.
    """

    route: str
    """The name of the route, such as ``createInstance``; ``unknown`` for a path or method that does not exist."""
    method: str
    workflow: str | None
    """As it stands in the path: not checked, perhaps not registered."""
    instance_id: str | None
    headers: Mapping[str, str] = field(repr=False)
    """By name in any case."""
    scope: str | None = None
    """The name of the hook that refines this route: ``read``, ``create``, ``manage`` …; None for an unknown route."""
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The parameters in the URL as they were sent: not checked."""
    client: str | None = None
    """The address that the connection came from, if the server knows it: perhaps that of a proxy."""
    content: AuthContent | Unread = field(default_factory=AuthContent, repr=False)

    @property
    def unread(self) -> bool:
        """True if a hook looked at what has not been read."""
        return isinstance(self.content, Unread) and self.content.wanted

    @property
    def instances(self) -> Sequence[AuthInstance]:
        """The instances that this request wants to create: one, those of a batch, or none on other routes."""
        return self.content.read().instances

    @property
    def event(self) -> AuthEvent | None:
        """The event that this request wants to send; None on other routes."""
        return self.content.read().event

    @property
    def filters(self) -> Filter | None:
        """What this request wants listed; None on routes that list no instances."""
        return self.content.read().filters

    @property
    def body(self) -> Mapping[str, Any]:
        """The body as plain JSON, its fields checked; empty if there is none."""
        return self.content.read().body


class Denied(Exception):  # noqa: N818  (a verdict, not a fault)
    """Raised by a hook to refuse a request.

    ``status`` is any 4xx: 401 (who are you?), 403 (not you), 404 (to hide what is there), 429 with a ``Retry-After``.
    ``code`` is what the answer has as its code; by default the name of the status, such as ``TOO_MANY_REQUESTS``.
    """

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None, code: str | None = None
    ) -> None:
        if not isinstance(status, int) or not 400 <= status < 500:
            raise InvalidOptionError(f"a request is denied with a status from 400 to 499, not {status!r}")
        super().__init__(message)
        self.status = status
        self.message = str(message)
        self.headers = _check_headers(headers or {})
        self.code = code or _name_of(status)


class Undecided(Exception):  # noqa: N818  (no verdict, which is not the caller's fault)
    """A hook took too long."""


Hook: TypeAlias = Callable[[AuthRequest], Awaitable[Filter | None]]


@dataclass(frozen=True)
class Authorize:
    """Async hooks that allow a request by returning ``None`` or a ``Filter``, or raise ``Denied``.

    ``request`` covers every route, and the others refine it. Once any hook is set, a route that none covers is denied,
    and so is one whose hook breaks. A hook that takes longer than ``timeout`` is answered with 503. Without hooks
    everything is allowed.

    A filter confines the request to the instances that fit it: lists show no others, every other instance is as one
    that does not exist, and what is created must have an id that fits.

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
    read: Hook | None = None
    timeout: Duration = "5 seconds"
    """For each hook."""

    def __post_init__(self) -> None:
        for name in ("request", *Scope):
            hook = getattr(self, name)
            if hook is not None and not (callable(hook) and is_async(hook)):
                raise InvalidOptionError(f"Authorize({name}=...) takes an async function, not {hook!r}")
        if not to_ms(self.timeout, "Authorize(timeout=...)"):
            raise InvalidOptionError("Authorize(timeout=...) leaves the hooks no time at all")

    @property
    def open(self) -> bool:
        """Whether there is no hook at all."""
        return not any((self.request, self.create, self.manage, self.send_event, self.tick, self.read))

    async def ask_request(self, request: AuthRequest) -> list[Filter]:
        """The filters of the ``request`` hook. Denied: also what no hook covers."""
        if not self.open and self.request is None and not self.refines(request):
            raise Denied(_FORBIDDEN, "no rule allows this request")
        return await self._ask(self.request, request)

    async def ask_refining(self, request: AuthRequest) -> list[Filter]:
        """The filters of the hook that refines this route."""
        return await self._ask(self._refining(request), request)

    def refines(self, request: AuthRequest) -> bool:
        """True if a hook besides ``request`` is asked about this route."""
        return self._refining(request) is not None

    def _refining(self, request: AuthRequest) -> Hook | None:
        hook: Hook | None = None if request.scope is None else getattr(self, request.scope)
        return hook

    async def _ask(self, hook: Hook | None, request: AuthRequest) -> list[Filter]:
        if hook is None:
            return []
        verdict = await _verdict(hook, request, to_ms(self.timeout))
        return [] if verdict is None else [verdict]


def check_authorize(given: Authorize | None) -> Authorize:
    """The policy of an app; none is an open one, and anything else is a mistake that must not pass for one."""
    if given is not None and not isinstance(given, Authorize):
        raise InvalidOptionError(f"authorize= takes an Authorize, not {type(given).__name__}")
    return given or Authorize()


async def _verdict(hook: Hook, request: AuthRequest, most_ms: int) -> Filter | None:
    verdict: object = None
    limit = asyncio.timeout(most_ms / 1000)
    try:
        async with limit:
            verdict = await hook(request)
    except Exception as error:
        verdict = error
    if request.unread:  # however it ended: it is asked again
        return None
    if isinstance(verdict, Denied):
        raise verdict
    if limit.expired():  # also if it then answered all the same: one that catches everything knows nothing
        taken = describe(most_ms)
        _log.error("an authorization hook took longer than %s on route %s; the answer is 503", taken, request.route)
        raise Undecided
    if verdict is None or isinstance(verdict, Filter):
        return verdict
    broke = verdict if isinstance(verdict, Exception) else None
    what = "broke" if broke else "answered neither None nor a Filter"
    _log.error("an authorization hook %s on route %s; the request is denied", what, request.route, exc_info=broke)
    raise Denied(_FORBIDDEN, "the request could not be authorized")


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise InvalidOptionError(f"Denied(headers=...): names and values are text, not {name!r}: {value!r}")
        if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            raise InvalidOptionError(f"Denied(headers=...): HTTP has no header {name!r}: {value!r}")
    return dict(headers)


def _name_of(status: int) -> str:
    return HTTPStatus(status).name if status in {*HTTPStatus} else "DENIED"


class BearerTokens(Authorize):
    """A policy: ``Authorization: Bearer TOKEN``, each token with the scopes it may use.

    Only digests of the tokens are kept, and every one of them is compared, in constant time.

    Example::

        app = Holdfast(authorize=BearerTokens.from_environment())
        # HOLDFAST_TOKENS="3f9c…:read,81d0…:read+create+manage+send_event"
    """

    VARIABLE = "HOLDFAST_TOKENS"

    _grants: Mapping[bytes, frozenset[Scope]]

    def __init__(self, tokens: Mapping[str, Iterable[str]]) -> None:
        if not tokens:
            raise InvalidOptionError("BearerTokens needs at least one token; with none it would deny everything")
        grants = {_digest(_check_token(token)): _check_scopes(scopes) for token, scopes in tokens.items()}
        object.__setattr__(self, "_grants", grants)  # the base class is frozen
        super().__init__(request=self._allowed)

    @classmethod
    def from_environment(cls, variable: str = VARIABLE) -> BearerTokens:
        """Tokens from ``token:scope+scope,token:scope``; a missing or empty variable is an error."""
        tokens: dict[str, list[str]] = {}
        for entry in filter(None, (part.strip() for part in os.environ.get(variable, "").split(","))):
            token, separator, scopes = entry.rpartition(":")
            if not separator:
                raise InvalidOptionError(f"${variable}: every entry is token:scope+scope, and one has no scopes")
            tokens[token] = scopes.split("+")
        if not tokens:
            raise InvalidOptionError(f"${variable} has no tokens; it is written token:scope+scope,token:scope")
        return cls(tokens)

    def __repr__(self) -> str:
        return f"<BearerTokens with {len(self._grants)}>"

    async def _allowed(self, request: AuthRequest) -> None:
        scopes = self._scopes_of(request)
        if request.scope is not None and request.scope not in scopes:
            raise Denied(_FORBIDDEN, f"this token has no scope {request.scope!r}")

    def _scopes_of(self, request: AuthRequest) -> frozenset[Scope]:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = _digest(token.strip()) if scheme.lower() == "bearer" else b""
        found: frozenset[Scope] | None = None
        for known, scopes in self._grants.items():
            if hmac.compare_digest(known, given):  # no early exit: the time tells nothing of the place
                found = scopes
        if found is None:
            raise Denied(401, "a valid bearer token is needed", headers={"WWW-Authenticate": "Bearer"})
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _check_token(token: object) -> str:
    """Errors never show the token, not even a wrong one."""
    if not isinstance(token, str) or len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise InvalidOptionError(f"a token has at least {_SHORTEST_TOKEN} printable ASCII characters; make it random")
    if " " in token:
        raise InvalidOptionError("a token has no spaces")
    return token


def _check_scopes(scopes: Iterable[str]) -> frozenset[Scope]:
    known = [scope.value for scope in Scope]
    chosen = list(scopes)
    if isinstance(scopes, str) or not chosen or any(scope not in known for scope in chosen):
        raise InvalidOptionError(f"the scopes of a token are some of {', '.join(known)}")
    return frozenset(map(Scope, chosen))
