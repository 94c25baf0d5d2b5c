"""Workflow retries: each attempt of a failed workflow is a new run of the same id."""

from __future__ import annotations

import math
from typing import Any

import pytest

from apps import MakeApp
from holdfast import (
    Context,
    Holdfast,
    InvalidOptionError,
    NonRetryableError,
    Retry,
    RunFailedError,
    WorkerConfig,
    Workflow,
    WorkflowError,
)
from holdfast.testing import Harness

from .message_drives import crash_everywhere, launcher


def flaky(app: Holdfast, **options: Any) -> Workflow[Any]:
    """A workflow that fails before attempt ``works_at``."""

    @app.workflow(name="flaky", **options)
    async def flaky(ctx: Context, works_at: int) -> list[int]:
        if ctx.info.attempt < works_at:
            raise ValueError(f"attempt {ctx.info.attempt}")
        return [ctx.info.attempt, ctx.info.run_number]

    return flaky


async def test_a_workflow_is_not_retried_by_default(app: Holdfast, h: Harness) -> None:
    run = await h.start(flaky(app), 2)
    await h.advance("1 day")

    with pytest.raises(RunFailedError, match="attempt 1"):
        await run.result(timeout=60)
    assert (await run.describe()).run_number == 0


async def test_attempts_are_counted_from_one(app: Holdfast, h: Harness) -> None:
    launch = launcher(app, flaky(app), retry=Retry(limit=5, delay="1 minute"))
    assert await crash_everywhere(h, launch, 3) == [3, 2]


async def test_the_result_is_that_of_the_successful_attempt(app: Holdfast, h: Harness) -> None:
    run = await h.start(flaky(app), 3, retry=Retry(limit=5, delay="1 second"))
    await h.advance("1 minute")

    assert await run.result(timeout=60) == [3, 2]
    description = await run.describe()
    assert (description.attempt, description.run_number, description.status) == (3, 2, "complete")


async def test_the_limit_counts_retries(app: Holdfast, h: Harness) -> None:
    launch = launcher(app, flaky(app), retry=Retry(limit=2, delay="1 second"))
    assert await crash_everywhere(h, launch, 10) == ["errored", "ValueError", "attempt 3"]


@pytest.mark.above_the_store
async def test_a_limit_of_zero_means_no_retry(app: Holdfast, h: Harness) -> None:
    run = await h.start(flaky(app), 2, retry=Retry(limit=0))
    await h.advance("1 day")
    with pytest.raises(RunFailedError, match="attempt 1"):
        await run.result(timeout=60)


async def test_the_number_of_attempts_can_be_unlimited(app: Holdfast, h: Harness) -> None:
    run = await h.start(flaky(app), 30, retry=Retry(limit=math.inf, delay="1s", backoff="constant"))
    await h.advance("1 minute")
    assert await run.result(timeout=60) == [30, 29]


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("retry", "moments"),
    [
        (Retry(limit=3, delay="10s", backoff="constant"), [0, 10, 20, 30]),
        (Retry(limit=3, delay="10s", backoff="linear"), [0, 10, 30, 60]),
        (Retry(limit=3, delay="10s", backoff="exponential"), [0, 10, 30, 70]),
        (Retry(limit=3, delay="10s", max_delay="15s"), [0, 10, 25, 40]),
    ],
)
async def test_the_delays_are_those_of_the_policy(app: Holdfast, h: Harness, retry: Retry, moments: list[int]) -> None:
    begun: list[float] = []
    start = h.now()

    @app.workflow
    async def broken(ctx: Context) -> None:
        begun.append((ctx.info.started_at - start).total_seconds())
        raise ValueError("broken")

    await h.start(broken, retry=retry)
    await h.advance("10 minutes")

    assert begun == moments


@pytest.mark.above_the_store
async def test_jitter_stretches_delays(app: Holdfast, h: Harness) -> None:
    run = await h.start(flaky(app), 2, retry=Retry(limit=1, delay="100s", jitter=0.5))
    await h.advance("100 seconds")
    assert (await run.status()).status == "waiting"
    await h.advance("50 seconds")
    assert await run.result(timeout=60) == [2, 1]


