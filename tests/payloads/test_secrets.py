"""Secrets: refused without a key, and hidden in every reply of the HTTP API."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps import MakeApp
from holdfast import Context, Holdfast, Retry, RunFailedError, Secret
from holdfast.core.secret import has_secret
from holdfast.errors import DefinitionError
from holdfast.payloads import Aes, Zstd
from holdfast.testing import replay_file

CANARY = f"canary-{93}ab"  # the source of the code, which is shown too, does not contain it
KEY = Aes({"k1": b"k" * 32})


@dataclass
class Login:
    user: str
    password: Secret[str]


LOGIN: Any = {"user": "ann", "password": CANARY}
"""A login as a client sends it."""


def _workflow(app: Holdfast) -> None:
    @app.workflow
    async def enter(ctx: Context, login: Login) -> None: ...


def _event(app: Holdfast) -> None:
    @app.workflow(events={"login": Login})
    async def enter(ctx: Context) -> None: ...


def _step(app: Holdfast) -> None:
    @app.step
    async def enter() -> list[Login]:
        return []


def _graph(app: Holdfast) -> None:
    @app.graph("enter").node
    async def first(params: Login) -> None: ...


def _result_of_a_node(app: Holdfast) -> None:
    @app.graph("enter").node
    async def first() -> Secret[str]:
        return Secret("x")


def _chain(app: Holdfast) -> None:
    app.chain("enter", params=Login)


def _remote(app: Holdfast) -> None:
    app.remote("enter", params=Login)


def _own_codec(app: Holdfast) -> None:
    @app.workflow(codec=Zstd())
    async def enter(ctx: Context, login: Login) -> None: ...


KINDS = [_workflow, _event, _step, _graph, _result_of_a_node, _chain, _remote, _own_codec]


@pytest.mark.parametrize("define", KINDS, ids=lambda define: define.__name__)
async def test_an_app_that_would_store_a_secret_as_plain_text_does_not_open(define: Any) -> None:
    app = Holdfast("sqlite://", codec=KEY if define is _own_codec else None)
    define(app)

    with pytest.raises(DefinitionError, match=r"enter has a Secret\[...\] in its annotations"):
        async with app:
            pass


def _shop() -> Holdfast:
    app = Holdfast("sqlite://", codec=KEY)

    @app.step
    async def check(login: Login) -> Login:
        return {"user": login.user, "password": login.password.reveal()}  # type: ignore[return-value]

    @app.workflow
    async def child(ctx: Context, login: Login) -> Login:
        if login.user != "bob":  # the next run gets the secret as a plain value
            raise ctx.continue_as_new({"user": "bob", "password": login.password.reveal()})
        return {"user": login.user, "password": login.password.reveal()}  # type: ignore[return-value]

    @app.workflow(events={"login": Login})
    async def enter(ctx: Context, login: Login) -> Login:
        await check(login)
        sent = await ctx.wait_for_event("sent", type="login")
        returned = await ctx.run(child, sent.payload, id="c")
        ctx.log.info(f"checked {returned}", {"login": returned})
        await ctx.wait_for_event("go", type="go")
        return returned

    nodes = app.graph("nodes")

    @nodes.node
    async def first(params: Login) -> Login:
        return params

    @nodes.node(retry=Retry(limit=0))
    async def second(params: Login) -> Login:
        raise ValueError("decide this by hand")

    return app


async def _replies(app: Holdfast, path: str) -> dict[str, str]:
    """The replies to all requests that read an instance, by route."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app.asgi(debug=True)), base_url="http://test") as http:
        document = (await http.get("/api/workflows/openapi.json")).json()
        replies = {}
        for route, methods in document["paths"].items():
            if "get" not in methods or route.endswith(("_live", "{stream}")):
                continue
            asked = route.replace("{workflow}/instances/{instance_id}", path)
            if "{" not in asked:
                query = {"key": "check", "until": "1"} if route.endswith(("/step", "/replay")) else {}
                replies[route] = (await http.get(asked, params=query)).text
        return replies


async def _until(run: Any, text: str) -> None:
    async with asyncio.timeout(60):
        while text not in (await run.describe()).why:
            await asyncio.sleep(0.005)


async def test_no_reply_of_the_http_api_has_a_secret_that_a_client_sent() -> None:
    app = _shop()
    async with app:
        run = await app.start("enter", LOGIN, id="a")
        await run.send_event("login", LOGIN)
        await _until(run, "'go'")
        graph = await app.start("nodes", LOGIN, id="g")
        with pytest.raises(RunFailedError):
            await graph.result()
        await graph.resolve("second", result=LOGIN)
        await (await app.get("nodes", "g")).result()
        forked = await graph.fork(before="second", id="f", outputs={"first": LOGIN})
        with pytest.raises(RunFailedError):
            await forked.result()
        exported = [await _replies(app, "enter/instances/a"), await _replies(app, "nodes/instances/g")]
        exported.append(await _replies(app, "nodes/instances/f"))
        await run.send_event("go")
        result = await run.result()

    assert {route for replies in exported for route, text in replies.items() if CANARY in text} == set()
    assert {route.rpartition("/")[2] for route in exported[0]} >= {"export", "stack", "history", "mailbox", "timeline"}
    assert result.password.reveal() == CANARY


async def test_an_export_over_http_with_hidden_secrets_can_be_replayed(tmp_path: Path) -> None:
    app = _shop()
    async with app:
        run = await app.start("enter", LOGIN, id="a")
        await run.send_event("login", LOGIN)
        await _until(run, "'go'")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app.asgi()), base_url="http://test") as http:
            document = await http.get("/api/workflows/enter/instances/a/export")

    assert document.json()["run"]["params"] == {"user": "ann", "password": "[secret]"}
    (tmp_path / "run.json").write_bytes(document.content)
    await replay_file(app, tmp_path / "run.json")


@pytest.mark.above_the_store
@pytest.mark.parametrize("fields", range(1, 12))
def test_a_secret_is_found_although_an_alias_has_the_address_of_an_earlier_one(
    fields: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(name: str, **annotations: str) -> Any:
        cls = make_dataclass(name, annotations.items())
        cls.__module__ = __name__
        monkeypatch.setitem(globals(), name, cls)
        return cls

    for n in range(fields):
        made(f"Numbers{n}", value="list[int]")
    made("Passwords", value="list[Secret[str]]")

    assert has_secret(made("Both", **{f"n{n}": f"Numbers{n}" for n in range(fields)}, last="Passwords"))


async def test_schedules_are_shown_without_their_secrets_and_without_the_key(make_app: MakeApp) -> None:
    app = make_app(codec=[KEY])

    @app.workflow
    async def nightly(ctx: Context, params: dict[str, Secret[str]]) -> None: ...

    async with app.connect():
        created = await app.schedules.create("s", nightly, params={"token": "hunter2"}, every="1 hour")
    keyless = make_app()
    async with keyless.connect():
        [listed] = await keyless.schedules.list()

    assert created.params == {"token": "[secret]"}
    assert "hunter2" not in repr(created)
    assert "no codec" in listed.params["$unreadable"]
