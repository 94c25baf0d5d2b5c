"""``run.replay(until)`` and ``run.export``: a run after each of its facts, in the database and in a file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ChainTask,
    Context,
    Handle,
    Holdfast,
    InvalidOptionError,
    NonDeterministicError,
    Outcome,
    ReplayView,
    Retry,
    Waiting,
    step_info,
)
from holdfast.testing import Harness, replay_file


def _shop(app: Holdfast) -> Any:
    @app.step
    async def charge(order: str) -> str:
        step_info().log.info("charging")
        return f"{order} paid"

    @app.workflow
    async def fulfil(ctx: Context, order: str) -> str:
        ctx.log.info("begins")
        paid = await charge(order)
        ctx.log.info("charged")
        await ctx.sleep("cool off", "1 hour")
        approval = await ctx.wait_for_event("approval", type="approval")
        ctx.log.info("approved")
        return f"{paid}, approved by {approval.payload}"

    return fulfil


async def _views(run: Handle[Any]) -> list[ReplayView]:
    total = (await run.replay()).total
    return [await run.replay(until) for until in range(total + 1)]


async def test_each_position_shows_the_fact_the_stack_the_requests_and_the_logs(app: Holdfast, h: Harness) -> None:
    run = await h.start(_shop(app), "o-1")
    await h.run_until_idle()
    await h.advance("1 hour")
    await run.send_event("approval", "ann")
    await h.run_until_idle()
    assert (await run.status()).output == "o-1 paid, approved by ann"

    views = await _views(run)
    assert [view.position for view in views] == [0, 1, 2, 3]
    assert [view.fact and (view.fact.step_key, view.fact.type) for view in views] == [
        None, ("charge", "do"), ("cool off", "sleep"), ("approval", "waitForEvent"),
    ]  # fmt: skip
    assert [[request.step_key for request in view.pending] for view in views] == [
        ["charge"], ["cool off"], ["approval"], [],
    ]  # fmt: skip
    assert [[line.message for line in view.logs] for view in views] == [
        ["begins"],
        ["begins", "charging", "charged"],
        ["begins", "charging", "charged"],
        ["begins", "charging", "charged", "approved"],
    ]
    assert "'o-1 paid'" in views[1].stack.tasks[0].frames[0].locals["paid"]
    assert "paid" not in views[0].stack.tasks[0].frames[0].locals
    assert views[1].fact is not None
    assert views[1].fact.result == "o-1 paid"
    assert views[3].stack.tasks == []


async def test_a_position_beyond_the_end_is_the_end_and_a_negative_one_is_refused(app: Holdfast, h: Harness) -> None:
    run = await h.start(_shop(app), "o-1")
    await h.run_until_idle()
    assert (await run.replay(99)).position == (await run.replay()).position == 1
    with pytest.raises(InvalidOptionError, match="until"):
        await run.replay(-1)


async def test_an_earlier_run_of_the_instance_can_be_replayed(app: Holdfast, h: Harness) -> None:
    run = await h.start(_shop(app), "o-1")
    await h.run_until_idle()
    await run.restart()
    assert (await run.replay()).total == 0
    assert (await run.replay(run_number=0)).total == 1


async def test_children_messages_and_failed_steps_replay(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context) -> int:
        return await ctx.do("answer", lambda: 42)

    @app.workflow
    async def parent(ctx: Context) -> Any:
        answer = await ctx.run(child, id="c")
        hello = await ctx.listen("hello").receive()
        try:
            await ctx.do("bad", _fail, retry=Retry(limit=0))
        except ZeroDivisionError:
            await asyncio.sleep(60)
        return answer, hello

    run = await h.start(parent)
    await h.run_until_idle()
    assert [str(r) for r in (await run.replay()).pending] == ["message 'hello'"]
    await run.send_event("hello", 1)
    await h.run_until_idle()

    views = await _views(run)
    assert [view.fact.type for view in views if view.fact] == ["child", "child", "message", "do"]
    assert [[str(r) for r in view.pending] for view in views] == [
        ["child 'child/c'"], ["child 'child/c'"], ["message 'hello'"], ["step 'bad'"], ["a timer"],
    ]  # fmt: skip
    last = views[-1]
    assert last.fact is not None
    assert last.fact.error is not None
    assert last.fact.error.name == "ZeroDivisionError"


def _fail() -> None:
    raise ZeroDivisionError


async def test_a_chain_and_a_graph_replay_by_their_facts(app: Holdfast, h: Harness) -> None:
    chain, graph = app.chain("orders"), app.graph("etl")

    @chain.step("A")
    async def a(task: ChainTask) -> Outcome:
        return Waiting("go", timeout="1 hour") if task.event is None else {"by": task.event.payload}

    @chain.step("B")
    async def b(task: ChainTask) -> Outcome:
        return task.outputs["A"]

    @graph.node
    async def one() -> int:
        return 1

    @graph.node(after=[one])
    async def two(one: int) -> int:
        return one + 1

    run, other = await h.start(chain), await h.start(graph)
    await h.run_until_idle()
    await run.send_event("go", "ann")
    await h.run_until_idle()

    views = await _views(run)
    assert [view.fact and (view.fact.step_key, view.fact.state) for view in views] == [
        None, ("A", "start"), ("A", "woken"), ("A", "result"), ("B", "result"),
    ]  # fmt: skip
    assert [[str(r) for r in view.pending] for view in views] == [
        ["step 'A'"], ["event 'go'"], ["step 'A'"], ["step 'B'"], [],
    ]  # fmt: skip
    nodes = await _views(other)
    assert [view.fact and (view.fact.step_key, view.fact.state) for view in nodes] == [
        None, ("one", "start"), ("one", "result"), ("two", "start"), ("two", "result"),
    ]  # fmt: skip
    assert [[task.name for task in view.stack.tasks] for view in nodes] == [[], ["one"], [], ["two"], []]


async def test_a_replay_on_code_that_does_not_fit_shows_the_difference(app: Holdfast, h: Harness) -> None:
    run = await h.start(_shop(app), "o-1", id="o-1")
    await h.run_until_idle()
    await _deploy_wait_named_charge(h)
    view = await run.replay()
    assert view.difference is not None
    assert "'charge' recorded as do" in view.difference
    [task] = view.stack.tasks  # the code stopped where it requested the step
    assert [frame.function for frame in task.frames] == ["changed"]


async def _deploy_wait_named_charge(h: Harness) -> Holdfast:
    other = Holdfast("sqlite://")

    @other.workflow(name="fulfil")
    async def changed(ctx: Context, order: str) -> None:
        await ctx.wait_for_event("charge", type="charge")

    h._own_app.registry._by_name["fulfil"] = other.registry._by_name["fulfil"]
    return other


# --- exported runs


async def test_an_exported_run_replays_on_another_app(app: Holdfast, h: Harness, tmp_path: Path) -> None:
    run = await h.start(_shop(app), "o-1 \ud800\x00ä", id="o-1")
    await h.run_until_idle()
    await run.send_event("approval", {"by": "ann"})
    await h.run_until_idle()
    await run.export(tmp_path / "run.json")

    document = json.loads((tmp_path / "run.json").read_bytes())
    assert (document["run"]["workflow"], document["run"]["params"]) == ("fulfil", "o-1 \ud800\x00ä")
    elsewhere = Holdfast("sqlite://")
    _shop(elsewhere)
    view = await replay_file(elsewhere, tmp_path / "run.json")
    assert view == await run.replay()


async def test_a_finished_run_replays_to_its_recorded_end(app: Holdfast, h: Harness, tmp_path: Path) -> None:
    run = await h.start(_shop(app), "o-1", id="o-1")
    await h.run_until_idle()
    await run.send_event("approval", "ann")
    await h.advance("1 hour")
    assert (await run.status()).status == "complete"
    await run.export(tmp_path / "run.json")
    assert (await replay_file(app, tmp_path / "run.json")).pending == []

    other = Holdfast("sqlite://")

    @other.step
    async def charge(order: str) -> str: ...

    @other.workflow
    async def fulfil(ctx: Context, order: str) -> str:
        paid = await charge(order)
        await ctx.sleep("cool off", "1 hour")
        await ctx.wait_for_event("approval", type="approval")
        return f"{paid} and more"

    with pytest.raises(NonDeterministicError, match="returns 'o-1 paid and more'"):
        await replay_file(other, tmp_path / "run.json")


async def test_a_file_whose_code_has_diverged_fails_with_the_difference(
    app: Holdfast, h: Harness, tmp_path: Path
) -> None:
    run = await h.start(_shop(app), "o-1", id="o-1")
    await h.run_until_idle()
    await run.export(tmp_path / "run.json")

    renamed = Holdfast("sqlite://")

    @renamed.step
    async def charge_card(order: str) -> str: ...

    @renamed.workflow
    async def fulfil(ctx: Context, order: str) -> str:
        return await charge_card(order)

    with pytest.raises(NonDeterministicError) as raised:
        await replay_file(renamed, tmp_path / "run.json")
    for text in ("fulfil/o-1", "'charge'", "'charge_card'"):
        assert text in str(raised.value)

    with pytest.raises(NonDeterministicError, match="fulfil"):
        await replay_file(Holdfast("sqlite://"), tmp_path / "run.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99, "run": {}}', '{"format": 1, "run": {}, "facts": 3}'])
async def test_a_file_that_is_not_an_exported_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InvalidOptionError):
        await replay_file(Holdfast("sqlite://"), tmp_path / "run.json")
