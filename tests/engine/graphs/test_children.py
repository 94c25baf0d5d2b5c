"""Nodes that run other instances: their ends while others are handled, cancellation, graphs that are driven by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.conftest import MakeApp
from engine.driving import until
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
from holdfast.runner.units import KeeperTurn
from holdfast.testing import Harness

_CHILDREN = ("a", "b", "c")


def graph_of_waiting_children(app: Holdfast) -> Graph:
    """Three children that end when they are told to, and a node after all of them."""

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
    found = (await run.describe()).children
    ids = sorted((child.pid.partition("/")[2] for child in found), key=lambda id_: int(id_.rpartition("-")[2]))
    return [await app.get("child", id_) for id_ in ids]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[KeeperTurn]:
    """The turns of unit 0, in their order."""
    seen: list[KeeperTurn] = []
    run = KeeperTurn.run

    async def counted(keeper: KeeperTurn) -> None:
        seen.append(keeper)
        await run(keeper)

    monkeypatch.setattr(KeeperTurn, "run", counted)
    return seen


async def test_a_child_that_ends_while_the_end_of_another_is_handled_is_not_missed(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, turns: list[KeeperTurn]
) -> None:
    app = make_app()
    graph = graph_of_waiting_children(app)
    async with app:
        run = await app.start(graph)
        first, *others = await until(lambda: family(app, run))
        worker = app._opened().worker
        assert worker is not None
        advance = worker._tools.advancer.advance
        waited: list[int] = []

        async def when_others_have_ended(asked: Any) -> bool:
            if asked.task.unit == 0 and not waited:
                waited.append(1)
                for child in others:
                    await child.send_event("go")
                    await child.result(timeout=5)
            return await advance(asked)

        monkeypatch.setattr(worker._tools.advancer, "advance", when_others_have_ended)
        await first.send_event("go")

        assert (await run.result(timeout=10))["total"] == "abc"
        assert waited == [1]
        assert len(turns) <= 4


async def family(app: Holdfast, run: Any) -> list[Any]:
    """The children, once all are there."""
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

    assert (await run.result(timeout=5))["total"] == "abc"


@pytest.mark.above_the_store
async def test_more_children_than_one_read_of_the_mailbox_has_can_end_during_a_pause(app: Holdfast, h: Harness) -> None:
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

    assert (await run.result(timeout=5))["each"] == [*range(510)]


# --- cancellation


async def test_a_cancellation_that_comes_while_the_run_is_about_to_end_is_kept(
    app: Holdfast, h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = app.graph("g")

    @graph.node
    async def only() -> int:
        return 1

    run = await h.start(graph)
    end = KeeperTurn._end

    async def after_a_cancellation(keeper: KeeperTurn, finish: Any) -> None:
        await run.cancel("too late")
        await end(keeper, finish)

    monkeypatch.setattr(KeeperTurn, "_end", after_a_cancellation)
    await h.run_until_idle()

    with pytest.raises(RunCancelledError, match="too late"):
        await run.result(timeout=5)
    with pytest.raises(InstanceTerminalError):
        await run.cancel()


async def test_a_cancelled_graph_ends_its_children(app: Holdfast, h: Harness) -> None:
    run = await h.start(graph_of_waiting_children(app))
    await h.run_until_idle()
    children = await children_of(h.app, run)
    await run.cancel("enough")

    assert (await run.status()).status == "cancelled"
    for child in children:
        with pytest.raises(RunTerminatedError, match=r"its parent family/.* has ended"):
            await child.result(timeout=5)
    await h.run_until_idle()
    assert (await run.facts("tombstone"))["tombstone"]["reason"] == "enough"


async def test_a_graph_that_is_a_node_of_another_is_cancelled_with_it(app: Holdfast, h: Harness) -> None:
    inner = graph_of_waiting_children(app)
    outer = app.graph("outer")
    outer.node(run=inner)
    run = await h.start(outer)
    await h.run_until_idle()
    [child] = (await run.describe()).children
    await run.cancel()
    await h.run_until_idle()

    below = await h.app.get("family", child.pid.partition("/")[2])
    assert (await below.status()).status == "terminated"
    assert (await below.facts("tombstone"))["tombstone"]["reason"] == f"its parent {run.pid} has ended"


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
        await run.result(timeout=5)


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
        await run.result(timeout=5)


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

    assert (await run.result(timeout=5))["total"] == "abc"
    assert await run.facts("tombstone") == {}


# --- driven by hand


@pytest.mark.parametrize(("verb", "said"), [("cancel", Finished("cancelled")), ("terminate", Killed("enough"))])
async def test_advance_starts_nothing_of_a_graph_that_was_stopped(make_app: MakeApp, verb: str, said: Any) -> None:
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
        await getattr(run, verb)("enough")

        assert await app.advance(run) == said
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

        async def said() -> Any:
            said = await app.advance(run)
            if isinstance(said, Started):
                started.update(said.nodes)
                return None
            return said

        assert await until(said) == Finished("complete")
        assert (await run.results())["total"] == 6
        assert started == {"one", "two", "total"}


async def test_graphs_whose_children_end_all_at_once_finish(make_app: MakeApp, turns: list[KeeperTurn]) -> None:
    app = make_app()
    graph = graph_of_waiting_children(app)

    async with app:
        runs = [await app.start(graph) for _ in range(10)]
        children = [child for run in runs for child in await until(lambda run=run: family(app, run))]
        await asyncio.gather(*(child.send_event("go") for child in children))
        results = [await run.result(timeout=10) for run in runs]

    assert [result["total"] for result in results] == ["abc"] * 10
    assert len(turns) <= 10 * (len(_CHILDREN) + 2)
