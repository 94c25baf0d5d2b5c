"""The MCP server: a client finds, explains and repairs runs with its tools alone."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from holdfast import Authorize, AuthRequest, BearerTokens, Context, Filter, Holdfast, Retry, RunFailedError
from holdfast.cli.loading import load_app
from holdfast.mcp import mcp_server
from holdfast.mcp.access import ROUTES
from holdfast.mcp.pages import PAGES

gateway = {"up": False}


@dataclass
class Order:
    item: str
    amount: int


def _shop(url: str = "sqlite://") -> Holdfast:
    app = Holdfast(url)

    @app.step(retry=Retry(limit=0))
    async def charge(amount: int) -> str:
        if not gateway["up"]:
            raise ConnectionError("the gateway is down")
        return f"paid {amount}"

    @app.workflow(events={"approval": Order})
    async def fulfil(ctx: Context, order: Order) -> str:
        if order.amount > 100:
            await ctx.wait_for_event("approval", type="approval")
        return await charge(order.amount)

    return app


async def _call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def test_a_client_finds_explains_and_repairs_stuck_runs() -> None:
    gateway["up"] = False
    app = _shop()
    async with app, Client(mcp_server(app, write=True, actor="robot")) as client:
        await _call(client, "start_run", workflow="fulfil", params={"item": "bolt", "amount": 3}, id="small")
        await _call(client, "start_run", workflow="fulfil", params={"item": "mill", "amount": 300}, id="large")
        small, large = await app.get("fulfil", "small"), await app.get("fulfil", "large")
        with pytest.raises(Exception, match="gateway"):
            await small.result()

        [failed] = (await _call(client, "list_runs", status="errored"))["runs"]
        explained = await _call(client, "explain_run", workflow=failed["workflow_name"], id=failed["id"])
        assert explained["error"]["message"] == "the gateway is down"
        assert [step["step_key"] for step in explained["unfinished_steps"]] == ["charge"]
        gateway["up"] = True
        await _call(client, "retry_run", workflow="fulfil", id=failed["id"], reason="the gateway is up")
        assert await small.result() == "paid 3"

        explained = await _call(client, "explain_run", workflow="fulfil", id="large")
        assert explained["why_parts"]["event_type"] == "approval"
        stack = await _call(client, "run_stack", workflow="fulfil", id="large")
        assert "wait_for_event" in json.dumps(stack)
        await _call(
            client,
            "send_event",
            workflow="fulfil",
            id="large",
            type="approval",
            payload={"item": "mill", "amount": 300},
        )
        assert await large.result() == "paid 300"

        records = (await _call(client, "audit_records", workflow="fulfil", id="small"))["records"]
        assert [(each["actor"], each["action"], each["reason"]) for each in records] == [
            ("robot", "retry", "the gateway is up"),
            ("robot", "start", None),
        ]
        records = (await _call(client, "audit_records", workflow="fulfil", id="large"))["records"]
        assert [(each["action"], each["reason"]) for each in records] == [
            ("send_event", "event approval"),
            ("start", None),
        ]


async def test_runs_are_forked_resolved_and_controlled() -> None:
    gateway["up"] = False
    app = _shop()
    async with app, Client(mcp_server(app, write=True, actor="robot")) as client:
        run: dict[str, Any] = {"workflow": "fulfil", "id": "one"}
        await _call(client, "start_run", **run, params={"item": "bolt", "amount": 3})
        one = await app.get("fulfil", "one")
        with pytest.raises(Exception, match="gateway"):
            await one.result()
        await _call(client, "resolve_step", **run, step_key="charge", result="paid by hand", reason="bank transfer")
        assert await one.result() == "paid by hand"
        gateway["up"] = True
        forked = await _call(client, "fork_run", **run, before="charge", reason="again", new_id="two")
        assert await (await app.get("fulfil", forked["id"])).result() == "paid 3"

        other: dict[str, Any] = {"workflow": "fulfil", "id": "three"}
        await _call(client, "start_run", **other, params={"item": "mill", "amount": 300})
        await _call(client, "pause_run", **other)
        await _call(client, "resume_run", **other)
        await _call(client, "cancel_run", **other, reason="not needed")
        last: dict[str, Any] = {"workflow": "fulfil", "id": "four"}
        await _call(client, "start_run", **last, params={"item": "mill", "amount": 300})
        await _call(client, "terminate_run", **last, reason="not needed")
        actions = [each["action"] for each in (await _call(client, "audit_records"))["records"]]
        assert sorted(actions) == ["cancel", "fork", "pause", "resolve", "resume", *["start"] * 3, "terminate"]
        assert {each["actor"] for each in (await _call(client, "audit_records"))["records"]} == {"robot"}


async def test_a_server_without_the_flag_has_no_tool_that_writes() -> None:
    app = _shop()
    async with app, Client(mcp_server(app)) as client:
        tools = (await client.list_tools()).tools
        assert tools
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        result = await client.call_tool("retry_run", {"workflow": "fulfil", "id": "x", "reason": "?"})
        assert result.is_error


async def test_errors_of_the_app_are_reported_to_the_model() -> None:
    app = _shop()
    async with app, Client(mcp_server(app, write=True)) as client:
        for tool, arguments in (
            ("explain_run", {"workflow": "fulfil", "id": "missing"}),
            ("start_run", {"workflow": "unknown"}),
            ("start_run", {"workflow": "fulfil", "params": {"item": 3}}),
        ):
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert "Error" in str(result.content) or "no" in str(result.content)


async def test_code_is_checked_and_runs_are_read() -> None:
    app = _shop()
    async with app, Client(mcp_server(app)) as client:
        await app.start("fulfil", Order("mill", 300), id="large")
        assert (await _call(client, "check_code"))["ok"]
        assert (await _call(client, "run_history", workflow="fulfil", id="large"))["run_number"] == 0
        assert (await _call(client, "run_logs", workflow="fulfil", id="large"))["lines"] == []
        assert await _call(client, "statistics")


async def test_resources_have_a_guide_and_the_schemas_of_workflows() -> None:
    app = _shop()
    async with app, Client(mcp_server(app)) as client:
        guide = (await client.read_resource("holdfast://guide")).contents[0]
        assert "send_event" in str(guide)
        schema = json.loads((await client.read_resource("holdfast://workflows/fulfil")).contents[0].text)  # type: ignore[union-attr]
        assert schema["params"]["required"] == ["item", "amount"]
        assert schema["events"]["approval"]["required"] == ["item", "amount"]
        assert "fulfil" in str((await client.read_resource("holdfast://workflows")).contents)
        pages = json.loads((await client.read_resource("holdfast://docs")).contents[0].text)  # type: ignore[union-attr]
        assert pages["repair"] == "Repair"
        assert "run.fork" in str((await client.read_resource("holdfast://docs/repair")).contents)
        with pytest.raises(Exception, match="missing"):
            await client.read_resource("holdfast://docs/missing")


def test_the_wheel_has_the_pages_that_the_server_offers() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]

    assert included == {f"docs/{name}.md": f"holdfast/mcp/docs/{name}.md" for name in PAGES}


STUCK = """
from holdfast import Context, Holdfast, Retry

