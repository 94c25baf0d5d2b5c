"""Agents of pydantic-ai in workflows: requests and tool calls are steps, and are not repeated after a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry, UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Context, Handle, Holdfast, Retry
from holdfast.ext.pydantic_ai import HoldfastDurability, StepOptions, approvals
from holdfast.testing import Harness
from holdfast.testing.crashing_harness import CrashingHarness

calls: list[str] = []
"""Names of the model requests and tool calls that were made."""


def _answers(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def _decide(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Look up two parts at once, then ask to pay, then answer."""
    answers = _answers(messages)
    calls.append(f"model after {len(answers)}")
    if not answers:
        return ModelResponse(
            parts=[
                ToolCallPart("look_up", {"part": "bolt"}, tool_call_id="c-1"),
                ToolCallPart("look_up", {"part": "nut"}, tool_call_id="c-2"),
            ]
        )
    if len(answers) == 2:
        return ModelResponse(parts=[ToolCallPart("pay", {"amount": 3}, tool_call_id="c-3")])
    return ModelResponse(parts=[TextPart(f"bought for {answers[-1].content}")])


def _make(model: Any = None) -> tuple[Holdfast, Agent[None, Any]]:
    app = Holdfast("sqlite://")
    agent: Agent[None, Any] = Agent(
        model or FunctionModel(_decide),
        name="buyer",
        output_type=[str, DeferredToolRequests],
        capabilities=[
            HoldfastDurability(tool=StepOptions(retry=Retry(limit=2, delay="1 second", backoff="constant"))),
        ],
    )

    @agent.tool_plain
    async def look_up(part: str) -> int:
        calls.append(f"look_up {part}")
        if part == "nut" and calls.count("look_up nut") == 1:
            raise ConnectionError("no answer")
        return len(part)

    @agent.tool_plain(requires_approval=True)
    async def pay(amount: int) -> str:
        calls.append(f"pay {amount}")
        return f"{amount} coins"

    @app.workflow
    async def buy(ctx: Context, order: str) -> str:
        result = await agent.run(order, usage_limits=UsageLimits(request_limit=5))
        while isinstance(result.output, DeferredToolRequests):
            decided = await approvals(result.output)
            result = await agent.run(message_history=result.all_messages(), deferred_tool_results=decided)
        return str(result.output)

    return app, agent


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


async def _approve(h: Harness, run: Handle[Any]) -> None:
    if "approval" in (await run.describe()).why:
        await run.send_event("approval", {"tool_call_id": "c-3", "approved": True}, id="decision")


async def test_requests_and_tool_calls_are_steps_with_the_names_of_the_framework() -> None:
    app, _ = _make()
    async with Harness(app) as h:
        run = await h.start("buy", "bolts and nuts")
        await h.advance("1 minute")
        await _approve(h, run)
        await h.run_until_idle()

        assert await run.result() == "bought for 3 coins"
        steps = [step.step_key for step in (await run.history()).steps if step.type == "do"]
    assert [key for key in steps if "model" in key] == [
        "buyer__model.request",
        "buyer__model.request#2",
        "buyer__model.request#3",
    ]
    assert [key for key in steps if "call_tool" in key] == [
        "buyer__function_toolset__<agent>.call_tool:look_up",
        "buyer__function_toolset__<agent>.call_tool:look_up#2",
        "buyer__function_toolset__<agent>.call_tool:pay",
    ]


async def _buy_with_crash(after: int | None) -> tuple[Any, int, Counter[str]]:
    """The result of a purchase whose worker is lost after a commit, the number of commits, and the calls made."""
    calls.clear()
    app, _ = _make()
    async with CrashingHarness(app) as h:
        h.crash_after(after)
        run = await h.start("buy", "bolts and nuts")
        await h.advance("1 minute")
        await _approve(h, run)
        await h.advance("1 minute")
        return await run.result(), h.commits, Counter(calls)


async def test_no_call_is_repeated_after_its_commit_wherever_the_worker_is_lost(
    request: pytest.FixtureRequest,
) -> None:
    """``test_acceptance`` tests every commit of a run with a stream."""
    expected, commits, made = await _buy_with_crash(None)
    assert expected == "bought for 3 coins"
    for after in range(1, commits + 1, 1 if request.config.getoption("--long") else 3):
        result, _, repeated = await _buy_with_crash(after)

        assert result == expected
        extra = repeated - made
        # Only a tool call that ran beside the one whose commit was the last may be made again.
        assert not made - repeated
        assert [name for name in extra if not name.startswith("look_up")] == []
        assert extra.total() <= 1


async def test_a_refused_tool_call_is_reported_to_the_model() -> None:
    app, _ = _make()
    async with Harness(app) as h:
        run = await h.start("buy", "bolts and nuts")
        await h.advance("1 minute")
        await run.send_event("approval", {"tool_call_id": "c-9", "approved": True})
        await run.send_event("approval", {"tool_call_id": "c-3", "approved": False, "message": "too dear"})
        await h.run_until_idle()
        assert await run.result() == "bought for too dear"
        assert [line.level for line in await run.logs()] == ["warn"]
    assert "pay 3" not in calls


