"""Nodes that start other runs: ends of children, cancellation, and graphs driven by ``app.advance``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from driving import until
from holdfast import (
    Context,
    Finished,
    Graph,
    Holdfast,
    InstanceTerminalError,
    Killed,
    RunCancelledError,
    RunFailedError,
    RunTerminatedError,
    Started,
)
from holdfast.runner.unit_turns import GraphRunTurn
from holdfast.testing import Harness
from why_text import without_positions

_CHILDREN = ("a", "b", "c")


def graph_of_waiting_children(app: Holdfast) -> Graph:
    """Three children that end at an event, and a node after all of them."""

    @app.workflow
    async def child(ctx: Context, name: str) -> str:
        await ctx.wait_for_event("go", type="go")
        return name

    graph = app.graph("family")
    for name in _CHILDREN:
        graph.node(run=child, name=name, input=lambda name=name: name)

    @graph.node(after=_CHILDREN)
    async def total(a: str, b: str, c: str) -> str:
        return a + b + c

    return graph


async def children_of(app: Holdfast, run: Any) -> list[Any]:
    """Handles of the children, in the order of the nodes."""
    children = (await run.describe()).children
    ids = sorted((child.pid.partition("/")[2] for child in children), key=lambda id_: int(id_.rpartition("-")[2]))
    return [await app.get("child", id_) for id_ in ids]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[GraphRunTurn]:
    """The turns of unit 0, in order."""
    turns: list[GraphRunTurn] = []
    run = GraphRunTurn.run

    async def recorded(turn: GraphRunTurn) -> None:
        turns.append(turn)
        await run(turn)

    monkeypatch.setattr(GraphRunTurn, "run", recorded)
    return turns


@pytest.mark.interpreted("replaces a method of an object of a compiled class")
async def test_the_end_of_a_child_is_handled_if_it_arrives_during_the_end_of_another(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, turns: list[GraphRunTurn]
) -> None:
    app = make_app()
    graph = graph_of_waiting_children(app)
    async with app:
        run = await app.start(graph)
        first, *others = await until(lambda: all_children(app, run))
        worker = app._opened().worker
        assert worker is not None
        advance = worker._context.advancer.advance
        waited: list[int] = []

        async def when_others_have_ended(request: Any) -> bool:
            if request.task.unit == 0 and not waited:
                waited.append(1)
                for child in others:
                    await child.send_event("go")
                    await child.result(timeout=60)
            return await advance(request)

        monkeypatch.setattr(worker._context.advancer, "advance", when_others_have_ended)
        await first.send_event("go")

        assert (await run.result(timeout=60))["total"] == "abc"
        assert waited == [1]
        assert len(turns) <= 4


async def all_children(app: Holdfast, run: Any) -> list[Any]:
    """The children, or an empty list until all have been started."""
    children = await children_of(app, run)
    return children if len(children) == len(_CHILDREN) else []


@pytest.mark.above_the_store
async def test_a_full_mailbox_does_not_hide_the_end_of_a_child(app: Holdfast, h: Harness) -> None:
    run = await h.start(graph_of_waiting_children(app))
    await h.run_until_idle()
    for n in range(510):
        await run.send_event("unwanted", n)
    for child in await children_of(h.app, run):
        await child.send_event("go")
    await h.run_until_idle()

    assert (await run.result(timeout=60))["total"] == "abc"


@pytest.mark.above_the_store
async def test_more_children_than_a_mailbox_page_holds_can_end_during_a_pause(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        return n

    graph = app.graph("wide")

    @graph.node
    async def numbers() -> list[int]:
        return [*range(510)]

    graph.node(run=child, name="each", map=numbers)
    run = await h.start(graph)
    await h.tick()
    await run.pause()
    await h.run_until_idle()
    await run.resume()
    await h.run_until_idle()

    assert (await run.result(timeout=60))["each"] == [*range(510)]


# --- cancellation


async def test_a_cancellation_that_arrives_before_the_end_is_written_takes_effect(
    app: Holdfast, h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = app.graph("g")

    @graph.node
    async def only() -> int:
        return 1

    run = await h.start(graph)
    end = GraphRunTurn._end

    async def after_a_cancellation(turn: GraphRunTurn, finish: Any) -> None:
        await run.cancel("too late")
        await end(turn, finish)

    monkeypatch.setattr(GraphRunTurn, "_end", after_a_cancellation)
    await h.run_until_idle()

    with pytest.raises(RunCancelledError, match="too late"):
        await run.result(timeout=60)
    with pytest.raises(InstanceTerminalError):
        await run.cancel()


async def test_the_cancellation_of_a_graph_terminates_its_children(app: Holdfast, h: Harness) -> None:
    run = await h.start(graph_of_waiting_children(app))
    await h.run_until_idle()
    children = await children_of(h.app, run)
    await run.cancel("enough")

    assert (await run.status()).status == "cancelled"
    for child in children:
        with pytest.raises(RunTerminatedError, match=r"its parent family/.* has ended"):
            await child.result(timeout=60)
    await h.run_until_idle()
    assert (await run.facts("tombstone"))["tombstone"]["reason"] == "enough"


async def test_the_cancellation_of_a_graph_terminates_a_graph_that_is_its_node(app: Holdfast, h: Harness) -> None:
    inner = graph_of_waiting_children(app)
    outer = app.graph("outer")
    outer.node(run=inner)
    run = await h.start(outer)
    await h.run_until_idle()
    [child] = (await run.describe()).children
    await run.cancel()
    await h.run_until_idle()

    inner_run = await h.app.get("family", child.pid.partition("/")[2])
    assert (await inner_run.status()).status == "terminated"
    assert (await inner_run.facts("tombstone"))["tombstone"]["reason"] == f"its parent {run.pid} has ended"


async def test_why_says_that_a_node_waits_for_the_run_that_it_started(app: Holdfast, h: Harness) -> None:
    run = await h.start(graph_of_waiting_children(app))
    await h.run_until_idle()
    [first, *_] = await children_of(h.app, run)
    await first.send_event("go")
    await h.run_until_idle()

    waiting = "node 'b' waits for child 'child' to end; node 'c' waits for child 'child' to end"
    assert without_positions((await run.describe()).why) == f"1 of 4 nodes have a result; {waiting}"


async def test_a_cancelled_child_fails_its_node(app: Holdfast, h: Harness) -> None:
    inner = graph_of_waiting_children(app)
    outer = app.graph("outer")
    outer.node(run=inner, name="inner")
    run = await h.start(outer)
    await h.run_until_idle()
    [child] = (await run.describe()).children
    await (await h.app.get("family", child.pid.partition("/")[2])).cancel("not this one")
    await h.run_until_idle()

    with pytest.raises(RunFailedError, match=r"node 'inner' failed: ChildError: .* ended cancelled: not this one"):
        await run.result(timeout=60)


async def test_a_workflow_can_cancel_a_graph(app: Holdfast, h: Harness) -> None:
    graph = graph_of_waiting_children(app)

    @app.workflow
    async def canceller(ctx: Context, pid: str) -> None:
        await ctx.cancel(pid, "by a run")

    run = await h.start(graph)
    await h.run_until_idle()
    await h.start(canceller, run.pid)
    await h.run_until_idle()

    with pytest.raises(RunCancelledError, match="by a run"):
        await run.result(timeout=60)


async def test_a_paused_graph_can_be_cancelled(app: Holdfast, h: Harness) -> None:
    run = await h.start(graph_of_waiting_children(app))
    await h.run_until_idle()
    await run.pause()
    await run.cancel()

    assert (await run.status()).status == "cancelled"


async def test_a_cancelled_graph_can_be_restarted(app: Holdfast, h: Harness) -> None:
    run = await h.start(graph_of_waiting_children(app))
    await h.run_until_idle()
    await run.cancel()
    await run.restart()
    await h.run_until_idle()
    for child in await children_of(h.app, run):
        await child.send_event("go")
    await h.run_until_idle()

    assert (await run.result(timeout=60))["total"] == "abc"
    assert await run.facts("tombstone") == {}


# --- app.advance


@pytest.mark.parametrize(
    ("request_name", "expected"), [("cancel", Finished("cancelled")), ("terminate", Killed("enough"))]
)
async def test_advance_starts_no_node_of_a_stopped_graph(make_app: MakeApp, request_name: str, expected: Any) -> None:
    app = make_app()
    graph = app.graph("g")
    ran: list[str] = []

    @graph.node
    async def first() -> None:
        ran.append("first")

    @graph.node(after=[first])
    async def second() -> None:
        ran.append("second")

    async with app.connect():
        run = await app.start(graph)
        assert await app.advance(run) == Started(("first",))
        await until(lambda: run.results())
        await getattr(run, request_name)("enough")

        assert await app.advance(run) == expected
        assert ran == ["first"]
        assert [key for key in await run.facts("start/") if "second" in key] == []
        assert (await run.facts("tombstone"))["tombstone"]["reason"] == "enough"


async def test_advance_finishes_a_graph_with_children(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        return 2 * n

    graph = app.graph("g")
    graph.node(run=child, name="one", input=lambda: 1)
    graph.node(run=child, name="two", input=lambda: 2)

    @graph.node(after=["one", "two"])
    async def total(one: int, two: int) -> int:
        return one + two

    async with app.connect():
        run = await app.start(graph)
        started: set[str] = set()

        async def ended() -> Any:
            advancement = await app.advance(run)
            if isinstance(advancement, Started):
                started.update(advancement.nodes)
                return None
            return advancement

        assert await until(ended) == Finished("complete")
        assert (await run.results())["total"] == 6
        assert started == {"one", "two", "total"}


async def test_graphs_whose_children_end_at_the_same_time_complete(
    make_app: MakeApp, turns: list[GraphRunTurn]
) -> None:
    app = make_app()
    graph = graph_of_waiting_children(app)

    async with app:
        runs = [await app.start(graph) for _ in range(10)]
        children = [child for run in runs for child in await until(lambda run=run: all_children(app, run))]
        await asyncio.gather(*(child.send_event("go") for child in children))
        results = [await run.result(timeout=60) for run in runs]

    assert [result["total"] for result in results] == ["abc"] * 10
    assert len(turns) <= 10 * (len(_CHILDREN) + 2)