app = Holdfast("sqlite:///{folder}/shop.db")


@app.step(retry=Retry(limit=0))
async def charge(amount: int) -> str:
    if amount > 100:
        raise ConnectionError("the gateway refuses large amounts")
    return f"paid {{amount}}"


@app.workflow
async def fulfil(ctx: Context, amount: int) -> str:
    paid = await charge(amount)
    seal = await ctx.wait_for_event("seal", type="sealed", timeout="30 days")
    return f"{{paid}}, sealed by {{seal.payload}}"
"""


async def _repair_what_is_stuck(client: Client) -> dict[str, Any]:
    """Find, explain and repair all runs that do not continue, as a model does: nothing is known but the tools."""
    done: dict[str, Any] = {}
    for status in ("errored", "waiting"):
        for found in (await _call(client, "list_runs", status=status))["runs"]:
            run = {"workflow": found["workflow_name"], "id": found["id"]}
            if run["id"] in done:
                continue
            explained = await _call(client, "explain_run", **run)
            done[run["id"]] = explained["why"]
            if status == "errored":
                [failed] = explained["unfinished_steps"]
                await _call(
                    client, "resolve_step", **run, step_key=failed["step_key"], result="paid by hand", reason="!"
                )
                async with asyncio.timeout(60):
                    while (await _call(client, "explain_run", **run))["status"] != "waiting":
                        await asyncio.sleep(0.02)
                explained = await _call(client, "explain_run", **run)
            stack = json.dumps(await _call(client, "run_stack", **run))
            assert "wait_for_event" in stack
            event = explained["why_parts"]["event_type"]
            await _call(client, "send_event", **run, type=event, payload="ann")
    return done


@asynccontextmanager
async def _command(folder: Path, transport: str) -> AsyncIterator[Client]:
    """A client of ``holdfast mcp --write`` in another process."""
    arguments = ["-m", "holdfast.cli", "mcp", "stuck_shop:app", "--write", "--actor", "robot", "--app-dir", str(folder)]
    if transport == "stdio":
        async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:
            yield client
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, "--transport", "http", "--port", str(port), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert server.stderr is not None
        async with asyncio.timeout(60):
            while b"running" not in await server.stderr.readline():
                assert server.returncode is None
        async with Client(streamable_http_client(f"http://127.0.0.1:{port}/mcp")) as client:
            yield client
    finally:
        server.kill()
        await server.communicate()


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_client_of_the_command_finds_explains_and_repairs_a_stuck_run(transport: str, tmp_path: Path) -> None:
    (tmp_path / "stuck_shop.py").write_text(STUCK.format(folder=tmp_path))
    app = load_app("stuck_shop:app", tmp_path)
    try:
        async with app, _command(tmp_path, transport) as client:
            runs = [await app.start("fulfil", amount, id=f"order-{amount}") for amount in (3, 300)]
            with pytest.raises(RunFailedError, match="large amounts"):
                await runs[1].result()

            explained = await _repair_what_is_stuck(client)

            assert await runs[0].result() == "paid 3, sealed by ann"
            assert await (await app.get("fulfil", "order-300")).result() == "paid by hand, sealed by ann"
            records = (await _call(client, "audit_records"))["records"]
    finally:
        sys.modules.pop("stuck_shop", None)
    assert "sealed" in explained["order-3"]
    assert "the gateway refuses large amounts" in explained["order-300"]
    assert sorted((each["actor"], each["action"], each["target"]) for each in records) == [
        ("robot", "resolve", "fulfil/order-300"),
        ("robot", "send_event", "fulfil/order-3"),
        ("robot", "send_event", "fulfil/order-300"),
    ]


async def test_a_workflow_is_a_typed_tool_whose_long_calls_are_resumed_after_a_restart_of_the_server(
    tmp_path: Path,
) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/shop.db")

    @app.workflow(mcp=True)
    async def buy(ctx: Context, order: Order) -> str:
        """Buy an item."""
        event = await ctx.wait_for_event("approval", type="approval")
        return f"{order.amount} {order.item} for {event.payload}"

    @app.workflow(mcp=True)
    async def ping(ctx: Context) -> str:
        return "pong"

    async with app, Client(mcp_server(app)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["buy"].description.startswith("Buy an item.")
        assert "amount" in json.dumps(tools["buy"].input_schema)
        assert "params" not in tools["ping"].input_schema["properties"]
        assert (await _call(client, "ping"))["output"] == "pong"

        first = await _call(client, "buy", params={"item": "bolt", "amount": 3}, run_id="b1", wait_seconds=0)
        assert (first["done"], first["run_id"]) == (False, "b1")
        assert "approval" in first["why"] or first["status"] == "active"
    async with app, Client(mcp_server(app)) as client:
        await (await app.get("buy", "b1")).send_event("approval", "ann")
        again = await _call(client, "buy", run_id="b1")

        assert (again["done"], again["output"]) == (True, "3 bolt for ann")
        refused = await client.call_tool("buy", {"params": {"item": "bolt"}})
        assert refused.is_error
        refused = await client.call_tool("buy", {"run_id": "unknown"})
        assert refused.is_error
        assert [one.id for one in (await app.list("buy")).items] == ["b1"]


later_app = Holdfast("sqlite://")


@later_app.workflow(mcp=True)
async def buy(ctx: Context, order: Later) -> str:
    return order.item


@dataclass
class Later:
    item: str


async def test_the_type_of_a_tool_may_be_defined_after_its_workflow() -> None:
    app = later_app
    async with app, Client(mcp_server(app)) as client:
        [schema] = [tool.input_schema for tool in (await client.list_tools()).tools if tool.name == "buy"]
        resource = json.loads((await client.read_resource("holdfast://workflows/buy")).contents[0].text)  # type: ignore[union-attr]
    assert "item" in json.dumps(schema)
    assert resource["params"]["required"] == ["item"]


@asynccontextmanager
async def _over_http(app: Holdfast, token: str, **options: Any) -> AsyncIterator[Client]:
    """A client of the server over streamable HTTP, with a bearer token."""
    web = mcp_server(app, **options).streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(web, host="127.0.0.1", port=0, log_level="error", ws="none"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}) as browser,
        Client(streamable_http_client(url, http_client=browser)) as client,
    ):
        yield client
    server.should_exit = True
    await serving


VIEWER, OPERATOR, ADMIN = "viewer-token-0123456789", "operator-token-0123456789", "admin-token-0123456789"


async def test_over_http_the_hooks_of_the_app_decide_about_each_tool() -> None:
    gateway["up"] = True
    app = _shop()
    app.authorize = BearerTokens({VIEWER: "viewer", OPERATOR: "operator", ADMIN: "admin"})
    order: dict[str, Any] = {"workflow": "fulfil", "params": {"item": "bolt", "amount": 3}}
    async with app:
        async with _over_http(app, VIEWER, write=True) as client:
            assert (await _call(client, "list_runs"))["runs"] == []
            for tool, arguments in (("start_run", order), ("run_stack", {"workflow": "fulfil", "id": "one"})):
                refused = await client.call_tool(tool, arguments)
                assert refused.is_error
                assert "denied (403)" in str(refused.content)
            assert (await client.read_resource("holdfast://workflows")).contents
        async with _over_http(app, "another-token-0123456789", write=True) as client:
            assert "denied (401)" in str((await client.call_tool("list_runs", {})).content)
            with pytest.raises(Exception, match="401"):
                await client.read_resource("holdfast://workflows")
        async with _over_http(app, OPERATOR, write=True, actor="mcp") as client:
            await _call(client, "start_run", **order, id="one")
            assert await (await app.get("fulfil", "one")).result() == "paid 3"
        [record] = (await app.audit()).items

    assert (record.action, record.target) == ("start", "fulfil/one")
    assert (record.actor or "").startswith("token ")


async def test_the_tool_of_a_workflow_returns_the_result_of_an_existing_run_only_to_readers() -> None:
    app = Holdfast("sqlite://")

    @app.workflow(mcp=True)
    async def buy(ctx: Context, order: Order) -> str:
        return order.item

    app.authorize = BearerTokens({VIEWER: ["create"], OPERATOR: ["create", "read"]})
    async with app:
        await (await app.start(buy, Order("bolt", 3), id="theirs")).result()
        async with _over_http(app, VIEWER) as client:
            refused = await client.call_tool("buy", {"run_id": "theirs"})
            assert "this token has no scope 'read'" in str(refused.content)
            own = await _call(client, "buy", params={"item": "bolt", "amount": 3})
        async with _over_http(app, OPERATOR) as client:
            theirs = await _call(client, "buy", run_id="theirs")

    assert (own["done"], theirs["run_id"], theirs["output"]) == (True, "theirs", own["output"])


async def test_a_hook_sees_the_route_and_the_content_of_a_tool_and_its_filters_deny() -> None:
    seen: list[tuple[Any, ...]] = []

    async def hook(request: AuthRequest) -> Filter | None:
        instances = [(each.id, each.params) for each in request.instances]
        event = None if request.event is None else request.event.type
        seen.append((request.route, request.method, request.workflow, request.instance_id, instances, event))
        return Filter(id_prefix="a-") if request.route == "listAllInstances" else None

    app = _shop()
    app.authorize = Authorize(request=hook)
    async with app, _over_http(app, VIEWER, write=True) as client:
        await _call(client, "start_run", workflow="fulfil", params={"item": "mill", "amount": 300}, id="x")
        payload = {"item": "mill", "amount": 300}
        await _call(client, "send_event", workflow="fulfil", id="x", type="approval", payload=payload)
        assert "confines" in str((await client.call_tool("list_runs", {})).content)

    assert seen == [
        ("createInstance", "POST", "fulfil", None, [("x", {"item": "mill", "amount": 300})], None),
        ("sendEvent", "POST", "fulfil", "x", [], "approval"),
        ("listAllInstances", "GET", None, None, [], None),
    ]


async def test_every_tool_has_a_route_whose_scope_a_policy_can_grant() -> None:
    app = _shop()
    async with app, Client(mcp_server(app, write=True)) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {*ROUTES}
