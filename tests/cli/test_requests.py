"""The requests on the page of the command line: each command sends them, and the HTTP API accepts them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from holdfast import Authorize, ChainTask, Completed, Context, Holdfast
from holdfast.cli import flow, selection
from holdfast.cli.main import cli
from holdfast.cli.reference import CURLS

from .scripted import Response, ScriptedServer

PATH = "/api/workflows"
RUN = {"workflow": "fulfil", "id": "o-1", "number": 0}
ANYTHING = {
    "ok": True, "id": "x", "name": "x", "status": "complete", "accepted": True, "details": {"status": "active"},
    "meta": {}, "paused": True, "draining": True, "redelivered": 1, "runs": {}, "run": RUN, "moved": 1,
    **{name: [] for name in (
        "workflows", "instances", "records", "queues", "workers", "limits", "schedules", "versions", "steps", "events",
        "logs", "outbox", "tasks", "ticks", "facts",
    )},
}  # fmt: skip
"""A response that every command understands."""
TEXTS = ("/mermaid", "/streams/")


class Sent(NamedTuple):
    method: str
    path: str
    query: frozenset[tuple[str, str]]
    body: Any


def requests_of(curls: str) -> Iterator[Sent]:
    """The requests of a row of the table."""
    for part in curls.split("; "):
        words = iter(shlex.split(part.removeprefix("until ").partition(" | ")[0]))
        method, url, body = "GET", "", None
        assert next(words) == "curl"
        for word in words:
            match word:
                case "-X":
                    method = next(words)
                case "--json":
                    method, body = "POST" if method == "GET" else method, json.loads(next(words))
                case "-N":
                    pass
                case _:
                    url = word.replace("$B", PATH, 1)
        parts = urlsplit(url)
        yield Sent(method, parts.path, frozenset(parse_qsl(parts.query)), body)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer().running() as server:
        yield server


def requests_sent(server: ScriptedServer, command: str, curls: str) -> list[Sent]:
    """The requests that a command sends to a server that has a response for each."""
    is_text = any(text in curls for text in TEXTS)
    answer = Response(body=b"event: end\ndata: {}\n\n" if is_text else ANYTHING, headers={"content-type": "text/plain"})
    server.requests.clear()
    server.responses.clear()
    server.responses.extend([answer] * 6)
    done = CliRunner().invoke(cli, [*shlex.split(command), "-b", server.base, "--retries", "0"])
    assert done.exit_code == 0, done.output
    sent = []
    for request in server.requests:
        parts = urlsplit(request.path)
        body = json.loads(request.body) if request.body else None
        sent.append(Sent(request.method, parts.path.rstrip("/"), frozenset(parse_qsl(parts.query)), body))
    return sent


def is_part(shown: Any, sent: Any) -> bool:
    """True if ``sent`` contains what is shown."""
    if isinstance(shown, dict) and isinstance(sent, dict):
        return all(name in sent and is_part(value, sent[name]) for name, value in shown.items())
    return bool(shown == sent)


@pytest.mark.parametrize("command", CURLS)
def test_a_command_sends_the_requests_that_the_page_shows(
    command: str, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(selection, "_POLL_SECONDS", 0)
    monkeypatch.setattr(flow, "_POLL_SECONDS", 0)
    Path("orders.jsonl").write_text('{"id": "o-1"}\n\n{"id": "o-2", "queue": "slow"}\n')

    shown, sent = [*requests_of(CURLS[command])], requests_sent(server, command, CURLS[command])

    for one in shown:
        assert any(
            (one.method, one.path) == (other.method, other.path)
            and one.query <= other.query
            and (one.body is None or is_part(one.body, other.body))
            for other in sent
        ), sent
    changes = [(one.method, one.path) for one in sent if one.method != "GET"]
    assert changes == [(one.method, one.path) for one in shown if one.method != "GET"]


def example_app() -> Holdfast:
    app = Holdfast("sqlite://", authorize=Authorize())
    app.limit("bank", concurrency=5)

    @app.workflow(pinned=True)
    async def fulfil(ctx: Context) -> None:
        await ctx.do("charge", lambda: 1)
        await ctx.wait_for_event("go", type="go")

    @app.workflow
    async def report(ctx: Context) -> None: ...

    graph = app.graph("etl")

    @graph.node
    async def extract() -> int:
        return 1

    chain = app.chain("parcels")

    @chain.step("A")
    async def a(task: ChainTask) -> Completed:
        return Completed(1)

    return app


async def test_the_api_accepts_every_request_of_the_page() -> None:
    app = example_app()
    refused = []
    async with app.connect():
        for workflow, name in (("fulfil", "o-2"), ("etl", "e-1"), ("parcels", "p-1")):
            await app.start(workflow, id=name)
        api = httpx.ASGITransport(app.asgi(debug=True))
        async with httpx.AsyncClient(transport=api, base_url="http://test") as client:
            creations = [command for command in CURLS if " create" in command]
            for command in [*creations, *(command for command in CURLS if command not in creations)]:
                for one in requests_of(CURLS[command]):
                    if "/streams/" in one.path:
                        continue  # its response ends with the run
                    response = await client.request(
                        one.method, one.path, params=[*one.query], **({} if one.body is None else {"json": one.body})
                    )
                    found = response.headers["content-type"] != "application/json" or response.json().get("code")
                    if response.status_code in (400, 405, 415) or response.status_code >= 500 or found == "NOT_FOUND":
                        refused.append((command, response.text))

    assert refused == []
