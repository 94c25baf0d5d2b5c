"""OpenAI Agents with MCP servers: requests to a server are steps, and are not repeated after a crash."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Runner
from agents.mcp import MCPServer as AgentServer
from agents.mcp import MCPServerStdio
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from agents.tracing import set_tracing_disabled
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, GetPromptResult, ListPromptsResult, ListResourcesResult, ReadResourceResult, Tool

from holdfast import Context, Handle, Holdfast, Retry
from holdfast.ext.openai_agents import StepOptions, approvals, durable
from holdfast.testing import Harness
from holdfast.testing.crashing_harness import CrashingHarness

calls: list[str] = []
"""Requests to the MCP server, and names of the model requests."""


@pytest.fixture(autouse=True)
def _no_calls_and_no_traces() -> Iterator[None]:
    calls.clear()
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


def _warehouse() -> MCPServer[Any]:
    server = MCPServer("warehouse")

    @server.tool()
    def count(part: str) -> int:
        calls.append(f"count {part}")
        if part == "screw":
            raise ToolError("no screws here")
        return {"bolt": 4, "nut": 7}[part]

    @server.tool()
    def order(part: str, number: int) -> str:
        calls.append(f"order {number} {part}")
        return f"{number} {part}s ordered"

    @server.prompt()
    def greeting(name: str) -> str:
        calls.append("greeting")
        return f"Greet {name}."

    @server.resource("stock://all")
    def everything() -> str:
        calls.append("everything")
        return "bolts and nuts"

    return server


class InProcess(AgentServer):
    """An MCP server in this process, reached with the client of the MCP SDK."""

    def __init__(self, server: MCPServer[Any], *, fail: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self._client = Client(server)
        self._fail = fail
        self.metas: list[Any] = []

    @property
    def name(self) -> str:
        return "https://ann:canary@stock.example/mcp?token=canary"

    async def connect(self) -> None:
        await self._client.__aenter__()

    async def cleanup(self) -> None:
        await self._client.__aexit__(None, None, None)

    async def __aenter__(self) -> InProcess:
        await self.connect()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.cleanup()

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Tool]:
        calls.append("list_tools")
        return (await self._client.list_tools()).tools

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> CallToolResult:
        self.metas.append(meta)
        if self._fail:
            self._fail -= 1
            calls.append(f"fail {tool_name}")
            raise ConnectionError("the connection was closed")
        result = await self._client.call_tool(tool_name, arguments)
        assert isinstance(result, CallToolResult)
        return result

    async def list_prompts(self) -> ListPromptsResult:
        return await self._client.list_prompts()

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> GetPromptResult:
        result = await self._client.get_prompt(name, arguments)
        assert isinstance(result, GetPromptResult)
        return result

    async def list_resources(self, cursor: str | None = None) -> ListResourcesResult:
        return await self._client.list_resources(cursor=cursor)

    async def read_resource(self, uri: str) -> ReadResourceResult:
        result = await self._client.read_resource(uri)
        assert isinstance(result, ReadResourceResult)
        return result


def _stock(**options: Any) -> InProcess:
    return InProcess(_warehouse(), require_approval={"order": "always"}, **options)


def _decide(call: ModelCall) -> ModelStep:
    """Count two parts at once, then order, which needs an approval."""
    items: Any = call.input if isinstance(call.input, list) else []
    outputs = [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
    calls.append(f"model after {len(outputs)}")
    if not outputs:
        return ModelStep(
            output=[function_call("count", {"part": part}, call_id=f"c-{part}") for part in ("bolt", "nut")]
        )
    if len(outputs) == 2:
        return ModelStep(output=[function_call("order", {"part": "nut", "number": 3}, call_id="c-3")])
    return ModelStep(output=[assistant_message(outputs[2])])


def _model(decide: Any) -> ScriptedModel:
    return ScriptedModel([ModelStep.respond(decide)] * 50)


def _make(*servers: AgentServer, decide: Any = _decide) -> Holdfast:
    agent = durable(
        Agent(name="clerk", model=_model(decide), mcp_servers=[*servers]),
        mcp=StepOptions(retry=Retry(limit=2, delay="1 second", backoff="constant")),
    )
    app = Holdfast("sqlite://")

    @app.workflow
    async def fill(ctx: Context, order: str) -> str:
        result = await Runner.run(agent, order)
        while result.interruptions:
            result = await Runner.run(agent, await approvals(result))
        await ctx.sleep("after", "1 minute")
        return str(result.final_output)

    return app


async def _approve(run: Handle[Any]) -> None:
    await run.send_event("approval", {"call_id": "c-3", "approved": True}, id="decision")


SERVER = "clerk.https://stock.example/mcp"


async def test_requests_to_an_mcp_server_are_steps_with_stable_names_without_credentials() -> None:
    async with _stock(fail=1) as stock, Harness(_make(stock)) as h:
        run = await h.start("fill", "nuts")
        await h.advance("1 minute")
        await _approve(run)
        await h.advance("2 minutes")
        assert "3 nuts ordered" in await run.result()
        steps = [step for step in (await run.history()).steps if step.type == "do"]
    keys = [step.step_key for step in steps]
    # The framework lists the tools before each model request, and once more to continue from a decision.
    lists = [key for key in keys if ".list_tools" in key]
    assert lists == [f"{SERVER}.list_tools", *(f"{SERVER}.list_tools#{n}" for n in range(2, len(lists) + 1))]
    assert sorted(set(keys) - {*lists}) == sorted(
        [
            *("clerk.model", "clerk.model#2", "clerk.model#3"),
            *(f"{SERVER}.count", f"{SERVER}.count#2", f"{SERVER}.order"),
        ]
    )
    assert calls.count("fail count") == 1  # retried as a step, with the options of mcp=
    assert "canary" not in str(steps)


async def _fill(server: InProcess, crash_after: int | None) -> tuple[str, list[str], bool]:
    calls.clear()
    async with CrashingHarness(_make(server)) as h:
        h.crash_after(crash_after)
        run = await h.start("fill", "nuts")
        await h.advance("2 minutes")
        await _approve(run)
        await h.advance("5 minutes")
        return await run.result(), sorted(calls), h.crashed


async def test_no_request_is_repeated_after_its_commit_wherever_the_worker_is_lost() -> None:
    async with _stock() as server:
        expected, made, _ = await _fill(server, None)
        assert "3 nuts ordered" in expected
        for after in itertools.count(1):
            result, repeated, crashed = await _fill(server, after)
            if not crashed:  # the run had fewer commits
                break

            assert result == expected
            extra = Counter(repeated) - Counter(made)
            # Only a call that ran beside the one whose commit was the last may be made again.
            assert extra.total() <= 1
            assert not Counter(made) - Counter(repeated)
            assert {*extra} <= {"count bolt", "count nut"}
        assert after > 8


async def test_an_error_of_a_tool_is_reported_to_the_model_and_recorded() -> None:
    def decide(call: ModelCall) -> ModelStep:
        items: Any = call.input if isinstance(call.input, list) else []
        outputs = [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
        if not outputs:
            return ModelStep(output=[function_call("count", {"part": "screw"}, call_id="c-1")])
        return ModelStep(output=[assistant_message(outputs[0])])

    async with _stock() as server:
        async with CrashingHarness(_make(server, decide=decide)) as h:
            h.crash_after(5)
            assert "no screws here" in await h.run("fill", "screws")
        assert calls.count("count screw") == 1


async def test_a_request_that_fails_for_good_is_reported_to_the_model_after_its_retries() -> None:
    async with _stock(fail=100) as server:

        def decide(call: ModelCall) -> ModelStep:
            items: Any = call.input if isinstance(call.input, list) else []
            outputs = [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
            if not outputs:
                return ModelStep(output=[function_call("count", {"part": "bolt"}, call_id="c-1")])
            return ModelStep(output=[assistant_message(outputs[0])])

        async with Harness(_make(server, decide=decide)) as h:
            assert "An error occurred while running the tool" in await h.run("fill", "bolts")
        assert calls.count("fail count") == 3


async def test_the_metadata_of_a_request_is_passed_on_to_the_server() -> None:
    async with InProcess(
        _warehouse(),
        require_approval={"order": "always"},
        tool_meta_resolver=lambda context: {"tool": context.tool_name},
    ) as server:
        async with Harness(_make(server)) as h:
            await h.start("fill", "nuts")
            await h.advance("1 minute")
        assert server.metas == [{"tool": "count"}, {"tool": "count"}]


async def test_prompts_and_resources_that_workflow_code_reads_are_steps() -> None:
    stock = _stock()
    [server] = durable(Agent(name="clerk", mcp_servers=[stock])).mcp_servers
    app = Holdfast("sqlite://")

    @app.workflow
    async def read(ctx: Context) -> list[str]:
        prompts = await server.list_prompts()
        prompt = await server.get_prompt(prompts.prompts[0].name, {"name": "Ann"})
        found = await server.list_resources()
        resource = await server.read_resource(str(found.resources[0].uri))
        await ctx.sleep("after", "1 minute")
        return [prompt.messages[0].content.text, resource.contents[0].text]  # type: ignore[union-attr]

    async with stock, CrashingHarness(app) as h:
        h.crash_after(5)
        run = await h.start("read")
        await h.advance("5 minutes")
        assert await run.result() == ["Greet Ann.", "bolts and nuts"]
        keys = [step.step_key for step in (await run.history()).steps if step.type == "do"]
        assert h.crashed
    assert keys == [f"{SERVER}.{what}" for what in ("list_prompts", "get_prompt", "list_resources", "read_resource")]
    assert calls == ["greeting", "everything"]


async def test_outside_a_workflow_the_agent_calls_its_servers_itself() -> None:
    async with _stock() as stock:
        agent = durable(Agent(name="clerk", model=_model(_decide), mcp_servers=[stock]))
        result = await Runner.run(agent, "nuts")

    assert len(result.interruptions) == 1
    assert {"count bolt", "count nut"} <= {*calls}


SCRIPT = """
from mcp.server import MCPServer

