"""Authorization: every route with every kind of caller; a denied request changes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from http_api import Api, client_of
from http_shop import make_shop

from holdfast import Authorize, AuthRequest, BearerTokens, Denied, InputError, InvalidOptionError
from holdfast.http.auth import Scope
from holdfast.testing import Harness

ROUTES = [
    ("GET", "", "listWorkflows", "read"),
    ("GET", "/", "listWorkflows", "read"),
    ("GET", "/waiter/instances", "listInstances", "read"),
    ("GET", "/_instances", "listAllInstances", "read"),
    ("POST", "/waiter/instances", "createInstance", "create"),
    ("POST", "/waiter/instances/batch", "createInstances", "create"),
    ("GET", "/waiter/instances/w", "getInstance", "read"),
    ("POST", "/waiter/instances/w/pause", "pauseInstance", "manage"),
    ("POST", "/waiter/instances/w/resume", "resumeInstance", "manage"),
    ("POST", "/waiter/instances/w/terminate", "terminateInstance", "manage"),
    ("POST", "/waiter/instances/w/restart", "restartInstance", "manage"),
    ("POST", "/waiter/instances/w/cancel", "cancelInstance", "manage"),
    ("POST", "/waiter/instances/w/move", "moveInstance", "manage"),
    ("POST", "/waiter/instances/w/retry", "retryInstance", "manage"),
    ("POST", "/waiter/instances/w/fork", "forkInstance", "manage"),
    ("POST", "/waiter/instances/w/resolve", "resolveStep", "manage"),
    ("POST", "/waiter/instances/w/reply", "replyToAsk", "manage"),
    ("DELETE", "/waiter/instances/w", "deleteInstance", "manage"),
    ("GET", "/waiter/instances/w/timeline", "getTimeline", "read"),
    ("GET", "/waiter/instances/w/step?key=go", "getStep", "read"),
    ("GET", "/waiter/instances/w/facts/all", "listFacts", "read"),
    ("GET", "/waiter/instances/w/mailbox", "getMailbox", "read"),
    ("GET", "/waiter/instances/w/family", "getFamily", "read"),
    ("GET", "/waiter/instances/w/streams", "listStreams", "read"),
    ("GET", "/waiter/instances/w/source", "getSource", "debug"),
    ("GET", "/pipeline/instances/w/graph", "getGraph", "read"),
    ("GET", "/pipeline/instances/w/graph/items?node=numbers", "listItems", "read"),
    ("GET", "/order.process/instances/w/chain", "getChain", "read"),
    ("GET", "/_definitions", "listDefinitions", "read"),
    ("GET", "/_attention", "getAttention", "read"),
    ("GET", "/_series", "getSeries", "read"),
    ("GET", "/waiter/instances/w/audit", "getAudit", "read"),
    ("GET", "/_audit", "getAllAudit", "read"),
    ("POST", "/_bulk", "startBulk", "manage"),
    ("GET", "/_bulk/none", "getBulk", "manage"),
    ("POST", "/waiter/instances/w/events", "sendEvent", "send_event"),
    ("GET", "/waiter/instances/w/result", "getResult", "read"),
    ("GET", "/waiter/instances/w/history", "getHistory", "read"),
    ("GET", "/waiter/instances/w/history/0", "getRunHistory", "read"),
    ("GET", "/pipeline/mermaid", "drawGraph", "read"),
    ("GET", "/pipeline/instances/w/facts", "getFacts", "read"),
    ("GET", "/pipeline/instances/w/mermaid", "drawInstance", "read"),
    ("POST", "/pipeline/instances/w/kill", "killInstance", "manage"),
    ("GET", "/order.process/instances/w/outbox", "getOutbox", "read"),
    ("POST", "/order.process/instances/w/outbox/redeliver", "redeliverOutbox", "manage"),
    ("GET", "/waiter/instances/w/stack", "getStack", "debug"),
    ("GET", "/waiter/instances/w/replay", "replayInstance", "debug"),
    ("GET", "/waiter/instances/w/positions", "getPositions", "debug"),
    ("GET", "/waiter/instances/w/export", "exportInstance", "read"),
    ("POST", "/_runner/tick", "tick", "tick"),
    ("GET", "/_stats", "getStats", "read"),
    ("GET", "/_workers", "listWorkers", "read"),
    ("GET", "/_queues", "listQueues", "read"),
    ("GET", "/_me", "getMe", "read"),
    ("GET", "/_versions", "listVersions", "read"),
    ("GET", "/_limits", "listLimits", "read"),
    ("GET", "/_limits/none/keys", "listLimitKeys", "read"),
    ("PUT", "/_limits/none", "changeLimit", "operate"),
    ("POST", "/_queues/q/pause", "pauseQueue", "operate"),
    ("POST", "/_queues/q/resume", "resumeQueue", "operate"),
    ("POST", "/_queues/q/move", "moveQueue", "operate"),
    ("POST", "/_workers/one/drain", "drainWorker", "operate"),
    ("POST", "/_workers/one/resume", "resumeWorker", "operate"),
    ("GET", "/_schedules", "listSchedules", "read"),
    ("POST", "/_schedules", "createSchedule", "operate"),
    ("GET", "/_schedules/s", "getSchedule", "read"),
    ("GET", "/_schedules/s/preview", "previewSchedule", "read"),
    ("PATCH", "/_schedules/s", "updateSchedule", "operate"),
    ("POST", "/_schedules/s/pause", "pauseSchedule", "operate"),
    ("POST", "/_schedules/s/resume", "resumeSchedule", "operate"),
    ("POST", "/_schedules/s/trigger", "triggerSchedule", "operate"),
    ("POST", "/_schedules/s/backfill", "backfillSchedule", "operate"),
    ("DELETE", "/_schedules/none", "deleteSchedule", "operate"),
    ("GET", "/_health", "getHealth", "read"),
    ("GET", "/openapi.json", "getOpenapi", "read"),
]
OF_EACH_KIND = ("waiter", "pipeline", "order.process")
UNKNOWN = [
    ("GET", "/none"),
    ("PUT", "/waiter/instances/w"),
    ("GET", "/waiter/instances/w/health"),
    ("GET", "/waiter/instances/_health/live"),
    ("GET", "/waiter/instances/w/..;/_health/live"),
    ("GET", "/waiter/instances/w%2f_health%2flive"),
    ("POST", "/waiter/instances/w/ready"),
    ("GET", "/pipeline/instances/w/facts/meta"),
    ("GET", "/pipeline/instances/mermaid/w"),
    ("POST", "/order.process/instances/w/redeliver"),
    ("GET", "/_health/live/"),
    ("GET", "/_health/live%0A"),
]
REFUSED = {
    "retryInstance": (409,),
    "resolveStep": (409,),
    "replyToAsk": (409,),
    "forkInstance": (409,),
    "getBulk": (404,),
    "deleteSchedule": (404,),
    "changeLimit": (404,),
    "listLimitKeys": (404,),
    "drainWorker": (404,),
    "resumeWorker": (404,),
    "deleteInstance": (409,),
    "getSource": (404,),
}
"""Routes that the state of the instance does not allow, after the hooks have."""
TOKENS = {scope.value: f"token-with-scope-{scope.value}-0123456789" for scope in Scope}


def ids(case: Any) -> str:
    return f"{case[0]} {case[1]}" if isinstance(case, tuple) else str(case)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def serve(tmp_path: Path, authorize: Authorize | None) -> AsyncIterator[tuple[Api, Path]]:
    """A database file with a paused instance of each kind, and the API over it, without a worker."""
    path = tmp_path / "shop.db"
    app, _ = make_shop(f"sqlite:///{path}", authorize=authorize)
    async with app.connect():
        for workflow in OF_EACH_KIND:
            run = await app.start(workflow, id="w")
            await run.pause()
        await app.schedules.create("s", OF_EACH_KIND[0], every="1 day")
        async with client_of(app.asgi(tick=True, debug=True)) as http:
            yield Api(http), path


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[tuple[Api, Path]]:
    async for served in serve(tmp_path, BearerTokens({token: [scope] for scope, token in TOKENS.items()})):
        yield served


def contents(path: Path) -> bytes:
    """Header of the WAL index, which every committed transaction changes."""
    return path.with_name(path.name + "-shm").read_bytes()[:48]


async def test_a_write_changes_the_contents(tmp_path: Path) -> None:
    async for api, path in serve(tmp_path, None):
        before = contents(path)
        assert contents(path) == before
        await api.send("POST", "/waiter/instances", json={"id": "new"})
        assert contents(path) != before


def body_of(method: str, route: str) -> dict[str, Any]:
    bodies = {
        "createInstances": {"instances": [{"id": "new"}]},
        "sendEvent": {"type": "go"},
        "moveInstance": {"version": "v2"},
        "forkInstance": {"before": "go"},
        "startBulk": {"action": "retry", "filter": {"status": "errored"}},
        "resolveStep": {"stepKey": "go", "result": 1},
        "replyToAsk": {"eventId": "0:1"},
        "createSchedule": {"name": "new", "workflow": "waiter", "every": "1 day"},
        "updateSchedule": {"every": "2 days"},
        "moveQueue": {"to": "other"},
        "backfillSchedule": {"start": "2030-01-01T00:00:00Z", "end": "2030-01-01T01:00:00Z"},
    }
    return {"json": bodies.get(route, {})} if method in ("POST", "PATCH", "PUT") else {}


async def test_every_route_is_in_the_table() -> None:
    app, _ = make_shop()
    served = {(method, route.name) for route in app.asgi().routes for method in route.methods}  # type: ignore[attr-defined]

    # These do not end, and are tested in test_http_live.py and test_http_streams.py.
    streams = {("GET", "getLive"), ("GET", "getStream")}
    assert served == {(method, name) for method, _, name, _ in ROUTES} | {("GET", "getLiveness")} | streams


async def test_without_hooks_every_route_is_open(tmp_path: Path) -> None:
    async for api, _ in serve(tmp_path, None):
        for method, path, route, _ in ROUTES:
            for headers in ({}, bearer("wrong"), bearer(TOKENS["read"])):
                response = await api.send(method, path, headers=headers, **body_of(method, route))
                assert response.status_code not in (401, 403), response.text


@pytest.mark.parametrize("case", ROUTES, ids=ids)
async def test_with_tokens_each_route_needs_its_scope(
    guarded: tuple[Api, Path], case: tuple[str, str, str, str]
) -> None:
    api, path_of_file = guarded
    method, path, route, scope = case
    before = contents(path_of_file)

    async def status(headers: dict[str, str]) -> int:
        return (await api.send(method, path, headers=headers, **body_of(method, route))).status_code

    for headers in (
        {},
        bearer("wrong"),
        bearer(""),
        bearer(TOKENS[scope] + "x"),
        bearer(TOKENS[scope][:-1]),
        {"Authorization": TOKENS[scope]},
        {"Authorization": f"Basic {TOKENS[scope]}"},
        {"X-Authorization": f"Bearer {TOKENS[scope]}"},
    ):
        assert await status(headers) == 401, headers
    for other, token in TOKENS.items():
        if other != scope:
            assert await status(bearer(token)) == 403, other
    assert contents(path_of_file) == before

    assert await status(bearer(TOKENS[scope])) in (200, 202, *REFUSED.get(route, ()))
    assert await status({"authorization": f"bearer  {TOKENS[scope]}"}) in (200, 202, 409, *REFUSED.get(route, ()))


@pytest.mark.parametrize("case", UNKNOWN, ids=ids)
async def test_an_unknown_path_is_behind_the_gate_too(guarded: tuple[Api, Path], case: tuple[str, str]) -> None:
    api, _ = guarded

    assert await api.refused(*case) == (401, "UNAUTHORIZED")
    status, _ = await api.refused(*case, headers=bearer(TOKENS["read"]))
    assert status in (404, 405)


async def test_only_liveness_needs_no_authorization(guarded: tuple[Api, Path]) -> None:
    api, _ = guarded

    assert await api.get("/_health/live") == {"status": "ok"}
    response = await api.send("GET", "/_health")
    assert (response.status_code, response.json()["code"]) == (401, "UNAUTHORIZED")
    assert response.headers["www-authenticate"] == "Bearer"


# --- hooks


class Hook:
    """A hook that records its requests and may raise an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.requests: list[AuthRequest] = []
        self._error = error

    async def __call__(self, request: AuthRequest) -> None:
        self.requests.append(request)
        if self._error is not None:
            raise self._error


