"""Streams over HTTP: server-sent events, the list of streams, and the command line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from http_api import Api, client_of

from holdfast import Authorize, Context, Denied, Holdfast, Retry, step_info


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("sqlite://")

    @app.step(retry=Retry(limit=1, delay="0 seconds", backoff="constant"))
    async def tokens(text: str) -> None:
        out = step_info().stream("tokens")
        for letter in text:
            await out.write(letter)
        if step_info().attempt == 1:
            raise ValueError("no")

    @app.workflow
    async def talk(ctx: Context) -> None:
        await ctx.stream("tokens").write({"n": 1})
        await tokens("ab")
        await ctx.stream("progress").close()

    return app


def events(text: str) -> list[dict[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


async def test_a_stream_is_sent_as_server_sent_events(app: Holdfast) -> None:
    async with app, client_of(app.asgi()) as http:
        run = await app.start(talk := "talk", id="t")
        await run.result()

        response = await http.get(f"/{talk}/instances/t/streams/tokens")

        assert response.headers["content-type"].startswith("text/event-stream")
        *items, end = events(response.text)
        assert [(one["id"], one["data"]["value"], one["data"]["stepKey"], one["data"]["attempt"]) for one in items] == [
            ("1", {"n": 1}, None, None), ("4", "a", "tokens", 2), ("5", "b", "tokens", 2),
        ]  # fmt: skip
        assert set(items[0]["data"]) == {"value", "stepKey", "attempt", "at"}
        assert items[0]["data"]["at"].endswith("Z")
        assert (end["event"], "id" in end) == ("end", False)


async def test_a_stream_continues_after_an_offset_or_the_last_event(app: Holdfast) -> None:
    async with app, client_of(app.asgi()) as http:
        await (await app.start("talk", id="t")).result()
        path = "/talk/instances/t/streams/tokens"

        after = await http.get(path, params={"after": 4})
        resumed = await http.get(path, params={"after": 1}, headers={"last-event-id": "4"})
        every = await http.get(path, params={"attempts": "all"})

        assert [one["data"].get("value") for one in events(after.text)] == ["b", None]
        assert events(resumed.text) == events(after.text)
        assert [one["data"].get("failed") for one in events(every.text)] == [None, True, True, None, None, None]


async def test_the_streams_of_a_run_are_listed(app: Holdfast) -> None:
    async with app, client_of(app.asgi()) as http:
        await (await app.start("talk", id="t")).result()

        found = (await Api(http).get("/talk/instances/t/streams"))["streams"]

        assert [(one["name"], one["items"], one["closed"]) for one in found] == [
            ("progress", 1, True), ("tokens", 5, False),
        ]  # fmt: skip


async def test_bad_requests_for_streams_are_refused(app: Holdfast) -> None:
    async with app, client_of(app.asgi()) as http:
        api = Api(http)
        await (await app.start("talk", id="t")).result()
        path = "/talk/instances/t/streams"

        assert await api.refused("GET", "/talk/instances/none/streams/tokens") == (404, "INSTANCE_NOT_FOUND")
        assert await api.refused("GET", "/talk/instances/none/streams") == (404, "INSTANCE_NOT_FOUND")
        assert (await api.refused("GET", f"{path}/a b"))[0] == 400
        for query in ({"after": "-1"}, {"after": "x"}, {"after": "9" * 30}, {"attempts": "some"}):
            assert (await api.refused("GET", f"{path}/tokens", params=query))[0] == 400
        assert (await api.refused("GET", f"{path}/tokens", headers={"last-event-id": "x"}))[0] == 400


async def test_streams_are_read_only_with_permission(app: Holdfast) -> None:
    async def deny(request: Any) -> None:
        raise Denied(403, "no")

    denying = Holdfast("sqlite://", authorize=Authorize(read=deny))

    @denying.workflow
    async def talk(ctx: Context) -> None: ...

    async with denying, client_of(denying.asgi()) as http:
        for path in ("/talk/instances/t/streams", "/talk/instances/t/streams/tokens"):
            assert (await Api(http).refused("GET", path)) == (403, "FORBIDDEN")


async def test_an_open_stream_is_sent_item_by_item(app: Holdfast) -> None:
    go = asyncio.Event()

    @app.step
    async def slow() -> None:
        await step_info().stream("out").write(1)
        await go.wait()

    @app.workflow
    async def work(ctx: Context) -> None:
        await slow()

    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(message: Any) -> None:
        await received.put(message.get("body", b""))

    scope = {
        "type": "http", "method": "GET", "path": "/api/workflows/work/instances/w/streams/out",
        "query_string": b"attempts=all", "headers": [(b"host", b"test")], "server": ("test", 80),
        "client": ("test", 1), "scheme": "http", "root_path": "", "http_version": "1.1",
    }  # fmt: skip
    async with app:
        await app.start(work, id="w")
        serving = asyncio.create_task(app.asgi()(scope, asyncio.Event().wait, send))  # type: ignore[arg-type]
        text = b""
        async with asyncio.timeout(60):
            while b"id: 1\n" not in text:
                text += await received.get()
            assert b"event: end" not in text
            go.set()
            while b"event: end" not in text:
                text += await received.get()
            await serving