server = MCPServer("warehouse")


@server.tool()
def count(part: str) -> int:
    return len(part)


@server.tool()
def order(part: str, number: int) -> str:
    return f"{number} {part}s ordered"


server.run("stdio")
"""


async def test_a_server_in_a_process_of_its_own_is_called_in_steps(tmp_path: Path) -> None:
    script = tmp_path / "warehouse.py"
    script.write_text(SCRIPT)
    parameters: Any = {"command": sys.executable, "args": [str(script)]}
    async with (
        MCPServerStdio(parameters, name="stock", client_session_timeout_seconds=120) as server,
        Harness(_make(server)) as h,
    ):
        run = await h.start("fill", "nuts")
        await h.advance("5 minutes")
        assert "3 nuts ordered" in await run.result()
        keys = [step.step_key for step in (await run.history()).steps]
    assert {"clerk.stock.list_tools", "clerk.stock.count", "clerk.stock.count#2", "clerk.stock.order"} <= {*keys}


async def test_a_server_that_the_program_did_not_connect_fails_the_step_with_what_to_do(tmp_path: Path) -> None:
    parameters: Any = {"command": sys.executable, "args": ["none.py"]}
    async with Harness(_make(MCPServerStdio(parameters, name="stock"))) as h:
        run = await h.start("fill", "nuts")
        await h.advance("5 minutes")
        [step] = (await run.history()).steps
    assert step.step_key == "clerk.stock.list_tools"
    assert "connect()" in str(step.error)
