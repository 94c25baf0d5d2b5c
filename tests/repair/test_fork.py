"""``run.fork``: a new run with the recorded history before a step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import ChainTask, Context, Holdfast, Retry, step_info
from holdfast.errors import InstanceExistsError, ParamsInvalidError, ResultInvalidError, StateError
from repair.conftest import Open
from repair.test_retry import Calls


def _app(calls: Calls) -> Holdfast:
    app = Holdfast("sqlite://")

    @app.workflow(name="child")
    async def child(ctx: Context) -> str:
        return await ctx.do("inner", calls.call, "inner")

    @app.workflow(name="flow")
    async def flow(ctx: Context, n: int) -> list[Any]:
        token = str(ctx.uuid4())
        first = await ctx.do("lookup", calls.call, "lookup")
        done = await ctx.run(child)
        event = await ctx.wait_for_event("go", type="go")
        ctx.set_search(seen=first)
        second = await ctx.do("charge", calls.call, f"charge {first}")
        return [n, token, first, done, event.payload, second]

    return app


async def test_a_fork_keeps_the_results_recorded_before_the_step(opened: Open) -> None:
    calls = Calls()
    app = _app(calls)

    async with opened(app) as h:
        run = await h.start("flow", 1, id="o")
        await run.send_event("go", "event")
        await run.send_event("other", "left")
        await h.run_until_idle()
        original = await run.result(timeout=60)
        calls.clear()
        with app.acting_as("ann"):
            fork = await run.fork(before="charge", id="f", reason="try")
        await h.run_until_idle()

        assert await fork.result(timeout=60) == original
        assert calls == ["charge lookup ok"]
        assert (fork.id, (await fork.describe()).run_number) == ("f", 0)
        origin = (await fork.describe()).origin
        assert origin is not None
        assert (origin.action, origin.pid, origin.run_number, origin.actor) == ("fork", "flow/o", 0, "ann")
        assert (await run.describe()).forks == ["flow/f"]
        assert [event.type for event in (await fork.history()).events if not event.type.startswith("@")] == ["go"]
        assert [item.id for item in (await app.list("flow", search={"seen": "lookup ok"})).items] == ["f", "o"]
        [record] = (await app.audit(run)).items
        assert (record.action, record.outcome) == ("fork", "flow/f run 0")


async def test_outputs_and_params_replace_recorded_values(opened: Open) -> None:
    calls = Calls()

    async with opened(_app(calls)) as h:
        run = await h.start("flow", 1)
        await run.send_event("go", "event")
        await h.run_until_idle()
        calls.clear()
        fork = await run.fork(before="charge", outputs={"lookup": "edited"}, params=2)
        await h.run_until_idle()

        result = await fork.result(timeout=60)
        assert (result[0], result[2], result[5]) == (2, "edited", "charge edited ok")
        assert calls == ["charge edited"]
        assert [step.resolved for step in (await fork.history()).steps if step.step_key == "lookup"] == [True]
        for options, match in (
            ({"outputs": {"charge": 1}}, "no recorded result before the fork"),
            ({"outputs": {"ghost": 1}}, "no recorded result"),
        ):
            with pytest.raises(StateError, match=match):
                await run.fork(before="charge", **options)  # type: ignore[arg-type]
        with pytest.raises(StateError, match="'charge', 'lookup'"):
            await run.fork(before="ghost")
        with pytest.raises(ParamsInvalidError):
            await run.fork(before="charge", params="text")
        with pytest.raises(InstanceExistsError):
            await run.fork(before="charge", id=fork.id)


async def test_a_fork_before_the_first_step_runs_everything(opened: Open) -> None:
    calls = Calls()

    async with opened(_app(calls)) as h:
        run = await h.start("flow", 1)
        await run.send_event("go", "event")
        await h.run_until_idle()
        calls.clear()
        fork = await run.fork(before="lookup")
        await fork.send_event("go", "again")
        await h.run_until_idle()

        assert (await fork.result(timeout=60))[4] == "again"
        assert calls == ["lookup", "inner", "charge lookup ok"]


async def test_a_fork_waits_for_the_child_whose_id_its_origin_made_from_its_own_id(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), Calls()

    @app.workflow(name="child")
    async def child(ctx: Context) -> str:
        await ctx.sleep("s", "1 hour")
        return "child"

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> str:
        started = await ctx.spawn(child, id=f"{ctx.info.instance_id}-child")
        await ctx.do("step", calls.call, "step")
        return await started.result()

    async with opened(app) as h:
        run = await h.start("flow", id="o")
        await h.run_until_idle()
        fork = await run.fork(before="step", id="f")
        await h.advance("2 hours")

        assert await fork.result(timeout=60) == await run.result(timeout=60) == "child"
        assert [item.id for item in (await app.list("child")).items] == ["o-child"]


async def test_a_fork_of_an_open_run_watches_the_children_of_its_origin(opened: Open) -> None:
    app, keys = Holdfast("sqlite://"), []

    @app.workflow
    async def slow(ctx: Context) -> str:
        await ctx.sleep("s", "1 hour")
        return "slow"

    @app.step
    async def key() -> str:
        keys.append(step_info().idempotency_key)
        return "k"

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        child = await ctx.spawn(slow)
        await key()
        await ctx.sleep("nap", "10 minutes")
        return [child.id, await child.result()]

    async with opened(app) as h:
        run = await h.start(flow)
        await h.run_until_idle()
        fork = await run.fork(before="key")
        await h.run_until_idle()
        assert (await fork.status()).status == "waiting"
        await h.advance("2 hours")

        assert await fork.result(timeout=60) == await run.result(timeout=60)
        assert len((await app.list("slow")).items) == 1
        assert len({*keys}) == 2


async def test_a_fork_that_is_cancelled_does_not_cancel_the_child_of_its_origin(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), Calls()

    @app.workflow
    async def slow(ctx: Context) -> str:
        await ctx.sleep("s", "1 hour")
        return "slow"

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        waiting = asyncio.create_task(ctx.run(slow))
        await asyncio.sleep(60)
        return [await ctx.do("charge", calls.call, "charge"), await waiting]

    async with opened(app) as h:
        run = await h.start(flow)
        await h.advance("2 minutes")
        fork = await run.fork(before="charge")
        await h.run_until_idle()
        await fork.cancel()
        await h.run_until_idle()
        assert (await fork.status()).status == "cancelled"
        await h.advance("2 hours")

        assert await run.result(timeout=60) == ["charge ok", "slow"]


@pytest.mark.parametrize("failing", ["fork", "child"])
async def test_a_linked_child_of_the_origin_ends_a_fork_but_not_the_reverse(opened: Open, failing: str) -> None:
    app, calls = Holdfast("sqlite://"), Calls()

    @app.workflow
    async def slow(ctx: Context) -> str:
        await ctx.sleep("s", "1 hour")
        if failing == "child":
            raise ValueError("broken")
        return "slow"

    @app.workflow
    async def flow(ctx: Context) -> str:
        child = await ctx.spawn(slow, link=True)
        await ctx.do("charge", calls.call, "charge", retry=Retry(limit=0))
        return await child.result()

    async with opened(app) as h:
        run = await h.start(flow)
        await h.run_until_idle()
        calls.failing = {"charge"} if failing == "fork" else set()
        fork = await run.fork(before="charge")
        await h.advance("2 hours")

        assert (await fork.status()).status == "errored"
        assert (await run.status()).status == ("complete" if failing == "fork" else "errored")


async def test_a_fork_before_a_step_that_a_cancellation_interrupted_is_not_cancelled(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), Calls()
    calls.failing = {"charge"}

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> list[str]:
        first = await ctx.do("lookup", calls.call, "lookup")
        return [first, await ctx.do("charge", calls.call, "charge", retry=Retry(delay="1 hour"))]

    async with opened(app) as h:
        run = await h.start("flow")
        await h.run_until_idle()
        await run.cancel()
        await h.run_until_idle()
        assert (await run.describe()).status == "cancelled"
        calls.failing.clear()
        calls.clear()
        fork = await run.fork(before="charge")
        await h.run_until_idle()

        assert await fork.result(timeout=60) == ["lookup ok", "charge ok"]
        assert calls == ["charge"]


async def test_a_fork_whose_history_reaches_the_end_of_its_origin_repeats_no_operation(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), Calls()
    calls.failing = {"charge"}

    @app.workflow(name="child")
    async def child(ctx: Context) -> None:
        await ctx.sleep("s", "1 hour")

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> str:
        waiting = asyncio.create_task(ctx.run(child))
        charging = asyncio.create_task(ctx.do("charge", calls.call, "charge", retry=Retry(delay="1 hour")))
        event = await ctx.wait_for_event("go", type="go")
        waiting.cancel()
        charging.cancel()
        return str(event.payload)

    async with opened(app) as h:
        run = await h.start("flow")
        await h.run_until_idle()
        await run.send_event("go", "done")
        await h.run_until_idle()
        assert await run.result(timeout=60) == "done"
        fork = await run.fork(before="charge")
        await h.run_until_idle()

        assert await fork.result(timeout=60) == "done"


async def test_a_fork_of_a_chain_keeps_the_earlier_steps(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), []
    orders = app.chain("orders")

    for name in ("A", "B", "C"):

        @orders.step(name)
        async def step(task: ChainTask) -> Any:
            calls.append(task.step_type)
            return [task.step_type, *[value[0] for value in task.outputs.values()]]

    async with opened(app) as h:
        run = await h.start(orders)
        await h.run_until_idle()
        assert await run.result(timeout=60) == ["C", "A", "B"]
        calls.clear()
        fork = await run.fork(before="B", outputs={"A": ["edited"]})
        await h.run_until_idle()

        assert await fork.result(timeout=60) == ["C", "edited", "B"]
        assert calls == ["B", "C"]


async def test_a_fork_of_a_graph_runs_the_node_and_the_nodes_after_it(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), Calls()
    graph = app.graph("g")

    @graph.node
    async def a() -> list[int]:
        calls.call("a")
        return [1, 2]

    @graph.node(map=a)
    async def b(a: int) -> int:
        calls.call(f"b {a}")
        return a * 10

    @graph.node
    async def side() -> int:
        calls.call("side")
        return 5

    @graph.node(after=[b, side])
    async def end(b: list[int], side: int) -> int:
        calls.call("end")
        return sum(b) + side

    async with opened(app) as h:
        run = await h.start(graph)
        await h.run_until_idle()
        calls.clear()
        with pytest.raises(ResultInvalidError, match="result of node 'side'"):
            await run.fork(before="b", outputs={"side": "text"})
        fork = await run.fork(before="b", outputs={"a": [3], "side": 1})
        last = await run.fork(before="end")
        await h.run_until_idle()

        assert (await fork.results()) == {"a": [3], "b": [30], "side": 1, "end": 31}
        assert (await last.results())["end"] == 35
        assert sorted(calls) == ["b 3", "end", "end"]


async def test_a_fork_keeps_parallel_steps_recorded_before_the_step(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), Calls()

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        both = await asyncio.gather(ctx.do("a", calls.call, "a"), ctx.do("b", calls.call, "b"))
        return [*both, await ctx.do("c", calls.call, "c")]

    async with opened(app) as h:
        run = await h.start(flow)
        await h.run_until_idle()
        calls.clear()
        fork = await run.fork(before="c")
        await h.run_until_idle()

        assert await fork.result(timeout=60) == ["a ok", "b ok", "c ok"]
        assert calls == ["c"]


async def test_the_fork_of_an_open_singleton_waits_for_the_end_of_its_origin(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), Calls()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("begin", calls.call, "begin")
        await ctx.sleep("work", "1 hour")
        await ctx.do("end", calls.call, "end")

    async with opened(app) as h:
        run = await h.start(flow, singleton="queue")
        await h.run_until_idle()
        fork = await run.fork(before="begin")
        await h.run_until_idle()
        assert (calls, (await fork.status()).status) == (["begin"], "waiting")
        assert (await fork.describe()).why.startswith("waiting for the end of the run before it")
        await h.advance("2 hours")

        assert calls == ["begin", "end", "begin", "end"]


async def test_a_fork_starts_a_child_again_that_was_deleted(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), Calls()

    @app.workflow
    async def child(ctx: Context) -> str:
        return await ctx.do("inner", calls.call, "inner")

    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        return [*await asyncio.gather(ctx.run(child, id="c"), ctx.do("first", calls.call, "first"))]

    async with opened(app) as h:
        run = await h.start(parent)
        await h.run_until_idle()
        await (await app.get(child, "c")).delete()
        fork = await run.fork(before="first")
        await h.run_until_idle()

        assert await fork.result(timeout=60) == ["inner ok", "first ok"]
        assert sorted(calls) == ["first", "first", "inner", "inner"]


async def test_a_fork_that_is_refused_names_the_run_and_its_steps(opened: Open) -> None:
    app = Holdfast("sqlite://")

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> None:
        await ctx.do("a", lambda: 1)
        await ctx.do("b", lambda: 2)

    async with opened(app) as h:
        run = await h.start("flow", id="r")
        await h.run_until_idle()

        with pytest.raises(StateError) as unknown:
            await run.fork(before="none")
        with pytest.raises(StateError) as later:
            await run.fork(before="b", outputs={"b": 3})

    assert str(unknown.value) == "before: run 0 of flow/r has no step 'none' to fork before; its steps: 'a', 'b'"
    assert str(later.value) == (
        "outputs: step 'b' of flow/r has no recorded result before the fork; steps with one: 'a'"
    )
