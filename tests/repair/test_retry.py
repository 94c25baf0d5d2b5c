"""``run.retry``: an errored run continues from its history, and failed steps are called again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import (
    ChainTask,
    Context,
    Dead,
    Holdfast,
    Retry,
    Start,
    Waiting,
    step_info,
)
from holdfast.errors import InstanceTerminalError, StateError
from holdfast.graph.repair import GraphRepairRules
from holdfast.kernel.model import RecordedRun
from holdfast.store.protocol import FactsQuery, FactState, RunByName
from repair.conftest import Open

ONCE = Retry(limit=0)


class Calls(list[str]):
    """The calls of steps, and the steps that fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()

    def call(self, name: str) -> Any:
        self.append(name)
        if name in self.failing:
            raise ValueError(f"{name} failed")
        return f"{name} ok"


def _app() -> Holdfast:
    return Holdfast("sqlite://")


async def test_a_retry_calls_the_failed_step_and_not_the_others(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"b"}

    @app.workflow
    async def flow(ctx: Context, n: int) -> list[Any]:
        drawn = ctx.random.random()
        first = await ctx.do("a", calls.call, "a", retry=ONCE)
        await ctx.sleep("rest", "1 hour")
        event = await ctx.wait_for_event("go", type="go")
        second = await ctx.do("b", calls.call, "b", retry=Retry(limit=1, delay="1 second"))
        return [n, drawn == ctx.random.random(), first, event.payload, second, str(ctx.uuid4())]

    async with opened(app) as h:
        run = await h.start(flow, 3, id="r")
        await run.send_event("go", {"x": 1}, id="e1")
        await h.advance("2 hours")
        assert (await run.status()).status == "errored"
        calls.failing.clear()

        with app.acting_as("ann"):
            await run.retry(reason="fixed")
        await h.run_until_idle()

        assert await run.result(timeout=60) == [3, False, "a ok", {"x": 1}, "b ok", (await run.result())[-1]]
        assert calls == ["a", "b", "b", "b"]
        described = await run.describe()
        assert (described.run_number, described.status) == (1, "complete")
        assert described.origin is not None
        assert (described.origin.action, described.origin.run_number) == ("retry", 0)
        assert (described.origin.actor, described.origin.reason) == ("ann", "fixed")
        history = await run.history()
        assert [(s.step_key, s.status, s.attempts) for s in history.steps] == [
            ("a", "completed", 1), ("rest", "completed", 0), ("go", "completed", 0), ("b", "completed", 1),
        ]  # fmt: skip
        assert [event.consumed_by_step_key for event in history.events] == ["go"]
        old = await run.history(0)
        assert [(s.step_key, s.status) for s in old.steps][-1] == ("b", "errored")
        [record] = (await app.audit(run)).items
        assert (record.actor, record.action, record.target, record.reason) == ("ann", "retry", "flow/r", "fixed")
        assert record.outcome == "flow/r run 1"


async def test_random_values_and_idempotency_keys_are_those_of_the_failed_run(opened: Open) -> None:
    app, seen, failing = _app(), [], [True]

    @app.step(retry=ONCE)
    async def charge(token: str) -> str:
        seen.append((token, step_info().idempotency_key))
        if failing:
            raise ValueError("no")
        return token

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await charge(f"{ctx.uuid4()} {ctx.random.random()}")

    async with opened(app) as h:
        run = await h.start(flow)
        await h.run_until_idle()
        await run.retry()
        await h.run_until_idle()
        failing.clear()
        await run.retry()
        await h.run_until_idle()

        assert await run.result(timeout=60) == seen[0][0]
        assert len(seen) == 3
        assert len({*seen}) == 1


async def test_errors_that_the_code_caught_stay_as_they_were(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"a", "b"}

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.do("a", calls.call, "a", retry=ONCE)
        except ValueError as error:
            first = str(error)
        return first + await ctx.do("b", calls.call, "b", retry=ONCE)

    async with opened(app) as h:
        run = await h.start(flow)
        await h.run_until_idle()
        calls.failing.clear()
        await run.retry()
        await h.run_until_idle()

        assert await run.result(timeout=60) == "a failedb ok"
        assert calls == ["a", "b", "b"]


