"""OpenAI Agents in workflows: requests, tools and guardrails are steps, and are not repeated after a crash."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolOutputText,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
)
from agents.models.interface import Model, ModelProvider
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from agents.tracing import set_tracing_disabled

from holdfast import Context, Handle, Holdfast, Retry
from holdfast.ext.openai_agents import HoldfastProvider, RunSession, StepOptions, approvals, durable
from holdfast.testing import Harness
from holdfast.testing.crashing_harness import CrashingHarness

calls: list[str] = []
"""Names of the model requests, tool calls and guardrails that were made."""


@pytest.fixture(autouse=True)
def _no_calls_and_no_traces() -> Iterator[None]:
    calls.clear()
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


def _outputs(call: ModelCall) -> list[str]:
    items = call.input if isinstance(call.input, list) else []
    return [str(item["output"]) for item in items if item.get("type") == "function_call_output"]  # type: ignore[union-attr]


def _decide(call: ModelCall) -> ModelStep:
    """Look up two parts at once, then ask to pay, then hand off to the clerk."""
    outputs = _outputs(call)
    calls.append(f"model after {len(outputs)}")
    if not outputs:
        return ModelStep(
            output=[
                function_call("look_up", {"part": "bolt"}, call_id="c-1"),
                function_call("look_up", {"part": "nut"}, call_id="c-2"),
            ]
        )
    if len(outputs) == 2:
        return ModelStep(output=[function_call("pay", {"amount": 3}, call_id="c-3")])
    return ModelStep(output=[function_call("transfer_to_clerk", {}, call_id="c-4")])


def _close(call: ModelCall) -> ModelStep:
    calls.append("clerk")
    paid = "3 coins" if "3 coins" in _outputs(call)[2] else _outputs(call)[2]
    return ModelStep(output=[assistant_message(f"bought for {paid}")])


class _ModelWithClient(ScriptedModel):
    """A model that cannot be copied, as one with a client of OpenAI cannot."""

    def __init__(self, steps: list[ModelStep]) -> None:
        super().__init__(steps)
        self.client = threading.RLock()


def _model(decide: Any) -> ScriptedModel:
    return _ModelWithClient([ModelStep.respond(decide)] * 50)


@function_tool(failure_error_function=None)
async def look_up(part: str) -> int:
    calls.append(f"look_up {part}")
    if part == "nut" and calls.count("look_up nut") == 1:
        raise ConnectionError("no answer")
    return len(part)


@function_tool(needs_approval=True)
def pay(amount: int) -> ToolOutputText:
    calls.append(f"pay {amount}")
    return ToolOutputText(text=f"{amount} coins")


@input_guardrail
async def polite(context: RunContextWrapper[Any], agent: Agent[Any], text: Any) -> GuardrailFunctionOutput:
    calls.append("polite")
    return GuardrailFunctionOutput({"checked": True}, tripwire_triggered="!" in str(text))


@output_guardrail
def short(context: RunContextWrapper[Any], agent: Agent[Any], text: str) -> GuardrailFunctionOutput:
    calls.append("short")
    return GuardrailFunctionOutput(None, tripwire_triggered=False)


def _buyer(*, explicit: bool = False) -> Agent[Any]:
    clerk = Agent(name="clerk", model=_model(_close), output_guardrails=[short])
    return durable(
        Agent(
            name="buyer",
            model=_model(_decide),
            tools=[look_up, pay],
            handoffs=[handoff(clerk)] if explicit else [clerk],
            input_guardrails=[polite],
        ),
        tool=StepOptions(retry=Retry(limit=2, delay="1 second", backoff="constant")),
    )


def _make(agent: Agent[Any], *, streamed: bool = False) -> Holdfast:
    app = Holdfast("sqlite://")

    async def run(question: Any, session: RunSession) -> Any:
        if not streamed:
            return await Runner.run(agent, question, session=session)
        result = Runner.run_streamed(agent, question, session=session)
        seen.extend([event.name async for event in result.stream_events() if event.type == "run_item_stream_event"])
        return result

    seen: list[str] = []

    @app.workflow
    async def buy(ctx: Context, order: str) -> list[Any]:
        seen.clear()
        session = RunSession()
        result = await run(order, session)
        while result.interruptions:
            result = await run(await approvals(result), session)
        return [result.final_output, len(session.items), [*seen]]

    return app


async def _approve(run: Handle[Any]) -> None:
    if "approval" in (await run.describe()).why:
        await run.send_event("approval", {"call_id": "c-3", "approved": True}, id="decision")


@pytest.mark.parametrize("explicit", [False, True])
async def test_requests_tools_and_guardrails_are_steps_also_after_a_handoff(explicit: bool) -> None:
    async with Harness(_make(_buyer(explicit=explicit))) as h:
        run = await h.start("buy", "bolts and nuts")
        await h.advance("1 minute")
        await _approve(run)
        await h.run_until_idle()

        assert (await run.result())[0] == "bought for 3 coins"
        keys = [step.step_key for step in (await run.history()).steps if step.type == "do"]
    assert sorted(keys) == sorted(
        [
            *("buyer.polite", "buyer.model", "buyer.look_up", "buyer.look_up#2", "buyer.model#2", "buyer.pay"),
            *("buyer.model#3", "clerk.model", "clerk.short"),
        ]
    )


async def _buy_with_crash(after: int | None, *, streamed: bool) -> tuple[Any, int, Counter[str]]:
    """The result of a purchase whose worker is lost after a commit, the number of commits, and the calls made."""
    calls.clear()
    async with CrashingHarness(_make(_buyer(explicit=True), streamed=streamed)) as h:
        h.crash_after(after)
        run = await h.start("buy", "bolts and nuts")
        await h.advance("1 minute")
        await _approve(run)
        await h.advance("1 minute")
        return await run.result(), h.commits, Counter(calls)


@pytest.mark.parametrize("streamed", [False, True])
async def test_no_call_is_repeated_after_its_commit_wherever_the_worker_is_lost(
    streamed: bool, request: pytest.FixtureRequest
) -> None:
    """``test_acceptance`` tests every commit of a run without guardrails."""
    expected, commits, made = await _buy_with_crash(None, streamed=streamed)
    assert expected[0] == "bought for 3 coins"
    assert bool(expected[2]) == streamed
    for after in range(1, commits + 1, 1 if request.config.getoption("--long") else 3):
        result, _, repeated = await _buy_with_crash(after, streamed=streamed)

        assert result == expected
        assert not made - repeated
        # Only a call that ran beside the one whose commit was the last may be made again.
        extra = repeated - made
        assert extra.total() <= 1
        assert not [name for name in extra if name not in ("look_up bolt", "look_up nut", "polite", "model after 0")]


async def test_a_refused_tool_call_is_reported_to_the_model() -> None:
    async with Harness(_make(_buyer())) as h:
        run = await h.start("buy", "bolts and nuts")
        await h.advance("1 minute")
        await run.send_event("approval", {"call_id": "c-9", "approved": True})
        await run.send_event("approval", {"call_id": "c-3", "approved": False, "message": "too dear"})
        await h.run_until_idle()
        assert (await run.result())[0] == "bought for too dear"
        assert [line.level for line in await run.logs()] == ["warn"]
    assert "pay 3" not in calls


async def test_a_guardrail_stops_the_run_also_after_a_crash() -> None:
    agent = _buyer()
    app = Holdfast("sqlite://")

    @app.workflow
    async def ask(ctx: Context) -> str:
        try:
            await Runner.run(agent, "now!")
        except InputGuardrailTripwireTriggered as error:
            await ctx.sleep("pause", "1 minute")
            return str(error.guardrail_result.output.output_info)
        return "not stopped"

    async with CrashingHarness(app) as h:
        h.crash_after(2)
        assert await h.run("ask") == "{'checked': True}"
        assert h.crashed
    assert calls.count("polite") == 1


async def test_events_of_a_streamed_response_are_seen_while_they_arrive() -> None:
    seen: list[str] = []
    agent = durable(
        Agent(name="writer", model=_model(lambda call: ModelStep(output=[assistant_message("a long text")]))),
        on_event=lambda event: seen.append(event.type),
    )
    async with Harness(_make(agent, streamed=True)) as h:
        assert (await h.run("buy", "x"))[0] == "a long text"
    assert "response.output_text.delta" in seen


async def test_events_of_a_streamed_response_are_written_to_a_durable_stream() -> None:
    agent = durable(
        Agent(name="writer", model=_model(lambda call: ModelStep(output=[assistant_message("a long text")]))),
        stream="model",
    )
    async with Harness(_make(agent, streamed=True)) as h:
        run = await h.start("buy", "x")
        await h.run_until_idle()
        events = [item.value async for item in run.stream("model")]
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == "a long text"
    assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize("after", [None, 2, 3, 4])
async def test_the_calls_of_a_durable_agent_that_is_a_tool_are_steps(after: int | None) -> None:
    def answer(name: str, tool: str, arguments: dict[str, Any]) -> ScriptedModel:
        def respond(call: ModelCall) -> ModelStep:
            calls.append(name)
            if outputs := _outputs(call):
                return ModelStep(output=[assistant_message(f"{name}: {outputs[0]}")])
            return ModelStep(output=[function_call(tool, arguments, call_id=f"c-{name}")])

        return _model(respond)

    expert = durable(Agent(name="expert", model=answer("expert", "look_up", {"part": "bolt"}), tools=[look_up]))
    tool = expert.as_tool("ask_expert", "Ask the expert.")
    boss = durable(Agent(name="boss", model=answer("boss", "ask_expert", {"input": "bolts?"}), tools=[tool]))

    async with CrashingHarness(_make(boss)) as h:
        h.crash_after(after)
        run = await h.start("buy", "bolts")
        await h.advance("5 minutes")
        assert (await run.result())[0] == "boss: expert: 4"
        keys = [step.step_key for step in (await run.history()).steps]
        assert h.crashed == (after is not None)
    assert keys == ["boss.model", "expert.model", "expert.look_up", "expert.model#2", "boss.model#2"]
    assert calls == ["boss", "expert", "look_up bolt", "expert", "boss"]


class _Models(ModelProvider):
    def get_model(self, model_name: str | None) -> Model:
        return _model(lambda call: ModelStep(output=[assistant_message(f"I am {model_name}")]))


async def test_a_model_that_the_run_configuration_names_is_called_in_steps() -> None:
    app = Holdfast("sqlite://")
    config = RunConfig(model="small", model_provider=HoldfastProvider(_Models()))

    @app.workflow
    async def ask(ctx: Context) -> str:
        return str((await Runner.run(Agent(name="plain"), "who?", run_config=config)).final_output)

    async with Harness(app) as h:
        run = await h.start("ask")
        await h.run_until_idle()
        assert await run.result() == "I am small"
        assert [step.step_key for step in (await run.history()).steps] == ["small.model"]


async def test_outside_a_workflow_the_agent_is_an_ordinary_agent() -> None:
    agent = durable(Agent(name="plain", model="small", input_guardrails=[polite]), provider=_Models())
    assert (await Runner.run(agent, "x")).final_output == "I am small"
    streamed = Runner.run_streamed(agent, "x")
    assert [event async for event in streamed.stream_events()]
    assert streamed.final_output == "I am small"


async def test_a_session_has_the_items_of_the_run() -> None:
    session = RunSession([{"role": "user", "content": "first"}])
    await session.add_items([{"role": "user", "content": "second"}])
    assert await session.get_items(1) == [{"role": "user", "content": "second"}]
    assert await session.pop_item() == {"role": "user", "content": "second"}
    assert len(await session.get_items()) == 1
    await session.clear_session()
    assert await session.pop_item() is None
