"""Who may do what over HTTP: the hooks of an app, and a ready-made policy for bearer tokens.

Owns the decision. Asking for it before anything else happens is the gate's job (``holdfast.http.gate``).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from holdfast.core.durations import Duration, describe, to_ms
from holdfast.errors import InvalidOptionError

_log = logging.getLogger("holdfast.http")

_SHORTEST_TOKEN = 16
_FORBIDDEN = 403


class Scope(StrEnum):
    """What a route does; every route has one, named like the hook that refines it."""

    READ = "read"
    CREATE = "create"
    MANAGE = "manage"
    SEND_EVENT = "send_event"
    TICK = "tick"


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """What a hook may know. The body is not part of it: nothing has been read yet."""

    route: str
    """The name of the route, such as ``createInstance``; ``unknown`` for a path or method that does not exist."""
    method: str
    workflow: str | None
    """As it stands in the path: not checked, perhaps not registered."""
    instance_id: str | None
    headers: Mapping[str, str] = field(repr=False)
    """By name in any case."""


class Denied(Exception):  # noqa: N818  (a verdict, not a fault)
    """Raised by a hook to refuse a request. ``status`` is 401 (who are you?) or 403 (not you)."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        if status not in (401, _FORBIDDEN):
            raise InvalidOptionError(f"a request is denied with 401 or 403, not {status!r}")
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


Hook: TypeAlias = Callable[[AuthRequest], Awaitable[None]]


@dataclass(frozen=True)
class Authorize:
    """Async hooks that return ``None`` to allow a request, or raise ``Denied``.

    ``request`` covers every route, and the others refine it. Once any hook is set, a route that none covers is
    denied, and so is one whose hook breaks or takes longer than ``timeout``. Without hooks everything is allowed.

    Example::

        async def only_staff(request: AuthRequest) -> None:
            if request.headers.get("x-staff") != "yes":
                raise Denied(403, "staff only")

        app = Holdfast(authorize=Authorize(request=only_staff))
    """

    request: Hook | None = None
    create: Hook | None = None
    manage: Hook | None = None
    send_event: Hook | None = None
    tick: Hook | None = None
    read: Hook | None = None
    timeout: Duration = "10 seconds"
    """For each hook."""

    def __post_init__(self) -> None:
        for name in ("request", *Scope):
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise InvalidOptionError(f"Authorize({name}=...) takes an async function, not {hook!r}")
        if not to_ms(self.timeout, "Authorize(timeout=...)"):
            raise InvalidOptionError("Authorize(timeout=...) leaves the hooks no time at all")

    @property
    def open(self) -> bool:
        """Whether there is no hook at all."""
        return not any((self.request, self.create, self.manage, self.send_event, self.tick, self.read))

    async def check(self, request: AuthRequest, scope: Scope | None) -> None:
        """Return if the request may go on, else raise ``Denied``. Routes that do not exist have no scope."""
        if self.open:
            return
        refining: Hook | None = getattr(self, scope) if scope is not None else None
        hooks = [hook for hook in (self.request, refining) if hook is not None]
        if not hooks:
            raise Denied(_FORBIDDEN, "no rule allows this request")
        for hook in hooks:
            await _ask(hook, request, to_ms(self.timeout))


def check_authorize(given: Authorize | None) -> Authorize:
    """The policy of an app; none is an open one, and anything else is a mistake that must not pass for one."""
    if given is not None and not isinstance(given, Authorize):
        raise InvalidOptionError(f"authorize= takes an Authorize, not {type(given).__name__}")
    return given or Authorize()


async def _ask(hook: Hook, request: AuthRequest, most_ms: int) -> None:
    verdict: object = None
    limit = asyncio.timeout(most_ms / 1000)
    try:
        async with limit:
            verdict = await hook(request)  # type: ignore[func-returns-value]  # it may be the user's mistake
    except Denied:
        raise
    except Exception:
        if not limit.expired():
            _log.exception("an authorization hook broke on route %s; the request is denied", request.route)
            raise Denied(_FORBIDDEN, "the request could not be authorized") from None
    if limit.expired():  # also if it then answered all the same: one that catches everything knows nothing
        _log.error(
            "an authorization hook took longer than %s on route %s; the request is denied",
            describe(most_ms),
            request.route,
        )
        raise Denied(_FORBIDDEN, "the request could not be authorized")
    if verdict is not None:
        _log.error("an authorization hook answered a value on route %s, not None; the request is denied", request.route)
        raise Denied(_FORBIDDEN, "the request could not be authorized")


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
        needs: dict[str, Any] = {scope.value: self._needing(scope) for scope in Scope}
        super().__init__(request=self._known, **needs)

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

    async def _known(self, request: AuthRequest) -> None:
        self._scopes_of(request)

    def _needing(self, scope: Scope) -> Hook:
        async def hook(request: AuthRequest) -> None:
            if scope not in self._scopes_of(request):
                raise Denied(_FORBIDDEN, f"this token has no scope {scope.value!r}")

        return hook

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
