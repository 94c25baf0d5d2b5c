"""Serving the ASGI application: alone, mounted in another application, with its own and with a custom lifespan."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from http_api import Api, client_of
from http_shop import make_shop
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import Holdfast, InvalidOptionError


@asynccontextmanager
async def running(api: Any) -> AsyncIterator[None]:
    """Run the lifespan of an application, as a server does."""
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    outbox: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(api({"type": "lifespan", "asgi": {}}, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    yield
    await inbox.put({"type": "lifespan.shutdown"})
    assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
    await task


async def assert_runs_complete(api: Any, base: str) -> None:
    async with client_of(api, base) as http:
        shop = Api(http)
        assert {"name": "echo"} in (await shop.get(""))["workflows"]
        created = await shop.create("echo", 5)
        assert (await shop.until("echo", created, "complete"))["details"]["output"] == 5


async def test_the_lifespan_opens_the_app_with_a_worker_and_closes_it() -> None:
    app, _ = make_shop()
    api = app.asgi()

    for _ in range(2):
        async with running(api):
            await assert_runs_complete(api, "http://test/api/workflows")
    async with client_of(api) as http:
        assert await Api(http).refused("GET", "/echo/instances") == (503, "APP_CLOSED")


async def test_the_lifespan_does_not_change_an_open_app() -> None:
    app, _ = make_shop()
    api = app.asgi()

    async with app:
        async with running(api):
            await assert_runs_complete(api, "http://test/api/workflows")
        await assert_runs_complete(api, "http://test/api/workflows")


@pytest.mark.parametrize("base", ["", "/", "/api/workflows", "/api/workflows/", "/deep/er/v1.2"])
async def test_the_api_can_be_served_under_any_path(base: str) -> None:
    app, _ = make_shop()
    async with app:
        await assert_runs_complete(app.asgi(api=base), f"http://test{base.rstrip('/')}")


@pytest.mark.parametrize("base", ["api", "/a b", "/{x}", "//", "/a//b", None])
def test_an_invalid_base_path_is_refused(base: Any) -> None:
    app, _ = make_shop()

    with pytest.raises(InvalidOptionError):
        app.asgi(api=base)


def test_a_second_api_makes_no_validators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validators of the bodies belong to the modules: making them takes ten times as long as the rest of an API."""
    Holdfast("sqlite://").asgi()
    made: list[object] = []
    monkeypatch.setattr(TypeAdapter, "__init__", lambda _, *args, **__: made.append(args))

    Holdfast("sqlite://").asgi()

    assert made == []


async def test_the_api_can_be_mounted_in_fastapi_with_the_apps_lifespan() -> None:
    app, _ = make_shop()
    outer = FastAPI(lifespan=app.lifespan)
    outer.mount("/flows", app.asgi())

    @outer.get("/hello")
    async def hello() -> str:
        return "hello"

    async with running(outer):
        await assert_runs_complete(outer, "http://test/flows/api/workflows")
        async with client_of(outer, "http://test") as http:
            assert (await http.get("/hello")).json() == "hello"
            assert "x-frame-options" not in (await http.get("/hello")).headers
            document = (await http.get("/flows/api/workflows/openapi.json")).json()
    assert document["servers"] == [{"url": "/flows"}]
    assert "/api/workflows/echo/instances" in document["paths"]


async def test_the_api_can_be_mounted_in_starlette_with_a_custom_lifespan() -> None:
    app, _ = make_shop()
    events = []

    @asynccontextmanager
    async def lifespan(asgi: Any) -> AsyncIterator[None]:
        events.append("custom opens")
        async with app.lifespan(asgi):
            yield
        events.append("custom closes")

    outer = Starlette(routes=[Mount("/a/b", app.asgi(api=""))], lifespan=lifespan)
    async with running(outer), client_of(outer, "http://test/a/b") as http:
        assert (await Api(http).get("/"))["workflows"]
        assert await Api(http).create("echo", 1, id="e")
    assert events == ["custom opens", "custom closes"]


async def test_a_route_added_by_the_user_is_behind_the_gate() -> None:
    from holdfast import Authorize, AuthRequest

    async def allow(_request: AuthRequest) -> None: ...

    app, _ = make_shop(authorize=Authorize(read=allow, create=allow))
    api = app.asgi()

    @api.get("/more")
    async def more() -> str:
        return "more"

    async with client_of(api, "http://test") as http:
        assert (await http.get("/more")).status_code == 403


async def test_a_workflow_registered_later_is_served() -> None:
    app, _ = make_shop()
    api = app.asgi()

    @app.workflow
    async def late(_ctx: Any, value: int) -> int:
        return value

    async with app, client_of(api) as http:
        assert "/api/workflows/late/instances" in (await Api(http).get("/openapi.json"))["paths"]
        assert await Api(http).create("late", 1)


# --- real servers

PROGRAM = """
import sys
sys.path.insert(0, {here!r})
from http_shop import make_shop
app, _ = make_shop({url!r})
api = app.asgi()
"""


@contextmanager
def uvicorn_of(directory: Path, port: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    source = PROGRAM.format(here=str(Path(__file__).parent), url=f"sqlite:///{directory / 'shop.db'}")
    (directory / "served.py").write_text(source)
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "served:api", "--port", str(port), "--log-level", "warning", *options],
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(port, "")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            assert process.stderr is not None
            process.stderr.close()


def wait_for(port: int, path: str, accept: Any = None) -> Any:
    """Repeat a request until the server responds and ``accept`` is true of the response; return the response."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            response = httpx.get(f"http://127.0.0.1:{port}/api/workflows{path}").json()
            if accept is None or accept(response):
                return response
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"no such response at {path}")


def free_port() -> int:
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def complete(response: Any) -> bool:
    return bool(response.get("details", {}).get("status") == "complete")


def test_several_server_processes_share_one_file(tmp_path: Path) -> None:
    port = free_port()
    with uvicorn_of(tmp_path, port, "--workers", "2"):
        for n in range(20):
            body = {"id": f"e{n}", "params": n}
            assert httpx.post(f"http://127.0.0.1:{port}/api/workflows/echo/instances", json=body).status_code == 200
        for n in range(20):
            assert wait_for(port, f"/echo/instances/e{n}", complete)["details"]["output"] == n


def test_a_reload_serves_the_new_code(tmp_path: Path) -> None:
    port = free_port()
    with uvicorn_of(tmp_path, port, "--reload"):
        httpx.post(f"http://127.0.0.1:{port}/api/workflows/echo/instances", json={"id": "e", "params": 1})
        wait_for(port, "/echo/instances/e", complete)
        more = "\n@app.workflow\nasync def added(ctx):\n    return 1\n"
        served = tmp_path / "served.py"
        time.sleep(1.1)  # a reloader that compares modification times may have a resolution of one second
        served.write_text(served.read_text() + more)

        wait_for(port, "", lambda response: {"name": "added"} in response.get("workflows", ()))
        assert wait_for(port, "/echo/instances/e", complete)["details"]["output"] == 1