async def test_why_says_that_a_run_waits_for_its_next_attempt(app: Holdfast, h: Harness) -> None:
    run = await h.start(flaky(app), 2, retry=Retry(limit=1, delay="1 hour"))
    await h.run_until_idle()

    description = await run.describe()
    assert (description.status, description.attempt) == ("waiting", 2)
    assert description.why.startswith("waiting for attempt 2 of the workflow at 2030-01-01 01:00:00 UTC")


async def test_each_attempt_has_its_own_history(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> int:
        await ctx.sleep(f"nap {ctx.info.attempt}", "1 second")
        if ctx.info.attempt == 1:
            raise ValueError("again")
        return ctx.info.history_length

    run = await h.start(flow, retry=Retry(limit=1, delay="1 second"))
    await h.advance("1 minute")

    assert await run.result(timeout=60) == 1
    assert [s.step_key for s in (await run.history(0)).steps] == ["nap 1"]
    assert [s.step_key for s in (await run.history()).steps] == ["nap 2"]


async def test_each_attempt_gets_the_same_input(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, params: dict[str, int]) -> dict[str, int]:
        params["n"] += 1
        if ctx.info.attempt == 1:
            raise ValueError("again")
        return params

    assert await crash_everywhere(h, launcher(app, flow, retry=Retry(limit=1, delay=1)), {"n": 1}) == {"n": 2}


@pytest.mark.above_the_store
async def test_each_attempt_has_its_own_random_numbers(app: Holdfast, h: Harness) -> None:
    drawn: set[float] = set()

    @app.workflow
    async def flow(ctx: Context) -> None:
        drawn.add(ctx.random.random())
        if ctx.info.attempt < 3:
            raise ValueError("again")

    run = await h.start(flow, retry=Retry(limit=2, delay=1))
    await h.advance("1 minute")
    await run.result(timeout=60)

    assert len(drawn) == 3


# --- errors that are not retried


class Stolen(WorkflowError):
    pass


class CardStolen(Stolen):
    pass


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "retry",
    [
        Retry(limit=5, delay=1, non_retryable=(Stolen,)),
        Retry(limit=5, delay=1, non_retryable=("CardStolen",)),
        Retry(limit=5, delay=1, non_retryable=(CardStolen, KeyError)),
    ],
)
async def test_non_retryable_errors_of_the_policy_are_not_retried(app: Holdfast, h: Harness, retry: Retry) -> None:
    @app.workflow
    async def flow(ctx: Context, params: Any) -> None:
        raise CardStolen(f"attempt {ctx.info.attempt}")

    launch = launcher(app, flow, retry=retry)
    assert await crash_everywhere(h, launch) == ["errored", "CardStolen", "attempt 1"]


@pytest.mark.above_the_store
async def test_errors_that_the_policy_does_not_name_are_retried(app: Holdfast, h: Harness) -> None:
    launch = launcher(app, flaky(app), retry=Retry(limit=5, delay=1, non_retryable=(Stolen, "KeyError")))
    assert await crash_everywhere(h, launch, 2) == [2, 1]


@pytest.mark.above_the_store
@pytest.mark.parametrize("error", [NonRetryableError("no"), WorkflowError("no", retryable=False)])
async def test_an_error_marked_as_not_retryable_is_not_retried(app: Holdfast, h: Harness, error: Exception) -> None:
    @app.workflow
    async def flow(ctx: Context, params: Any) -> None:
        await ctx.sleep("nap", 1)
        raise error

    launch = launcher(app, flow, retry=Retry(limit=5, delay=1))
    assert (await crash_everywhere(h, launch))[2] == "no"

    run = await h.start(flow, retry=Retry(limit=5, delay=1))
    await h.advance("1 hour")
    assert (await run.describe()).run_number == 0