async def test_a_model_that_cannot_be_reached_is_retried_by_the_options_of_the_step() -> None:
    failures = iter([ConnectionError("down"), ConnectionError("down")])

    def unreliable(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if (error := next(failures, None)) is not None:
            raise error
        return ModelResponse(parts=[TextPart("done")])

    app, _ = _make(FunctionModel(unreliable))
    async with Harness(app) as h:
        assert await h.run("buy", "x") == "done"
        page = await h.app.list()
        history = await (await h.app.get("buy", page.items[0].id)).history()
    assert history.steps[0].attempts == 3


async def test_usage_limits_hold_across_a_restart_of_the_worker() -> None:
    def endless(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls.append("model")
        return ModelResponse(parts=[ToolCallPart("look_up", {"part": "bolt"}, tool_call_id=f"c-{len(messages)}")])

    app, agent = _make(FunctionModel(endless))

    @app.workflow
    async def limited(ctx: Context) -> str:
        await ctx.sleep("first", 1)
        try:
            await agent.run("go", usage_limits=UsageLimits(request_limit=3))
        except UsageLimitExceeded as error:
            return str(error)
        return "no limit"

    for after in range(1, 5):
        async with CrashingHarness(app) as h:
            h.crash_after(after)
            assert "request_limit of 3" in await h.run("limited")
            assert h.crashed


async def test_outside_a_workflow_the_agent_is_an_ordinary_agent() -> None:
    def once(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("plain")])

    _, agent = _make(FunctionModel(once))
    assert (await agent.run("x")).output == "plain"


async def test_a_tool_that_asks_the_model_to_try_again_is_not_retried_as_a_step() -> None:
    def ask_twice(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls.append("model")
        if calls.count("model") < 3:
            return ModelResponse(parts=[ToolCallPart("choose", {}, tool_call_id=f"c-{len(messages)}")])
        return ModelResponse(parts=[TextPart("ok")])

    app, agent = _make(FunctionModel(ask_twice))

    @agent.tool_plain(retries=5)
    async def choose() -> str:
        calls.append("choose")
        raise ModelRetry("choose something else")

    async with Harness(app) as h:
        assert await h.run("buy", "x") == "ok"
    assert calls.count("choose") == 2


async def test_each_kind_of_call_has_its_own_retries_and_timeout() -> None:
    app = Holdfast("sqlite://")
    agent: Agent[None, str] = Agent(
        FunctionModel(_look_up_once),
        name="clerk",
        capabilities=[
            HoldfastDurability(
                model=StepOptions(retry=Retry(limit=7), timeout="20 seconds"),
                tool=StepOptions(retry=Retry(limit=1), timeout="2 minutes"),
            )
        ],
    )

    @agent.tool_plain
    async def look_up(part: str) -> int:
        return len(part)

    @agent.tool_plain(metadata={"holdfast": StepOptions(retry=Retry(limit=0), timeout="3 seconds")})
    async def ring(part: str) -> str:
        return "nobody"

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        return (await agent.run(question)).output

    async with Harness(app) as h:
        run = await h.start(ask, "bolts?")
        await h.run_until_idle()
        assert await run.result() == "two answers"
        steps = {step.step_key: (step.max_attempts, step.timeout_ms) for step in (await run.history()).steps}

    assert steps["clerk__model.request"] == steps["clerk__model.request#2"] == (8, 20_000)
    assert steps["clerk__function_toolset__<agent>.call_tool:look_up"] == (2, 120_000)
    assert steps["clerk__function_toolset__<agent>.call_tool:ring"] == (1, 3_000)


def _look_up_once(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if _answers(messages):
        return ModelResponse(parts=[TextPart("two answers")])
    return ModelResponse(
        parts=[
            ToolCallPart("look_up", {"part": "bolt"}, tool_call_id="c-1"),
            ToolCallPart("ring", {"part": "bolt"}, tool_call_id="c-2"),
        ]
    )


async def test_model_output_is_written_to_a_durable_stream_and_is_complete_after_a_crash() -> None:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for word in ("one ", "two ", "three"):
            yield word

    def make() -> Holdfast:
        app = Holdfast("sqlite://")
        agent: Agent[None, str] = Agent(
            FunctionModel(stream_function=answer), name="writer", capabilities=[HoldfastDurability(stream="model")]
        )

        @app.workflow
        async def write(ctx: Context) -> str:
            return (await agent.run("count")).output

        return app

    async def text(after: int | None) -> tuple[str, str, int]:
        async with CrashingHarness(make()) as h:
            if after is not None:
                h.crash_after(after)
            run = await h.start("write")
            await h.advance("1 hour")
            events = [item.value async for item in run.stream("model")]
            parts = [event["part"]["content"] for event in events if event["event_kind"] == "part_start"]
            deltas = [event["delta"]["content_delta"] for event in events if event["event_kind"] == "part_delta"]
            return await run.result(), "".join(parts + deltas), h.commits

    result, streamed, commits = await text(None)

    assert (result, streamed) == ("one two three", "one two three")
    for after in range(1, commits + 1):
        assert (await text(after))[:2] == (result, streamed)
