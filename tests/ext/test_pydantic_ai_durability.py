"""Requirements of pydantic-ai for a durable engine: the scenarios of the framework's own suites for its engines.

Those suites need the engines themselves and recorded requests. The scenarios that apply to any engine are here: pinned
names, toolsets of every kind, control flow that crosses a step, dependencies, streaming, and the refusals.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client.transports import StdioTransport
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, FunctionToolset, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability, RequestInput, durable_operation
from pydantic_ai.capabilities.instrumentation import Instrumentation
from pydantic_ai.durable_exec import (
    EventStreamHandlerId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, UserError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets._dynamic import DynamicToolset

from holdfast import Context, Handle, Holdfast, Retry, step_info
from holdfast.errors import InvalidOptionError, RunFailedError
from holdfast.ext.external_events import fail_external_event, resolve_external_event
from holdfast.ext.pydantic_ai import HoldfastDurability, StepOptions
from holdfast.testing import Harness
from holdfast.testing.crashing_harness import CrashingHarness

calls: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def answers(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def workflow_of(agent: Agent[Any, Any], **options: Any) -> Holdfast:
    app = Holdfast("sqlite://")

    @app.workflow
    async def ask(ctx: Context, question: str) -> Any:
        result = await agent.run(question, **options)
        await ctx.sleep("after", "1 minute")
        return result.output if isinstance(result.output, str) else repr(result.output)

    return app


async def keys(run: Handle[Any]) -> list[str]:
    return [step.step_key for step in (await run.history()).steps if step.type == "do"]


def test_the_names_of_steps_are_pinned() -> None:
    """Recorded steps are found by these names: another name would call the model again after an upgrade."""
    agent: Agent[None, str] = Agent(TestModel(), name="compat", capabilities=[HoldfastDurability()])
    durability = HoldfastDurability.from_agent(agent)
    assert durability is not None
    names = durability.get_durable_operation_backend()._namer  # type: ignore[attr-defined]
    operations: list[tuple[Any, str | None]] = [
        (ModelRequestId(None, streaming=False, model_name="test"), None),
        (ModelRequestId("other", streaming=True, model_name="test"), None),
        (EventStreamHandlerId(), None),
        (ToolsetCallToolId("function", toolset_id="shop"), "pay"),
        (ToolsetValidateToolArgumentsId("function", toolset_id="shop"), "pay"),
        (ToolsetGetToolsId("mcp", toolset_id="stock"), None),
        (ToolsetCallToolId("mcp", toolset_id="stock"), "count"),
        (ToolsetGetToolsId("dynamic", toolset_id="some"), None),
    ]
    assert [names.invocation_name(one, label=label).operation_name for one, label in operations] == [
        "compat__model.request",
        "compat__model.request_stream.other",
        "compat__event_stream_handler",
        "compat__function_toolset__shop.call_tool:pay",
        "compat__function_toolset__shop.validate_args",
        "compat__mcp_server__stock.get_tools",
        "compat__mcp_server__stock.call_tool",
        "compat__dynamic_toolset__some.get_tools",
    ]


async def test_function_and_dynamic_toolsets_are_called_in_steps_and_not_again_after_a_crash() -> None:
    async def price(part: str) -> int:
        calls.append(f"price {step_info().step_key}")
        return 3

    async def stock(part: str) -> int:
        calls.append(f"stock {step_info().step_key}")
        return 7

    def make() -> Holdfast:
        dynamic = DynamicToolset[None](lambda _: FunctionToolset(tools=[stock]), id="warehouse")
        agent: Agent[None, str] = Agent(
            TestModel(),
            name="clerk",
            toolsets=[FunctionToolset(tools=[price], id="shop"), dynamic],
            capabilities=[HoldfastDurability()],
        )
        return workflow_of(agent)

    async with CrashingHarness(make()) as h:
        run = await h.start("ask", "how much?")
        await h.advance("2 minutes")
        expected, commits = await run.result(), h.commits
        assert {key.partition(".")[0] for key in await keys(run)} == {
            "clerk__model", "clerk__function_toolset__shop", "clerk__dynamic_toolset__warehouse",
        }  # fmt: skip
    assert expected == '{"price":3,"stock":7}'
    for after in range(1, commits + 1):
        calls.clear()
        async with CrashingHarness(make()) as h:
            h.crash_after(after)
            assert await h.run("ask", "how much?") == expected
        assert len(calls) <= 3  # the two tools run in parallel: one of them may be interrupted before its commit


MCP_SERVER = """
import sys
from mcp.server import MCPServer