async def test_a_workflow_is_retried_after_a_step_failed_with_all_its_attempts(app: Holdfast, h: Harness) -> None:
    calls: list[int] = []

    @app.step(retry=Retry(limit=0))
    async def pay() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("down")
        return "paid"

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        return [await pay(), ctx.info.attempt]

    run = await h.start(flow, retry=Retry(limit=1, delay="1 second"))
    await h.advance("1 minute")

    assert await run.result(timeout=60) == ["paid", 2]


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_a_run_that_a_client_ended_is_not_retried(app: Holdfast, h: Harness, how: str) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.sleep("nap", "1 hour")

    run = await h.start(flow, retry=Retry(limit=5, delay=1))
    await h.run_until_idle()
    await getattr(run, how)()
    await h.advance("1 day")

    description = await run.describe()
    assert (description.status, description.run_number) == ({"terminate": "terminated", "cancel": "cancelled"}[how], 0)


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_a_run_can_be_ended_between_attempts(app: Holdfast, h: Harness, how: str) -> None:
    run = await h.start(flaky(app), 5, retry=Retry(limit=5, delay="1 hour"))
    await h.run_until_idle()
    await getattr(run, how)()
    await h.advance("1 day")

    assert (await run.status()).status == {"terminate": "terminated", "cancel": "cancelled"}[how]


# --- where the policy comes from


async def test_a_workflow_can_declare_a_retry_policy(app: Holdfast, h: Harness) -> None:
    workflow = flaky(app, retry=Retry(limit=2, delay="1 second"))
    assert await crash_everywhere(h, workflow, 3) == [3, 2]


@pytest.mark.above_the_store
async def test_the_policy_of_the_start_overrides_that_of_the_workflow(app: Holdfast, h: Harness) -> None:
    workflow = flaky(app, retry=Retry(limit=10, delay="1 second"))
    run = await h.start(workflow, 3, retry=Retry(limit=0))
    await h.advance("1 hour")
    with pytest.raises(RunFailedError, match="attempt 1"):
        await run.result(timeout=60)


@pytest.mark.parametrize("retry", [3, "5", {"limit": 1}, Retry])
async def test_a_bad_workflow_retry_policy_is_refused(app: Holdfast, retry: Any) -> None:
    with pytest.raises(InvalidOptionError, match="retry"):
        flaky(app, retry=retry)


# --- messages, attributes and callers


async def test_undelivered_messages_are_carried_over_to_the_next_attempt(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, params: Any) -> list[Any]:
        inbox = ctx.inbox
        first = (await inbox.receive()).payload
        if ctx.info.attempt < 3:
            raise ValueError(f"did not like {first}")
        return [first, ctx.info.attempt]

    messages = [("n", 1), ("n", 2), ("n", 3)]
    assert await crash_everywhere(h, launcher(app, flow, messages=messages, retry=Retry(limit=5, delay=1))) == [3, 3]


async def test_a_message_between_attempts_is_kept(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> Any:
        if ctx.info.attempt == 1:
            raise ValueError("again")
        return (await ctx.inbox.receive()).payload

    run = await h.start(flow, retry=Retry(limit=1, delay="1 hour"))
    await h.run_until_idle()
    await run.send_event("go", "here")
    await h.advance("1 hour")

    assert await run.result(timeout=60) == "here"


async def test_every_attempt_has_the_attributes_of_the_start(app: Holdfast, h: Harness) -> None:
    run = await h.start(flaky(app), 3, retry=Retry(limit=5, delay=1), memo={"m": 1}, search={"s": 2}, summary="sum")
    await h.advance("1 minute")

    description = await run.describe()
    assert (description.run_number, description.memo, description.search) == (2, {"m": 1}, {"s": 2})
    assert description.summary == "sum"
    assert [one.id for one in (await h.app.list(search={"s": 2})).items] == [run.id]


async def test_a_waiting_caller_sees_only_the_last_attempt(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(poll="1 hour"))
    workflow = flaky(app)
    async with app:
        run = await app.start(workflow, 3, retry=Retry(limit=3, delay="20 ms", backoff="constant"))
        assert await run.result(timeout=60) == [3, 2]
        failed = await app.start(workflow, 30, retry=Retry(limit=2, delay="20 ms", backoff="constant"))
        with pytest.raises(RunFailedError, match="attempt 3"):
            await failed.result(timeout=60)
