"""Retries are scheduled in the store, timed from the failure, and limited by the policy."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps import MakeApp
from driving import finish, lose_worker
from holdfast import Context, Holdfast, Retry, RunFailedError, StepMaxAttemptsExceeded, StepTimeoutError
from holdfast.testing import Harness


class Flaky:
    """A step function that fails ``failures`` times and records the times of its calls."""

    def __init__(self, h: Harness, failures: float) -> None:
        self.h = h
        self.failures = failures
        self.began: datetime = h.now()
        self.calls: list[float] = []

    async def __call__(self) -> str:
        self.calls.append((self.h.now() - self.began).total_seconds())
        if len(self.calls) <= self.failures:
            raise OSError(f"failure {len(self.calls)}")
        return "worked"


def _flow(app: Holdfast, flaky: Flaky, retry: Retry | None) -> Any:
    @app.workflow
    async def flow(ctx: Context) -> str:
        return str(await ctx.do("flaky", flaky, retry=retry))

    return flow


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("retry", "times"),
    [
        (Retry(3, "10s", "constant"), [0, 10, 20, 30]),
        (Retry(3, "10s", "linear"), [0, 10, 30, 60]),
        (Retry(3, "10s", "exponential"), [0, 10, 30, 70]),
        (Retry(3, "10s", "exponential", max_delay="15s"), [0, 10, 25, 40]),
        (None, [0, 10, 30, 70]),
    ],
    ids=["constant", "linear", "exponential", "max_delay", "default"],
)
async def test_retries_are_made_at_the_times_of_the_policy(
    app: Holdfast, h: Harness, retry: Retry | None, times: list[float]
) -> None:
    flaky = Flaky(h, failures=3)
    run = await h.start(_flow(app, flaky, retry))
    await h.advance("10 minutes")
    assert flaky.calls == times
    assert await run.result() == "worked"
    [step] = (await run.history()).steps
    assert (step.status, step.attempts) == ("completed", 4)


@pytest.mark.promise("at-least-once-steps")
async def test_a_retry_survives_a_restart_of_the_worker(app: Holdfast, h: Harness) -> None:
    flaky = Flaky(h, failures=2)
    run = await h.start(_flow(app, flaky, Retry(3, "10s", "constant")))
    for _ in range(2):
        await h.run_until_idle()
        await h.restart()
        await h.advance("10s")
    assert flaky.calls == [0, 10, 20]
    assert await run.result() == "worked"


async def test_the_delay_of_a_retry_counts_from_the_failure(app: Holdfast, h: Harness) -> None:
    flaky = Flaky(h, failures=1)
    run = await h.start(_flow(app, flaky, Retry(1, "1 minute", "constant")))
    await h.run_until_idle()
    [step] = (await run.history()).steps
    assert (step.status, step.attempts, step.max_attempts) == ("waiting", 1, 2)
    assert step.next_retry_at == h.now() + timedelta(minutes=1)
    assert step.error is not None
    assert (step.error.name, step.error.message) == ("OSError", "failure 1")

    await h.advance("2 minutes", run=False)
    await h.run_until_idle()
    assert flaky.calls == [0, 120]


async def test_a_limit_of_zero_means_one_attempt(app: Holdfast, h: Harness) -> None:
    flaky = Flaky(h, failures=1)
    run = await h.start(_flow(app, flaky, Retry(limit=0)))
    await h.advance("1 day")
    assert flaky.calls == [0]
    with pytest.raises(RunFailedError) as caught:
        await run.result()
    assert (caught.value.error.name, caught.value.error.message) == ("OSError", "failure 1")


async def test_an_infinite_limit_allows_any_number_of_retries(app: Holdfast, h: Harness) -> None:
    flaky = Flaky(h, failures=200)
    run = await h.start(_flow(app, flaky, Retry(math.inf, "1s", "constant")))
    await h.advance("200 seconds")
    assert len(flaky.calls) == 201
    assert await run.result() == "worked"
    [step] = (await run.history()).steps
    assert (step.attempts, step.max_attempts) == (201, None)


async def test_jitter_lengthens_the_delay_and_depends_on_the_seed_only(app: Holdfast) -> None:
    times = []
    for _ in range(2):
        copy = Holdfast("sqlite://")
        async with Harness(copy, seed=3) as h:
            flaky = Flaky(h, failures=3)
            await h.start(_flow(copy, flaky, Retry(3, "10s", "constant", jitter=0.5)), id="same")
            await h.advance("1 hour")
            times.append(flaky.calls)
    gaps = [b - a for a, b in zip(times[0], times[0][1:], strict=False)]
    assert times[0] == times[1]
    assert all(10 <= gap <= 15 for gap in gaps)
    assert len(set(gaps)) == 3


@pytest.mark.above_the_store
async def test_an_error_listed_as_non_retryable_fails_the_step_at_once(app: Holdfast, h: Harness) -> None:
    flaky = Flaky(h, failures=1)
    run = await h.start(_flow(app, flaky, Retry(5, "1s", non_retryable=[OSError])))
    await h.advance("1 minute")
    assert flaky.calls == [0]
    assert (await run.status()).status == "errored"


async def test_parallel_retries_do_not_wait_for_each_other(app: Holdfast, h: Harness) -> None:
    quick, slow = Flaky(h, 2), Flaky(h, 2)

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        return await asyncio.gather(
            ctx.do("quick", quick, retry=Retry(2, "3s", "constant")),
            ctx.do("slow", slow, retry=Retry(2, "10s", "constant")),
        )

    run = await h.start(flow)
    await h.advance("20s")
    assert (quick.calls, slow.calls) == ([0, 3, 6], [0, 10, 20])
    assert await run.result() == ["worked", "worked"]


# --- attempts lost with the worker


@pytest.fixture
async def run_with_hanging_step(app: Holdfast, h: Harness) -> Any:
    """A run with a step that never returns, and the list of the calls of that step."""
    calls: list[int] = []

    async def never() -> None:
        calls.append(1)
        await asyncio.get_running_loop().create_future()

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.do("never", never, retry=Retry(limit=2))
        except StepMaxAttemptsExceeded as error:
            return f"{error.step} {error.attempts} {error.retryable} {error.code}"
        return "?"

    run = await h.start(flow)
    return run, calls


@pytest.mark.promise("at-least-once-steps")
async def test_lost_workers_use_up_the_attempts_of_a_step(h: Harness, run_with_hanging_step: Any) -> None:
    run, calls = run_with_hanging_step
    for _ in range(3):
        await h.tick()
        await lose_worker(h)
    await h.run_until_idle()
    assert await run.result() == "never 3 False STEP_MAX_ATTEMPTS_EXCEEDED"
    assert len(calls) == 3


async def test_a_worker_that_releases_a_run_costs_no_attempt(h: Harness, run_with_hanging_step: Any) -> None:
    run, calls = run_with_hanging_step
    for _ in range(6):
        await h.tick()
        await h.restart()
    await h.tick()
    assert len(calls) == 7
    assert (await run.status()).status == "active"


# --- timeouts


async def test_an_attempt_that_times_out_is_retried(app: Holdfast, h: Harness) -> None:
    calls: list[float] = []
    began = h.now()

    async def hangs() -> None:
        calls.append((h.now() - began).total_seconds())
        await asyncio.get_running_loop().create_future()

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        try:
            await ctx.do("hangs", hangs, timeout="30s", retry=Retry(2, "10s", "constant"))
        except StepTimeoutError as error:
            return [error.step, error.attempts, error.code, error.kind, isinstance(error, TimeoutError)]
        return []

    run = await h.start(flow)
    await h.advance("5 minutes")
    assert calls == [0, 40, 80]
    assert await run.result() == ["hangs", 3, "STEP_TIMEOUT", "Timeout", True]


@pytest.mark.promise("committed-results-never-change")
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_a_result_after_the_timeout_is_discarded(app: Holdfast, h: Harness, is_async: bool) -> None:
    release, returned, calls = threading.Event(), threading.Event(), []

    async def stubborn() -> str:
        calls.append(1)
        if len(calls) > 1:
            return "second"
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            returned.set()
            return "first, late"
        return "?"

    def stubborn_thread() -> str:
        calls.append(1)
        if len(calls) > 1:
            return "second"
        release.wait(60)
        returned.set()
        return "first, late"

    @app.workflow
    async def flow(ctx: Context) -> str:
        step: Any = stubborn if is_async else stubborn_thread
        return str(await ctx.do("stubborn", step, timeout="1s", retry=Retry(1, "10s")))

    run = await h.start(flow)
    called = asyncio.create_task(_until_called(h, calls))
    await called
    h._clock.move_to(h.now() + timedelta(seconds=1))
    h._timers.fire_due()
    release.set()
    assert await asyncio.to_thread(returned.wait, 5)
    await h.advance("1 minute")
    assert await run.result() == "second"
    [step] = (await run.history()).steps
    assert (step.attempts, step.result) == (2, "second")


async def _until_called(h: Harness, calls: list[int]) -> None:
    tick = asyncio.create_task(h.tick())
    async with asyncio.timeout(60):
        while not calls:
            await asyncio.sleep(0)
    tick.cancel()
    await asyncio.gather(tick, return_exceptions=True)


async def test_the_default_timeout_is_ten_minutes(app: Holdfast, h: Harness) -> None:
    async def hangs() -> None:
        await asyncio.get_running_loop().create_future()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("hangs", hangs, retry=Retry(limit=0))

    run = await h.start(flow)
    await h.advance(timedelta(minutes=10) - timedelta(milliseconds=1))
    assert (await run.status()).status == "active"
    await h.advance(0.001)
    status = await run.status()
    assert status.error is not None
    assert status.error.name == "StepTimeoutError"
    assert "10 min" in status.error.message


async def test_a_step_times_out_in_real_time(make_app: MakeApp) -> None:
    app = make_app()

    @app.step(timeout="20 ms", retry=Retry(limit=0))
    async def hangs() -> None:
        await asyncio.get_running_loop().create_future()

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await hangs()
        except StepTimeoutError as error:
            return error.message
        return "?"

    async with app:
        assert "20 ms" in await (await app.start(flow)).result(timeout=60)


@pytest.mark.above_the_store
async def test_bad_options_of_a_step_are_refused(app: Holdfast) -> None:
    from holdfast import InvalidDurationError, InvalidOptionError

    with pytest.raises(InvalidOptionError, match="retry"):
        app.step(retry=3)  # type: ignore[call-overload]
    with pytest.raises(InvalidDurationError, match="timeout"):
        app.step(timeout="soon")
    with pytest.raises(InvalidOptionError, match="raises"):
        app.step(raises=("ValueError",))  # type: ignore[arg-type]


@pytest.mark.above_the_store
async def test_the_options_of_a_call_override_those_of_the_step(app: Holdfast, h: Harness) -> None:
    flaky = Flaky(h, failures=1)

    @app.step(retry=Retry(limit=0))
    async def step() -> str:
        return await flaky()

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await ctx.do("step", step, retry=Retry(1, 0, "constant"))

    assert await finish(h, flow) == "worked"
