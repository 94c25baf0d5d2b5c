"""Ordinary asyncio code in a workflow is durable: its result is the same live and after a replay at any point."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast import Context

from .machine_bench import Bench

Observation = Callable[[Bench], object]


def _noop() -> Any: ...


async def _sleep_then(seconds: float, value: Any) -> Any:
    await asyncio.sleep(seconds)
    return value


def _run(fn: Any, *observations: Observation, replay_after: int | None = None) -> Any:
    """The result after these observations, with a replay on a new machine after the first ``replay_after`` of them."""
    bench = Bench(fn)
    bench.advance()
    for n, observe in enumerate(observations):
        if n == replay_after:
            bench.replay()
        observe(bench)
    if replay_after == len(observations):
        bench.replay()
    return bench.result


def replayed_result(fn: Any, *observations: Observation) -> Any:
    """The result after these observations. It must be the same for a replay after any number of them."""
    results = [_run(fn, *observations, replay_after=cut) for cut in (None, *range(len(observations) + 1))]
    assert all(result == results[0] for result in results), results
    return results[0]


def time_passes(seconds: float) -> Observation:
    return lambda bench: bench.sleep(seconds)


def step_ends(key: str, value: Any = None) -> Observation:
    return lambda bench: bench.finish(key, value)


def event_arrives(type: str, payload: Any = None) -> Observation:
    return lambda bench: bench.send(type, payload)


def test_sleep_is_a_durable_timer() -> None:
    async def flow(ctx: Context) -> Any:
        before = ctx.now()
        await asyncio.sleep(90)
        return (ctx.now() - before).total_seconds()

    assert replayed_result(flow, time_passes(60), time_passes(60)) == 90


@pytest.mark.parametrize("name", ["timer#1", "timer", "1", "sleep"])
def test_a_step_of_any_name_does_not_collide_with_unnamed_timers(name: str) -> None:
    async def flow(ctx: Context) -> Any:
        nap = asyncio.create_task(asyncio.sleep(5, "slept"))
        await asyncio.sleep(0)
        return [await ctx.do(name, _noop), await nap, await asyncio.sleep(1, "again")]

    assert replayed_result(flow, step_ends(name, "step"), time_passes(6)) == ["step", "slept", "again"]


def test_gather_keeps_the_order_of_its_arguments_in_any_order_of_completion() -> None:
    async def flow(ctx: Context) -> Any:
        return await asyncio.gather(ctx.do("a", _noop), ctx.do("b", _noop), _sleep_then(5, "c"))

    assert replayed_result(flow, step_ends("b", 2), time_passes(9), step_ends("a", 1)) == [1, 2, "c"]


def test_gather_returns_exceptions_if_requested() -> None:
    async def flow(ctx: Context) -> Any:
        results = await asyncio.gather(ctx.do("a", _noop), _sleep_then(1, "c"), return_exceptions=True)
        return [str(item) for item in results]

    def broken(bench: Bench) -> None:
        from holdfast import NonRetryableError

        bench.fail("a", NonRetryableError("no"))

    assert replayed_result(flow, broken, time_passes(1)) == ["no", "c"]


def test_task_group_waits_for_all_its_tasks() -> None:
    async def flow(ctx: Context) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.do(name, _noop)) for name in "abc"]
        return [task.result() for task in tasks]

    assert replayed_result(flow, step_ends("c", 3), step_ends("a", 1), step_ends("b", 2)) == [1, 2, 3]


def test_task_group_cancels_the_others_when_one_fails() -> None:
    async def flow(ctx: Context) -> Any:
        seen: list[str] = []

        async def patient() -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        async def hasty() -> None:
            await asyncio.sleep(1)
            raise ValueError("hasty")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(patient())
                group.create_task(hasty())
        except* ValueError as caught:
            seen.append(str(caught.exceptions[0]))
        return seen

    assert replayed_result(flow, time_passes(1)) == ["cancelled", "hasty"]


def test_wait_returns_at_the_first_completed() -> None:
    async def flow(ctx: Context) -> Any:
        tasks = [asyncio.ensure_future(ctx.do(name, _noop), loop=asyncio.get_running_loop()) for name in "abc"]
        rounds = []
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            rounds.append(sorted(task.result() for task in done))
        return rounds

    assert replayed_result(flow, step_ends("b", 2), step_ends("c", 3), step_ends("a", 1)) == [[2], [3], [1]]


def test_wait_with_a_timeout_leaves_unfinished_tasks_pending() -> None:
    async def flow(ctx: Context) -> Any:
        task = asyncio.create_task(ctx.do("a", _noop))
        done, pending = await asyncio.wait([task], timeout=5)
        return [len(done), len(pending), await task]

    assert replayed_result(flow, time_passes(6), step_ends("a", "late")) == [0, 1, "late"]


@pytest.mark.parametrize("as_tasks", [True, False], ids=["tasks", "bare coroutines"])
def test_as_completed_yields_in_the_recorded_order(as_tasks: bool) -> None:
    async def flow(ctx: Context) -> Any:
        work: list[Any] = [ctx.do(name, _noop) for name in "abcd"]
        if as_tasks:
            work = [asyncio.create_task(item) for item in work]
        return [await item for item in asyncio.as_completed(work)]

    observations = [step_ends("c", "c"), step_ends("a", "a"), step_ends("d", "d"), step_ends("b", "b")]
    assert replayed_result(flow, *observations) == ["c", "a", "d", "b"]


def test_as_completed_starts_bare_coroutines_in_the_order_of_its_argument() -> None:
    async def flow(ctx: Context) -> Any:
        started: list[int] = []

        async def branch(n: int) -> int:
            started.append(n)
            await asyncio.sleep(1)
            return n

        ended = [await done for done in asyncio.as_completed([branch(n) for n in range(50)])]
        return started == ended == list(range(50))

    assert replayed_result(flow, time_passes(1)) is True


def test_wait_for_returns_a_result_that_comes_in_time() -> None:
    async def flow(ctx: Context) -> Any:
        return await asyncio.wait_for(ctx.do("a", _noop), timeout=10)

    assert replayed_result(flow, time_passes(9), step_ends("a", "in time"), time_passes(100)) == "in time"


def test_wait_for_raises_after_its_timeout() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            return await asyncio.wait_for(ctx.do("a", _noop), timeout=10)
        except TimeoutError:
            return ctx.now().timestamp()

    assert replayed_result(flow, time_passes(9), time_passes(1)) == 1010


def test_a_timeout_block_bounds_everything_in_it() -> None:
    async def flow(ctx: Context) -> Any:
        done = []
        try:
            async with asyncio.timeout(10):
                done.append(await ctx.do("a", _noop))
                done.append(await ctx.do("b", _noop))
        except TimeoutError:
            done.append("timeout")
        return done

    assert replayed_result(flow, time_passes(5), step_ends("a", "a"), time_passes(5)) == ["a", "timeout"]


def test_a_shield_keeps_the_inner_step_running() -> None:
    async def flow(ctx: Context) -> Any:
        inner = asyncio.create_task(ctx.do("a", _noop))
        try:
            await asyncio.wait_for(asyncio.shield(inner), timeout=1)
        except TimeoutError:
            return ["gave up", await inner]

    assert replayed_result(flow, time_passes(1), step_ends("a", "kept")) == ["gave up", "kept"]


def test_a_queue_passes_items_from_producers_to_consumers_in_order() -> None:
    async def flow(ctx: Context) -> Any:
        queue: asyncio.Queue[str] = asyncio.Queue(maxsize=1)

        async def produce(name: str) -> None:
            await queue.put(await ctx.do(name, _noop))

        async def read() -> AsyncIterator[str]:
            for _ in range(3):
                yield await queue.get()

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(produce(name))
            return [item async for item in read()]

    assert replayed_result(flow, step_ends("c", "c"), step_ends("a", "a"), step_ends("b", "b")) == ["c", "a", "b"]


def test_an_event_wakes_its_waiters_in_order() -> None:
    async def flow(ctx: Context) -> Any:
        event, passed = asyncio.Event(), []

        async def waiter(n: int) -> None:
            await event.wait()
            passed.append(n)

        async with asyncio.TaskGroup() as group:
            for n in range(20):
                group.create_task(waiter(n))
            await ctx.do("open", _noop)
            event.set()
        return passed

    assert replayed_result(flow, step_ends("open")) == list(range(20))


def test_a_lock_is_acquired_in_the_order_of_requests() -> None:
    async def flow(ctx: Context) -> Any:
        lock, order = asyncio.Lock(), []

        async def worker(name: str) -> None:
            async with lock:
                order.append(await ctx.do(name, _noop))

        await asyncio.gather(*(worker(name) for name in "abc"))
        return order

    assert replayed_result(flow, step_ends("a", 1), step_ends("b", 2), step_ends("c", 3)) == [1, 2, 3]


def test_a_semaphore_limits_the_steps_in_flight() -> None:
    in_flight: list[int] = []

    async def flow(ctx: Context) -> Any:
        semaphore, order = asyncio.Semaphore(2), []

        async def worker(name: str) -> None:
            async with semaphore:
                order.append(await ctx.do(name, _noop))

        await asyncio.gather(*(worker(name) for name in "abcd"))
        return order

    def count(bench: Bench) -> None:
        in_flight.append(len(bench.calls))

    observations = [count, step_ends("b", "b"), count, step_ends("c", "c"), step_ends("a", "a"), step_ends("d", "d")]
    assert replayed_result(flow, *observations) == ["b", "c", "a", "d"]
    assert set(in_flight) == {2}


def test_a_condition_wakes_its_waiters() -> None:
    async def flow(ctx: Context) -> Any:
        condition, stock, taken = asyncio.Condition(), [0], []

        async def buyer(n: int) -> None:
            async with condition:
                await condition.wait_for(lambda: stock[0] > 0)
                stock[0] -= 1
                taken.append(n)

        async with asyncio.TaskGroup() as group:
            for n in range(2):
                group.create_task(buyer(n))
            for name in ("first", "second"):
                amount = await ctx.do(name, _noop)
                async with condition:
                    stock[0] += amount
                    condition.notify_all()
        return taken

    assert replayed_result(flow, step_ends("first", 1), step_ends("second", 1)) == [0, 1]


def test_the_first_of_an_event_a_step_and_a_timer_ends_a_race() -> None:
    async def flow(ctx: Context) -> Any:
        tasks = {
            "step": asyncio.create_task(ctx.do("work", _noop)),
            "event": asyncio.create_task(ctx.wait_for_event("answer", type="answer")),
            "timer": asyncio.create_task(asyncio.sleep(5)),
        }
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        return [name for name, task in tasks.items() if task.done()]

    assert replayed_result(flow, event_arrives("answer", 1)) == ["event"]
    assert replayed_result(flow, step_ends("work")) == ["step"]
    assert replayed_result(flow, time_passes(5)) == ["timer"]
