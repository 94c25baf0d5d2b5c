"""The gate: host names, origins, response headers, and errors that reveal nothing."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from http_api import Api, client_of, opened
from http_shop import make_shop

from holdfast import Holdfast, StoreFullError, StoreUnavailableError
from holdfast.client import Client
from holdfast.client.instances import Instances
from holdfast.client.reads import RunReader
from holdfast.client.starts import Starts

LOOPBACK = "http://127.0.0.1:8787/api/workflows"


async def status(api: Any, *, base: str = LOOPBACK, method: str = "GET", path: str = "", **headers: str) -> int:
    async with client_of(api, base) as http:
        return (await Api(http).send(method, path, headers=headers)).status_code


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8787", "localhost", "LOCALHOST:1", "[::1]", "[::1]:8787"])
@pytest.mark.parametrize("path", ["", "/none", "/openapi.json", "/_health/live"])
async def test_a_loopback_server_accepts_loopback_host_names(host: str, path: str) -> None:
    app, _ = make_shop()

    assert await status(app.asgi(), path=path, Host=host) in (200, 404)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8787", "127.0.0.1.evil.example", "localhost.evil.example", "", "127.0.0.1:x",
     "user@127.0.0.1", "127.0.0.1/x", "0.0.0.0", "127.0.0.1, evil.example", "[::1", "2130706433"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["", "/none", "/openapi.json", "/_health/live"])
async def test_a_loopback_server_refuses_other_host_names(host: str, path: str) -> None:
    app, _ = make_shop()

    assert await status(app.asgi(), path=path, Host=host) == 403


@pytest.mark.parametrize("host", ["localhost", "[::1]:8787", "127.9.9.9", "[::ffff:127.0.0.1]"])
async def test_every_loopback_address_is_recognized(host: str) -> None:
    app, _ = make_shop()
    base = f"http://{host}/api/workflows"

    assert await status(app.asgi(), base=base, Host="localhost") == 200
    assert await status(app.asgi(), base=base, Host="evil.example") == 403


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", "http://127.0.0.1.evil.example", "file://"])
async def test_a_loopback_server_refuses_requests_of_other_sites(origin: str, method: str) -> None:
    app, _ = make_shop()
    async with app:
        assert await status(app.asgi(), method=method, path="/waiter/instances", Origin=origin) == 403
        assert (await app.list("waiter")).items == []


async def test_a_loopback_server_accepts_loopback_origins() -> None:
    app, _ = make_shop()

    for origin in ("http://127.0.0.1:8787", "http://localhost:3000", "http://[::1]:8787"):
        assert await status(app.asgi(), Origin=origin) == 200


async def test_more_names_can_be_allowed_for_a_proxy() -> None:
    app, _ = make_shop()
    api = app.asgi(hosts=["Flows.Example"])

    assert await status(api, Host="flows.example:443", Origin="https://flows.example") == 200
    assert await status(api, Host="other.example") == 403


async def test_a_server_on_another_address_accepts_any_host_name() -> None:
    app, _ = make_shop()

    assert await status(app.asgi(), base="http://10.0.0.5/api/workflows", Host="flows.example") == 200


async def test_there_is_no_cors() -> None:
    app, _ = make_shop()
    async with client_of(app.asgi()) as http:
        response = await http.options(
            "", headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
        )
        assert response.status_code == 405
        assert not [name for name in response.headers if name.startswith("access-control")]


async def test_every_response_has_the_security_headers(api: Api) -> None:
    for method, path in (("GET", ""), ("GET", "/none"), ("PUT", ""), ("POST", "/echo/instances"), ("GET", "/_health")):
        response = await api.send(method, path)
        assert response.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in response.headers


async def test_a_websocket_is_refused() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    app, _ = make_shop()
    await app.asgi()({"type": "websocket", "path": "/api/workflows", "headers": []}, receive, send)

    assert sent == [{"type": "websocket.close", "code": 1008}]


# --- errors


async def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> tuple[int, Any]:
    async def fail(*_args: Any, **_options: Any) -> Any:
        raise error

    for part, name in (
        (Client, "check"),
        (Instances, "list"),
        (RunReader, "describe"),
        (RunReader, "history_page"),
        (Starts, "create"),
    ):
        monkeypatch.setattr(part, name, fail)
    app, _ = make_shop()
    responses = set()
    async with opened(app) as api:
        for method, path in (
            ("GET", "/waiter/instances"),
            ("GET", "/waiter/instances/w"),
            ("GET", "/waiter/instances/w/history"),
            ("POST", "/waiter/instances"),
            ("GET", "/_health"),
        ):
            response = await api.send(method, path, **({"json": {}} if method == "POST" else {}))
            responses.add((response.status_code, response.text))
    [(code, text)] = responses
    return code, text


@pytest.mark.promise("no-secrets")
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("secret /etc/shop SELECT * FROM holdfast_run"),
        sqlite3.OperationalError("secret"),
        KeyError("secret"),
        RecursionError("secret"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_internal_error_is_logged_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    code, text = await failing(monkeypatch, error)

    assert code == 500
    assert text == '{"message":"internal server error; the server\'s log has the details","code":"INTERNAL_ERROR"}'
    assert "secret" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.promise("no-secrets")
@pytest.mark.parametrize("error", [StoreUnavailableError("/secret/shop.db is gone"), StoreFullError("/secret full")])
async def test_an_unavailable_store_is_503_and_its_error_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Any
) -> None:
    code, text = await failing(monkeypatch, error)

    assert code == 503
    assert error.code in text
    assert "secret" not in text
    assert "secret" in caplog.text


async def test_an_app_that_is_not_open_is_alive_but_not_ready() -> None:
    app = Holdfast("sqlite://")
    async with client_of(app.asgi()) as http:
        api = Api(http)
        assert await api.get("/_health/live") == {"status": "ok"}
        assert await api.refused("GET", "/_health") == (503, "APP_CLOSED")
        assert "the app is not open" in (await http.get("/_health")).text
        async with app.connect():
            assert await api.get("/_health") == {"status": "ok"}
        assert await api.refused("GET", "/_health") == (503, "APP_CLOSED")