async def test_a_request_hook_covers_every_route_and_receives_the_request(tmp_path: Path) -> None:
    hook = Hook(Denied(403, "not you"))
    async for api, file in serve(tmp_path, Authorize(request=hook)):
        before = contents(file)
        for method, path, route, _ in ROUTES:
            hook.requests.clear()
            response = await api.send(method, path, headers={"X-Who": "ann"}, **body_of(method, route))
            assert (response.status_code, response.json()) == (403, {"message": "not you", "code": "FORBIDDEN"}), route
            assert contents(file) == before, route

            [request] = hook.requests
            assert (request.route, request.method) == (route, method)
            assert request.workflow == next((name for name in OF_EACH_KIND if f"/{name}/" in path), None)
            assert request.instance_id == ("w" if path.endswith("/w") or "/w/" in path else None)
            assert request.headers["x-who"] == request.headers["X-WHO"] == "ann"
            assert "ann" not in repr(request)


@pytest.mark.parametrize("case", ROUTES, ids=ids)
async def test_a_refining_hook_covers_its_routes(tmp_path: Path, case: tuple[str, str, str, str]) -> None:
    method, path, route, scope = case
    hook = Hook()
    async for api, _ in serve(tmp_path, Authorize(**{scope: hook})):
        response = await api.send(method, path, **body_of(method, route))

    assert response.is_success or response.status_code in REFUSED.get(route, ())
    assert len(hook.requests) == (2 if route == "getMe" else 1)  # getMe also asks what is allowed


