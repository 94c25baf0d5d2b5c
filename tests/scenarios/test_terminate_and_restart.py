"""Terminate and restart: both take effect at once, and nothing of an old run reaches its successor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from driving import until_status
from holdfast import (
    Context,
    Holdfast,
    InstanceNotFoundError,
    InstanceTerminalError,
    InvalidOptionError,
    RunTerminatedError,
    step_info,
)
from holdfast.testing import Harness

from .test_pause import Gate


@pytest.mark.promise("finality")
async def test_terminate_is_final_at_once_even_with_a_step_in_flight(make_app: MakeApp) -> None:
    app, gate, after = make_app(), Gate(), list[str]()

    @app.workflow
    async def flow(ctx: Context) -> Any:
        result = await ctx.do("gate", gate)
        await ctx.do("after", after.append, result)
        return result

    async with app:
        run = await app.start(flow)
        await gate.began.wait()
        await run.terminate("not needed any more")
        assert (await run.status()).status == "terminated"
        gate.open.set()
        with pytest.raises(RunTerminatedError, match="not needed any more") as caught:
            await run.result(timeout=60)
        assert caught.value.code == "RUN_TERMINATED"
        assert caught.value.error.message == "not needed any more"
    assert after == []


async def test_a_step_in_flight_is_cancelled_when_its_run_is_terminated(make_app: MakeApp) -> None:
    app, cancelled = make_app(), asyncio.Event()
    began = asyncio.Event()

    async def slow() -> None:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("slow", slow)

    async with app:
        run = await app.start(flow)
        await began.wait()
        await run.terminate()
        async with asyncio.timeout(60):
            await cancelled.wait()
        assert (await run.status()).status == "terminated"


async def test_an_ended_run_cannot_be_terminated(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    run = await h.start(flow)
    await h.run_until_idle()
    with pytest.raises(InstanceTerminalError, match="complete"):
        await run.terminate()
    assert (await run.status()).status == "complete"


@pytest.mark.parametrize("state", ["new", "waiting", "paused"])
async def test_a_run_in_any_open_state_can_be_terminated(app: Holdfast, h: Harness, state: str) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.sleep("nap", 60)

    run = await h.start(flow)
    if state != "new":
        await h.run_until_idle()
    if state == "paused":
        await run.pause()
    await run.terminate()
    await h.advance("1 hour")
    assert (await run.status()).status == "terminated"
    assert (await run.describe()).why == "terminated"
    with pytest.raises(InstanceTerminalError):
        await run.send_event("go")


async def test_a_reason_that_is_not_text_is_refused(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    run = await h.start(flow)
    with pytest.raises(InvalidOptionError):
        await run.terminate(5)  # type: ignore[arg-type]
    assert (await run.status()).status == "active"


async def test_a_restart_creates_a_run_with_the_next_number(app: Holdfast, h: Harness) -> None:
    calls: list[int] = []

    @app.workflow
    async def flow(ctx: Context, start: int) -> list[Any]:
        await ctx.do("count", calls.append, start)
        return [ctx.info.run_number, len(calls), str(ctx.uuid4())]

    run = await h.start(flow, 7, id="again")
    await h.run_until_idle()
    first = await run.result(timeout=60)
    await run.restart()
    assert (await run.status()).status == "active"
    await h.run_until_idle()
    second = await run.result(timeout=60)
    assert (first[:2], second[:2]) == ([0, 1], [1, 2])
    assert first[2] != second[2]
    assert calls == [7, 7]
    described = await run.describe()
    assert (described.run_number, described.params) == (1, 7)


async def test_the_history_of_a_restarted_run_stays_readable(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> int:
        await ctx.do(f"step of run {ctx.info.run_number}", lambda: None)
        await ctx.wait_for_event("go", type="go")
        return ctx.info.run_number

    run = await h.start(flow)
    await run.send_event("go", "old")
    await h.run_until_idle()
    await run.restart()
    await h.run_until_idle()
    old, new = await run.history(0), await run.history()
    assert (old.run_number, new.run_number) == (0, 1)
    assert [s.step_key for s in old.steps] == ["step of run 0", "go"]
    assert [e.payload for e in old.events] == ["old"]
    assert [s.step_key for s in new.steps] == ["step of run 1", "go"]
    assert new.events == []
    assert all(s.run_number == 0 for s in old.steps)
    assert (await run.history(9)).steps == []


async def test_buffered_events_of_the_old_run_do_not_reach_the_new_one(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> Any:
        return (await ctx.wait_for_event("go", type="go")).payload

    run = await h.start(flow)
    await run.send_event("go", "for the old one", id="x")
    await run.restart()
    await h.run_until_idle()
    assert (await run.status()).status == "waiting"
    await run.send_event("go", "for the new one", id="x")
    await h.run_until_idle()
    assert await run.result(timeout=60) == "for the new one"


@pytest.mark.promise("finality")
async def test_late_writes_of_the_old_run_do_not_reach_the_new_one(make_app: MakeApp) -> None:
    app, gates = make_app(), [Gate(), Gate()]

    @app.workflow
    async def flow(ctx: Context) -> Any:
        gate = gates[ctx.info.run_number]

        async def stubborn() -> int:
            gate.began.set()
            while not gate.open.is_set():
                try:
                    await gate.open.wait()
                except asyncio.CancelledError:
                    continue
            return step_info().run_number

        return await ctx.do("step", stubborn)

    async with app:
        run = await app.start(flow)
        await gates[0].began.wait()
        await run.restart()
        await gates[1].began.wait()
        gates[0].open.set()
        await asyncio.sleep(0)
        assert (await run.status()).status == "active"
        gates[1].open.set()
        assert await run.result(timeout=60) == 1
        assert [s.status for s in (await run.history(0)).steps if s.status == "completed"] == []


@pytest.mark.parametrize("state", ["errored", "terminated", "paused", "waiting"])
async def test_a_run_in_any_state_can_be_restarted(app: Holdfast, h: Harness, state: str) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        if ctx.info.run_number == 0:
            if state == "errored":
                raise ValueError("first time")
            await ctx.sleep("nap", "1 hour")
        return "second time"

    run = await h.start(flow)
    await h.run_until_idle()
    if state == "terminated":
        await run.terminate()
    if state == "paused":
        await run.pause()
    await run.restart()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "second time"


async def test_a_waiting_result_call_returns_the_result_of_the_successor(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def flow(ctx: Context) -> str:
        if ctx.info.run_number == 0:
            await ctx.wait_for_event("never", type="never")
        return "second"

    async with app:
        run = await app.start(flow)
        await until_status(run, "waiting")
        waiting = asyncio.create_task(run.result(timeout=60))
        await asyncio.sleep(0)
        await (await app.get(flow, run.id)).restart()
        assert await waiting == "second"


async def test_control_requests_on_an_unknown_instance_raise_not_found(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    run = await h.start(flow, id="here")
    nowhere = type(run)(run._client, run._definition, "nowhere")
    for call in (nowhere.pause, nowhere.resume, nowhere.terminate, nowhere.restart, nowhere.status, nowhere.history):
        with pytest.raises(InstanceNotFoundError):
            await call()
    with pytest.raises(InstanceNotFoundError):
        await h.app.get(flow, "nowhere")