async def test_the_failed_step_that_caused_an_error_of_the_workflow_is_called_again(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"a", "b", "c"}

    class OrderFailed(Exception):
        pass

    @app.workflow
    async def flow(ctx: Context, how: str) -> str:
        try:
            return await ctx.do("a", calls.call, "a", retry=ONCE)
        except ValueError as error:
            if how == "from":
                raise OrderFailed("order") from error
            if how == "context":
                raise OrderFailed("order")  # noqa: B904
            raise OrderFailed("order") from None

    async with opened(app) as h:
        runs = {how: await h.start(flow, how, id=how) for how in ("from", "context", "none")}
        await h.run_until_idle()
        calls.failing.clear()
        for run in runs.values():
            await run.retry()
        await h.run_until_idle()

        assert await runs["from"].result(timeout=60) == await runs["context"].result(timeout=60) == "a ok"
        assert (await runs["none"].status()).status == "errored"
        assert len(calls) == 5


async def test_all_failed_steps_of_a_task_group_are_called_again(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"a", "c"}

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        names = ["a", "b", "c"]
        done = await asyncio.gather(
            *(ctx.do(name, calls.call, name, retry=ONCE) for name in names), return_exceptions=True
        )
        errors = [one for one in done if isinstance(one, Exception)]
        if errors:
            raise ExceptionGroup("some failed", errors)
        return [str(one) for one in done]

    async with opened(app) as h:
        run = await h.start(flow)
        await h.run_until_idle()
        calls.failing.clear()
        await run.retry()
        await h.run_until_idle()

        assert await run.result(timeout=60) == ["a ok", "b ok", "c ok"]
        assert sorted(calls) == ["a", "a", "b", "c", "c"]


async def test_code_that_raised_by_itself_runs_again_to_its_end(opened: Open) -> None:
    app, calls, broken = _app(), Calls(), [True]

    @app.workflow
    async def flow(ctx: Context) -> str:
        result = await ctx.do("a", calls.call, "a")
        if broken:
            raise KeyError("bug")
        return result

    async with opened(app) as h:
        run = await h.start(flow)
        await h.run_until_idle()
        broken.clear()
        await run.retry()
        await h.run_until_idle()

        assert await run.result(timeout=60) == "a ok"
        assert calls == ["a"]


async def test_a_wait_that_timed_out_begins_again(opened: Open) -> None:
    app = _app()

    @app.workflow
    async def flow(ctx: Context) -> Any:
        return (await ctx.wait_for_event("go", type="go", timeout="1 minute")).payload

    async with opened(app) as h:
        run = await h.start(flow)
        await h.advance("2 minutes")
        assert (await run.status()).status == "errored"
        await run.retry()
        await h.advance("30 seconds")
        assert (await run.status()).status == "waiting"
        await run.send_event("go", 5)
        await h.run_until_idle()

        assert await run.result(timeout=60) == 5


async def test_a_run_timeout_begins_again_and_undelivered_events_stay(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"a"}

    @app.workflow
    async def flow(ctx: Context) -> Any:
        await ctx.do("a", calls.call, "a", retry=Retry(limit=100, delay="40 seconds", backoff="constant"))
        return (await ctx.wait_for_event("go", type="go")).payload

    async with opened(app) as h:
        run = await h.start(flow, run_timeout="1 minute")
        await run.send_event("go", 7, id="one")
        await h.advance("2 minutes")
        assert (await run.describe()).error.name == "RunTimeoutError"  # type: ignore[union-attr]
        calls.failing.clear()
        await run.retry()
        await send_event_again(run)
        await h.run_until_idle()

        assert await run.result(timeout=60) == 7
        assert [event.payload for event in (await run.history()).events] == [7]
        assert (await run.history()).steps[0].attempts == 1


async def send_event_again(run: Any) -> None:
    """Send an event with an id that was used before the retry, so that the event is not delivered."""
    await run.send_event("go", 8, id="one")


@pytest.mark.parametrize("how", ["complete", "open", "terminated"])
async def test_only_an_errored_run_can_be_retried(opened: Open, how: str) -> None:
    app = _app()

    @app.workflow
    async def flow(ctx: Context) -> None:
        if how != "complete":
            await ctx.sleep("s", "1 hour")

    async with opened(app) as h:
        run = await h.start(flow, id="r")
        await h.run_until_idle()
        if how == "terminated":
            await run.terminate()

        with pytest.raises(StateError, match="cannot be retried"):
            await run.retry()

        assert (await run.describe()).run_number == 0


