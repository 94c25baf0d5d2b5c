"""Timeouts of one run, of an instance with all its runs, and of the code between two waits."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from apps import MakeApp
from driving import until, until_status
from holdfast import (
    ChildError,
    Context,
    Holdfast,
    InvalidDurationError,
    InvalidOptionError,
    Retry,
    RunFailedError,
    WorkerConfig,
    Workflow,
)
from holdfast.testing import Harness

from .message_drives import crash_everywhere, launcher


@pytest.fixture
def sleeper(app: Holdfast) -> Workflow[Any]:
    @app.workflow
    async def sleeper(ctx: Context, duration: str) -> str:
        await ctx.sleep("nap", duration)
        return "awake"

    return sleeper


# --- run_timeout


async def test_a_run_that_exceeds_its_timeout_is_errored(h: Harness, sleeper: Workflow[Any]) -> None:
    run = await h.start(sleeper, "1 day", run_timeout="10 minutes")
    await h.advance("9 minutes")
    assert (await run.status()).status == "waiting"
    await h.advance("1 minute")

    with pytest.raises(RunFailedError) as caught:
        await run.result(timeout=60)
    assert caught.value.error.name == "RunTimeoutError"
    assert caught.value.error.message == "the run took longer than its run_timeout of 10 min"
    status = await run.status()
    assert (status.status, status.error and status.error.name) == ("errored", "RunTimeoutError")


async def test_a_run_that_ends_before_its_timeout_completes(app: Holdfast, h: Harness, sleeper: Workflow[Any]) -> None:
    assert await crash_everywhere(h, launcher(app, sleeper, run_timeout="1 hour"), "1 minute") == "awake"


@pytest.mark.parametrize("option", ["run_timeout", "execution_timeout"])
async def test_a_timeout_survives_a_crash_at_any_commit(
    app: Holdfast, h: Harness, sleeper: Workflow[Any], option: str
) -> None:
    status, name, message = await crash_everywhere(h, launcher(app, sleeper, **{option: "1 hour"}), "1 day")

    assert (status, name) == ("errored", "RunTimeoutError")
    assert option in message


async def test_a_parent_receives_the_timeout_error_of_its_child(
    app: Holdfast, h: Harness, sleeper: Workflow[Any]
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        try:
            await ctx.run(sleeper, "1 day", run_timeout="1 hour")
        except ChildError as error:
            return [error.type, error.kind, error.status]
        return []

    assert await crash_everywhere(h, parent) == ["RunTimeoutError", "Timeout", "errored"]


@pytest.mark.promise("liveness")
async def test_a_timeout_that_passes_without_a_worker_is_enforced_by_the_next_worker(
    h: Harness, sleeper: Workflow[Any]
) -> None:
    run = await h.start(sleeper, "30 minutes", run_timeout="20 minutes")
    await h.run_until_idle()
    await h.advance("5 hours", run=False)
    await h.restart()
    await h.run_until_idle()

    assert (await run.status()).status == "errored"


async def test_a_run_timeout_counts_from_the_end_of_the_start_delay(h: Harness, sleeper: Workflow[Any]) -> None:
    run = await h.start(sleeper, "5 minutes", start_delay="1 hour", run_timeout="10 minutes")
    await h.advance("2 hours")
    assert await run.result(timeout=60) == "awake"


@pytest.mark.parametrize("what", ["event", "message", "timer", "step", "child"])
async def test_a_timeout_ends_a_run_whatever_it_waits_for(app: Holdfast, h: Harness, what: str) -> None:
    never = asyncio.Event()

    @app.workflow
    async def forever(ctx: Context) -> None:
        await ctx.inbox.receive()

    @app.workflow
    async def flow(ctx: Context) -> None:
        if what == "event":
            await ctx.wait_for_event("go", type="go")
        elif what == "message":
            await ctx.inbox.receive()
        elif what == "timer":
            await asyncio.sleep(1e6)
        elif what == "step":
            await ctx.do("busy", never.wait, timeout="1 day")
        else:
            await ctx.run(forever)

    run = await h.start(flow, run_timeout="10 minutes")
    await h.run_until_idle()
    await h.advance("10 minutes")

    status = await run.status()
    assert (status.status, status.error and status.error.name) == ("errored", "RunTimeoutError")


async def test_children_end_with_a_run_that_is_timed_out(app: Holdfast, h: Harness, sleeper: Workflow[Any]) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(sleeper, "1 day", id="child")

    await h.start(parent, run_timeout="10 minutes")
    await h.advance("11 minutes")

    child = await h.app.get(sleeper, "child")
    assert (await child.status()).status == "terminated"


async def test_no_code_runs_after_the_timeout(app: Holdfast, h: Harness) -> None:
    called: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        for n in range(10):
            await ctx.sleep(f"nap {n}", "4 minutes")
            await ctx.do(f"call {n}", called.append, n)

    await h.start(flow, run_timeout="10 minutes")
    await h.advance("2 hours")

    assert called == [0, 1]


async def test_a_workflow_can_declare_a_timeout(app: Holdfast, h: Harness) -> None:
    @app.workflow(timeout="10 minutes")
    async def flow(ctx: Context, duration: str) -> str:
        await ctx.sleep("nap", duration)
        return "awake"

    usual, longer = await h.start(flow, "1 hour"), await h.start(flow, "1 hour", run_timeout="2 hours")
    await h.advance("90 minutes")

    status = await usual.status()
    assert status.error is not None
    assert (status.status, status.error.name) == ("errored", "RunTimeoutError")
    assert await longer.result(timeout=60) == "awake"


@pytest.mark.parametrize("timeout", ["soon", -1, True, 0, [], float("nan")])
async def test_a_bad_workflow_timeout_is_refused(app: Holdfast, timeout: Any) -> None:
    with pytest.raises((InvalidDurationError, InvalidOptionError), match="timeout"):

        @app.workflow(timeout=timeout)
        async def flow(ctx: Context) -> None: ...


async def test_a_run_timeout_applies_to_each_attempt(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, params: Any) -> int:
        await ctx.sleep("nap", "1 hour" if ctx.info.attempt < 3 else "5 minutes")
        return ctx.info.attempt

    launch = launcher(app, flow, run_timeout="10 minutes", retry=Retry(limit=5, delay="1 minute"))
    assert await crash_everywhere(h, launch) == 3


async def test_a_run_timeout_applies_to_each_continued_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        await ctx.sleep("nap", "8 minutes")
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        return n

    assert await crash_everywhere(h, launcher(app, flow, run_timeout="10 minutes"), 0) == 3


async def test_a_run_timeout_begins_anew_after_a_restart(h: Harness, sleeper: Workflow[Any]) -> None:
    run = await h.start(sleeper, "1 hour", run_timeout="10 minutes", execution_timeout="2 hours")
    await h.advance("1 hour")
    await run.restart()
    await h.advance("9 minutes")
    assert (await run.status()).status == "waiting"
    await h.advance("1 minute")
    assert (await run.status()).status == "errored"


# --- execution_timeout


async def test_an_execution_timeout_covers_all_attempts(app: Holdfast, h: Harness) -> None:
    begun: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        begun.append(ctx.info.attempt)
        await ctx.sleep("nap", "4 minutes")
        raise ValueError("again")

    run = await h.start(
        flow, execution_timeout="10 minutes", retry=Retry(limit=50, delay="1 minute", backoff="constant")
    )
    await h.advance("2 hours")

    assert sorted(set(begun)) == [1, 2]
    assert (await run.status()).status == "errored"


async def test_an_execution_timeout_covers_all_continued_runs(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, n: int) -> None:
        await ctx.sleep("nap", "4 minutes")
        raise ctx.continue_as_new(n + 1)

    run = await h.start(flow, 0, execution_timeout="10 minutes")
    await h.advance("2 hours")

    description = await run.describe()
    assert (description.status, description.run_number, description.params) == ("errored", 2, 2)
    assert description.error is not None
    assert description.error.message == "the run took longer than its execution_timeout of 10 min"


async def test_the_shorter_of_two_timeouts_applies(h: Harness, sleeper: Workflow[Any]) -> None:
    for options, expected in (
        ({"run_timeout": "5 minutes", "execution_timeout": "10 minutes"}, "run_timeout of 5 min"),
        ({"run_timeout": "10 minutes", "execution_timeout": "5 minutes"}, "execution_timeout of 5 min"),
    ):
        run = await h.start(sleeper, "1 hour", **options)
        await h.advance("5 minutes")
        status = await run.status()
        assert status.error is not None
        assert expected in status.error.message


async def test_a_run_is_not_retried_after_its_execution_timeout(h: Harness, sleeper: Workflow[Any]) -> None:
    run = await h.start(sleeper, "1 hour", execution_timeout="5 minutes", retry=Retry(limit=5, delay=1))
    await h.advance("1 day")

    description = await run.describe()
    assert (description.status, description.run_number) == ("errored", 0)


# --- with a real worker


@pytest.mark.parametrize("options", [{"run_timeout": "200 ms"}, {"execution_timeout": "200 ms"}], ids=str)
async def test_a_worker_ends_a_run_at_its_timeout_without_a_poll(make_app: MakeApp, options: Any) -> None:
    app = make_app(worker=WorkerConfig(poll="1 hour"))

    @app.workflow
    async def flow(ctx: Context, wait: bool) -> None:
        if wait:
            await ctx.inbox.receive()

    async with app:
        await (await app.start(flow, False, start_delay="50 ms")).result(timeout=60)  # the worker has polled by now
        run = await app.start(flow, True, **options)
        with pytest.raises(RunFailedError, match="RunTimeoutError"):
            await run.result(timeout=60)


async def test_a_step_in_flight_is_cancelled_at_the_timeout(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(poll="1 hour"))
    stopped = asyncio.Event()

    @app.step
    async def busy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await busy()

    async with app:
        run = await app.start(flow, run_timeout="200 ms")
        with pytest.raises(RunFailedError, match="RunTimeoutError"):
            await run.result(timeout=60)
        await asyncio.wait_for(stopped.wait(), 60)


# --- task_timeout


async def test_a_run_whose_code_blocks_too_long_is_paused(make_app: MakeApp) -> None:
    app = make_app()
    slow = True

    @app.workflow
    async def flow(ctx: Context) -> str:
        if slow:
            time.sleep(1.2)
        return "done"

    async with app:
        run = await app.start(flow, task_timeout="1 second")
        await until_status(run, "paused")
        why = (await run.describe()).why
        assert "TASK_TIMEOUT" in why
        assert "1000 ms" in why
        slow = False
        await run.resume()
        assert await run.result(timeout=60) == "done"


async def test_a_task_timeout_after_a_step_keeps_the_steps_result(make_app: MakeApp) -> None:
    app = make_app()
    slow, called = True, []

    @app.step
    async def work() -> int:
        called.append(1)
        return len(called)

    @app.workflow
    async def flow(ctx: Context) -> int:
        n = await work()
        if slow:
            time.sleep(1.2)
        return n

    async with app:
        run = await app.start(flow, task_timeout="1 second")
        await until_status(run, "paused")
        slow = False
        await run.resume()
        assert await run.result(timeout=60) == 1
        assert called == [1]


async def test_waiting_does_not_count_for_the_task_timeout(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def flow(ctx: Context) -> str:
        for n in range(3):
            await ctx.sleep(f"nap {n}", "60 ms")
        return "done"

    async with app:
        run = await app.start(flow, task_timeout="50 ms")

        async def ended() -> bool:
            return (await run.status()).status in ("complete", "paused")

        await until(ended)
        assert await run.result(timeout=60) == "done"
