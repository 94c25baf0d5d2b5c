"""Graphs of LangGraph in workflows: nodes are steps, and are not repeated after a crash."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, RetryPolicy, Send, interrupt

from holdfast import Context, Handle, Holdfast, Retry
from holdfast.errors import RunFailedError
from holdfast.ext.langgraph import DurableGraph, StepOptions
from holdfast.testing import Harness
from holdfast.testing.crashing_harness import CrashingHarness

calls: list[str] = []
"""Names of the nodes that were called."""


class State(TypedDict, total=False):
    order: str
    found: Annotated[list[str], operator.add]
    answer: str


def _plan(state: State) -> dict[str, Any]:
    calls.append("plan")
    return {"found": [state["order"]]}


def _each_part(state: State) -> list[Send]:
    calls.append("edge")
    return [Send("look_up", {"order": part}) for part in ("bolt", "nut")]


async def _look_up(state: State) -> dict[str, Any]:
    part = state["order"]
    calls.append(f"look_up {part}")
    if part == "nut" and calls.count("look_up nut") == 1:
        raise ConnectionError("no answer")
    return {"found": [part]}


def _review(state: State) -> dict[str, Any]:
    decision = interrupt({"buy": state["found"]})
    calls.append("review")
    return {"answer": f"{decision}: {', '.join(state['found'])}"}


def _pay(state: State) -> dict[str, Any]:
    calls.append("pay")
    return {"answer": state["answer"] + ", paid"}


def _builder() -> StateGraph[State]:
    builder = StateGraph(State)
    builder.add_node("plan", _plan)
    builder.add_node("look_up", _look_up)
    builder.add_node("review", _review)
    builder.add_node("pay", _pay)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", _each_part, ["look_up"])
    builder.add_edge("look_up", "review")
    builder.add_edge("review", "pay")
    builder.add_edge("pay", END)
    return builder


def _make(graph: DurableGraph, output: str = "answer") -> Holdfast:
    app = Holdfast("sqlite://")

    @app.workflow
    async def buy(ctx: Context, order: str) -> Any:
        return (await graph.ainvoke({"order": order}))[output]

    return app


def _shop() -> Holdfast:
    retried = StepOptions(retry=Retry(limit=2, delay="1 second", backoff="constant"))
    return _make(DurableGraph(_builder().compile(), step=retried))


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


async def _answer(run: Handle[Any]) -> None:
    if "resume" in (await run.describe()).why:
        await run.send_event("resume", {"value": "yes"}, id="decision")


async def test_every_node_is_a_step_and_interrupts_wait_for_an_event() -> None:
    async with Harness(_shop()) as h:
        run = await h.start("buy", "order")
        await h.advance("1 minute")
        await _answer(run)
        await h.run_until_idle()

        assert await run.result() == "yes: order, bolt, nut, paid"
        steps = (await run.history()).steps
    assert [step.step_key for step in steps if step.type == "do"] == [
        "plan",
        "look_up",
        "look_up#2",
        "review",
        "review#2",
        "pay",
    ]
    assert next(step.attempts for step in steps if step.step_key == "look_up#2") == 2


async def _buy_with_crash(after: int | None) -> tuple[Any, int, Counter[str]]:
    """The result of a purchase whose worker is lost after a commit, the number of commits, and the nodes called."""
    calls.clear()
    async with CrashingHarness(_shop()) as h:
        h.crash_after(after)
        run = await h.start("buy", "order")
        await h.advance("1 minute")
        await _answer(run)
        await h.advance("1 minute")
        return await run.result(), h.commits, Counter(calls)


async def test_no_node_is_repeated_after_its_commit_wherever_the_worker_is_lost(
    request: pytest.FixtureRequest,
) -> None:
    """``test_acceptance`` tests every commit of a run with a stream."""
    expected, commits, made = await _buy_with_crash(None)
    assert expected == "yes: order, bolt, nut, paid"
    for after in range(1, commits + 1, 1 if request.config.getoption("--long") else 3):
        result, _, repeated = await _buy_with_crash(after)

        assert result == expected
        assert not made - repeated
        # Only a node that ran beside the one whose commit was the last may be called again.
        extra = repeated - made
        assert [name for name in extra if not name.startswith("look_up")] == []
        assert extra.total() <= 1


async def test_answers_to_parallel_interrupts_name_their_nodes() -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"found": [f"{state['order']}={interrupt(state['order'])}"]}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_conditional_edges(START, lambda _: [Send("ask", {"order": name}) for name in "ab"], ["ask"])
    app = _make(DurableGraph(builder.compile()), "found")
    async with CrashingHarness(app) as h:
        h.crash_after(4)
        run = await h.start("buy", "x")
        await h.advance("2 minutes")
        await run.send_event("resume", "not an answer")
        for node, value in (("ask#2", "second"), ("unknown", "?"), ("ask", "first")):
            await run.send_event("resume", {"node": node, "value": value})
        await h.advance("2 minutes")
        assert await run.result() == ["a=first", "b=second"]
        assert [line.level for line in await run.logs() if not line.is_replay] == ["warn", "warn"]
        assert h.crashed


async def test_a_node_may_interrupt_twice_and_each_answer_survives_a_crash() -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"answer": f"{interrupt('first?')} and {interrupt('second?')}"}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    for after in range(1, 6):
        async with CrashingHarness(_make(DurableGraph(builder.compile()))) as h:
            h.crash_after(after)
            run = await h.start("buy", "x")
            for value in ("one", "two"):
                await h.advance("2 minutes")
                await run.send_event("resume", {"value": value}, id=value)
            await h.advance("2 minutes")
            assert await run.result() == "one and two"


async def test_nodes_of_a_subgraph_are_steps_and_may_interrupt() -> None:
    outer = StateGraph(State)
    outer.add_node("shop", _builder().compile())
    outer.add_edge(START, "shop")
    outer.add_conditional_edges("shop", lambda state: END if state["answer"] else "shop")
    retried = StepOptions(retry=Retry(limit=2, delay="1 second", backoff="constant"))
    async with CrashingHarness(_make(DurableGraph(outer.compile(), step=retried))) as h:
        h.crash_after(7)
        run = await h.start("buy", "order")
        await h.advance("1 minute")
        await run.send_event("resume", {"node": "shop.review", "value": "yes"})
        await h.advance("1 minute")
        assert (await run.result()).startswith("yes: order")
        keys = [step.step_key for step in (await run.history()).steps if step.type == "do"]
        assert h.crashed
    assert keys == [
        *("shop.plan", "shop.look_up", "shop.look_up#2", "shop.review", "shop.review#2", "shop.pay", "shop.edges"),
    ]
    assert calls.count("plan") == 1


async def test_a_command_of_a_subgraph_moves_the_graph_around_it() -> None:
    def leave(state: State) -> Command[Any]:
        return Command(graph=Command.PARENT, goto="pay", update={"answer": "left"})

    inner = StateGraph(State)
    inner.add_node("leave", leave)
    inner.add_edge(START, "leave")
    outer = StateGraph(State)
    outer.add_node("inner", inner.compile(), destinations=("pay",))
    outer.add_node("pay", _pay)
    outer.add_edge(START, "inner")
    async with CrashingHarness(_make(DurableGraph(outer.compile()))) as h:
        h.crash_after(2)
        assert await h.run("buy", "x") == "left, paid"
        assert h.crashed


async def test_messages_of_langchain_are_recorded() -> None:
    class Chat(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    async def reply(state: Chat) -> dict[str, Any]:
        calls.append("model")
        return {"messages": [AIMessage(f"answer to {state['messages'][-1].content}", id="m-2")]}

    builder = StateGraph(Chat)
    builder.add_node("model", reply)
    builder.add_edge(START, "model")
    graph = DurableGraph(builder.compile())
    app = Holdfast("sqlite://")

    @app.workflow
    async def chat(ctx: Context, question: str) -> list[str]:
        state = await graph.ainvoke({"messages": [HumanMessage(question, id="m-1")]})
        await ctx.sleep("pause", "1 minute")
        return [str(message.content) for message in state["messages"]]

    async with CrashingHarness(app) as h:
        h.crash_after(2)
        assert await h.run("chat", "why?") == ["why?", "answer to why?"]
    assert calls == ["model"]


@pytest.mark.parametrize("after", [None, 1, 2, 3, 4])
async def test_a_retry_policy_of_langgraph_retries_the_node(after: int | None) -> None:
    class Unreachable(Exception):
        pass

    async def ask(state: State) -> dict[str, Any]:
        calls.append("ask")
        if len(calls) < 3:
            raise Unreachable("down")
        return {"answer": "up"}

    builder = StateGraph(State)
    policy = RetryPolicy(initial_interval=10, max_attempts=3, retry_on=Unreachable)
    builder.add_node("ask", ask, retry_policy=policy)
    builder.add_edge(START, "ask")
    async with CrashingHarness(_make(DurableGraph(builder.compile()))) as h:
        h.crash_after(after)
        assert await h.run("buy", "x") == "up"
    assert calls == ["ask"] * 3


async def test_a_graph_that_a_node_calls_cannot_be_interrupted() -> None:
    inner = StateGraph(State)
    inner.add_node("review", _review)
    inner.add_edge(START, "review")
    called = inner.compile()
    outer = StateGraph(State)

    async def call(state: State) -> Any:
        return await called.ainvoke({"found": []})

    outer.add_node("call", call)
    outer.add_edge(START, "call")
    async with Harness(_make(DurableGraph(outer.compile()))) as h:
        with pytest.raises(RunFailedError, match="add this graph as a node"):
            await h.run("buy", "x")


async def test_the_functional_api_is_refused() -> None:
    @entrypoint()
    async def plain(value: str) -> str:
        return value

    with pytest.raises(TypeError, match="compiled StateGraph"):
        DurableGraph(plain)  # type: ignore[arg-type]