async def test_a_failed_child_is_retried_with_its_parent(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"b"}

    @app.workflow
    async def child(ctx: Context, name: str) -> str:
        await ctx.do("prepare", calls.call, f"prepare {name}")
        return await ctx.do("work", calls.call, name, retry=ONCE)

    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        return [*await asyncio.gather(ctx.run(child, "a"), ctx.run(child, "b"), ctx.run(sleepy))]

    @app.workflow
    async def sleepy(ctx: Context) -> str:
        await ctx.sleep("s", "1 hour")
        return "slept"

    async with opened(app) as h:
        run = await h.start(parent)
        await h.run_until_idle()
        assert (await run.status()).status == "errored"
        assert (await run.describe()).error.name == "ValueError"  # type: ignore[union-attr]
        calls.failing.clear()
        await run.retry()
        await h.advance("2 hours")

        assert await run.result(timeout=60) == ["a ok", "b ok", "slept"]
        assert sorted(calls) == ["a", "b", "b", "prepare a", "prepare b"]


async def test_a_deleted_child_starts_again_when_its_parent_is_retried(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"work"}

    @app.workflow
    async def child(ctx: Context) -> str:
        return await ctx.do("work", calls.call, "work", retry=ONCE)

    @app.workflow
    async def parent(ctx: Context) -> str:
        await ctx.do("first", calls.call, "first")
        return await ctx.run(child, id="c")

    async with opened(app) as h:
        run = await h.start(parent)
        await h.run_until_idle()
        await (await app.get(child, "c")).delete()
        calls.failing.clear()
        await run.retry()
        await h.run_until_idle()

        assert await run.result(timeout=60) == "work ok"
        assert calls == ["first", "work", "work"]


async def test_a_run_is_retried_although_another_request_retries_its_child_meanwhile(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"work"}

    @app.workflow
    async def child(ctx: Context) -> str:
        return await ctx.do("work", calls.call, "work", retry=ONCE)

    @app.workflow
    async def parent(ctx: Context) -> str:
        return await ctx.run(child, id="c")

    async with opened(app) as h:
        run = await h.start(parent)
        await h.run_until_idle()
        calls.failing.clear()
        repair, others = app._opened().client.repair, [await app.get(child, "c")]
        recorded = repair._recorded

        async def recorded_later(row: Any) -> Any:
            found = await recorded(row)
            if row.instance_id == "c" and others:
                await others.pop().retry()
            return found

        monkeypatch.setattr(repair, "_recorded", recorded_later)
        await run.retry()
        await h.run_until_idle()

        assert await run.result(timeout=60) == "work ok"
        assert calls == ["work", "work"]


async def test_a_retried_run_can_cancel_the_child_that_its_failure_had_cancelled(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"b"}

    @app.workflow(name="child")
    async def child(ctx: Context) -> None:
        await ctx.sleep("s", "1 hour")

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(ctx.run(child, id="c"))
            await ctx.wait_for_event("go", type="go")
            await ctx.do("b", calls.call, "b", retry=ONCE)
            waiting.cancel()
        await ctx.wait_for_event("end", type="end")

    async with opened(app) as h:
        run = await h.start("flow")
        await h.run_until_idle()
        await run.send_event("go")
        await h.run_until_idle()
        assert (await run.describe()).status == "errored"
        calls.failing.clear()
        await run.retry()
        await h.run_until_idle()

        assert calls == ["b", "b"]
        described = await (await app.get("child", "c")).describe()
        assert (described.run_number, described.status) == (1, "cancelled")


async def test_a_linked_child_whose_end_was_recorded_before_the_link_continues_with_its_parent(opened: Open) -> None:
    app = _app()

    @app.workflow(name="partner")
    async def partner(ctx: Context) -> str:
        return str((await ctx.wait_for_event("go", type="go")).payload)

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> str:
        await ctx.spawn(partner, id="p", link=True)
        await ctx.sleep("s", "1 hour")
        return "awake"

    async with opened(app) as h:
        run = await h.start("flow")
        await h.run_until_idle()
        await run.terminate()
        await h.run_until_idle()
        await run.restart()  # the child with this id has ended
        await h.run_until_idle()
        error = (await run.describe()).error
        assert error is not None
        assert error.name == "LinkDownError"
        await run.retry()
        await h.run_until_idle()
        child = await app.get("partner", "p")
        await child.send_event("go", "done")
        await h.advance("2 hours")

        assert await child.result(timeout=60) == "done"
        assert await run.result(timeout=60) == "awake"


