"""Steps: their keys, that each runs once, and their cancellation."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from apps import MakeApp
from driving import finish, step_keys, until_status
from holdfast import Context, Holdfast, Limits, RunFailedError
from holdfast.testing import Harness
from holdfast.workflow.steps import spec_of


async def test_the_keys_of_repeated_step_calls_are_the_name_and_a_number(app: Holdfast, h: Harness) -> None:
    @app.step
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        return [await double(n) for n in (1, 2, 3)]

    run = await h.start(flow)
    await h.run_until_idle()
    assert await run.result() == [2, 4, 6]
    assert await step_keys(run) == ["double", "double#2", "double#3"]
    assert [s.name for s in (await run.history()).steps] == ["double"] * 3


async def test_a_step_named_timer_does_not_collide_with_the_engines_timers(app: Holdfast, h: Harness) -> None:
    @app.step
    async def timer() -> str:
        return "step"

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        found = []
        for _ in range(3):
            found.append(await timer())
            await asyncio.sleep(1)
        return found

    run = await h.start(flow)
    await h.advance("1 minute")
    assert await run.result(timeout=60) == ["step"] * 3
    assert await step_keys(run) == ["timer", "timer#2", "timer#3"]


async def test_parallel_calls_of_one_step_function_each_have_a_key(app: Holdfast, h: Harness) -> None:
    @app.step(name="twice")
    async def double(n: int) -> int:
        await asyncio.sleep(0.001 * (3 - n))
        return 2 * n

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        return await asyncio.gather(double(0), double(1), double(2))

    run = await h.start(flow)
    await h.run_until_idle()
    assert await run.result() == [0, 2, 4]
    steps = {s.step_key: s.result for s in (await run.history()).steps}
    assert steps == {"twice": 0, "twice#2": 2, "twice#3": 4}


@pytest.mark.promise("committed-results-never-change")
async def test_a_repeated_name_returns_the_recorded_result(app: Holdfast, h: Harness) -> None:
    calls: list[int] = []

    def work(n: int) -> int:
        calls.append(n)
        return n

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        return [await ctx.do("work", work, n) for n in (1, 2)]

    assert await finish(h, flow) == [1, 1]
    assert calls == [1]


async def test_a_repeated_name_returns_the_recorded_error(app: Holdfast, h: Harness) -> None:
    calls: list[int] = []

    def work() -> None:
        from holdfast import NonRetryableError

        calls.append(1)
        raise NonRetryableError("no")

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        found = []
        for _ in range(2):
            try:
                await ctx.do("work", work)
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
        return found

    assert await finish(h, flow) == ["NonRetryableError: no"] * 2
    assert calls == [1]


@pytest.mark.above_the_store
async def test_the_name_of_a_step_in_flight_is_refused(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await asyncio.gather(ctx.do("work", print), ctx.do("work", print))

    with pytest.raises(RunFailedError) as caught:
        await finish(h, flow)
    assert caught.value.error.name == "DuplicateStepError"
    assert "'work'" in caught.value.error.message


@pytest.mark.promise("committed-results-never-change")
async def test_a_finished_step_does_not_run_again_after_a_cold_replay(app: Holdfast, h: Harness) -> None:
    calls: list[str] = []

    @app.step
    async def note(text: str) -> str:
        calls.append(text)
        return text

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        first = await note("before")
        await ctx.sleep("nap", "1 hour")
        return [first, await note("after")]

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 hour")
    assert await run.result() == ["before", "after"]
    assert calls == ["before", "after"]


async def test_a_step_function_called_outside_a_run_is_an_ordinary_call(app: Holdfast) -> None:
    @app.step
    async def double(n: int) -> int:
        return 2 * n

    @app.step
    def in_a_thread() -> bool:
        return threading.current_thread() is not threading.main_thread()

    assert await double(4) == 8
    assert await in_a_thread() is True
    assert in_a_thread.fn() is False
    assert await double.fn(4) == 8


@pytest.mark.above_the_store
async def test_a_step_function_called_in_a_step_is_an_ordinary_call(app: Holdfast, h: Harness) -> None:
    @app.step
    async def inner(n: int) -> int:
        return n + 1

    @app.step
    async def outer(n: int) -> int:
        return await inner(n) * 10

    @app.workflow
    async def flow(ctx: Context) -> int:
        return await outer(1)

    run = await h.start(flow)
    await h.run_until_idle()
    assert await run.result() == 20
    assert await step_keys(run) == ["outer"]


async def test_sync_steps_run_in_parallel_threads(app: Holdfast, h: Harness) -> None:
    barrier = threading.Barrier(3)

    @app.step
    def together(n: int) -> int:
        barrier.wait(60)
        return n

    @app.step
    async def quick() -> str:
        return "quick"

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        return await asyncio.gather(together(1), together(2), together(3), quick())

    assert await finish(h, flow) == [1, 2, 3, "quick"]


@pytest.mark.promise("isolation-of-runs")
async def test_a_blocking_sync_step_leaves_the_loop_free(make_app: MakeApp) -> None:
    app = make_app()
    release = threading.Event()

    @app.step
    def blocked() -> str:
        release.wait(60)
        return "blocked"

    @app.step
    async def quick() -> str:
        return "quick"

    @app.workflow
    async def slow_flow(ctx: Context) -> str:
        return await blocked()

    @app.workflow
    async def quick_flow(ctx: Context) -> str:
        return await quick()

    async with app:
        slow = await app.start(slow_flow)
        assert await (await app.start(quick_flow)).result(timeout=60) == "quick"
        release.set()
        assert await slow.result(timeout=60) == "blocked"


@pytest.mark.promise("isolation-of-runs")
@pytest.mark.parametrize("kind", ["async step", "sync step", "workflow"])
async def test_a_system_exit_fails_only_its_own_run(make_app: MakeApp, kind: str) -> None:
    app = make_app()

    async def exit_async() -> None:
        sys.exit(3)

    def exit_in_thread() -> None:
        sys.exit(3)

    @app.workflow
    async def exiting(ctx: Context) -> None:
        from holdfast import Retry

        if kind == "workflow":
            sys.exit(3)
        await ctx.do("exit", exit_async if kind == "async step" else exit_in_thread, retry=Retry(limit=0))

    @app.workflow
    async def other(ctx: Context) -> str:
        return str(await ctx.do("stay", lambda: "here"))

    async with app:
        run = await app.start(exiting)
        with pytest.raises(RunFailedError) as caught:
            await run.result(timeout=60)
        assert "SystemExit" in f"{caught.value.error.name} {caught.value.error.message}"
        assert await (await app.start(other)).result(timeout=60) == "here"


async def test_a_timeout_of_wait_for_cancels_its_step(app: Holdfast, h: Harness) -> None:
    seen: list[str] = []

    @app.step
    async def slow() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "never"

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            return await asyncio.wait_for(slow(), 30)
        except TimeoutError:
            return "gave up"

    run = await h.start(flow)
    await h.advance("29 seconds")
    assert (await run.status()).status == "active"
    await h.advance("1 second")
    assert await run.result() == "gave up"
    assert seen == ["cancelled"]
    [step] = (await run.history()).steps
    assert (step.step_key, step.status) == ("slow", "errored")
    assert step.error is not None
    assert step.error.name == "CancelledError"


@pytest.mark.promise("committed-results-never-change")
async def test_the_late_result_of_a_cancelled_step_is_discarded(app: Holdfast, h: Harness) -> None:
    started, release, returned = threading.Event(), threading.Event(), threading.Event()

    @app.step
    def stubborn() -> str:
        started.set()
        release.wait(60)
        returned.set()
        return "too late"

    @app.workflow
    async def flow(ctx: Context) -> str:
        race = [asyncio.create_task(stubborn()), asyncio.create_task(ctx.wait_for_event("stop", type="stop"))]
        _, losers = await asyncio.wait(race, return_when=asyncio.FIRST_COMPLETED)
        for task in losers:
            task.cancel()
        await ctx.sleep("nap", "1 hour")
        return "stopped"

    run = await h.start(flow)
    tick = asyncio.create_task(h.tick())
    assert await asyncio.to_thread(started.wait, 5)
    await run.send_event("stop")
    await until_status(run, "waiting")
    release.set()
    await tick
    assert await asyncio.to_thread(returned.wait, 5)
    await h.restart()
    await h.advance("1 hour")
    assert await run.result() == "stopped"
    steps = {s.step_key: (s.status, s.result) for s in (await run.history()).steps}
    assert steps["stubborn"] == ("errored", None)


@pytest.mark.above_the_store
async def test_a_step_call_that_is_not_awaited_is_a_system_warning(app: Holdfast, h: Harness) -> None:
    calls: list[int] = []

    @app.step
    async def forgotten() -> None:
        calls.append(1)

    @app.workflow
    async def flow(ctx: Context) -> str:
        forgotten()  # type: ignore[unused-coroutine]
        return "done"

    run = await h.start(flow)
    await h.run_until_idle()
    assert await run.result() == "done"
    [line] = await run.logs(category="system")
    assert line.level == "warn"
    assert "forgotten" in line.message
    assert "await" in line.message
    assert calls == []


async def test_a_run_with_too_many_steps_fails_and_sleeps_do_not_count(make_app: MakeApp) -> None:
    app = make_app(limits=Limits(steps=3))

    @app.workflow
    async def flow(ctx: Context, steps: int) -> int:
        for n in range(10):
            await ctx.sleep(f"nap {n}", 1)
        for n in range(steps):
            await ctx.do(f"step {n}", lambda: None)
        return steps

    async with Harness(app) as h:
        fits, exceeds = await h.start(flow, 3), await h.start(flow, 4)
        await h.advance("1 minute")
        assert await fits.result() == 3
        with pytest.raises(RunFailedError) as caught:
            await exceeds.result()
        assert caught.value.error.name == "MaxStepsExceededError"


@pytest.mark.above_the_store
async def test_a_bad_step_name_is_refused(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, name: str) -> None:
        await ctx.do(name, lambda: None)

    await finish(h, flow, "x" * 256)
    for bad in ("x" * 257, "", "#1"):
        with pytest.raises(RunFailedError) as caught:
            await finish(h, flow, bad)
        assert caught.value.error.name == "InvalidNameError"


class Service:
    async def work(self) -> str:
        return "done"


def _with_spec_of_method() -> weakref.ref[Service]:
    service = Service()
    assert spec_of(service.work).function == service.work
    return weakref.ref(service)


def _with_spec_of_closure() -> weakref.ref[Service]:
    service = Service()

    async def closure() -> str:
        return await service.work()

    assert spec_of(closure).function is closure
    return weakref.ref(service)


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize("make", [_with_spec_of_method, _with_spec_of_closure])
def test_the_cached_spec_of_a_step_keeps_no_object_in_memory(make: Callable[[], weakref.ref[Service]]) -> None:
    service = make()
    gc.collect()
    assert service() is None