@pytest.mark.parametrize("name", [scope.value for scope in Scope])
async def test_with_only_a_refining_hook_the_routes_of_other_scopes_are_denied(tmp_path: Path, name: str) -> None:
    hook = Hook()
    async for api, file in serve(tmp_path, Authorize(**{name: hook})):
        before = contents(file)
        for method, path, route, scope in ROUTES:
            if scope != name:
                response = await api.send(method, path, **body_of(method, route))
                assert (response.status_code, response.json()["code"]) == (403, "FORBIDDEN"), route
        assert contents(file) == before

    assert hook.requests == []


async def test_a_refining_hook_may_refuse_what_the_request_hook_allows(tmp_path: Path) -> None:
    request, manage = Hook(), Hook(Denied(401, "who are you?"))
    async for api, _ in serve(tmp_path, Authorize(request=request, manage=manage)):
        assert await api.refused("POST", "/waiter/instances/w/terminate") == (401, "UNAUTHORIZED")
        assert await api.get("/waiter/instances/w")
    assert (len(request.requests), len(manage.requests)) == (2, 1)


async def test_a_refining_hook_is_not_called_if_the_request_hook_refuses(tmp_path: Path) -> None:
    request, read = Hook(Denied(401, "no")), Hook()
    async for api, _ in serve(tmp_path, Authorize(request=request, read=read)):
        assert await api.refused("GET", "") == (401, "UNAUTHORIZED")
    assert read.requests == []