async def test_a_retried_run_waits_for_the_child_whose_id_its_code_made_from_its_own_number(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"work"}

    @app.workflow
    async def child(ctx: Context) -> str:
        return await ctx.do("work", calls.call, "work", retry=ONCE)

    @app.workflow
    async def parent(ctx: Context) -> list[object]:
        number = ctx.info.run_number
        result = await ctx.run(child, id=f"{ctx.info.instance_id}-{number}")
        return [number, ctx.info.run_number, result]

    async with opened(app) as h:
        run = await h.start(parent, id="p")
        await h.run_until_idle()
        calls.failing.clear()
        await run.retry()
        await h.run_until_idle()

        assert await run.result(timeout=60) == [0, 0, "work ok"]
        assert [item.id for item in (await app.list("child")).items] == ["p-0"]


async def test_a_retry_fails_again_while_the_cause_remains(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"a"}

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await ctx.do("a", calls.call, "a", retry=Retry(limit=1, delay="1 second"))

    async with opened(app) as h:
        run = await h.start(flow)
        await h.advance("1 minute")
        for number in (1, 2):
            await run.retry()
            await h.advance("1 minute")
            described = await run.describe()
            assert (described.status, described.run_number) == ("errored", number)

        assert len(calls) == 6


async def test_a_dead_step_of_a_chain_is_called_again(opened: Open) -> None:
    app, calls, broken = _app(), [], [True]
    orders = app.chain("orders")

    @orders.step("VALIDATE")
    async def validate(_task: ChainTask) -> int:
        calls.append("validate")
        return 1

    @orders.step("PAY", max_attempts=2)
    async def pay(task: ChainTask) -> Any:
        calls.append(f"pay {task.kind} {task.attempt}")
        if task.kind == "RUN":
            return Waiting("paid", timeout="1 hour")
        return Dead("stolen") if broken else {"paid": task.event.payload}  # type: ignore[union-attr]

    @orders.step("SHIP")
    async def ship(task: ChainTask) -> Any:
        return [task.outputs["VALIDATE"], task.outputs["PAY"]]

    async with opened(app) as h:
        run = await h.start(orders, id="c")
        await h.run_until_idle()
        await run.send_event("paid", 5)
        await h.run_until_idle()
        assert (await run.status()).native_status == "FAILED"
        broken.clear()
        await run.retry()
        await h.run_until_idle()

        assert await run.result(timeout=60) == [1, {"paid": 5}]
        assert calls == ["validate", "pay RUN 1", "pay EVENT 1", "pay EVENT 1"]
        assert [step.state for step in (await run.history()).steps] == ["DONE", "DONE", "DONE"]


async def test_failed_nodes_and_items_of_a_graph_are_called_again(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"left", "item 1", "item 2"}
    etl = app.graph("etl")

    @etl.node
    async def extract() -> list[int]:
        calls.call("extract")
        return [0, 1, 2]

    @etl.node(after=[extract], retry=ONCE)
    async def left(extract: list[int]) -> int:
        calls.call("left")
        return len(extract)

    @etl.node(map=extract, retry=ONCE)
    async def double(extract: int) -> int:
        calls.call(f"item {extract}")
        return 2 * extract

    @etl.node(after=[left, double])
    async def total(left: int, double: list[int]) -> int:
        calls.call("total")
        return left + sum(double)

    async with opened(app) as h:
        run = await h.start(etl, id="g")
        await h.run_until_idle()
        assert (await run.status()).status == "errored"
        calls.failing = {"item 2"}
        await run.retry()
        await h.run_until_idle()
        assert (await run.status()).status == "errored"
        calls.failing.clear()
        await run.retry()
        await h.run_until_idle()

        assert (await run.results())["total"] == 3 + 6
        assert sorted(calls) == sorted(
            ["extract", "left", "left", "item 0", "item 1", "item 1", "item 2", "item 2", "item 2", "total"]
        )
        assert (await run.describe()).run_number == 2
        assert {step.state for step in (await run.history()).steps} == {"ok"}


async def test_a_start_with_retry_if_failed_repairs_the_run(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"b"}

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.do("a", calls.call, "a")
        await ctx.do("b", calls.call, "b", retry=ONCE)
        return str((await ctx.wait_for_event("go", type="go")).payload)

    async with opened(app) as h:
        run = await h.start(flow, id="r")
        await h.run_until_idle()
        calls.failing.clear()
        again = await h.start(flow, id="r", on_reuse="retry_if_failed", messages=[("go", 1)])
        await h.run_until_idle()
        assert await again.result(timeout=60) == "1"
        assert calls == ["a", "b", "b"]
        assert (await run.describe()).run_number == 1

        complete = await h.start(flow, id="r", on_reuse="retry_if_failed")
        assert (await complete.describe()).run_number == 1
        await complete.restart()
        await h.run_until_idle()
        await complete.terminate()
        await h.start(flow, id="r", on_reuse="retry_if_failed", on_conflict="terminate_existing")
        described = await run.describe()
        assert (described.run_number, described.status, described.origin) == (3, "active", None)


