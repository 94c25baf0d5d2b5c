"""Leases and timeouts of steps: attempts that count, takeovers, and late writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from driving import lose_worker, until, until_status
from holdfast import ChainTask, Completed, Holdfast, RetryStep, Waiting, WorkerConfig
from holdfast.testing import Harness
from scenarios.test_pause import Gate
from why_text import without_positions


@pytest.mark.promise("at-least-once-steps")
async def test_an_attempt_lost_with_its_worker_counts_as_failed(h: Harness, app: Holdfast) -> None:
    chain, gate = app.chain("lost"), Gate()
    attempts = []

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        attempts.append(task.attempt)
        if task.attempt == 1:
            await gate()
        return task.attempt

    run = await h.start(chain)
    await h.tick()
    await lose_worker(h)
    await h.run_until_idle()
    assert (attempts, await run.result(timeout=60)) == ([1, 2], 2)


async def test_a_step_is_dead_when_its_last_attempt_is_lost(h: Harness, app: Holdfast) -> None:
    chain, gate = app.chain("lost"), Gate()

    @chain.step("ONLY", max_attempts=2)
    async def only(task: ChainTask) -> Any:
        await gate()

    run = await h.start(chain)
    for _ in range(2):
        await h.tick()
        await lose_worker(h)
    await h.run_until_idle()
    [step] = (await run.history()).steps
    assert (step.state, step.attempts, step.error.message) == ("DEAD", 2, "LEASE_EXPIRED")  # type: ignore[union-attr]
    status = await run.status()
    assert (status.status, status.native_status) == ("errored", "FAILED")
    assert status.error is not None
    assert "LEASE_EXPIRED" in status.error.message


async def test_the_loss_of_a_worker_while_the_chain_waits_counts_no_attempt(h: Harness, app: Holdfast) -> None:
    chain = app.chain("waits")

    @chain.step("ONLY", max_attempts=1)
    async def only(task: ChainTask) -> Any:
        return Waiting("go", "1 hour") if task.event is None else Completed(task.event.payload)

    run = await h.start(chain)
    await h.run_until_idle()
    for _ in range(3):
        await lose_worker(h)
        await h.run_until_idle()
    await run.send_event("go", 1)
    await h.run_until_idle()
    assert await run.result(timeout=60) == 1


async def test_an_attempt_is_cancelled_at_its_timeout_and_retried(h: Harness, app: Holdfast) -> None:
    chain, gate = app.chain("slow"), Gate()
    ended = []

    @chain.step("ONLY", timeout="60 seconds")
    async def only(task: ChainTask) -> Any:
        if task.attempt > 1:
            return task.attempt
        try:
            await gate()
        except asyncio.CancelledError:
            ended.append(task.attempt)
            raise

    run = await h.start(chain)
    await h.tick()
    await h.advance("59 seconds")
    [step] = (await run.history()).steps
    assert (step.state, step.timeout_ms) == ("RUNNING", 60_000)
    await h.advance("1 second")
    [step] = (await run.history()).steps
    assert (ended, step.state, step.error.name) == ([1], "READY", "StepTimeoutError")  # type: ignore[union-attr]
    await h.advance("1 second")
    assert await run.result(timeout=60) == 2


async def test_a_step_is_dead_when_its_last_attempt_times_out(h: Harness, app: Holdfast) -> None:
    chain, gate = app.chain("slow"), Gate()

    @chain.step("ONLY", timeout="60 seconds", max_attempts=1)
    async def only(task: ChainTask) -> Any:
        await gate()

    run = await h.start(chain)
    await h.advance("60 seconds")
    [step] = (await run.history()).steps
    assert (step.state, step.error.name) == ("DEAD", "StepTimeoutError")  # type: ignore[union-attr]


async def test_a_handler_on_a_running_worker_may_run_longer_than_its_lease(h: Harness, app: Holdfast) -> None:
    chain, gate = app.chain("long"), Gate()

    @chain.step("ONLY", lease="1 second", max_attempts=1)
    async def only(task: ChainTask) -> Any:
        await gate()
        return "done"

    run = await h.start(chain)
    await h.advance("1 hour")
    [step] = (await run.history()).steps
    assert (step.state, step.attempts) == ("RUNNING", 0)
    gate.open.set()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "done"


@pytest.mark.parametrize(
    ("lease", "before", "remaining"), [("1 second", "999 ms", "1 ms"), ("5 minutes", "299 s", "1 s")]
)
async def test_a_step_is_taken_over_when_its_lease_has_expired(
    h: Harness, app: Holdfast, lease: str, before: str, remaining: str
) -> None:
    """A shorter lease than the worker's 30 seconds, and a longer one."""
    chain, gate = app.chain("leased"), Gate()
    attempts = []

    @chain.step("ONLY", lease=lease)
    async def only(task: ChainTask) -> Any:
        attempts.append(task.attempt)
        if task.attempt == 1:
            await gate()
        return task.attempt

    run = await h.start(chain)
    await h.tick()
    replace_worker(h)
    await h.advance(before, run=False)
    await h.run_until_idle()
    assert attempts == [1]
    await h.advance(remaining)
    assert (attempts, await run.result(timeout=60)) == ([1, 2], 2)
    [step] = (await run.history()).steps
    assert step.attempts == 1