async def returns_true(_request: AuthRequest) -> Any:
    return True


async def returns_false(_request: AuthRequest) -> Any:
    return False


async def denies_with_500(_request: AuthRequest) -> None:
    raise Denied(500, "what?")


@pytest.mark.parametrize(
    "hook",
    [Hook(ValueError("secret-in-error")), Hook(TimeoutError()), returns_true, returns_false, denies_with_500],
    ids=["raises", "times out", "returns True", "returns False", "denies with 500"],
)
@pytest.mark.parametrize("name", ["request", "create"])
async def test_a_failing_hook_denies_the_request_and_is_logged(
    tmp_path: Path, hook: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async for api, file in serve(tmp_path, Authorize(**{name: hook})):
        before = contents(file)
        response = await api.send("POST", "/waiter/instances", json={})
        assert (response.status_code, response.json()["code"]) == (403, "FORBIDDEN")
        assert "secret" not in response.text
        assert contents(file) == before
    assert any("authorization hook" in record.message for record in caplog.records)


async def hangs(_request: AuthRequest) -> None:
    await asyncio.get_running_loop().create_future()


async def hangs_and_then_allows(_request: AuthRequest) -> None:
    with suppress(BaseException):
        await asyncio.get_running_loop().create_future()


async def hangs_and_then_raises(_request: AuthRequest) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        raise ValueError("secret-in-error")


@pytest.mark.parametrize("hook", [hangs, hangs_and_then_allows, hangs_and_then_raises])
@pytest.mark.parametrize("name", ["request", "create"])
async def test_a_hook_timeout_is_503_and_is_logged(
    tmp_path: Path, hook: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async for api, file in serve(tmp_path, Authorize(**{name: hook}, timeout="50 ms")):
        before = contents(file)
        response = await api.send("POST", "/waiter/instances", json={})
        assert (response.status_code, response.json()["code"]) == (503, "AUTHORIZATION_TIMEOUT")
        assert "secret" not in response.text
        assert contents(file) == before
    assert [record.message for record in caplog.records if "authorization hook" in record.message] == [
        "an authorization hook took longer than 50 ms on route createInstance; the response is 503"
    ]


async def test_a_slow_hook_within_the_timeout_decides(tmp_path: Path) -> None:
    async def slow(_request: AuthRequest) -> None:
        await asyncio.sleep(0.1)

    async for api, _ in serve(tmp_path, Authorize(request=slow)):
        assert await api.get("")


async def test_cancelling_the_request_cancels_its_hook() -> None:
    call = asyncio.create_task(Authorize(request=hangs).run_request_hook(_auth_request()))
    await asyncio.sleep(0)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call


def _auth_request() -> AuthRequest:
    return AuthRequest(route="unknown", method="GET", workflow=None, instance_id=None, headers={})


@pytest.mark.parametrize("timeout", [0, -1, "soon", None])
def test_an_invalid_hook_timeout_is_refused(timeout: Any) -> None:
    with pytest.raises(InputError, match="timeout"):
        Authorize(request=hangs, timeout=timeout)


async def test_the_harness_calls_the_apps_hooks() -> None:
    hook = Hook(Denied(403, "not you"))
    app, _ = make_shop(authorize=Authorize(request=hook))
    async with Harness(app) as h, client_of(h.app.asgi()) as http:
        assert await Api(http).refused("POST", "/waiter/instances", json={}) == (403, "FORBIDDEN")
    assert len(hook.requests) == 1


async def test_hooks_run_before_anything_is_read(tmp_path: Path) -> None:
    read = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read = True
        yield b"{}"

    async def receive() -> Any:
        nonlocal read
        read = True
        return {"type": "http.request", "body": b"{}", "more_body": False}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    app, _ = make_shop(authorize=Authorize(request=Hook(Denied(401, "no"))))
    scope = {
        "type": "http", "method": "POST", "path": "/api/workflows/unknown/instances", "root_path": "",
        "query_string": b"pageSize=x", "headers": [(b"content-length", b"2")], "server": ("test", 80),
    }  # fmt: skip
    await app.asgi()(scope, receive, send)  # the app is not open

    assert sent[0]["status"] == 401
    assert not read


def test_a_request_cannot_be_denied_with_another_status_than_4xx() -> None:
    for status in (200, 302, 399, 500, 503, True, "403", 403.5):
        with pytest.raises(InvalidOptionError, match="400 to 499"):
            Denied(status, "no")  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", [{"a b": "c"}, {"A": "b\r\nSet-Cookie: c"}, {"A": 5}, {"": "b"}, {"A": "\u20ac"}])
def test_a_denial_refuses_headers_that_http_cannot_send(headers: Any) -> None:
    with pytest.raises(InvalidOptionError, match="headers"):
        Denied(403, "no", headers=headers)


@pytest.mark.parametrize(
    ("denied", "code"),
    [
        (Denied(400, "no"), "BAD_REQUEST"),
        (Denied(402, "no"), "PAYMENT_REQUIRED"),
        (Denied(404, "no"), "NOT_FOUND"),
        (Denied(404, "no", code="INSTANCE_NOT_FOUND"), "INSTANCE_NOT_FOUND"),
        (Denied(429, "no", headers={"Retry-After": "7"}), "TOO_MANY_REQUESTS"),
        (Denied(498, "no"), "DENIED"),
    ],
)
@pytest.mark.parametrize("name", ["request", "read"])
async def test_a_hook_denies_with_any_4xx_and_headers(tmp_path: Path, denied: Denied, code: str, name: str) -> None:
    async for api, _ in serve(tmp_path, Authorize(**{name: Hook(denied)})):
        response = await api.send("GET", "/waiter/instances/w")
        assert (response.status_code, response.json()) == (denied.status, {"message": "no", "code": code})
        assert response.headers.get("retry-after") == denied.headers.get("Retry-After")


def is_not_async(_request: AuthRequest) -> Any:
    return None


class HookThatIsNotAsync:
    def __call__(self, request: AuthRequest) -> Any:
        return None


@pytest.mark.parametrize("name", ["request", *(scope.value for scope in Scope)])
@pytest.mark.parametrize("hook", [is_not_async, HookThatIsNotAsync(), lambda request: Hook()(request)])
def test_a_hook_that_is_not_async_is_refused_when_it_is_defined(name: str, hook: Any) -> None:
    with pytest.raises(InvalidOptionError, match=rf"Authorize\({name}=...\) takes an async function"):
        Authorize(**{name: hook})


def test_every_kind_of_async_function_is_a_hook() -> None:
    async def plain(_request: AuthRequest) -> None: ...

    async def with_more(_more: int, _request: AuthRequest) -> None: ...

    Authorize(request=plain, read=Hook(), create=partial(with_more, 1), manage=Hook().__call__)


def test_a_hook_has_five_seconds_by_default() -> None:
    assert Authorize().timeout == "5 seconds"


def test_a_value_that_is_not_a_hook_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="request"):
        Authorize(request=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="Authorize"):
        make_shop(authorize=returns_true)


# --- tokens


async def test_a_token_may_have_several_scopes_and_there_may_be_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKENS", " first-token-0123456789:read+create, second:with:colons-0123:read ,")
    async for api, _ in serve(tmp_path, BearerTokens.from_environment()):
        for token, expected in (("first-token-0123456789", 200), ("second:with:colons-0123", 403)):
            assert (await api.send("GET", "", headers=bearer(token))).status_code == 200
            created = await api.send("POST", "/waiter/instances", json={}, headers=bearer(token))
            assert created.status_code == expected


@pytest.mark.promise("no-secrets", store=None)
@pytest.mark.parametrize(
    "value",
    ["", " , ", "a-long-token-without-scopes", "a-long-enough-token:", "a-long-enough-token:owner", "short:read",
     "a-long-enough-token:read+", "token with a space:read", "tökens-are-plain-text:read"],
)  # fmt: skip
def test_invalid_tokens_are_refused_without_showing_them(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKENS", value)

    with pytest.raises(InvalidOptionError) as caught:
        BearerTokens.from_environment()

    assert "enough" not in str(caught.value)


@pytest.mark.promise("no-secrets", store=None)
def test_tokens_are_not_kept_in_plain_text() -> None:
    policy = BearerTokens({"a-long-enough-token": ["read"]})

    assert "a-long-enough-token" not in repr(policy) + repr(vars(policy))


def test_tokens_that_would_deny_everything_are_refused() -> None:
    with pytest.raises(InvalidOptionError):
        BearerTokens({})
    with pytest.raises(InvalidOptionError):
        BearerTokens({"a-long-enough-token": "read"})


@pytest.mark.promise("no-secrets")
async def test_no_token_is_logged(guarded: tuple[Api, Path], caplog: pytest.LogCaptureFixture) -> None:
    api, _ = guarded
    with caplog.at_level(logging.DEBUG):
        for token in (TOKENS["read"], "wrong-token-0123456789"):
            await api.send("GET", "", headers=bearer(token))
            await api.send("POST", "/waiter/instances", headers=bearer(token), content=b"{")

    assert "0123456789" not in caplog.text
