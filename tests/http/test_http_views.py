"""Stack, replay and export over HTTP: off unless the app allows them, with an authorization hook of their own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from http_api import Api, client_of

from holdfast import Authorize, AuthRequest, Context, Denied, Holdfast
from holdfast.testing import Harness, replay_file


@pytest.fixture
def flows() -> Holdfast:
    app = Holdfast("sqlite://")

    @app.step
    async def charge(order: str) -> str:
        return f"{order} paid"

    @app.workflow
    async def fulfil(ctx: Context, order: str) -> str:
        password = "hunter2"
        ctx.log.info("received")
        paid = await charge(order)
        await ctx.wait_for_event("approval", type="approval")
        return paid + password

    return app


@pytest.fixture
async def running(flows: Holdfast) -> AsyncIterator[tuple[Harness, Api]]:
    """A run that waits for an event, on a server that allows debugging."""
    async with Harness(flows) as h, client_of(h.app.asgi(debug=True)) as http:
        await h.start("fulfil", "o-1", id="o-1")
        await h.run_until_idle()
        yield h, Api(http)


RUN = "/fulfil/instances/o-1"


async def test_the_stack_shows_frames_with_redacted_variables(running: tuple[Harness, Api]) -> None:
    _, api = running
    body = await api.get(f"{RUN}/stack")
    [task] = body["tasks"]
    assert (task["name"], task["waitingFor"]) == ("main", "event 'approval'")
    [frame] = task["frames"]
    assert (frame["function"], frame["locals"]["password"]) == ("fulfil", "<redacted>")
    assert frame["locals"]["paid"] == "'o-1 paid'"
    assert len((await api.get(f"{RUN}/stack", all="true"))["tasks"][0]["frames"]) > 1


async def test_a_replay_shows_each_position(running: tuple[Harness, Api]) -> None:
    _, api = running
    first, last = await api.get(f"{RUN}/replay", until=0), await api.get(f"{RUN}/replay")
    assert (first["position"], first["total"], first["fact"]) == (0, 1, None)
    assert [request["stepKey"] for request in first["pending"]] == ["charge"]
    assert (last["position"], last["fact"]["result"]) == (1, "o-1 paid")
    assert [line["message"] for line in last["logs"]] == ["received"]
    assert last["pending"][0]["position"]["file"].endswith("test_http_views.py")
    for query in ("until=-1", "until=x", "until=1&until=2", "all=maybe"):
        assert await api.refused("GET", f"{RUN}/replay?{query}") == (400, "VALIDATION_ERROR")


async def test_positions_name_the_lines_of_code_that_the_facts_resumed(running: tuple[Harness, Api]) -> None:
    h, api = running
    [paid] = (await api.get(f"{RUN}/positions"))["positions"]
    assert (paid["fact"], paid["stepKey"], paid["ok"]) == (1, "charge", True)
    await (await h.app.get("fulfil", "o-1")).send_event("approval")
    await h.run_until_idle()

    _, approved = (await api.get(f"{RUN}/positions"))["positions"]

    assert (approved["fact"], approved["stepKey"]) == (2, "approval")
    assert approved["position"]["file"].endswith("test_http_views.py")
    assert approved["position"]["line"] > paid["position"]["line"]
    assert await api.refused("GET", f"{RUN}/positions?runNumber=7") == (404, "INSTANCE_NOT_FOUND")


async def test_an_exported_run_replays(running: tuple[Harness, Api], flows: Holdfast, tmp_path: Path) -> None:
    _, api = running
    (tmp_path / "run.json").write_text(json.dumps(await api.get(f"{RUN}/export")))
    assert (await replay_file(flows, tmp_path / "run.json")).position == 1
    assert await api.refused("GET", f"{RUN}/export?runNumber=7") == (404, "INSTANCE_NOT_FOUND")


async def test_stacks_and_replays_are_disabled_by_default(running: tuple[Harness, Api]) -> None:
    h, _ = running
    async with client_of(h.app.asgi()) as http:
        api = Api(http)
        for route in ("stack", "replay", "positions"):
            assert await api.refused("GET", f"{RUN}/{route}") == (403, "DEBUG_DISABLED")
        assert (await api.get(f"{RUN}/export"))["run"]["params"] == "o-1"


async def test_the_debug_hook_decides_about_stacks_and_replays(running: tuple[Harness, Api]) -> None:
    h, _ = running

    async def allow(_request: AuthRequest) -> None: ...

    async def deny(_request: AuthRequest) -> None:
        raise Denied(403, "not you")

    h.app.authorize = Authorize(read=allow, debug=deny)
    async with client_of(h.app.asgi(debug=True)) as http:
        assert await Api(http).refused("GET", f"{RUN}/stack") == (403, "FORBIDDEN")
        assert (await Api(http).get(f"{RUN}/export"))["format"] == 1
    h.app.authorize = Authorize(debug=allow)
    async with client_of(h.app.asgi(debug=True)) as http:
        assert (await Api(http).get(f"{RUN}/stack"))["tasks"]
        assert await Api(http).refused("GET", f"{RUN}/export") == (403, "FORBIDDEN")


async def test_the_parts_of_why_name_the_position(running: tuple[Harness, Api]) -> None:
    _, api = running
    parts = (await api.get(RUN))["meta"]["whyParts"]
    assert (parts["kind"], parts["stepKey"], parts["eventType"]) == ("event", "approval", "approval")
    assert parts["until"].endswith("Z")
    assert parts["position"]["file"].endswith("test_http_views.py")
    assert parts["position"]["line"] > 0
