"""The points at which the engine calls its observer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from apps import MakeApp
from driving import lose_worker
from holdfast import ChainTask, Completed, Context, Holdfast, InstanceExistsError, Outbound, OutboundEvent, Retry
from holdfast.kernel.telemetry import Ended, Telemetry
from holdfast.testing import Harness

from .recorder import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def app(recorder: Recorder) -> Holdfast:
    return Holdfast("sqlite://", telemetry=recorder)


async def test_a_run_is_observed_from_its_start_to_its_end(app: Holdfast, h: Harness, recorder: Recorder) -> None:
    tried: list[int] = []

    @app.step(retry=Retry(1, delay="1 second"))
    async def charge() -> int:
        tried.append(1)
        if len(tried) == 1:
            raise KeyError("x")
        return 5

    @app.workflow
    async def order(ctx: Context) -> int:
        return await charge()

    await h.start(order, id="o")
    await h.run_until_idle()
    await h.advance("2 seconds")

    assert [line for line in recorder.lines if "commit" not in line] == [
        "start 1 order", "start 1 order ok", "turn order", "attempt charge 1", "attempt ended charge 1 KeyError",
        "turn ended None", "turn order", "attempt charge 2", "attempt ended charge 2 ok", "turn ended complete",
    ]  # fmt: skip
    assert recorder.lines[-2] == "commit applied Finish"
    assert recorder.lines.count("commit applied Finish") == 1


async def test_a_replay_after_a_lost_worker_calls_no_attempt_again(
    app: Holdfast, h: Harness, recorder: Recorder
) -> None:
    @app.step
    async def first() -> int:
        return 1

    @app.workflow
    async def waits(ctx: Context) -> Any:
        await first()
        return await ctx.wait_for_event("go", type="go", timeout="1 day")

    run = await h.start(waits)
    await h.run_until_idle()
    recorder.lines.clear()
    await h.restart()
    await run.send_event("go", 1)
    await h.run_until_idle()

    assert [line for line in recorder.lines if "attempt" in line] == []
    assert recorder.lines[:2] == ["send go", "send go ok"]
    assert recorder.lines[-2:] == ["commit applied Finish", "turn ended complete"]


async def test_a_takeover_and_an_abandoned_attempt_are_observed(app: Holdfast, h: Harness, recorder: Recorder) -> None:
    @app.step
    async def slow() -> None:
        await asyncio.sleep(3600)

    @app.workflow
    async def order(ctx: Context) -> None:
        await slow()

    await h.start(order)
    await h.tick()
    assert recorder.lines[-1] == "attempt slow 1"
    await lose_worker(h)
    assert "attempt ended slow 1 abandoned" in recorder.lines
    await h.tick()

    assert "turn taken over order" in recorder.lines


async def test_operations_nodes_and_deliveries_are_observed(app: Holdfast, h: Harness, recorder: Recorder) -> None:
    flow = app.graph("flow")

    @flow.node
    async def a() -> int:
        return 1

    chain = app.chain("mail")

    @chain.step("SEND")
    async def send(task: ChainTask) -> Completed:
        return Completed(outbound=[Outbound("sent", {})])

    @app.outbox
    async def deliver(event: OutboundEvent) -> None: ...

    @app.workflow
    async def child(ctx: Context) -> None: ...

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(child)

    await h.start(parent)
    await h.start(flow)
    await h.start(chain)
    await h.run_until_idle()

    assert "operations ['NewRun']" in recorder.lines
    assert "advance ['a']" in recorder.lines
    assert recorder.lines.count("turn ended complete") == 4
    assert "outbox ['sent']" in recorder.lines
    assert "delivery sent" in recorder.lines
    assert "delivery sent ok" in recorder.lines


@pytest.mark.above_the_store
async def test_a_refused_start_is_observed_with_its_error(app: Holdfast, h: Harness, recorder: Recorder) -> None:
    @app.workflow
    async def order(ctx: Context) -> None: ...

    await h.start(order, id="o")
    with pytest.raises(InstanceExistsError):
        await h.start(order, id="o", on_conflict="fail")

    assert recorder.lines[-1] == "start 1 order ok"


@pytest.mark.above_the_store
async def test_a_run_that_loses_too_many_workers_is_observed_as_parked(
    app: Holdfast, h: Harness, recorder: Recorder
) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.sleep("nap", "1 day")

    await h.start(order)
    for _ in range(11):
        await h._the_worker().claim_due(1)
        await lose_worker(h)
        await h._the_worker().reap()

    assert "parked losses" in recorder.lines


class Broken(Telemetry):
    """An observer that raises an exception at two points."""

    def __init__(self) -> None:
        self.closed = False

    def attempt_began(self, attempt: Any) -> None:
        raise RuntimeError("at the beginning of an attempt")

    def start_began(self, runs: Any) -> Ended:
        def ended(error: BaseException | None) -> None:
            raise RuntimeError("at the end of a start")

        return ended

    def close(self) -> None:
        self.closed = True


async def test_an_observer_that_fails_is_logged_and_affects_no_run(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    broken, recorder = Broken(), Recorder()
    app = make_app(telemetry=[broken, recorder])

    @app.step
    async def charge(n: int) -> int:
        return n

    @app.workflow
    async def order(ctx: Context) -> int:
        return await charge(1) + await charge(2)

    with caplog.at_level(logging.ERROR, "holdfast"):
        async with app:
            assert await (await app.start(order)).result(timeout=60) == 3

    assert broken.closed
    assert "attempt charge 1" in recorder.lines
    assert recorder.lines[-1] == "close"
    assert [record.getMessage() for record in caplog.records if "telemetry" in record.getMessage()] == [
        "telemetry failed in Broken.start_began; its further failures are not logged",
        "telemetry failed in Broken.attempt_began; its further failures are not logged",
    ]
