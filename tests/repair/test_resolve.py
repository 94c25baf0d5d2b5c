"""``run.resolve``: the outcome of a step, decided by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import ChainTask, Context, ErrorInfo, Holdfast, Retry, StepError
from holdfast.client.replaying import Replayer
from holdfast.errors import InvalidOptionError, ResultInvalidError, StateError
from repair.conftest import Open
from repair.test_retry import ONCE, Calls

OFTEN = Retry(limit=10, delay="1 hour", backoff="constant")


def _app(calls: Calls, retry: Retry) -> Holdfast:
    app = Holdfast("sqlite://")

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> list[Any]:
        try:
            first = await ctx.do("a", calls.call, "a", retry=retry)
        except StepError as error:
            first = f"caught {error.type}: {error.message}"
        except ValueError:
            first = "caught ValueError"
        return [first, await ctx.do("b", calls.call, "b", retry=retry)]

    return app


async def test_the_result_of_a_failed_step_lets_an_errored_run_continue(opened: Open) -> None:
    calls = Calls()
    calls.failing = {"b"}
    app = _app(calls, ONCE)

    async with opened(app) as h:
        run = await h.start("flow")
        await h.run_until_idle()
        with app.acting_as("ann"):
            await run.resolve("b", result={"by": "hand"}, reason="paid in cash")
        await h.run_until_idle()

        assert await run.result(timeout=60) == ["a ok", {"by": "hand"}]
        assert calls == ["a", "b"]
        described = await run.describe()
        assert described.origin is not None
        assert (described.origin.action, described.origin.actor) == ("resolve", "ann")
        step = (await run.history()).steps[-1]
        assert (step.step_key, step.status, step.resolved, step.wait_event_type) == ("b", "completed", True, None)
        assert not (await run.history()).steps[0].resolved
        assert [(r.action, r.actor, r.reason) for r in (await app.audit(run)).items] == [
            ("resolve", "ann", "paid in cash")
        ]


@pytest.mark.parametrize("cold", [False, True])
async def test_a_retrying_step_that_is_resolved_is_not_called_again(opened: Open, cold: bool) -> None:
    calls = Calls()
    calls.failing = {"a", "b"}

    async with opened(_app(calls, OFTEN)) as h:
        run = await h.start("flow")
        await h.run_until_idle()
        if cold:
            await h.restart()
        await run.resolve("a", error="no such order")
        await h.run_until_idle()
        assert calls == ["a", "b"]
        await run.resolve("b", result=None)
        await h.run_until_idle()

        assert await run.result(timeout=60) == ["caught ResolvedError: no such order", None]
        assert calls == ["a", "b"]
        assert (await run.describe()).run_number == 0
        assert [step.resolved for step in (await run.history()).steps] == [True, True]
        await h.advance("5 hours")
        assert calls == ["a", "b"]


async def test_a_paused_run_receives_the_resolution_when_it_is_resumed(opened: Open) -> None:
    calls = Calls()
    calls.failing = {"a"}

    async with opened(_app(calls, OFTEN)) as h:
        run = await h.start("flow")
        await h.run_until_idle()
        await run.pause()
        await run.resolve("a", error=ErrorInfo("Gone", "the order is gone"))
        await h.advance("2 hours")
        assert calls == ["a"]
        await run.resume()
        await h.run_until_idle()

        assert (await run.result(timeout=60))[0] == "caught Gone: the order is gone"
        assert calls == ["a", "b"]


async def test_a_running_attempt_is_cancelled_and_its_result_ignored(opened: Open) -> None:
    app, began, cancelled = Holdfast("sqlite://"), asyncio.Event(), []

    @app.step(retry=Retry(limit=3, delay="1 second"))
    async def slow() -> Any:
        if not began.is_set():
            began.set()
            raise ValueError("first")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("yes")
            raise
        return "late"

    @app.workflow
    async def flow(ctx: Context) -> Any:
        return await slow()

    async with opened(app) as h:
        run = await h.start(flow)
        await h.run_until_idle()
        await h.advance("1 second", run=False)
        ticking = asyncio.ensure_future(h.tick())
        while (await run.describe()).why.startswith("due"):
            await asyncio.sleep(0.01)
        await run.resolve("slow", result=7)
        await asyncio.wait_for(ticking, 60)
        await h.run_until_idle()

        assert await run.result(timeout=60) == 7
        assert cancelled == ["yes"]


async def test_a_step_of_a_chain_is_resolved(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), []
    orders = app.chain("orders")

    @orders.step("PAY", max_attempts=3)
    async def pay(_task: ChainTask) -> Any:
        calls.append("pay")
        raise ValueError("no")

    @orders.step("SHIP", max_attempts=1)
    async def ship(task: ChainTask) -> Any:
        calls.append(f"ship {task.outputs['PAY']}")
        raise ValueError("no")

    async with opened(app) as h:
        run = await h.start(orders)
        await h.run_until_idle()
        await run.resolve("PAY", result="paid")
        await h.run_until_idle()
        assert (await run.status()).status == "errored"
        await run.resolve("SHIP", result="shipped")
        await h.run_until_idle()

        assert await run.result(timeout=60) == "shipped"
        assert calls == ["pay", "ship paid"]
        assert [step.resolved for step in (await run.history()).steps] == [True, True]


@pytest.mark.parametrize("ok", [True, False])
async def test_a_node_of_an_errored_graph_is_resolved(opened: Open, ok: bool) -> None:
    app, calls = Holdfast("sqlite://"), Calls()
    calls.failing = {"a"}
    graph = app.graph("g")

    @graph.node(retry=ONCE)
    async def a() -> str:
        return calls.call("a")

    @graph.node(after=[a])
    async def b(a: str) -> str:
        return calls.call(f"b after {a}")

    @graph.node
    async def c() -> str:
        return calls.call("c")

    async with opened(app) as h:
        run = await h.start(graph)
        await h.run_until_idle()
        await run.resolve("a", **({"result": "hand"} if ok else {"error": "never"}))  # type: ignore[arg-type]
        await h.run_until_idle()

        assert calls == (["a", "c", "b after hand"] if ok else ["a", "c"])
        assert (await run.status()).status == ("complete" if ok else "errored")


async def test_a_failed_item_of_an_errored_graph_is_resolved(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), Calls()
    calls.failing = {"item 1", "item 2"}
    graph = app.graph("g")

    @graph.node
    async def source() -> list[int]:
        return [0, 1, 2]

    @graph.node(map=source, retry=ONCE)
    async def each(source: int) -> int:
        calls.call(f"item {source}")
        return 10 * source

    async with opened(app) as h:
        run = await h.start(graph)
        await h.run_until_idle()
        with pytest.raises(StateError, match=r"failed steps: 'each', 'each\[1\]', 'each\[2\]'"):
            await run.resolve("each[0]", result=1)
        with pytest.raises(StateError, match="resolve node 'each' with an error"):
            await run.resolve("each[1]", error="never")
        await run.resolve("each[1]", result=7)
        await h.run_until_idle()
        assert (await run.status()).status == "errored"
        await run.resolve("each[2]", result=8)
        await h.run_until_idle()

        assert (await run.results())["each"] == [0, 7, 8]
        assert sorted(calls) == ["item 0", "item 1", "item 2", "item 2"]


async def test_a_failed_item_of_a_node_that_collects_errors_cannot_be_resolved(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), Calls()
    calls.failing = {"item 1", "other"}
    graph = app.graph("g")

    @graph.node
    async def source() -> list[int]:
        return [0, 1]

    @graph.node(map=source, map_errors="collect", retry=ONCE)
    async def each(source: int) -> int:
        calls.call(f"item {source}")
        return source

    @graph.node(after=[each], retry=ONCE)
    async def other(each: list[Any]) -> int:
        calls.call("other")
        return len(each)

    async with opened(app) as h:
        run = await h.start(graph)
        await h.run_until_idle()
        with pytest.raises(StateError, match=r"failed steps: 'other'$"):
            await run.resolve("each[1]", result=1)

        assert (await run.describe()).run_number == 0


async def test_a_step_that_is_neither_open_nor_failed_cannot_be_resolved(opened: Open) -> None:
    calls = Calls()
    calls.failing = {"a", "b"}

    async with opened(_app(calls, ONCE)) as h:
        run = await h.start("flow")
        await h.run_until_idle()
        for key in ("a", "c"):  # the failure of a was caught
            with pytest.raises(StateError, match="cannot be resolved"):
                await run.resolve(key, result=1)
        with pytest.raises(InvalidOptionError):
            await run.resolve("b")
        with pytest.raises(InvalidOptionError):
            await run.resolve("b", result=1, error="both")
        assert (await run.describe()).run_number == 0

    async with opened(_app(Calls(), ONCE)) as h:
        run = await h.start("flow")
        await h.run_until_idle()
        with pytest.raises(StateError, match="complete"):
            await run.resolve("a", result=1)


def _numbers(calls: Calls) -> Holdfast:
    app = Holdfast("sqlite://")

    @app.step(retry=OFTEN)
    async def number() -> int:
        calls.call("n")
        return 3

    @app.workflow
    async def flow(ctx: Context) -> int:
        first = await number()
        await ctx.wait_for_event("go", type="go")
        return first + await number()

    return app


@pytest.mark.parametrize("once", [False, True], ids=["open", "errored"])
async def test_a_result_that_does_not_fit_the_step_is_refused(opened: Open, once: bool) -> None:
    calls = Calls()
    calls.failing = {"n"}
    async with opened(_numbers(calls)) as h:
        run = await h.start("flow")
        await h.run_until_idle()
        if once:
            await h.advance("30 days")
            assert (await run.status()).status == "errored"

        with pytest.raises(ResultInvalidError, match=r"would be parked with this result: .*'number'"):
            await run.resolve("number", result="text")

        assert (await run.describe()).run_number == 0
        await run.resolve("number", result=4)
        await run.send_event("go")
        calls.failing = set()
        await h.run_until_idle()
        assert await run.result(timeout=60) == 7


async def test_a_fork_with_a_result_that_does_not_fit_is_refused(opened: Open) -> None:
    calls = Calls()
    async with opened(_numbers(calls)) as h:
        run = await h.start("flow")
        await run.send_event("go")
        await h.run_until_idle()
        assert await run.result(timeout=60) == 6

        with pytest.raises(ResultInvalidError, match="'number'"):
            await run.fork(before="number#2", id="f", outputs={"number": "text"})

        fork = await run.fork(before="number#2", id="f", outputs={"number": 10})
        await h.run_until_idle()
        assert await fork.result(timeout=60) == 13


async def test_a_result_that_a_process_without_the_code_sends_is_ignored_with_a_warning_if_it_does_not_fit(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    calls.failing = {"n"}
    async with opened(_numbers(calls)) as h:
        run = await h.start("flow")
        await h.run_until_idle()
        with monkeypatch.context() as patched:
            patched.setattr(Replayer, "has_code", lambda *_args: False)
            await run.resolve("number", result="text")
        await h.run_until_idle()
        assert (await run.status()).status == "waiting"
        assert ["does not fit" in line.message for line in await run.logs(category="system")] == [True]


def _graph(calls: Calls) -> Holdfast:
    app = Holdfast("sqlite://")
    graph = app.graph("g")

    @graph.node
    async def source() -> list[int]:
        return [0, 1, 2]

    @graph.node(map=source, retry=OFTEN)
    async def each(source: int) -> int:
        calls.call(f"each {source}")
        return source * 10

    @graph.node(retry=OFTEN)
    async def single() -> int:
        calls.call("single")
        return 7

    @graph.node(after=[each, single])
    async def total(each: list[int], single: int) -> int:
        return sum(each) + single

    return app


async def test_a_retrying_node_and_item_of_an_open_graph_are_resolved(opened: Open) -> None:
    calls = Calls()
    calls.failing = {"each 1", "single"}
    app = _graph(calls)

    async with opened(app) as h:
        run = await h.start("g")
        await h.run_until_idle()
        with app.acting_as("ann"):
            await run.resolve("each[1]", result=5, reason="counted by hand")
        await run.resolve("single", result=8)
        await h.run_until_idle()

        assert (await run.result(timeout=60))["total"] == 33
        assert (await run.describe()).run_number == 0
        resolved = {step.step_key for step in (await run.history()).steps if step.resolved}
        assert resolved == {"each[1]", "single"}
        records = (await app.audit(run)).items
        assert ("resolve", "ann", "counted by hand", "done") in [
            (r.action, r.actor, r.reason, r.outcome) for r in records
        ]
        await h.advance("5 hours")
        assert sorted(calls) == ["each 0", "each 1", "each 2", "single"]


async def test_a_mapped_node_is_resolved_as_a_whole(opened: Open) -> None:
    calls = Calls()
    calls.failing = {"each 1", "each 2"}

    async with opened(_graph(calls)) as h:
        run = await h.start("g")
        await h.run_until_idle()
        await run.resolve("each", result=[1, 2])
        await h.run_until_idle()

        assert (await run.result(timeout=60))["total"] == 10
        await h.advance("5 hours")
        assert sorted(calls) == ["each 0", "each 1", "each 2", "single"]


async def test_an_error_for_a_node_of_an_open_graph_skips_the_nodes_after_it(opened: Open) -> None:
    calls = Calls()
    calls.failing = {"single"}

    async with opened(_graph(calls)) as h:
        run = await h.start("g")
        await h.run_until_idle()
        await run.resolve("single", error="never")
        await h.run_until_idle()

        status = await run.status()
        assert status.status == "errored"
        assert status.error is not None
        assert "node 'single' failed: ResolvedError: never" in status.error.message


async def test_a_paused_graph_continues_after_a_resolution_only_when_it_is_resumed(opened: Open) -> None:
    calls = Calls()
    calls.failing = {"single"}

    async with opened(_graph(calls)) as h:
        run = await h.start("g")
        await h.run_until_idle()
        await run.pause()
        await run.resolve("single", result=8)
        await h.run_until_idle()
        assert (await run.status()).status == "paused"
        await run.resume()
        await h.run_until_idle()

        assert (await run.result(timeout=60))["total"] == 38


async def test_nodes_that_have_ended_or_not_begun_and_results_of_another_type_are_refused(opened: Open) -> None:
    calls = Calls()
    calls.failing = {"single"}

    async with opened(_graph(calls)) as h:
        run = await h.start("g")
        await h.run_until_idle()
        for key in ("source", "each[1]", "each", "total", "nothing", "each[x]"):
            with pytest.raises(StateError):
                await run.resolve(key, error="no")
        with pytest.raises(ResultInvalidError):
            await run.resolve("single", result="text")

        assert (await run.status()).status == "active"


async def test_the_attempt_of_a_resolved_node_writes_nothing(opened: Open) -> None:
    app, began, go_on = Holdfast("sqlite://"), asyncio.Event(), asyncio.Event()
    graph = app.graph("g")

    @graph.node
    async def slow() -> int:
        began.set()
        await go_on.wait()
        return 1

    @graph.node(after=[slow])
    async def after(slow: int) -> int:
        return slow + 1

    async with opened(app) as h:
        run = await h.start("g")
        ticking = asyncio.ensure_future(h.tick())
        await asyncio.wait_for(began.wait(), 60)
        await run.resolve("slow", result=5)
        go_on.set()
        await asyncio.wait_for(ticking, 60)
        await h.run_until_idle()

        assert await run.result(timeout=60) == {"slow": 5, "after": 6}
