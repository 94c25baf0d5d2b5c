"""Control requests, timeouts, retries and schedules apply to chains as to every run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from driving import until_status
from holdfast import (
    ChainTask,
    Completed,
    Context,
    Dead,
    Handle,
    Holdfast,
    InstanceTerminalError,
    Retry,
    RunCancelledError,
    RunFailedError,
    RunTerminatedError,
    Waiting,
)
from holdfast.testing import Harness
from scenarios.observations import cancel_once, end_of, observe_with_crashes
from scenarios.test_pause import Gate


@pytest.fixture
def waiting_chain(app: Holdfast) -> Any:
    chain = app.chain("waiting_chain")

    @chain.step("WAIT")
    async def wait(task: ChainTask) -> Any:
        return Waiting("go", "30 days") if task.event is None else Completed(task.event.payload)

    @chain.step("LAST")
    async def last(task: ChainTask) -> Any:
        return task.outputs["WAIT"]

    return chain


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def gated_chain(app: Holdfast, gate: Gate) -> Any:
    chain = app.chain("gated_chain")

    @chain.step("GATE")
    async def through(task: ChainTask) -> Any:
        return await gate()

    @chain.step("LAST")
    async def last(task: ChainTask) -> Any:
        return task.outputs["GATE"]

    return chain


# --- cancel


async def test_a_cancellation_ends_a_waiting_chain(h: Harness, waiting_chain: Any) -> None:
    async def cancel(_h: Harness, run: Handle[Any]) -> None:
        await cancel_once(run, "enough")

    end = await observe_with_crashes(h, waiting_chain, observe=end_of, drive=cancel)
    assert end == ("cancelled", None, "CancelledError", "enough")


async def test_a_cancelled_chain_keeps_the_states_of_its_steps(h: Harness, waiting_chain: Any) -> None:
    run = await h.start(waiting_chain)
    await h.run_until_idle()
    await run.cancel("enough")
    await h.run_until_idle()
    with pytest.raises(RunCancelledError, match="enough"):
        await run.result(timeout=60)
    assert (await run.status()).native_status == "CANCELED"
    assert [s.state for s in (await run.history()).steps] == ["WAITING", "PENDING"]


async def test_a_cancellation_stops_the_handler_in_flight(make_app: MakeApp) -> None:
    app = make_app()
    chain, began, stopped = app.chain("stops"), asyncio.Event(), asyncio.Event()

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with app:
        run = await app.start(chain)
        await asyncio.wait_for(began.wait(), 60)
        await run.cancel("enough")
        assert await until_status(run, "cancelled") == "cancelled"
        await asyncio.wait_for(stopped.wait(), 60)


async def test_a_chain_cancelled_before_its_start_calls_no_handler(h: Harness, gated_chain: Any, gate: Gate) -> None:
    run = await h.start(gated_chain)
    await run.cancel()
    await h.run_until_idle()
    assert ((await run.status()).status, gate.began.is_set()) == ("cancelled", False)


async def test_a_terminated_chain_stays_terminated(h: Harness, gated_chain: Any, gate: Gate) -> None:
    run = await h.start(gated_chain)
    await h.tick()
    await run.terminate("because")
    gate.open.set()
    await h.run_until_idle()
    with pytest.raises(RunTerminatedError, match="because"):
        await run.result(timeout=60)
    assert (await run.status()).native_status == "CANCELED"
    with pytest.raises(InstanceTerminalError):
        await run.send_event("go")


# --- pause


async def test_a_pause_records_the_attempt_in_flight_and_starts_no_other(
    h: Harness, gated_chain: Any, gate: Gate
) -> None:
    run = await h.start(gated_chain)
    await h.tick()
    await run.pause()
    gate.open.set()
    await h.run_until_idle()
    assert (await run.status()).status == "paused"
    assert [s.state for s in (await run.history()).steps] == ["DONE", "READY"]
    await run.resume()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "through"


async def test_a_paused_chain_keeps_its_events_and_its_deadline(h: Harness, waiting_chain: Any) -> None:
    run = await h.start(waiting_chain)
    await h.run_until_idle()
    await run.pause()
    await run.send_event("go", 5)
    await h.advance("31 days")
    assert (await run.status()).status == "paused"
    await run.resume()
    await h.run_until_idle()
    assert await run.result(timeout=60) == 5


async def test_a_wait_answered_during_a_pause_is_recorded(h: Harness, app: Holdfast, gate: Gate) -> None:
    chain, calls = app.chain("answers"), []

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        calls.append(task.kind)
        if task.event is None:
            await gate()
            return Waiting("go", "1 hour")
        return task.event.payload

    run = await h.start(chain)
    await h.tick()
    await run.pause()
    gate.open.set()
    await run.send_event("go", 5)
    await h.run_until_idle()
    assert ((await run.status()).status, (await run.history()).steps[0].state) == ("paused", "WAITING")
    await run.resume()
    await h.run_until_idle()
    assert (calls, await run.result(timeout=60)) == (["RUN", "EVENT"], 5)


async def test_a_resume_before_the_pause_took_effect_keeps_the_attempt(
    h: Harness, gated_chain: Any, gate: Gate
) -> None:
    run = await h.start(gated_chain)
    await h.tick()
    await run.pause()
    await run.resume()
    gate.open.set()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "through"
    assert [s.attempts for s in (await run.history()).steps] == [0, 0]


# --- restarts, retries and schedules


async def test_a_restarted_chain_begins_at_its_first_step_with_an_empty_mailbox(h: Harness, waiting_chain: Any) -> None:
    run = await h.start(waiting_chain)
    await run.send_event("go", 1)
    await h.run_until_idle()
    assert await run.result(timeout=60) == 1
    await run.restart()
    await h.run_until_idle()
    assert [s.state for s in (await run.history()).steps] == ["WAITING", "PENDING"]
    assert [s.state for s in (await run.history(0)).steps] == ["DONE", "DONE"]
    await run.send_event("go", 2)
    await h.run_until_idle()
    assert await run.result(timeout=60) == 2


async def test_a_failed_chain_is_retried_as_a_whole(h: Harness, app: Holdfast) -> None:
    chain = app.chain("retried")
    numbers = []

    @chain.step("A")
    async def a(task: ChainTask) -> Any:
        return task.run_number

    @chain.step("B")
    async def b(task: ChainTask) -> Any:
        numbers.append((task.run_number, task.attempt))
        return Dead("no") if task.run_number < 2 else task.outputs["A"]

    run = await h.start(chain, retry=Retry(limit=5, delay="1 minute"))
    await h.advance("1 hour")
    assert (numbers, await run.result(timeout=60)) == ([(0, 1), (1, 1), (2, 1)], 2)


async def test_a_non_retryable_error_ends_the_chain_without_a_successor(h: Harness, app: Holdfast) -> None:
    chain = app.chain("final")

    @chain.step("A", max_attempts=1)
    async def a(task: ChainTask) -> Any:
        raise LookupError("gone")

    run = await h.start(chain, retry=Retry(limit=5, delay="1 minute", non_retryable=[LookupError]))
    await h.advance("1 hour")
    assert ((await run.status()).status, (await run.describe()).run_number) == ("errored", 0)


async def test_a_chain_runs_on_a_cron_schedule(h: Harness, app: Holdfast) -> None:
    chain = app.chain("hourly")
    hours = []

    @chain.step("A")
    async def a(task: ChainTask) -> Any:
        hours.append(h.now().hour)

    run = await h.start(chain, cron="0 * * * *")
    await h.advance("3 hours")
    assert hours == [1, 2, 3]
    assert ((await run.status()).status, len((await run.history()).steps)) == ("waiting", 1)
    await run.cancel()
    await h.run_until_idle()
    assert (await run.status()).status == "cancelled"


@pytest.mark.parametrize("option", ["run_timeout", "execution_timeout"])
async def test_a_chain_ends_at_its_timeout(h: Harness, waiting_chain: Any, option: str) -> None:
    run = await h.start(waiting_chain, **{option: "1 hour"})
    await h.advance("1 hour")
    with pytest.raises(RunFailedError) as caught:
        await run.result(timeout=60)
    assert caught.value.error.name == "RunTimeoutError"


async def test_start_options_apply_to_chains(h: Harness, app: Holdfast) -> None:
    from holdfast import context_values

    chain = app.chain("options")
    seen = []

    @chain.step("A")
    async def a(task: ChainTask) -> Any:
        seen.append(dict(context_values()))
        return Waiting("go", "1 hour") if task.event is None else task.event.payload

    run = await h.start(
        chain, id="one", memo={"m": 1}, search={"customer": "c-1"}, context={"tenant": "t"},
        messages=[("go", 5)], summary="a chain", priority=3,
    )  # fmt: skip
    await h.run_until_idle()
    assert (await run.result(timeout=60), seen) == (5, [{"tenant": "t"}, {"tenant": "t"}])
    described = await run.describe()
    assert (described.memo, described.search, described.summary) == ({"m": 1}, {"customer": "c-1"}, "a chain")
    [item] = (await h.app.list(chain, search={"customer": "c-1"})).items
    assert (item.id, item.details.kind, item.details.native_status) == ("one", "chain", "COMPLETED")


# --- parents and links


async def test_a_chain_fails_when_a_linked_run_fails(h: Harness, app: Holdfast, waiting_chain: Any) -> None:
    @app.workflow
    async def fails(ctx: Context) -> None:
        await ctx.spawn(waiting_chain, id="linked", link=True, parent_close="abandon")
        await ctx.sleep("a while", "1 minute")
        raise ValueError("down")

    await h.start(fails, id="one")
    await h.advance("1 minute")
    run = await h.app.get(waiting_chain, "linked")
    status = await run.status()
    assert (status.status, status.error.name) == ("errored", "LinkDownError")  # type: ignore[union-attr]
    assert "fails/one ended errored: ValueError: down" in status.error.message  # type: ignore[union-attr]


async def test_a_chain_continues_after_a_linked_run_completed(h: Harness, app: Holdfast, waiting_chain: Any) -> None:
    @app.workflow
    async def ends(ctx: Context) -> None:
        await ctx.spawn(waiting_chain, id="linked", link=True, parent_close="abandon")

    await h.start(ends)
    await h.run_until_idle()
    run = await h.app.get(waiting_chain, "linked")
    await run.send_event("go", 1)
    await h.run_until_idle()
    assert await run.result(timeout=60) == 1


async def test_the_end_of_a_parent_requests_the_cancellation_of_its_chain(
    h: Harness, app: Holdfast, waiting_chain: Any
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.spawn(waiting_chain, id="child", parent_close="request_cancel")

    await h.start(parent)
    await h.run_until_idle()
    assert (await (await h.app.get(waiting_chain, "child")).status()).status == "cancelled"
