"""``run.stack()``: the frames and local variables of every task, from a replay that writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from apps import MakeApp
from holdfast import (
    ChainTask,
    Completed,
    Context,
    Handle,
    Holdfast,
    InvalidOptionError,
    Outcome,
    Retry,
    TaskStack,
    Waiting,
)
from holdfast.testing import Harness

CALLS: list[str] = []


@dataclass
class Order:
    id: str
    card_token: str = "tok-123"


async def _numbers() -> AsyncIterator[int]:
    yield 1
    await asyncio.sleep(3600)
    yield 2


async def _count(limit: int) -> None:
    async for _number in _numbers():
        assert limit


async def _functions(run: Handle[Any], **options: Any) -> dict[str, list[str]]:
    return {task.name: [frame.function for frame in task.frames] for task in (await run.stack(**options)).tasks}


async def _task(run: Handle[Any], name: str = "main") -> TaskStack:
    return next(task for task in (await run.stack()).tasks if task.name == name)


def _line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


async def _approve(ctx: Context, level: int) -> str:
    event = await ctx.wait_for_event("approval", type="approval")  # waits here
    return f"{event.payload} at {level}"


async def test_the_frames_lead_from_the_workflow_function_to_the_await(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def fulfil(ctx: Context, order: Order) -> str:
        total = 125
        approved = await _approve(ctx, level=3)
        return f"{order.id} {total} {approved}"

    run = await h.start(fulfil, Order("o-1"))
    await h.run_until_idle()

    main = await _task(run)
    outer, inner = main.frames
    assert (outer.function, outer.source) == ("fulfil", "approved = await _approve(ctx, level=3)")
    assert outer.locals["total"] == "125"
    assert (inner.file, inner.line, inner.function) == (__file__, _line_of("# waits here"), "_approve")
    assert inner.locals["level"] == "3"
    assert main.waiting_for == "event 'approval'"


async def test_every_task_that_has_not_ended_has_a_stack(app: Holdfast, h: Harness) -> None:
    @app.step(retry=Retry(limit=3, delay="1 hour"))
    async def flaky(sku: str) -> None:
        raise OSError(sku)

    @app.workflow
    async def busy(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_count(7), name="counter")
            group.create_task(flaky("sku-1"), name="reserve")
            group.create_task(ctx.listen("hello").receive(), name="listener")

    run = await h.start(busy)
    await h.run_until_idle()

    tasks = {task.name: task for task in (await run.stack()).tasks}
    assert [frame.function for frame in tasks["main"].frames] == ["busy"]
    assert [frame.function for frame in tasks["counter"].frames] == ["_count", "_numbers"]
    assert tasks["counter"].waiting_for == "a timer"
    [called] = tasks["reserve"].frames
    assert (called.function, called.locals) == ("flaky", {"sku": "'sku-1'"})
    assert tasks["reserve"].waiting_for == "step 'flaky'"
    assert (tasks["listener"].frames, tasks["listener"].waiting_for) == ([], "message 'hello'")


@pytest.mark.interpreted("compiled functions have no frames")
async def test_the_option_all_adds_the_frames_of_the_engine(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def nap(ctx: Context) -> None:
        await ctx.sleep("nap", "1 hour")

    run = await h.start(nap)
    await h.run_until_idle()
    assert await _functions(run) == {"main": ["nap"]}
    assert "sleep" in (await _functions(run, all=True))["main"]


async def test_a_stack_of_a_paused_run_shows_where_it_waits_and_of_an_ended_run_no_tasks(
    app: Holdfast, h: Harness
) -> None:
    @app.workflow
    async def nap(ctx: Context) -> None:
        await ctx.sleep("nap", "1 hour")

    run = await h.start(nap)
    assert (await run.stack()).tasks == []  # it has not started
    await h.run_until_idle()
    await run.pause()
    await h.run_until_idle()
    assert (await run.status()).status == "paused"
    assert await _functions(run) == {"main": ["nap"]}

    await run.resume()
    await h.advance("1 hour")
    assert (await run.status()).status == "complete"
    assert (await run.stack()).tasks == []


@pytest.mark.parametrize("how", ["terminate", "timeout"])
async def test_the_stack_of_a_run_that_was_stopped_shows_where_it_waited(app: Holdfast, h: Harness, how: str) -> None:
    @app.workflow
    async def nap(ctx: Context) -> None:
        await ctx.sleep("nap", "1 hour")

    run = await h.start(nap, run_timeout="10 minutes" if how == "timeout" else None)
    await h.run_until_idle()
    if how == "terminate":
        await run.terminate()
    await h.advance("10 minutes")
    assert (await run.status()).status == ("terminated" if how == "terminate" else "errored")

    assert await _functions(run) == {"main": ["nap"]}
    assert [request.step_key for request in (await run.replay()).pending] == ["nap"]


async def test_the_stack_of_a_run_that_failed_has_no_tasks(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def fails(ctx: Context) -> None:
        await ctx.sleep("nap", "1 hour")
        raise ValueError("no")

    run = await h.start(fails)
    await h.advance("1 hour")
    assert (await run.status()).status == "errored"

    assert (await run.stack()).tasks == []


async def test_a_stack_calls_no_step_and_writes_nothing(app: Holdfast, h: Harness) -> None:
    CALLS.clear()

    @app.step(retry=Retry(limit=1, delay="1 hour"))
    async def charge() -> None:
        CALLS.append("charge")
        raise OSError("busy")

    @app.workflow
    async def pay(ctx: Context) -> None:
        ctx.set_search(state="paying")
        ctx.log.info("paying")
        await charge()

    run = await h.start(pay)
    await h.run_until_idle()
    before = await run.history(), await run.logs(), await run.describe()
    for _ in range(3):
        await run.stack()
        await run.replay(0)
    assert CALLS == ["charge"]
    assert (await run.history(), await run.logs(), await run.describe()) == before


@pytest.mark.above_the_store
async def test_values_of_secret_names_are_redacted_and_long_values_are_cut(h: Harness, app: Holdfast) -> None:
    app.registry.redacted = ("iban",)

    @app.workflow
    async def pay(ctx: Context, order: Order) -> None:
        password, IBAN, big = "hunter2", "DE89", "x" * 5000
        headers = {"Authorization": "Bearer abc", "accept": "json", "nested": [{"api-key": "k"}]}
        url = "https://bank.example/?token=abc&page=2"
        await ctx.sleep("nap", "1 hour")
        ctx.log.info("paid", [password, IBAN, big, headers, url, order.id])

    run = await h.start(pay, Order("o-1"))
    await h.run_until_idle()
    shown = (await _task(run)).frames[0].locals
    assert (shown["password"], shown["IBAN"]) == ("<redacted>", "<redacted>")
    assert shown["order"] == "Order(id='o-1', card_token=<redacted>)"
    assert shown["headers"] == "{'Authorization': <redacted>, 'accept': 'json', 'nested': [{'api-key': <redacted>}]}"
    assert shown["url"] == "'https://bank.example/?token=<redacted>&page=2'"
    assert len(shown["big"]) <= 200


@pytest.mark.above_the_store
async def test_a_repr_that_raises_is_shown_as_the_type(h: Harness, app: Holdfast) -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no repr")

    @app.workflow
    async def pay(ctx: Context) -> None:
        broken = Broken()
        await ctx.sleep("nap", "1 hour")
        del broken

    run = await h.start(pay)
    await h.run_until_idle()
    assert "Broken" in (await _task(run)).frames[0].locals["broken"]


@pytest.mark.parametrize("names", ["password", [""], [7]])
def test_names_to_redact_are_checked(names: Any) -> None:
    with pytest.raises(InvalidOptionError, match="redact="):
        Holdfast("sqlite://", redact=names)


async def test_the_stack_of_a_chain_shows_the_function_of_the_current_step(app: Holdfast, h: Harness) -> None:
    orders = app.chain("orders")

    @orders.step("VALIDATE")
    async def validate(task: ChainTask) -> Outcome:
        return Completed({"ok": True})

    @orders.step("PAY")
    async def pay(task: ChainTask) -> Outcome:
        return Waiting("paid", timeout="1 hour")

    run = await h.start(orders, {"total": 5})
    await h.run_until_idle()
    [task] = (await run.stack()).tasks
    assert (task.name, task.waiting_for) == ("PAY", "event 'paid'")
    [frame] = task.frames
    assert (frame.function, frame.source) == ("pay", "async def pay(task: ChainTask) -> Outcome:")
    assert (frame.locals["params"], frame.locals["outputs"]) == ("{'total': 5}", "{'VALIDATE': {'ok': True}}")


async def test_the_stack_of_a_graph_shows_the_functions_of_the_nodes_that_run(app: Holdfast, h: Harness) -> None:
    etl = app.graph("etl")

    @etl.node
    async def extract() -> list[int]:
        return [1, 2]

    @etl.node(map=extract, retry=Retry(limit=3, delay="1 hour"))
    async def load(extract: int) -> int:
        raise OSError("busy")

    run = await h.start(etl)
    await h.run_until_idle()
    tasks = (await run.stack()).tasks
    assert [(task.name, task.frames[0].function, task.frames[0].locals) for task in tasks] == [
        ("load[0]", "load", {"extract": "1"}),
        ("load[1]", "load", {"extract": "2"}),
    ]


async def test_why_and_its_parts_name_the_line_that_waits(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def fulfil(ctx: Context) -> str:
        return await _approve(ctx, level=3)

    run = await h.start(fulfil)
    await h.run_until_idle()
    described = await run.describe()
    line = _line_of("# waits here")
    assert f"test_stack.py:{line}" in described.why
    parts = described.why_parts
    assert (parts.kind, parts.step_key, parts.event_type) == ("event", "approval", "approval")
    assert parts.position is not None
    assert (parts.position.line, parts.until is not None) == (line, True)

    await run.pause()
    await h.run_until_idle()
    paused = await run.describe()
    assert paused.why.endswith(f"test_stack.py:{line}")
    assert paused.why_parts.kind == "paused"


async def test_a_run_whose_code_this_process_lacks_is_described_without_a_position(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def nap(ctx: Context) -> None:
        await ctx.sleep("nap", "1 hour")

    run = await h.start(nap)
    await h.run_until_idle()
    h._own_app.registry._by_name["nap"].inspect = None
    described = await run.describe()
    assert ".py" not in described.why
    assert described.why_parts.position is None


@pytest.mark.above_the_store
async def test_a_description_does_not_fail_if_the_replay_does(
    app: Holdfast, h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.workflow
    async def nap(ctx: Context) -> None:
        await ctx.sleep("nap", "1 hour")

    run = await h.start(nap)
    await h.run_until_idle()

    def broken(*_: Any) -> Any:
        raise RuntimeError("no replay")

    monkeypatch.setattr(h._own_app.registry._by_name["nap"], "inspect", broken)
    assert (await run.describe()).why.startswith("sleeping in 'nap'")


async def test_a_run_in_its_first_step_is_located(make_app: MakeApp) -> None:
    app, release = make_app(), asyncio.Event()

    @app.workflow
    async def pack(ctx: Context) -> None:
        await ctx.do("pack", release.wait)

    async with app:
        run = await app.start(pack)
        while not (await run.history()).steps:  # a running attempt is recorded after half a second
            await asyncio.sleep(0.05)
        assert await _functions(run) == {"main": ["pack"]}
        assert "test_stack.py" in (await run.describe()).why
        release.set()
        await run.result()
