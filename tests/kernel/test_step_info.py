"""``step_info()``: the run, the attempt and the log of the current step, and progress reported by heartbeats."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apps import MakeApp
from driving import finish, lose_worker, until
from holdfast import ChainTask, Context, Holdfast, Limits, Retry, RetryStep, StepInfo, Transaction, step_info
from holdfast.testing import Harness
from scenarios.test_pause import Gate
from why_text import without_positions

START = datetime(2030, 1, 1, tzinfo=UTC)
RETRY_SOON = Retry(3, "1 second", backoff="constant")


@pytest.mark.above_the_store
@pytest.mark.parametrize("plain", [False, True])
async def test_step_info_has_the_run_and_the_attempt(app: Holdfast, h: Harness, plain: bool) -> None:
    seen: list[StepInfo] = []

    def read_info() -> None:
        seen.append(step_info())
        if len(seen) == 1:
            raise OSError("once more")

    async def read_info_async() -> None:
        read_info()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("read_info", read_info if plain else read_info_async, retry=RETRY_SOON, timeout="2 minutes")

    run = await h.start(flow, id="a")
    await h.advance("1 second")
    await run.result(timeout=60)
    first, second = seen
    assert (first.workflow, first.instance_id, first.run_number, first.step_key) == ("flow", "a", 0, "read_info")
    assert [(info.attempt, info.max_attempts) for info in seen] == [(1, 4), (2, 4)]
    assert first.deadline == START + timedelta(minutes=2)
    assert second.deadline == START + timedelta(minutes=2, seconds=1)
    assert first.idempotency_key == second.idempotency_key
    with pytest.raises(FrozenInstanceError):
        first.attempt = 7  # type: ignore[misc]


@pytest.mark.above_the_store
async def test_a_step_without_a_limit_of_retries_has_no_max_attempts(app: Holdfast, h: Harness) -> None:
    @app.step(retry=Retry(float("inf"), "1 second"))
    async def read_info() -> Any:
        info = step_info()
        return [info.max_attempts, info.deadline is not None]

    @app.workflow
    async def flow(_ctx: Context) -> Any:
        return await read_info()

    assert await finish(h, flow) == [None, True]


@pytest.mark.above_the_store
async def test_idempotency_keys_differ_between_steps_runs_and_restarts(app: Holdfast, h: Harness) -> None:
    def key() -> str:
        return step_info().idempotency_key

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        return [await ctx.do("one", key), await ctx.do("two", key)]

    run = await h.start(flow, id="a")
    await h.run_until_idle()
    keys = await run.result(timeout=60)
    keys += await finish(h, flow, id="b")
    await run.restart()
    await h.run_until_idle()
    keys += await run.result(timeout=60)
    assert len(set(keys)) == 6


@pytest.mark.promise("at-least-once-steps")
async def test_an_idempotency_key_is_the_same_after_a_lost_worker(app: Holdfast, h: Harness) -> None:
    keys: list[str] = []

    async def pay() -> None:
        keys.append(step_info().idempotency_key)
        if len(keys) == 1:
            await asyncio.Event().wait()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("pay", pay)

    run = await h.start(flow)
    await h.run_until_idle()
    await lose_worker(h)
    await h.run_until_idle()
    await run.result(timeout=60)
    assert len(keys) == 2
    assert len(set(keys)) == 1


@pytest.mark.above_the_store
async def test_step_info_works_in_tasks_and_threads_of_the_step_and_nowhere_else(app: Holdfast, h: Harness) -> None:
    async def step() -> list[str]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(asyncio.to_thread(lambda: step_info().step_key))
        found: list[str] = []
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: context.run(lambda: found.append(step_info().step_key)))
        thread.start()
        thread.join()
        return [task.result(), *found]

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        with pytest.raises(RuntimeError, match="outside a step"):
            step_info()
        return await ctx.do("step", step)

    assert await finish(h, flow) == ["step", "step"]
    with pytest.raises(RuntimeError, match="outside a step"):
        step_info()


@pytest.mark.above_the_store
async def test_workflow_code_started_by_a_step_is_not_in_that_step(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def child(_ctx: Context) -> str:
        try:
            return step_info().step_key
        except RuntimeError:
            return "outside"

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.do("start", start)

    async def start() -> Any:
        return await (await app.start(child)).result(timeout=60)

    async with app:
        assert await (await app.start(parent)).result(timeout=60) == "outside"


@pytest.mark.above_the_store
async def test_log_lines_of_step_info_have_the_step_and_the_attempt(app: Holdfast, h: Harness) -> None:
    @app.step
    def work() -> None:
        step_info().log.info("half way", {"rows": 5})

    @app.workflow
    async def flow(_ctx: Context) -> None:
        await work()

    run = await h.start(flow)
    await h.run_until_idle()
    [line] = await run.logs()
    assert (line.message, line.data, line.step_key, line.attempt) == ("half way", {"rows": 5}, "work", 1)


# --- heartbeats


@pytest.mark.parametrize("plain", [False, True])
async def test_the_next_attempt_gets_the_progress_of_the_failed_one(app: Holdfast, h: Harness, plain: bool) -> None:
    found: list[Any] = []

    def work() -> None:
        info = step_info()
        found.append(info.previous_heartbeat)
        if info.attempt == 1:
            for row in range(1000):
                info.heartbeat({"row": row})
        elif info.attempt == 2:
            info.heartbeat()
        if info.attempt < 4:
            raise OSError("once more")

    async def work_async() -> None:
        await step_info().heartbeat("begun")
        work()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("work", work if plain else work_async, retry=RETRY_SOON)

    run = await h.start(flow)
    await h.run_until_idle()
    last = {"row": 999}
    [step] = (await run.history()).steps
    assert (step.progress, step.heartbeat_at) == (last, START)
    assert without_positions((await run.describe()).why).endswith(", progress {'row': 999}")
    await h.restart()
    await h.advance("1 minute")
    await run.result(timeout=60)
    assert found == ([None, last, last, last] if plain else [None, last, "begun", "begun"])
    [step] = (await run.history()).steps
    assert (step.progress, step.heartbeat_at) == (None, None)


async def test_the_next_attempt_gets_the_progress_after_a_timeout(app: Holdfast, h: Harness) -> None:
    found: list[Any] = []

    async def work() -> None:
        info = step_info()
        found.append(info.previous_heartbeat)
        if info.attempt == 1:
            await info.heartbeat(40)
            await asyncio.Event().wait()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("work", work, retry=RETRY_SOON, timeout="1 minute")

    run = await h.start(flow)
    await h.advance("2 minutes")
    await run.result(timeout=60)
    assert found == [None, 40]


async def test_the_next_attempt_gets_the_progress_after_a_lost_worker(app: Holdfast, h: Harness) -> None:
    found: list[Any] = []

    async def work() -> None:
        info = step_info()
        found.append(info.previous_heartbeat)
        if info.attempt == 1:
            await info.heartbeat({"page": 3})
            await asyncio.Event().wait()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("work", work)

    run = await h.start(flow)
    await h.run_until_idle()
    await h._the_worker()._loops.recorder.record_heartbeats()
    await lose_worker(h)
    await h.run_until_idle()
    await run.result(timeout=60)
    assert found == [None, {"page": 3}]


async def test_a_worker_that_stops_keeps_the_progress_of_steps_in_flight(app: Holdfast, h: Harness) -> None:
    found: list[Any] = []

    async def work() -> None:
        found.append(step_info().previous_heartbeat)
        if len(found) == 1:
            await step_info().heartbeat(7)
            await asyncio.Event().wait()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("work", work)

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    await h.run_until_idle()
    await run.result(timeout=60)
    assert found == [None, 7]


@pytest.mark.parametrize("persist", ["step", "task"])
async def test_a_failure_during_an_open_transaction_keeps_its_progress(app: Holdfast, h: Harness, persist: Any) -> None:
    """A heartbeat waits for the transaction, so the turn must not wait for the heartbeat."""
    gate, found = Gate(), list[Any]()

    async def in_transaction(tx: Transaction) -> None:
        await tx.fetch("SELECT 1")
        await gate()

    async def work() -> None:
        found.append(step_info().previous_heartbeat)
        await step_info().heartbeat(len(found))
        gate.open.set()
        if len(found) < 2:
            raise OSError("once more")

    @app.workflow(persist=persist)
    async def flow(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.do("transaction", in_transaction))
            group.create_task(ctx.do("work", work, retry=RETRY_SOON))

    run = await h.start(flow)
    await h.advance("1 minute")
    await run.result(timeout=60)
    assert found == [None, 1]


async def test_describe_shows_the_progress_of_a_running_step(make_app: MakeApp) -> None:
    app, done = make_app(), asyncio.Event()

    async def work() -> None:
        step_info().heartbeat({"done": 40})
        await done.wait()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("import", work)

    async with app:
        run = await app.start(flow)

        async def shown() -> str:
            why = (await run.describe()).why
            return why if "progress" in why else ""

        why = await until(shown)
        done.set()
        assert why.startswith("running step 'import' (attempt 1), progress {'done': 40}, heartbeat ")
        assert without_positions(why).endswith(" ago")
        await run.result(timeout=60)


async def run_with_progress_after_a_restart(h: Harness, orders: Any) -> None:
    """Run a chain whose first attempt reports the progress 10 and fails; the worker restarts before the next one."""
    run = await h.start(orders, id="a")
    await h.run_until_idle()
    assert "progress 10" in (await run.describe()).why
    await h.restart()
    await h.advance("1 minute")
    await run.result(timeout=60)


async def test_chain_steps_have_step_info_and_heartbeats(app: Holdfast, h: Harness) -> None:
    orders = app.chain("orders")
    seen: list[StepInfo] = []

    @orders.step("PAY", max_attempts=3)
    async def pay(_task: ChainTask) -> None:
        info = step_info()
        seen.append(info)
        await info.heartbeat(info.attempt * 10)
        if info.attempt < 3:
            raise OSError("once more")

    await run_with_progress_after_a_restart(h, orders)
    assert [(i.step_key, i.attempt, i.max_attempts, i.previous_heartbeat) for i in seen] == [
        ("PAY", 1, 3, None), ("PAY", 2, 3, 10), ("PAY", 3, 3, 20),
    ]  # fmt: skip
    assert len({i.idempotency_key for i in seen}) == 1


async def test_a_chain_step_that_returns_retry_step_keeps_its_progress(app: Holdfast, h: Harness) -> None:
    orders = app.chain("orders")
    seen: list[Any] = []

    @orders.step("PAY", max_attempts=3)
    async def pay(_task: ChainTask) -> RetryStep | None:
        info = step_info()
        seen.append(info.previous_heartbeat)
        await info.heartbeat(info.attempt * 10)
        return RetryStep("1 second", "once more") if info.attempt < 3 else None

    await run_with_progress_after_a_restart(h, orders)
    assert seen == [None, 10, 20]


async def test_nodes_and_items_have_step_info_and_heartbeats(app: Holdfast, h: Harness) -> None:
    etl = app.graph("etl")
    seen: list[tuple[str, int, Any]] = []

    @etl.node
    async def extract() -> list[int]:
        return [1, 2]

    @etl.node(map=extract, retry=RETRY_SOON)
    async def load(extract: int) -> int:
        info = step_info()
        seen.append((info.step_key, info.attempt, info.previous_heartbeat))
        await info.heartbeat(extract * 100)
        if info.attempt == 1:
            raise OSError("once more")
        return extract

    run = await h.start(etl)
    await h.run_until_idle()
    steps = {step.step_key: step.progress for step in (await run.history()).steps}
    assert (steps["load[0]"], steps["load[1]"]) == (100, 200)
    assert "progress 100" in (await run.describe()).why
    await h.advance("1 minute")
    assert await run.results() == {"extract": [1, 2], "load": [1, 2]}
    assert sorted(seen) == [("load[0]", 1, None), ("load[0]", 2, 100), ("load[1]", 1, None), ("load[1]", 2, 200)]


async def test_a_node_taken_over_from_a_lost_worker_gets_its_progress(app: Holdfast, h: Harness) -> None:
    etl = app.graph("etl")
    found: list[Any] = []

    @etl.node
    async def load() -> None:
        found.append(step_info().previous_heartbeat)
        if len(found) == 1:
            await step_info().heartbeat(5)
            await asyncio.Event().wait()

    run = await h.start(etl)
    await h.run_until_idle()
    await h._the_worker()._loops.recorder.record_heartbeats()
    await lose_worker(h)
    await h.run_until_idle()
    assert await run.results() == {"load": None}
    assert found == [None, 5]


@pytest.mark.above_the_store
async def test_progress_that_cannot_be_stored_is_refused_in_the_step() -> None:
    app = Holdfast("sqlite://", limits=Limits(heartbeat=10))

    async def too_large() -> None:
        await step_info().heartbeat("x" * 11)

    async def no_json() -> None:
        await step_info().heartbeat(object())

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        names = []
        for name, fn in (("large", too_large), ("odd", no_json)):
            try:
                await ctx.do(name, fn)
            except Exception as error:
                names.append(type(error).__name__)
        return names

    async with Harness(app) as h:
        assert await finish(h, flow) == ["PayloadTooLargeError", "NotSerializableError"]


@pytest.mark.promise("bounded-resources")
@pytest.mark.above_the_store
async def test_many_heartbeats_cause_few_writes(make_app: MakeApp) -> None:
    app = make_app()

    async def work() -> int:
        for n in range(5000):
            await step_info().heartbeat(n)
        return 5000

    @app.workflow
    async def flow(ctx: Context) -> int:
        return await ctx.do("work", work)

    async with app:
        store, writes = app._opened().store, list[int]()
        record = store.record_heartbeats

        async def counted(heartbeats: Any) -> None:
            writes.append(len(heartbeats))
            await record(heartbeats)

        store.record_heartbeats = counted  # type: ignore[method-assign]
        assert await (await app.start(flow)).result(timeout=60) == 5000
    assert len(writes) < 50
