"""Checkpoints of LangGraph in the app's database: the framework's conformance suite on both stores."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from holdfast import Context, Holdfast
from holdfast.ext.langgraph import HoldfastSaver
from postgres_server import CleanDatabases

_databases = CleanDatabases(shared=False)


@pytest.fixture(params=["sqlite", "sqlite-memory", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        yield _databases.of(tmp_path)
        _databases.release(tmp_path)
    else:
        yield f"sqlite:///{tmp_path / 'app.db'}" if request.param == "sqlite" else "sqlite://"


class State(TypedDict):
    parts: Annotated[list[str], operator.add]


def _graph(saver: HoldfastSaver) -> Any:
    def ask(state: State) -> dict[str, Any]:
        return {"parts": [interrupt("which one?")]}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


async def test_the_saver_passes_the_conformance_suite_of_langgraph(url: str) -> None:
    @checkpointer_test(name="HoldfastSaver")
    async def saver() -> AsyncIterator[HoldfastSaver]:
        async with HoldfastSaver(Holdfast(url)) as opened:
            yield opened

    report = await validate(saver)

    failures = {name: result.failures for name, result in report.results.items() if result.passed is not True}
    assert failures == {}


async def test_a_graph_continues_from_its_checkpoint_in_another_process(url: str) -> None:
    if url == "sqlite://":
        pytest.skip("a database in memory ends with its process")
    config: Any = {"configurable": {"thread_id": "t-1"}}
    async with HoldfastSaver(Holdfast(url)) as saver:
        await _graph(saver).ainvoke({"parts": ["bolt"]}, config)

    async with HoldfastSaver(Holdfast(url)) as saver:
        state = await _graph(saver).ainvoke(Command(resume="nut"), config)
    assert state == {"parts": ["bolt", "nut"]}


async def test_a_graph_runs_in_a_thread(url: str) -> None:
    config: Any = {"configurable": {"thread_id": "t-1"}}
    async with HoldfastSaver(Holdfast(url)) as saver:
        graph = _graph(saver)
        await asyncio.to_thread(graph.invoke, {"parts": ["bolt"]}, config)
        await asyncio.to_thread(graph.invoke, Command(resume="nut"), config)

        states = await asyncio.to_thread(lambda: [*graph.get_state_history(config)])
        assert states[0].values == {"parts": ["bolt", "nut"]}
        await asyncio.to_thread(saver.copy_thread, "t-1", "t-2")
        await asyncio.to_thread(saver.prune, ["t-1"])
        await asyncio.to_thread(saver.delete_for_runs, ["no run"])
        assert len(await asyncio.to_thread(lambda: [*saver.list(config)])) == 1
        await asyncio.to_thread(saver.delete_thread, "t-1")
        assert await asyncio.to_thread(saver.get_tuple, config) is None
        assert len([each async for each in saver.alist({"configurable": {"thread_id": "t-2"}})]) == len(states)
        with pytest.raises(RuntimeError, match="ainvoke"):
            saver.get_tuple(config)


async def test_pruning_keeps_the_ancestors_that_delta_channels_need(url: str) -> None:
    async with HoldfastSaver(Holdfast(url)) as saver:
        config: Any = {"configurable": {"thread_id": "t-1", "checkpoint_ns": ""}}
        for number, values in enumerate([{"log": ["old"]}, {"log": ["snapshot"]}, {}, {}]):
            checkpoint = {**empty_checkpoint(), "id": f"c-{number}", "channel_values": values}
            metadata: Any = {"counters_since_delta_snapshot": {"log": (1, 1)}}
            config = await saver.aput(config, checkpoint, metadata, {})  # type: ignore[arg-type]
        await saver.aprune(["t-1"])

        kept = [each.checkpoint["id"] async for each in saver.alist({"configurable": {"thread_id": "t-1"}})]
    assert kept == ["c-3", "c-2", "c-1"]


async def test_writes_of_a_task_are_kept_as_they_were_written_first_and_its_interrupt_is_replaced(url: str) -> None:
    async with HoldfastSaver(Holdfast(url)) as saver:
        config: Any = {"configurable": {"thread_id": "t-1", "checkpoint_ns": ""}}
        config = await saver.aput(config, empty_checkpoint(), {}, {})
        for value in ("first", "second"):
            await saver.aput_writes(config, [("parts", value), ("__interrupt__", value)], "task-1")

        found = await saver.aget_tuple(config)
    assert found is not None
    assert sorted(found.pending_writes or []) == [("task-1", "__interrupt__", "second"), ("task-1", "parts", "first")]


async def test_the_app_works_beside_the_saver_on_the_same_database(url: str) -> None:
    app = Holdfast(url)

    @app.workflow
    async def double(ctx: Context, number: int) -> int:
        return await ctx.do("double", lambda: 2 * number)

    async with HoldfastSaver(app) as saver, app:
        graph = _graph(saver)
        config: Any = {"configurable": {"thread_id": "t-1"}}
        run, _ = await asyncio.gather(app.start(double, 4), graph.ainvoke({"parts": []}, config))
        assert await run.result() == 8
    if url != "sqlite://":
        async with app:
            assert len((await app.list()).items) == 1


async def test_the_error_of_a_closed_saver_names_the_statement_that_opens_it() -> None:
    saver = HoldfastSaver(Holdfast("sqlite://"))
    with pytest.raises(RuntimeError, match="async with HoldfastSaver"):
        await saver.aget_tuple({"configurable": {"thread_id": "t-1"}})