server = MCPServer("stock")


@server.tool()
def count(part: str) -> int:
    \"\"\"Count parts.\"\"\"
    with open(sys.argv[1], "a") as file:
        file.write(part + "\\n")
    return len(part)


server.run("stdio")
"""


async def test_calls_of_an_mcp_server_are_steps_and_not_repeated_after_their_commit(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(MCP_SERVER)
    log = tmp_path / "calls"
    log.touch()

    def decide(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if found := answers(messages):
            return ModelResponse(parts=[TextPart(f"{found[0].content} in stock")])
        assert [tool.name for tool in info.function_tools] == ["count"]
        return ModelResponse(parts=[ToolCallPart("count", {"part": "bolt"}, tool_call_id="c-1")])

    transport = StdioTransport(command=sys.executable, args=[str(tmp_path / "server.py"), str(log)])
    agent: Agent[None, str] = Agent(
        FunctionModel(decide),
        name="clerk",
        toolsets=[MCPToolset(transport, id="stock", init_timeout=60)],  # a busy machine starts its process slowly
        capabilities=[HoldfastDurability(mcp=StepOptions(retry=Retry(limit=3), timeout="20 seconds"))],
    )
    async with CrashingHarness(workflow_of(agent)) as h:
        h.crash_after(3)  # the request of tools, the first model request, the call of the tool
        run = await h.start("ask", "bolts?")
        await h.advance("5 minutes")

        assert await run.result() == "4 in stock"
        assert h.crashed
        steps = {step.step_key: (step.max_attempts, step.timeout_ms) for step in (await run.history()).steps}
    assert steps["clerk__mcp_server__stock.get_tools"] == (4, 20_000)
    assert steps["clerk__mcp_server__stock.call_tool"] == (4, 20_000)
    assert log.read_text() == "bolt\n"


async def test_exceptions_that_steer_the_agent_cross_a_step_and_its_replay() -> None:
    """``ModelRetry``, ``ApprovalRequired`` and ``CallDeferred`` are outcomes of a tool, recorded as such."""

    def decide(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        names = ["wait", "sign"] if "choose" in calls else ["choose"]
        return ModelResponse(parts=[ToolCallPart(name, {}, tool_call_id=f"c-{name}") for name in names])

    agent: Agent[None, Any] = Agent(
        FunctionModel(decide), name="clerk", output_type=[str, DeferredToolRequests],
        capabilities=[HoldfastDurability(tool=StepOptions(retry=Retry(limit=5)))],
    )  # fmt: skip

    @agent.tool_plain(retries=3)
    async def choose() -> str:
        calls.append("choose")
        raise ModelRetry("choose another one")

    @agent.tool_plain
    async def wait() -> str:
        calls.append("wait")
        raise CallDeferred({"ticket": 7})

    @agent.tool_plain
    async def sign() -> str:
        calls.append("sign")
        raise ApprovalRequired({"by": "ann"})

    app = Holdfast("sqlite://")

    @app.workflow
    async def ask(ctx: Context) -> list[Any]:
        result = await agent.run("go")
        await ctx.sleep("after", "1 minute")
        assert isinstance(result.output, DeferredToolRequests)
        return [
            [call.tool_name for call in result.output.calls],
            [call.tool_name for call in result.output.approvals],
            {**result.output.metadata},
        ]

    async with CrashingHarness(app) as h:
        run = await h.start("ask")
        await h.run_until_idle()
        await h.restart()  # the rest of the run replays the outcomes
        await h.advance("1 minute")
        result = await run.result()
        attempts = {
            step.step_key: step.attempts for step in (await run.history()).steps if "call_tool" in step.step_key
        }
    assert result[:2] == [["wait"], ["sign"]]
    assert sorted(map(str, result[2].values())) == ["{'by': 'ann'}", "{'ticket': 7}"]
    assert sorted(calls) == ["choose", "sign", "wait"]
    assert {*attempts.values()} == {1}


async def test_arguments_that_do_not_fit_are_reported_to_the_model_and_not_retried_as_a_step() -> None:
    def decide(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls.append("model")
        if "pay 3" in calls:
            return ModelResponse(parts=[TextPart("ok")])
        amount: Any = "many" if len(calls) == 1 else 3
        return ModelResponse(parts=[ToolCallPart("pay", {"amount": amount}, tool_call_id=f"c-{len(calls)}")])

    agent: Agent[None, str] = Agent(FunctionModel(decide), name="clerk", capabilities=[HoldfastDurability()])

    @agent.tool_plain
    async def pay(amount: int) -> str:
        calls.append(f"pay {amount}")
        return "paid"

    async with Harness(workflow_of(agent)) as h:
        assert await h.run("ask", "go") == "ok"
    assert calls == ["model", "model", "pay 3", "model"]


@dataclass
class Shop:
    currency: str


class Price(BaseModel):
    amount: int
    currency: str


async def test_dependencies_and_typed_output_are_those_of_an_ordinary_run() -> None:
    def decide(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if found := answers(messages):
            return ModelResponse(
                parts=[ToolCallPart(info.output_tools[0].name, {"amount": 3, "currency": str(found[0].content)})]
            )
        return ModelResponse(parts=[ToolCallPart("currency", {}, tool_call_id="c-1")])

    agent: Agent[Shop, Price] = Agent(
        FunctionModel(decide), name="clerk", deps_type=Shop, output_type=Price, capabilities=[HoldfastDurability()]
    )

    @agent.tool
    async def currency(ctx: RunContext[Shop]) -> str:
        calls.append(str(ctx.run_step))
        return ctx.deps.currency

    app = Holdfast("sqlite://")

    @app.workflow
    async def ask(ctx: Context) -> list[Any]:
        result = await agent.run("how much?", deps=Shop("coins"))
        run_id = result.run_id if hasattr(result, "run_id") else None
        await ctx.sleep("after", "1 minute")
        return [result.output.model_dump(), result.usage.requests, run_id]

    async with CrashingHarness(app) as h:
        run = await h.start("ask")
        await h.run_until_idle()
        await h.restart()
        await h.advance("1 minute")
        assert (await run.result())[:2] == [{"amount": 3, "currency": "coins"}, 2]
    assert calls == ["1"]


async def test_an_event_handler_sees_the_events_of_the_model_in_its_step_and_not_again_after_a_crash() -> None:
    async def model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for word in ("one ", "two"):
            yield word

    async def handler(ctx: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        calls.extend([f"{step_info().step_key} {event.event_kind}" async for event in events])

    agent: Agent[None, str] = Agent(
        FunctionModel(stream_function=model),
        name="writer",
        capabilities=[HoldfastDurability(event_stream_handler=handler)],
    )
    async with CrashingHarness(workflow_of(agent)) as h:
        h.crash_after(1)
        assert await h.run("ask", "go") == "one two"
    assert [call for call in calls if "part_delta" in call] == ["writer__model.request_stream part_delta"]


def _pay_after_input(seen: list[str], *, answer: bool = False) -> Holdfast:
    """An agent that asks for input before it pays; ``answer``: the input is there at once."""

    async def decide(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if found := answers(messages):
            return ModelResponse(parts=[TextPart(str(found[0].content))])
        return ModelResponse(parts=[ToolCallPart("pay", {"amount": 3}, tool_call_id="c-1")])

    def ask(ctx: RunContext[None], requests: DeferredToolRequests, token: str) -> DeferredToolResults | None:
        seen.append(token)
        return DeferredToolResults(approvals={"c-1": True}) if answer else None

    durability: HoldfastDurability[None] = HoldfastDurability()
    request_input = RequestInput[None](ask, timeout=timedelta(hours=1), name="sign")
    agent: Agent[None, str] = Agent(FunctionModel(decide), name="clerk", capabilities=[durability, request_input])

    @agent.tool_plain(requires_approval=True)
    async def pay(amount: int) -> str:
        calls.append("pay")
        return f"paid {amount}"

    return workflow_of(agent)


@pytest.mark.parametrize("answered_by", ["event", "failure", "nobody", "ask"])
async def test_a_wait_for_input_is_a_durable_wait_that_asks_once(answered_by: str) -> None:
    results = set()
    for after in (None, 1, 2, 3):
        calls.clear()
        seen: list[str] = []
        async with CrashingHarness(_pay_after_input(seen, answer=answered_by == "ask")) as h:
            h.crash_after(after)
            run = await h.start("ask", "pay")
            await h.advance("5 minutes")
            if answered_by == "event":
                await resolve_external_event(h.app, seen[-1], DeferredToolResults(approvals={"c-1": True}))
                await resolve_external_event(h.app, seen[-1], DeferredToolResults(approvals={"c-1": False}))
            elif answered_by == "failure":
                await fail_external_event(h.app, seen[-1], "closed today")
            await h.advance("2 hours")
            results.add(await run.result())
            asked = [step for step in (await run.history()).steps if step.step_key == "clerk__external_event.sign.ask"]
            assert h.crashed == (after is not None)
        assert len(asked) == len({*seen}) == 1  # a step that was interrupted hands out the same token again
        assert len(seen) <= asked[0].attempts
        assert calls == (["pay"] if answered_by in ("event", "ask") else [])
    [result] = results
    assert result.startswith("paid 3" if answered_by in ("event", "ask") else "No decision on this tool call arrived: ")
    assert answered_by != "failure" or result.endswith("closed today")


async def test_a_token_that_no_run_has_is_refused() -> None:
    async with Harness(Holdfast("sqlite://")) as h:
        with pytest.raises(InvalidOptionError, match="not a resume token"):
            await resolve_external_event(h.app, "nonsense", 1)


async def test_spans_of_replayed_requests_and_tools_are_not_exported_again() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def make() -> Holdfast:
        instrumented = Instrumentation(settings=InstrumentationSettings(tracer_provider=provider))
        agent: Agent[None, str] = Agent(TestModel(), name="clerk", capabilities=[HoldfastDurability(), instrumented])

        @agent.tool_plain
        async def price() -> int:
            return 3

        return workflow_of(agent)

    async with CrashingHarness(make()) as h:
        run = await h.start("ask", "how much?")
        await h.run_until_idle()
        await h.restart()
        await h.advance("1 minute")
        assert await run.result() == '{"price":3}'

    names = [span.name for span in exporter.get_finished_spans() if span.name != "invoke_agent clerk"]
    assert sorted(names) == ["chat test", "chat test", "execute_tool price"]


class Audit(AbstractCapability[Any]):
    id = "audit"

    @durable_operation("note")
    async def note(self, ctx: RunContext[Any], text: str) -> str:
        calls.append(f"{text} in {step_info().step_key}")
        return text.upper()

    async def before_run(self, ctx: RunContext[Any]) -> None:
        calls.append(await self.note(ctx, "begun"))


async def test_operations_of_other_capabilities_are_steps() -> None:
    agent: Agent[None, str] = Agent(TestModel(), name="clerk", capabilities=[Audit(), HoldfastDurability()])
    async with CrashingHarness(workflow_of(agent)) as h:
        h.crash_after(1)
        run = await h.start("ask", "go")
        await h.advance("5 minutes")
        assert await run.result() == "success (no tool calls)"
        assert "clerk__capability__audit.note" in await keys(run)
    assert [call for call in calls if call.startswith("begun in")] == ["begun in clerk__capability__audit.note"]


async def test_a_run_may_name_a_registered_model_and_no_other() -> None:
    """A model that is not registered cannot be found again by its name, so it is refused."""
    large = TestModel(custom_output_text="large")
    agent: Agent[None, str] = Agent(
        TestModel(custom_output_text="small"), name="clerk", capabilities=[HoldfastDurability(models={"large": large})]
    )
    app = Holdfast("sqlite://")

    @app.workflow
    async def ask(ctx: Context) -> list[str]:
        outputs = [(await agent.run("go", model=model)).output for model in (None, "large", large)]
        await ctx.sleep("after", "1 minute")
        with pytest.raises(UserError, match="was not registered"):
            await agent.run("go", model=TestModel())
        return outputs

    async with CrashingHarness(app) as h:
        h.crash_after(4)
        run = await h.start("ask")
        await h.advance("5 minutes")
        assert await run.result() == ["small", "large", "large"]
        assert await keys(run) == ["clerk__model.request", "clerk__model.request.large", "clerk__model.request.large#2"]


async def test_a_run_that_is_iterated_or_streamed_in_a_workflow_makes_its_requests_in_steps() -> None:
    async def model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        calls.append(step_info().step_key)
        for word in ("one ", "two"):
            yield word

    agent: Agent[None, str] = Agent(
        FunctionModel(stream_function=model), name="writer", capabilities=[HoldfastDurability(stream="model")]
    )
    app = Holdfast("sqlite://")

    @app.workflow
    async def ask(ctx: Context) -> list[Any]:
        async with agent.iter("go") as iterated:
            nodes = [type(node).__name__ async for node in iterated]
        async with agent.run_stream("go") as streamed:
            words = [text async for text in streamed.stream_text(delta=True, debounce_by=None)]
        await ctx.sleep("after", "1 minute")
        assert iterated.result is not None
        return [nodes[-1], iterated.result.output, "".join(words)]

    for after in (None, 1, 2):
        calls.clear()
        async with CrashingHarness(app) as h:
            h.crash_after(after)
            assert await h.run("ask") == ["End", "one two", "one two"]
        assert calls[-1] == "writer__model.request_stream#2"
        assert len(calls) <= 3


async def test_a_tool_without_a_step_runs_in_workflow_code() -> None:
    agent: Agent[None, str] = Agent(TestModel(), name="clerk", capabilities=[HoldfastDurability()])

    @agent.tool_plain(metadata={"holdfast": False})
    async def now() -> str:
        from holdfast import current_context

        return current_context().now().isoformat()

    async with Harness(workflow_of(agent)) as h:
        run = await h.start("ask", "go")
        await h.advance("2 minutes")
        assert "2030-01-01" in await run.result()
        assert not [key for key in await keys(run) if "call_tool" in key]


async def test_an_agent_that_a_tool_without_a_step_calls_has_steps_of_its_own() -> None:
    expert: Agent[None, str] = Agent(
        TestModel(custom_output_text="4"), name="expert", capabilities=[HoldfastDurability()]
    )
    boss: Agent[None, str] = Agent(TestModel(), name="boss", capabilities=[HoldfastDurability()])

    @boss.tool_plain(metadata={"holdfast": False})
    async def ask_expert() -> str:
        return (await expert.run("how many?")).output

    async with CrashingHarness(workflow_of(boss)) as h:
        h.crash_after(2)
        run = await h.start("ask", "go")
        await h.advance("5 minutes")
        assert await run.result() == '{"ask_expert":"4"}'
        assert await keys(run) == ["boss__model.request", "expert__model.request", "boss__model.request#2"]


async def test_runtime_toolsets_that_were_never_wrapped_are_refused() -> None:
    agent: Agent[None, str] = Agent(TestModel(), name="clerk", capabilities=[HoldfastDurability()])
    toolset = DynamicToolset[None](lambda _: FunctionToolset(tools=[Tool(lambda: 1, name="one")]), id="late")
    async with Harness(workflow_of(agent, toolsets=[toolset])) as h:
        with pytest.raises(RunFailedError, match="Holdfast"):
            await h.run("ask", "go")


def test_wrong_options_are_refused_when_the_agent_is_made() -> None:
    with pytest.raises(UserError, match="takes a Holdfast, not str"):
        HoldfastDurability("sqlite://")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="cannot be combined"):
        HoldfastDurability(stream="x", event_stream_handler=lambda _ctx, _events: None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="name"):
        Agent(TestModel(), capabilities=[HoldfastDurability()])


async def test_a_run_started_outside_a_workflow_makes_no_step_and_reaches_the_same_tools() -> None:
    agent: Agent[None, str] = Agent(TestModel(), name="clerk", capabilities=[HoldfastDurability()])

    @agent.tool_plain
    async def price() -> int:
        with pytest.raises(RuntimeError, match="outside a step"):
            step_info()
        return 3

    assert (await agent.run("go")).output == '{"price":3}'


async def test_an_error_in_the_use_of_the_framework_is_not_retried() -> None:
    agent: Agent[None, str] = Agent(
        TestModel(), name="clerk", capabilities=[HoldfastDurability(tool=StepOptions(retry=Retry(limit=3)))]
    )

    @agent.tool
    async def note(ctx: RunContext[None]) -> str:
        calls.append("note")
        if len(calls) == 1:
            raise ConnectionError("no answer")
        ctx.enqueue("later")  # the framework refuses this in a step
        return "noted"

    async with Harness(workflow_of(agent)) as h:
        run = await h.start("ask", "note it")
        await h.advance("1 hour")
        with pytest.raises(RunFailedError, match=r"ctx.enqueue\(\)` is not supported inside a durable step"):
            await run.result()
    assert calls == ["note", "note"]  # the connection was tried again
