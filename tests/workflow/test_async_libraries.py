"""Asyncio libraries in workflow code: each works durably, or raises an error that says what to do.

Workflows with libraries that work are run with a crash after each commit, and replayed from their history.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import aiostream
import anyio
import anyio.to_thread
import backoff
import pytest
import tenacity
from async_lru import alru_cache

from driving import warm_and_cold
from holdfast import Context, Holdfast, Retry, RunFailedError
from holdfast.testing import Harness

pytestmark = pytest.mark.above_the_store


@pytest.fixture
def steps(app: Holdfast) -> Steps:
    return Steps(app)


class Steps:
    """Steps that count their calls."""

    def __init__(self, app: Holdfast) -> None:
        self.calls: list[Any] = []
        self.double = app.step(self._double)
        self.flaky = app.step(retry=Retry(limit=2, non_retryable=(ConnectionError,)))(self._flaky)

    async def _double(self, n: int) -> int:
        self.calls.append(n)
        return n * 2

    async def _flaky(self, attempt: int) -> str:
        self.calls.append(attempt)
        if attempt < 3:
            raise ConnectionError("no answer")
        return f"attempt {attempt}"


async def durably(h: Harness, workflow: Any, params: Any = None) -> Any:
    """Return the result of a run, which crashes after each commit and replays at each suspension must not change."""
    result = await h.crash_everywhere(workflow, params)
    assert await warm_and_cold(h, workflow, params) == (result, result)
    return result


# --- anyio


async def test_task_groups_of_anyio_work_durably(app: Holdfast, h: Harness, steps: Steps) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        found: list[Any] = []

        async def one(n: int) -> None:
            await anyio.sleep(10 - n)
            found.append(await steps.double(n))

        async with anyio.create_task_group() as group:
            for n in range(5):
                group.start_soon(one, n)
        return found

    assert await durably(h, flow) == [8, 6, 4, 2, 0]


async def test_a_task_group_of_anyio_returns_the_value_of_a_started_task(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        async def serve(*, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
            port = await ctx.do("port", lambda: 8080)
            task_status.started(port)
            await anyio.sleep_forever()

        async with anyio.create_task_group() as group:
            port = await group.start(serve)
            await ctx.sleep("serve", 60)
            group.cancel_scope.cancel()
        return [port, group.cancel_scope.cancelled_caught]

    assert await durably(h, flow) == [8080, True]


async def test_a_failed_task_of_anyio_cancels_the_others(app: Holdfast, h: Harness, steps: Steps) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        ended: list[str] = []

        async def waits(name: str) -> None:
            try:
                await anyio.sleep(3600)
            finally:
                ended.append(name)

        async def fails() -> None:
            await steps.double(1)
            raise ValueError("enough")

        try:
            async with anyio.create_task_group() as group:
                for name in "abc":
                    group.start_soon(waits, name)
                group.start_soon(fails)
        except* ValueError as group_of_errors:
            ended += [str(error) for error in group_of_errors.exceptions]
        return ended

    assert await durably(h, flow) == ["a", "b", "c", "enough"]


async def test_timeouts_of_anyio_work_durably(app: Holdfast, h: Harness, steps: Steps) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        with anyio.move_on_after(5) as scope:
            await anyio.sleep(60)
        found: list[Any] = [scope.cancelled_caught]
        with anyio.move_on_after(60) as scope:
            found.append(await steps.double(3))
        found.append(scope.cancelled_caught)
        try:
            with anyio.fail_after(0.25):
                await anyio.sleep_forever()
        except TimeoutError:
            found.append("late")
        return found

    assert await durably(h, flow) == [True, 6, False, "late"]


async def test_a_shielded_cleanup_of_anyio_runs_its_steps(app: Holdfast, h: Harness, steps: Steps) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        found: list[Any] = []
        with anyio.move_on_after(5):
            try:
                await anyio.sleep(60)
            finally:
                with anyio.CancelScope(shield=True):
                    await ctx.sleep("pause", 10)
                    found.append(await steps.double(1))
                try:
                    await steps.double(2)
                except asyncio.CancelledError:
                    found.append("cancelled again")
                    raise
        return found

    assert await durably(h, flow) == [2, "cancelled again"]


async def test_a_saga_compensates_in_a_cancelled_scope_of_anyio(app: Holdfast, h: Harness, steps: Steps) -> None:
    """A cancelled scope cancels again in every iteration of the event loop; the saga still waits for its steps."""

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        with anyio.move_on_after(5) as scope:
            async with ctx.saga() as saga:
                saga.add(steps.double, 1)
                saga.add(asyncio.sleep, 0)
                await anyio.sleep(60)
        return [scope.cancelled_caught]

    assert await durably(h, flow) == [True]
    assert 1 in steps.calls


async def test_a_parent_waits_for_a_child_that_a_scope_of_anyio_cancels(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context) -> None:
        try:
            await ctx.sleep("work", 3600)
        finally:
            await ctx.sleep("clean up", 100)

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        began = ctx.now()
        with anyio.move_on_after(5) as scope:
            await ctx.run(child, wait_for_cancellation=True)
        return [scope.cancelled_caught, (ctx.now() - began).total_seconds() >= 105]

    assert await durably(h, flow) == [True, True]


async def test_streams_events_and_locks_of_anyio_work_durably(app: Holdfast, h: Harness, steps: Steps) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        send, receive = anyio.create_memory_object_stream[int](2)
        ready, lock, limit, condition = anyio.Event(), anyio.Lock(), anyio.Semaphore(2), anyio.Condition()
        found: list[Any] = []

        async def produce() -> None:
            async with send:
                for n in range(4):
                    await anyio.sleep(1)
                    await send.send(n)
            ready.set()

        async def consume(name: str) -> None:
            async with receive.clone() as mine:
                async for n in mine:
                    async with lock, limit:
                        found.append([name, await steps.double(n)])

        async def last() -> None:
            await ready.wait()
            async with condition:
                condition.notify_all()

        async with receive, anyio.create_task_group() as group:
            group.start_soon(produce)
            group.start_soon(consume, "a")
            group.start_soon(consume, "b")
            group.start_soon(last)
            async with condition:
                await condition.wait()
        return found

    assert sorted(await durably(h, flow)) == sorted([["a", 0], ["b", 2], ["a", 4], ["b", 6]])


async def test_anyio_uses_the_time_of_the_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        began = anyio.current_time()
        await anyio.sleep(3600)
        with anyio.CancelScope(deadline=anyio.current_time() + 0.1) as scope:
            await anyio.sleep_forever()
        return [3600 <= anyio.current_time() - began < 3700, scope.cancelled_caught]

    assert await durably(h, flow) == [True, True]


async def test_deadlines_of_anyio_with_fractional_seconds_expire(app: Holdfast, h: Harness) -> None:
    """A scope reads the clock when its timer fires; a rounding error would make it set the timer again, endlessly."""

    @app.workflow
    async def flow(ctx: Context) -> int:
        ended = 0
        for n in range(1, 200):
            with anyio.move_on_after(n * math.pi / 1000) as scope:
                await anyio.sleep_forever()
            ended += scope.cancelled_caught
        return ended

    assert await h.run(flow) == 199


async def test_sets_of_tasks_have_the_same_order_in_every_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        tasks = {asyncio.create_task(anyio.sleep(1), name=str(n)) for n in range(50)}
        await asyncio.wait(tasks)
        return [task.get_name() for task in tasks]

    assert await h.run(flow, id="a") == await h.run(flow, id="b") == await h.crash_everywhere(flow)


async def anyio_thread() -> Any:
    return await anyio.to_thread.run_sync(len, "text")


async def anyio_file() -> Any:
    return await anyio.Path("/etc/hostname").exists()


async def anyio_process() -> Any:
    return await anyio.run_process(["true"])


async def anyio_socket() -> Any:
    return await anyio.connect_tcp("localhost", 9)


async def asyncio_thread() -> Any:
    return await asyncio.to_thread(len, "text")


@alru_cache
async def cached(n: int) -> int:
    return n


async def cached_twice() -> Any:
    return [await cached(1), await cached(1)]


@pytest.mark.filterwarnings("ignore::async_lru.AlruCacheLoopResetWarning")
@pytest.mark.parametrize(
    "work", [anyio_thread, anyio_file, anyio_process, anyio_socket, asyncio_thread, cached_twice],
    ids=lambda work: work.__name__,
)  # fmt: skip
async def test_io_in_workflow_code_is_refused_with_advice(app: Holdfast, h: Harness, work: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> Any:
        return await work()

    @app.workflow
    async def as_a_step(ctx: Context) -> bool:
        await ctx.do("work", work)
        return True

    for run in ("first", "second"):
        with pytest.raises(RunFailedError, match=r"(step|variable)") as failed:
            await h.run(flow, id=run)
        assert failed.value.error.name == "IOInWorkflowError"
    if work in (anyio_thread, anyio_file, asyncio_thread, cached_twice):
        assert await h.run(as_a_step) is True


# --- asyncio


async def test_task_groups_and_timeouts_of_asyncio_work_durably(app: Holdfast, h: Harness, steps: Steps) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(steps.double(n)) for n in range(3)]
            try:
                async with asyncio.timeout(5):
                    await asyncio.sleep(60)
            except TimeoutError:
                late = True
        return [late, *[task.result() for task in tasks]]

    assert await durably(h, flow) == [True, 0, 2, 4]


# --- retries


async def test_retries_of_tenacity_work_durably(app: Holdfast, h: Harness, steps: Steps) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        began, attempts = ctx.now(), []

        @tenacity.retry(stop=tenacity.stop_after_attempt(5), wait=tenacity.wait_exponential(min=10))
        async def persistent() -> str:
            attempts.append(1)
            return await steps.flaky(len(attempts))

        result = await persistent()
        async for attempt in tenacity.AsyncRetrying(wait=tenacity.wait_fixed(5)):
            with attempt:
                number = attempt.retry_state.attempt_number
                await steps.flaky(number)
        return [result, number, (ctx.now() - began).total_seconds() >= 30]

    assert await durably(h, flow) == ["attempt 3", 3, True]


async def test_a_replay_repeats_the_random_delays_of_tenacity(app: Holdfast, h: Harness, steps: Steps) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        async for attempt in tenacity.AsyncRetrying(wait=tenacity.wait_random(1, 100)):
            with attempt:
                return await steps.flaky(attempt.retry_state.attempt_number)
        return "never"

    assert await durably(h, flow) == "attempt 3"


async def test_retries_of_backoff_work_durably(app: Holdfast, h: Harness, steps: Steps) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        attempts: list[int] = []

        @backoff.on_exception(backoff.expo, ConnectionError, max_tries=5)
        async def persistent() -> str:
            attempts.append(1)
            return await steps.flaky(len(attempts))

        return [await persistent(), len(attempts)]

    assert await durably(h, flow) == ["attempt 3", 3]


# --- streams


async def test_streams_of_aiostream_work_durably(app: Holdfast, h: Harness, steps: Steps) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        async def ticks(name: str, seconds: float) -> AsyncIterator[str]:
            for n in range(3):
                await asyncio.sleep(seconds)
                yield f"{name}{n}"

        merged = aiostream.stream.merge(ticks("a", 10), ticks("b", 15))
        names = await aiostream.stream.list(merged)

        async def double(n: int) -> int:
            return await steps.double(n)

        doubled = aiostream.stream.range(4) | aiostream.pipe.map(double, ordered=True, task_limit=2)
        return [sorted(names), await aiostream.stream.list(doubled)]

    assert await durably(h, flow) == [["a0", "a1", "a2", "b0", "b1", "b2"], [0, 2, 4, 6]]


@pytest.mark.filterwarnings("ignore::async_lru.AlruCacheLoopResetWarning")
async def test_a_step_function_may_have_a_cache_decorator(app: Holdfast, h: Harness) -> None:
    calls: list[int] = []

    @alru_cache
    async def price(n: int) -> int:
        calls.append(n)
        return n * 10

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        return [await ctx.do(f"price {n}", price, 7) for n in range(3)]

    assert await h.run(flow) == [70, 70, 70]
    assert calls == [7]
