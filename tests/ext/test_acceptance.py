"""The acceptance of the three agent adapters, on both stores: see ``acceptance``."""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from agents import Agent as OpenAIAgent
from agents import Runner, function_tool
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from agents.tracing import set_tracing_disabled
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from ext.acceptance import Acceptance, Calls
from holdfast import Context, Handle, Holdfast, Retry
from holdfast.ext import openai_agents, pydantic_ai
from holdfast.ext.langgraph import DurableGraph
from holdfast.ext.openai_agents import RunSession, StepOptions, durable
from holdfast.ext.pydantic_ai import HoldfastDurability
from holdfast.testing.crashing_harness import CrashingHarness

TWICE = StepOptions(retry=Retry(limit=2, delay="1 second", backoff="constant"))
PARTS = ("bolt", "nut")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


@pytest.fixture
def all_commits(store: str, request: pytest.FixtureRequest) -> bool:
    return store == "sqlite" or bool(request.config.getoption("--long"))


class Shop:
    """The tools of the agents. The price of nuts fails once."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.failed = False

    async def price(self, part: str) -> int:
        self.calls.note()
        await asyncio.sleep(0)
        if part == "nut" and not self.failed:
            self.failed = True
            raise ConnectionError("no answer")
        return len(part)

    def pay(self, amount: int) -> str:
        self.calls.note()
        return f"{amount} coins"


async def decide(h: CrashingHarness, run: Handle[Any], type: str, payload: dict[str, Any]) -> None:
    """Let the run reach its question, send the answer, and let the run end."""
    await h.advance("1 minute")
    if type in (await run.describe()).why:
        await run.send_event(type, payload, id="decision")
    await h.advance("1 minute")


# --- pydantic-ai


def pydantic_ai_shop(calls: Calls) -> Holdfast:
    app, shop = Holdfast("sqlite://"), Shop(calls)

    async def model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        calls.note()
        answers = [part for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
        if not answers:
            yield {
                n: DeltaToolCall("price", json.dumps({"part": part}), tool_call_id=f"c-{n}")
                for n, part in enumerate(PARTS)
            }
        elif len(answers) == 2:
            total = sum(int(answer.content) for answer in answers)
            yield {0: DeltaToolCall("pay", json.dumps({"amount": total}), tool_call_id="c-3")}
        else:
            for word in ("bought ", "for ", str(answers[-1].content)):
                yield word

    agent: Agent[None, Any] = Agent(
        FunctionModel(stream_function=model),
        name="buyer",
        output_type=[str, DeferredToolRequests],
        capabilities=[HoldfastDurability(app, tool=TWICE, stream="model")],
    )
    agent.tool_plain(shop.price)
    agent.tool_plain(requires_approval=True)(shop.pay)

    @app.workflow
    async def buy(ctx: Context, order: str) -> str:
        result = await agent.run(order)
        while isinstance(result.output, DeferredToolRequests):
            decided = await pydantic_ai.approvals(result.output)
            result = await agent.run(message_history=result.all_messages(), deferred_tool_results=decided)
        return str(result.output)

    return app


async def test_pydantic_ai_repeats_no_call_after_its_commit(store: str, all_commits: bool) -> None:
    async def drive(h: CrashingHarness, run: Handle[Any]) -> None:
        await decide(h, run, "approval", {"tool_call_id": "c-3", "approved": True})

    result, items = await Acceptance(pydantic_ai_shop, drive, "buy", "model").check(store, all_commits=all_commits)

    assert result == "bought for 7 coins"
    text = [event["delta"]["content_delta"] for event in items if event["event_kind"] == "part_delta"]
    begin = [
        event["part"]["content"]
        for event in items
        if event["event_kind"] == "part_start" and "content" in event["part"]
    ]
    assert "".join(begin + text) == result


# --- OpenAI Agents


def openai_shop(calls: Calls) -> Holdfast:
    app, shop = Holdfast("sqlite://"), Shop(calls)

    def model(call: ModelCall) -> ModelStep:
        calls.note()
        items: Any = call.input if isinstance(call.input, list) else []
        outputs = [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
        if not outputs:
            return ModelStep(
                output=[function_call("price", {"part": part}, call_id=f"c-{n}") for n, part in enumerate(PARTS)]
            )
        if len(outputs) == 2:
            return ModelStep(output=[function_call("pay", {"amount": sum(map(int, outputs))}, call_id="c-3")])
        if len(outputs) == 3:
            return ModelStep(output=[function_call("transfer_to_clerk", {}, call_id="c-4")])
        return ModelStep(output=[assistant_message(f"bought for {outputs[2]}")])

    async def price(part: str) -> int:
        return await shop.price(part)

    async def pay(amount: int) -> str:
        return shop.pay(amount)

    clerk = OpenAIAgent(name="clerk", model=ScriptedModel([ModelStep.respond(model)] * 20))
    agent = durable(
        OpenAIAgent(
            name="buyer",
            model=ScriptedModel([ModelStep.respond(model)] * 20),
            tools=[function_tool(price, failure_error_function=None), function_tool(pay, needs_approval=True)],
            handoffs=[clerk],
        ),
        tool=TWICE,
        stream="model",
    )

    @app.workflow
    async def buy(ctx: Context, order: str) -> str:
        session = RunSession()
        asked: Any = order
        while True:
            result = Runner.run_streamed(agent, asked, session=session)
            async for _ in result.stream_events():
                pass
            if not result.interruptions:
                return str(result.final_output)
            asked = await openai_agents.approvals(result)

    return app


async def test_openai_agents_repeats_no_call_after_its_commit(store: str, all_commits: bool) -> None:
    async def drive(h: CrashingHarness, run: Handle[Any]) -> None:
        await decide(h, run, "approval", {"call_id": "c-3", "approved": True})

    result, items = await Acceptance(openai_shop, drive, "buy", "model").check(store, all_commits=all_commits)

    assert result == "bought for 7 coins"
    text = [event["delta"] for event in items if event["type"] == "response.output_text.delta"]
    assert "".join(text) == result
    assert [event["type"] for event in items].count("response.completed") == 4


# --- LangGraph


class State(TypedDict, total=False):
    prices: Annotated[list[int], operator.add]
    part: str
    answer: str


def langgraph_shop(calls: Calls) -> Holdfast:
    app, shop = Holdfast("sqlite://"), Shop(calls)

    async def price(state: State) -> dict[str, Any]:
        get_stream_writer()({"asks for": state["part"]})
        found = await shop.price(state["part"])
        get_stream_writer()({"price of": state["part"], "is": found})
        return {"prices": [found]}

    def review(state: State) -> dict[str, Any]:
        calls.note()
        return {"answer": interrupt({"total": sum(state["prices"])})}

    def pay(state: State) -> dict[str, Any]:
        paid = shop.pay(sum(state["prices"]))
        for word in ("bought ", "for ", paid):
            get_stream_writer()(word)  # a plain node runs in a thread
        return {"answer": f"{state['answer']}: bought for {paid}"}

    builder = StateGraph(State)
    builder.add_node("price", price)
    builder.add_node("review", review)
    builder.add_node("pay", pay)
    builder.add_conditional_edges(START, lambda _: [Send("price", {"part": part}) for part in PARTS], ["price"])
    builder.add_edge("price", "review")
    builder.add_edge("review", "pay")
    graph = DurableGraph(builder.compile(), step=TWICE, stream="tokens")

    @app.workflow
    async def buy(ctx: Context, order: str) -> str:
        return str((await graph.ainvoke({}))["answer"])

    return app


async def test_langgraph_repeats_no_node_after_its_commit(store: str, all_commits: bool) -> None:
    async def drive(h: CrashingHarness, run: Handle[Any]) -> None:
        await decide(h, run, "resume", {"value": "yes"})

    result, items = await Acceptance(langgraph_shop, drive, "buy", "tokens", parallel=True).check(
        store, all_commits=all_commits
    )

    assert result == "yes: bought for 7 coins"
    assert items[-3:] == ["bought ", "for ", "7 coins"]
    assert sorted(map(str, items[:-3])) == [
        "{'asks for': 'bolt'}", "{'asks for': 'nut'}", "{'price of': 'bolt', 'is': 4}", "{'price of': 'nut', 'is': 3}",
    ]  # fmt: skip
