"""ASGI middleware in front of the dashboard's API: sign-in, sign-out, and the checks of requests with a cookie."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import Any

from pydantic import TypeAdapter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from holdfast.dashboard.sessions import COOKIE, LIFETIME, Sessions, is_csrf_token
from holdfast.http import bodies, responses
from holdfast.http.auth import Authorize, AuthRequest, Denied, HookTimeout, Scope
from holdfast.http.response_bodies import date
from holdfast.http.responses import Problem, reply
from holdfast.http.strict import strict

PATH = "/_session"
_SAFE_METHODS = ("GET", "HEAD")
_SAME_SITE = ("same-origin", "none", "")
_MAX_BODY = 10_000
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


@strict
class SignIn(TypedDict):
    token: str


_SIGN_IN = TypeAdapter(SignIn)


class SessionGate:
    """Serves ``_session``, and passes other requests to the API, with the token of their session."""

    def __init__(self, api: ASGIApp, *, sessions: Sessions, authorize: Authorize) -> None:
        self._api = api
        self._sessions = sessions
        self._authorize = authorize

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] != "http":
            await self._api(connection, receive, send)
            return
        try:
            response = await self._respond(connection, receive)
        except Exception as error:  # also for unexpected errors: the response shows no internals
            response = responses.problem_of(error).response()
        if response is None:
            await self._api(connection, receive, send)
        else:
            response.headers.update(_HEADERS)
            await response(connection, receive, send)

    async def _respond(self, connection: Connection, receive: Receive) -> Response | None:
        """The response to a request for ``_session``, or None after a request for the API was checked."""
        headers = Headers(scope=connection)
        self._check_site(connection, headers)
        path = connection["path"].removeprefix(connection.get("root_path", ""))
        if path == PATH and connection["method"] == "POST":
            return await self._sign_in(Request(connection, receive))
        self._attach(connection, headers)
        if path == PATH and connection["method"] == "DELETE":
            return self._sign_out(connection, headers)
        if path == PATH:
            raise Problem(405, responses.METHOD_NOT_ALLOWED, "allowed: DELETE, POST", headers={"allow": "DELETE, POST"})
        return None

    def _check_site(self, connection: Connection, headers: Headers) -> None:
        """Refuse a write that a page of another site makes a browser send. Scripts cannot set this header."""
        if connection["method"] not in _SAFE_METHODS and headers.get("sec-fetch-site", "") not in _SAME_SITE:
            raise Problem(403, responses.FORBIDDEN, "requests from other sites are refused (Sec-Fetch-Site)")

    def _attach(self, connection: Connection, headers: Headers) -> None:
        """Authorize a request by its cookie, unless it has an Authorization header of its own."""
        key = _cookie(headers)
        found = None if key is None or "authorization" in headers else self._sessions.find(key)
        if found is None:
            return
        authorization, session = found
        if connection["method"] not in _SAFE_METHODS and not is_csrf_token(session, headers.get("x-csrf-token", "")):
            raise Problem(
                403, "CSRF_TOKEN_INVALID", "this request needs the CSRF token of its session (X-CSRF-Token); see _me"
            )
        kept = [(name, value) for name, value in connection["headers"] if name != b"cookie"]
        connection["headers"] = [*kept, (b"authorization", authorization.encode("latin-1", "replace"))]
        session.attach(connection)

    async def _sign_in(self, request: Request) -> Response:
        body: SignIn = await bodies.read(request, _SIGN_IN, _MAX_BODY, required=True)
        token = body["token"].strip()
        await self._check_token(request, token)
        key, session = self._sessions.begin(token)
        response = reply({"csrfToken": session.csrf_token, "expiresAt": date(session.expires_at)})
        _set_cookie(response, request, key, int(LIFETIME.total_seconds()))
        return response

    async def _check_token(self, request: Request, token: str) -> None:
        """Raise unless the hooks allow a reading request with this token."""
        if self._authorize.open:
            raise Problem(400, responses.VALIDATION_ERROR, "this app has no authorize hooks; a session is not needed")
        client = request.scope.get("client")
        headers = Headers({**request.headers, "authorization": f"Bearer {token}"})
        asked = AuthRequest(
            "signIn", "GET", None, None, headers, scope=Scope.READ, client=client[0] if client else None
        )
        try:
            await self._authorize.run_request_hook(asked)
            await self._authorize.run_scope_hook(asked)
        except Denied as denied:
            raise Problem(denied.status, denied.code, denied.message) from None
        except HookTimeout:
            raise responses.authorization_timeout() from None

    def _sign_out(self, connection: Connection, headers: Headers) -> Response:
        key = _cookie(headers)
        if key is not None:
            self._sessions.end(key)
        body: dict[str, Any] = {"ok": True}
        response = reply(body)
        _set_cookie(response, Request(connection), "", 0)
        return response


def _cookie(headers: Headers) -> str | None:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel is not None and morsel.value else None


def _set_cookie(response: Response, request: Request, value: str, max_age: int) -> None:
    response.set_cookie(
        COOKIE, value, max_age=max_age, path=None, httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
