"""Pause and resume: a paused run executes no user code, loses nothing, and its timers continue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from driving import until_status
from holdfast import Context, Handle, Holdfast, InstanceTerminalError, Retry, StepTx
from holdfast.testing import Harness


class Gate:
    """A step function that sets ``began`` and waits for ``open``."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self) -> str:
        self.began.set()
        await self.open.wait()
        return "through"


async def pause_at(gate: Gate, run: Handle[Any]) -> None:
    """Pause the run while its step waits at the gate; the pause takes effect when the step has ended."""
    await gate.began.wait()
    await run.pause()
    gate.open.set()
    await until_status(run, "paused")


async def _status(run: Handle[Any]) -> str:
    return (await run.status()).status


async def test_a_run_that_has_not_begun_pauses_without_running_anything(app: Holdfast, h: Harness) -> None:
    ran: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> str:
        ran.append(1)
        return "done"

    run = await h.start(flow)
    await run.pause()
    await h.run_until_idle()
    assert (ran, await _status(run)) == ([], "paused")
    assert (await run.describe()).why.startswith("paused by a request; resume the run to continue")

    await run.resume()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "done"


async def test_a_waiting_run_pauses_at_once_and_pausing_again_changes_nothing(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.sleep("nap", "1 hour")

    run = await h.start(flow)
    await h.run_until_idle()
    await run.pause()
    assert await _status(run) == "paused"
    await run.pause()
    assert await _status(run) == "paused"


async def test_the_result_of_the_step_in_flight_is_kept_and_the_next_step_does_not_start(make_app: MakeApp) -> None:
    app, gate, later = make_app(), Gate(), list[str]()

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        first = await ctx.do("gate", gate)
        await ctx.do("next", later.append, "next step")
        return [first, *later]

    async with app:
        run = await app.start(flow)
        await gate.began.wait()
        await run.pause()
        assert await _status(run) == "active"
        assert "pause" in (await run.describe()).why
        gate.open.set()
        await until_status(run, "paused")
        assert later == []
        [step] = (await run.history()).steps
        assert (step.step_key, step.status, step.result) == ("gate", "completed", "through")

        await run.resume()
        assert await run.result(timeout=60) == ["through", "next step"]


@pytest.mark.kind_settings("the worker is notified of the pause at once")
async def test_workflow_code_does_not_continue_once_its_worker_has_received_the_pause(make_app: MakeApp) -> None:
    app, gate, later = make_app(), Gate(), list[str]()

    @app.workflow
    async def flow(ctx: Context) -> None:
        later.append(await ctx.do("gate", gate))

    async with app:
        run = await app.start(flow)
        await pause_at(gate, run)
        assert later == []


async def test_a_run_pauses_before_its_return_after_the_last_step(make_app: MakeApp) -> None:
    app, gate = make_app(), Gate()

    @app.workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.do("gate", gate)

    async with app:
        run = await app.start(flow)
        await gate.began.wait()
        await run.pause()
        gate.open.set()
        assert await until_status(run, "paused", "complete") == "paused"
        await run.resume()
        assert await run.result(timeout=60) == "through"


async def test_the_results_of_all_steps_in_flight_are_kept(make_app: MakeApp) -> None:
    app, gates = make_app(), [Gate(), Gate()]
    calls: list[str] = []

    @app.workflow
    async def flow(ctx: Context) -> Any:
        found = await asyncio.gather(ctx.do("a", gates[0]), ctx.do("b", gates[1]))
        calls.append("after")
        return found

    async with app:
        run = await app.start(flow)
        for gate in gates:
            await gate.began.wait()
        await run.pause()
        gates[1].open.set()
        await asyncio.sleep(0)
        assert await _status(run) == "active"
        gates[0].open.set()
        await until_status(run, "paused")
        assert {s.step_key: s.status for s in (await run.history()).steps} == {"a": "completed", "b": "completed"}
        assert calls == []
        await run.resume()
        assert await run.result(timeout=60) == ["through", "through"]


async def test_results_of_steps_that_end_together_but_are_written_separately_are_all_kept(make_app: MakeApp) -> None:
    app, calls, gate = make_app(), list[str](), Gate()

    @app.workflow
    async def other(_ctx: Context) -> None: ...

    @app.step
    async def step(tx: StepTx, name: str) -> str:
        calls.append(name)
        tx.start(other, id=name)
        return await gate()

    @app.workflow
    async def flow(_ctx: Context) -> list[str]:
        return [*await asyncio.gather(step("a"), step("b"))]

    async with app:
        run = await app.start(flow)
        await pause_at(gate, run)
        await run.resume()
        assert await run.result(timeout=60) == ["through", "through"]
    assert sorted(calls) == ["a", "b"]


async def test_a_resume_withdraws_a_pause_that_has_not_taken_effect(make_app: MakeApp) -> None:
    app, gate = make_app(), Gate()

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        return [await ctx.do("gate", gate), await ctx.do("next", lambda: "next")]

    async with app:
        run = await app.start(flow)
        await gate.began.wait()
        await run.pause()
        await run.resume()
        gate.open.set()
        assert await run.result(timeout=60) == ["through", "next"]


@pytest.mark.promise("no-lost-wakeup")
async def test_events_sent_while_paused_are_kept(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> Any:
        return (await ctx.wait_for_event("go", type="go")).payload

    run = await h.start(flow)
    await h.run_until_idle()
    await run.pause()
    await run.send_event("go", "while paused")
    await h.advance("1 hour")
    assert await _status(run) == "paused"
    await run.resume()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "while paused"


async def test_timers_continue_while_a_run_is_paused(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> float:
        await ctx.sleep("nap", "1 hour")
        return (ctx.now() - ctx.info.started_at).total_seconds()

    early, late = await h.start(flow), await h.start(flow)
    await h.run_until_idle()
    for run in (early, late):
        await run.pause()
    await h.advance("30 minutes")
    await early.resume()
    await h.advance("30 minutes")
    assert await early.result(timeout=60) == 3600
    await h.advance("1 hour")
    assert await _status(late) == "paused"
    await late.resume()
    await h.run_until_idle()
    assert await late.result(timeout=60) == 7200


async def test_a_wait_whose_deadline_passed_while_paused_times_out(app: Holdfast, h: Harness) -> None:
    from holdfast import WaitForEventTimeoutError

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.wait_for_event("go", type="go", timeout="10 minutes")
        except WaitForEventTimeoutError:
            return "timeout"
        return "event"

    run = await h.start(flow)
    await h.run_until_idle()
    await run.pause()
    await h.advance("11 minutes")
    await run.send_event("go", "too late")
    await run.resume()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "timeout"


async def test_a_retry_due_while_paused_waits_for_the_resume(app: Holdfast, h: Harness) -> None:
    attempts: list[int] = []

    def flaky() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("first")
        return "second"

    @app.workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.do("flaky", flaky)

    run = await h.start(flow)
    await h.run_until_idle()
    await run.pause()
    await h.advance("1 hour")
    assert len(attempts) == 1
    await run.resume()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "second"


@pytest.mark.parametrize("waits_for", ["delay", "attempt", "tick", "debounce"])
async def test_a_resumed_run_that_has_not_begun_waits_for_its_time(app: Holdfast, h: Harness, waits_for: str) -> None:
    began: list[float] = []
    retry = Retry(limit=1, delay="1 hour", backoff="constant") if waits_for == "attempt" else None
    options: dict[str, dict[str, Any]] = {
        "delay": {"delay": "1 hour"},
        "tick": {"cron": "0 * * * *"},
        "debounce": {"debounce": "1 hour"},
    }

    @app.workflow
    async def flow(ctx: Context) -> None:
        began.append((ctx.now() - beginning).total_seconds())
        if retry is not None and ctx.info.attempt == 1:
            raise OSError("first")

    beginning = h.now()
    run = await h.start(flow, retry=retry, **options.get(waits_for, {}))
    await h.run_until_idle()
    before = [*began]
    await run.pause()
    await h.advance("10 minutes")
    await run.resume()
    await h.run_until_idle()
    assert (await _status(run), began) == ("waiting", before)

    await h.advance("50 minutes")
    assert began == [*before, 3600]


async def test_a_run_whose_start_was_due_while_it_was_paused_begins_with_the_resume(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        return "done"

    run = await h.start(flow, delay="1 hour")
    await run.pause()
    await h.advance("2 hours")
    assert await _status(run) == "paused"
    await run.resume()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "done"


async def test_a_delayed_run_that_was_cancelled_while_it_was_paused_ends_with_the_resume(
    app: Holdfast, h: Harness
) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    run = await h.start(flow, delay="1 hour")
    await run.pause()
    await run.cancel("not needed")
    await run.resume()
    await h.run_until_idle()
    assert await _status(run) == "cancelled"


async def test_a_resumed_graph_keeps_its_delay_and_those_of_its_attempts(app: Holdfast, h: Harness) -> None:
    graph, began = app.graph("g"), list[float]()

    @graph.node(retry=Retry(limit=1, delay="1 hour", backoff="constant"))
    async def node() -> str:
        began.append((h.now() - beginning).total_seconds())
        if len(began) == 1:
            raise OSError("first")
        return "second"

    beginning = h.now()
    run = await h.start(graph, delay="1 hour")
    for _ in range(2):  # waits for its start, then for its second attempt
        await h.run_until_idle()
        await run.pause()
        await h.advance("10 minutes")
        await run.resume()
        await h.run_until_idle()
        assert await _status(run) == "waiting" or began == [3600]
        await h.advance("50 minutes")
    assert began == [3600, 7200]
    assert (await run.results())["node"] == "second"


async def test_a_delay_that_begins_during_a_pause_counts_after_the_resume(make_app: MakeApp) -> None:
    app, gate = make_app(), Gate()
    graph, began = app.graph("g"), list[int]()

    @graph.node(retry=Retry(limit=1, delay="1 hour"))
    async def node() -> str:
        began.append(1)
        await gate()
        raise OSError("first")

    async with app:
        run = await app.start(graph)
        await gate.began.wait()
        await run.pause()
        gate.open.set()
        while (await run.history()).steps[0].next_retry_at is None:
            await asyncio.sleep(0.01)
        await run.resume()
        await asyncio.sleep(0.2)
        assert began == [1]


async def test_resuming_a_run_that_is_not_paused_does_nothing(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.sleep("nap", 60)
        return "done"

    run = await h.start(flow)
    await h.run_until_idle()
    await run.resume()
    await h.run_until_idle()
    assert await _status(run) == "waiting"
    await h.advance(60)
    assert await run.result(timeout=60) == "done"
    await run.resume()
    assert await _status(run) == "complete"


async def test_an_ended_run_cannot_be_paused(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    run = await h.start(flow)
    await h.run_until_idle()
    with pytest.raises(InstanceTerminalError):
        await run.pause()


async def test_a_run_stays_paused_after_its_worker_restarts(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        return str(await ctx.do("a", lambda: "a"))

    run = await h.start(flow)
    await run.pause()
    await h.restart()
    await h.advance("1 day")
    assert await _status(run) == "paused"


async def test_a_pause_with_persist_task_loses_no_buffered_results(make_app: MakeApp) -> None:
    app, gate, calls = make_app(), Gate(), list[int]()

    @app.workflow(persist="task")
    async def flow(ctx: Context) -> Any:
        for n in range(3):
            await ctx.do(f"s{n}", calls.append, n)
        return await ctx.do("gate", gate)

    async with app:
        run = await app.start(flow)
        await pause_at(gate, run)
        await run.resume()
        assert await run.result(timeout=60) == "through"
        assert calls == [0, 1, 2]