async def test_concurrent_starts_of_a_terminated_instance_restart_it_once(opened: Open) -> None:
    app = _app()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.sleep("nap", "1 day")

    async with opened(app) as h:
        run = await h.start(flow, id="r")
        await run.terminate()
        await asyncio.gather(*(app.start(flow, id="r", on_reuse="retry_if_failed") for _ in range(3)))
        await h.run_until_idle()

        described = await run.describe()
        assert (described.run_number, described.status) == (1, "waiting")


async def test_concurrent_starts_of_a_failed_instance_retry_it_once(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"a"}

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await ctx.do("call", calls.call, "a", retry=ONCE)

    async with opened(app) as h:
        await h.start(flow, id="r")
        await h.run_until_idle()
        starts = [app.start(flow, id="r", on_reuse="retry_if_failed") for _ in range(3)]
        runs = await asyncio.gather(*starts)
        await h.run_until_idle()

        described = await runs[0].describe()
        assert (described.run_number, described.status) == (1, "errored")
        assert calls == ["a", "a"]


async def test_a_batch_of_starts_retries_failed_instances_and_returns_them_once(opened: Open) -> None:
    app, calls = _app(), Calls()
    calls.failing = {"a", "b"}

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await ctx.do("call", calls.call, ctx.info.instance_id, retry=ONCE)

    async with opened(app) as h:
        for name in ("a", "b", "c"):
            await h.start(flow, id=name)
        await h.run_until_idle()
        calls.failing.clear()
        starts = [Start(name, on_reuse="retry_if_failed") for name in ("a", "c", "new", "a")]
        runs = await app.start_many(flow, [*starts, Start("b")])
        await h.run_until_idle()

        assert sorted(run.id for run in runs) == ["a", "new"]
        described = [await (await app.get(flow, name)).describe() for name in ("a", "b", "c", "new")]
        assert [(one.run_number, one.status) for one in described] == [
            (1, "complete"), (0, "errored"), (0, "complete"), (0, "complete"),
        ]  # fmt: skip


async def test_a_child_cannot_be_started_with_retry_if_failed(opened: Open) -> None:
    app = _app()

    @app.workflow
    async def child(ctx: Context) -> None: ...

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.run(child, id="c", on_reuse="retry_if_failed")

    async with opened(app) as h:
        run = await h.start(flow, id="r")
        await h.run_until_idle()

        error = (await run.status()).error
        assert error is not None
        assert error.name == "InvalidOptionError"
        assert (await app.list(child)).items == []


@pytest.mark.above_the_store
async def test_the_retry_of_a_graph_that_timed_out_calls_the_items_that_had_not_begun(opened: Open) -> None:
    app = _app()
    graph = app.graph("g")

    @graph.node
    async def source() -> list[int]:
        return [*range(4)]

    @graph.node(map=source)
    async def each(source: int) -> int:
        return source

    async with opened(app) as h:
        run = await h.start(graph)
        await h.run_until_idle()
        store = h.app._opened().store
        [row] = await store.read(RunByName("g", run.id))
        facts = await store.read(FactsQuery(row.run))

    begun = [  # as if the run had timed out after the first item, while the second was being executed
        fact
        for fact in facts
        if (fact.state, fact.key) != (FactState.RESULT, "each")
        and not (fact.state == FactState.ITEM and fact.n > 0)
        and fact.key not in ("each[2]", "each[3]")
    ]
    continuation = GraphRepairRules().retry(RecordedRun(row, begun), row.updated_at)

    assert [(unit.key, unit.missing) for unit in continuation.units] == [
        ("each[1]", 0), ("each[2]", 0), ("each[3]", 0), ("each", 3),
    ]  # fmt: skip


async def test_an_action_on_an_errored_run_is_refused_with_the_hint_to_retry_it(opened: Open) -> None:
    app = Holdfast("sqlite://")

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> None:
        raise KeyError("sku")

    async with opened(app) as h:
        run = await h.start("flow", id="r")
        await h.run_until_idle()
        for request in (run.pause(), run.cancel(), run.send_event("go"), run.move("v2")):
            with pytest.raises(InstanceTerminalError, match=r"'r' of 'flow' is errored and cannot be .*; retry it to"):
                await request