async def test_the_lease_is_that_of_the_running_step(h: Harness, app: Holdfast) -> None:
    """The second step has no lease of its own, so the worker's lease applies."""
    chain, gate = app.chain("two"), Gate()
    attempts = []

    @chain.step("SHORT", lease="1 second")
    async def short(task: ChainTask) -> None: ...

    @chain.step("PLAIN")
    async def plain(task: ChainTask) -> Any:
        attempts.append(task.attempt)
        if task.attempt == 1:
            await gate()

    run = await h.start(chain)
    await h.tick()
    replace_worker(h)
    await h.advance("29 seconds", run=False)
    await h.run_until_idle()
    assert attempts == [1]
    await h.advance("1 second")
    assert (attempts, (await run.status()).status) == ([1, 2], "complete")


async def test_a_step_with_a_lease_can_wait_retry_pause_and_resume(h: Harness, app: Holdfast) -> None:
    chain = app.chain("eventful")

    @chain.step("ONLY", lease="1 second")
    async def only(task: ChainTask) -> Any:
        if task.event is None:
            return Waiting("go", "1 hour")
        return RetryStep("10 seconds", "busy") if task.attempt == 1 else Completed(task.event.payload)

    run = await h.start(chain)
    await h.run_until_idle()
    await run.send_event("go", 7)
    await h.run_until_idle()
    await run.pause()
    await h.advance("1 minute")
    assert (await run.status()).status == "paused"
    await run.resume()
    await h.run_until_idle()
    assert await run.result(timeout=60) == 7


async def test_a_chain_with_leases_has_the_same_result_wherever_its_worker_is_lost(h: Harness, app: Holdfast) -> None:
    chain = app.chain("crashing")

    @chain.step("LONG", lease="1 hour")
    async def long(task: ChainTask) -> int:
        return 1

    @chain.step("SHORT", lease="1 second")
    async def short(task: ChainTask) -> int:
        return 2

    @chain.step("PLAIN")
    async def plain(task: ChainTask) -> list[int]:
        return list(task.outputs.values())

    assert await h.crash_everywhere(chain) == [1, 2]


def replace_worker(h: Harness) -> None:
    """Kill the worker without a shutdown, and start another one."""
    h._the_worker().abandon()
    h._worker = h._new_worker()


async def test_an_attempt_without_a_timeout_may_run_for_days(h: Harness, app: Holdfast) -> None:
    chain, gate = app.chain("patient"), Gate()

    @chain.step("ONLY", max_attempts=1)
    async def only(task: ChainTask) -> Any:
        await gate()
        return "done"

    run = await h.start(chain)
    await h.tick()
    await h.advance("3 days")
    assert without_positions((await run.describe()).why) == "running step 'ONLY' (attempt 1)"
    gate.open.set()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "done"


@pytest.mark.promise("fencing")
async def test_a_late_write_of_a_lost_worker_changes_nothing(h: Harness, app: Holdfast) -> None:
    """The first worker stalls and the second runs the step again; then the first worker's answer arrives."""
    chain, gate = app.chain("late"), Gate()

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        if task.attempt == 1:
            await gate()
        return Completed(task.attempt)

    run = await h.start(chain)
    await h.tick()
    stalled, h._worker = h._the_worker(), h._new_worker()
    await h.advance("31 seconds", run=False)
    await h.run_until_idle()
    assert await run.result(timeout=60) == 2
    gate.open.set()
    await until_idle(stalled)
    assert (await run.status()).output == 2
    [step] = (await run.history()).steps
    assert (step.result, step.attempts) == (2, 1)
    stalled.abandon()


async def until_idle(worker: Any) -> None:
    async def over() -> bool:
        return not worker.busy

    await until(over)


async def test_another_process_takes_over_the_step_of_a_killed_worker(make_app: MakeApp) -> None:
    config = WorkerConfig(lease="300 ms", poll="20 ms")
    gate, attempts = Gate(), []

    def new_app() -> tuple[Holdfast, Any]:
        app = make_app(worker=config)
        chain = app.chain("killed")

        @chain.step("ONLY")
        async def only(task: ChainTask) -> Any:
            attempts.append(task.attempt)
            if task.attempt == 1:
                await gate()
            return task.attempt

        return app, chain

    first, chain = new_app()
    second, _ = new_app()
    async with first:
        run = await first.start(chain, id="one")

        async def begun() -> bool:
            return bool(attempts)

        await until(begun)
        worker = first._opened().worker
        assert worker is not None
        for loop in worker._loops._all:
            await loop.stop()
        worker.abandon()
        async with second:
            handle = await second.get("killed", "one")
            assert await handle.result(timeout=60) == 2
        assert await until_status(run, "complete") == "complete"
    assert attempts == [1, 2]
