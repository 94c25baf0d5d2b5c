"""Ordinary asyncio in workflow code is durable: it comes out the same live and after a cold replay at any point."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast import Context

from .machine_bench import Bench

Drive = Callable[[Bench], object]


def _noop() -> Any: ...


async def _sleep_then(seconds: float, value: Any) -> Any:
    await asyncio.sleep(seconds)
    return value


def _run(fn: Any, *drive: Drive, cold_after: int | None = None) -> Any:
    """The result when the given things happen one after the other; a new machine takes over after so many of them."""
    bench = Bench(fn)
    bench.go()
    for n, happen in enumerate(drive):
        if n == cold_after:
            bench.cold()
        happen(bench)
    if cold_after == len(drive):
        bench.cold()
    return bench.result


def everywhere(fn: Any, *drive: Drive) -> Any:
    """The result, which must be the same wherever a new machine takes over."""
    results = [_run(fn, *drive, cold_after=cut) for cut in (None, *range(len(drive) + 1))]
    assert all(result == results[0] for result in results), results
    return results[0]


def passes(seconds: float) -> Drive:
    return lambda bench: bench.sleep(seconds)


def ends(key: str, value: Any = None) -> Drive:
    return lambda bench: bench.finish(key, value)


def comes(type: str, payload: Any = None) -> Drive:
    return lambda bench: bench.send(type, payload)


def test_sleep_is_a_durable_timer() -> None:
    async def flow(ctx: Context) -> Any:
        before = ctx.now()
        await asyncio.sleep(90)
        return (ctx.now() - before).total_seconds()

    assert everywhere(flow, passes(60), passes(60)) == 90


@pytest.mark.parametrize("name", ["timer#1", "timer", "1", "sleep"])
def test_a_step_of_any_name_lives_beside_anonymous_sleeps(name: str) -> None:
    async def flow(ctx: Context) -> Any:
        nap = asyncio.create_task(asyncio.sleep(5, "slept"))
        await asyncio.sleep(0)
        return [await ctx.do(name, _noop), await nap, await asyncio.sleep(1, "again")]

    assert everywhere(flow, ends(name, "step"), passes(6)) == ["step", "slept", "again"]


def test_gather_keeps_the_order_of_its_arguments_whoever_ends_first() -> None:
    async def flow(ctx: Context) -> Any:
        return await asyncio.gather(ctx.do("a", _noop), ctx.do("b", _noop), _sleep_then(5, "c"))

    assert everywhere(flow, ends("b", 2), passes(9), ends("a", 1)) == [1, 2, "c"]


def test_gather_returns_exceptions_when_asked() -> None:
    async def flow(ctx: Context) -> Any:
        found = await asyncio.gather(ctx.do("a", _noop), _sleep_then(1, "c"), return_exceptions=True)
        return [str(one) for one in found]

    def broken(bench: Bench) -> None:
        from holdfast import NonRetryableError

        bench.fail("a", NonRetryableError("no"))

    assert everywhere(flow, broken, passes(1)) == ["no", "c"]


def test_task_group_waits_for_all_its_tasks() -> None:
    async def flow(ctx: Context) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.do(name, _noop)) for name in "abc"]
        return [task.result() for task in tasks]

    assert everywhere(flow, ends("c", 3), ends("a", 1), ends("b", 2)) == [1, 2, 3]


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

    assert everywhere(flow, passes(1)) == ["cancelled", "hasty"]


def test_wait_returns_at_the_first_completed() -> None:
    async def flow(ctx: Context) -> Any:
        tasks = [asyncio.ensure_future(ctx.do(name, _noop), loop=asyncio.get_running_loop()) for name in "abc"]
        rounds = []
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            rounds.append(sorted(task.result() for task in done))
        return rounds

    assert everywhere(flow, ends("b", 2), ends("c", 3), ends("a", 1)) == [[2], [3], [1]]


def test_wait_with_a_timeout_leaves_the_rest_pending() -> None:
    async def flow(ctx: Context) -> Any:
        task = asyncio.create_task(ctx.do("a", _noop))
        done, pending = await asyncio.wait([task], timeout=5)
        return [len(done), len(pending), await task]

    assert everywhere(flow, passes(6), ends("a", "late")) == [0, 1, "late"]


@pytest.mark.parametrize("as_tasks", [True, False], ids=["tasks", "bare coroutines"])
def test_as_completed_yields_in_the_recorded_order(as_tasks: bool) -> None:
    async def flow(ctx: Context) -> Any:
        work: list[Any] = [ctx.do(name, _noop) for name in "abcd"]
        if as_tasks:
            work = [asyncio.create_task(one) for one in work]
        return [await one for one in asyncio.as_completed(work)]

    happen = [ends("c", "c"), ends("a", "a"), ends("d", "d"), ends("b", "b")]
    assert everywhere(flow, *happen) == ["c", "a", "d", "b"]


def test_as_completed_starts_bare_coroutines_in_the_order_given() -> None:
    async def flow(ctx: Context) -> Any:
        started: list[int] = []

        async def one(n: int) -> int:
            started.append(n)
            await asyncio.sleep(1)
            return n

        ended = [await done for done in asyncio.as_completed([one(n) for n in range(50)])]
        return started == ended == list(range(50))

    assert everywhere(flow, passes(1)) is True


def test_wait_for_lets_a_result_in_time_through() -> None:
    async def flow(ctx: Context) -> Any:
        return await asyncio.wait_for(ctx.do("a", _noop), timeout=10)

    assert everywhere(flow, passes(9), ends("a", "in time"), passes(100)) == "in time"


def test_wait_for_gives_up_after_its_timeout() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            return await asyncio.wait_for(ctx.do("a", _noop), timeout=10)
        except TimeoutError:
            return ctx.now().timestamp()

    assert everywhere(flow, passes(9), passes(1)) == 1010


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

    assert everywhere(flow, passes(5), ends("a", "a"), passes(5)) == ["a", "timeout"]


def test_a_shield_keeps_the_inner_step_running() -> None:
    async def flow(ctx: Context) -> Any:
        inner = asyncio.create_task(ctx.do("a", _noop))
        try:
            await asyncio.wait_for(asyncio.shield(inner), timeout=1)
        except TimeoutError:
            return ["gave up", await inner]

    assert everywhere(flow, passes(1), ends("a", "kept")) == ["gave up", "kept"]


def test_a_queue_joins_producers_and_consumers() -> None:
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

    assert everywhere(flow, ends("c", "c"), ends("a", "a"), ends("b", "b")) == ["c", "a", "b"]


def test_an_event_releases_all_who_wait_in_their_order() -> None:
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

    assert everywhere(flow, ends("open")) == list(range(20))


def test_a_lock_is_handed_on_in_the_order_of_asking() -> None:
    async def flow(ctx: Context) -> Any:
        lock, order = asyncio.Lock(), []

        async def worker(name: str) -> None:
            async with lock:
                order.append(await ctx.do(name, _noop))

        await asyncio.gather(*(worker(name) for name in "abc"))
        return order

    assert everywhere(flow, ends("a", 1), ends("b", 2), ends("c", 3)) == [1, 2, 3]


def test_a_semaphore_bounds_how_many_steps_are_in_flight() -> None:
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

    happen = [count, ends("b", "b"), count, ends("c", "c"), ends("a", "a"), ends("d", "d")]
    assert everywhere(flow, *happen) == ["b", "c", "a", "d"]
    assert set(in_flight) == {2}


def test_a_condition_wakes_who_waits_for_it() -> None:
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

    assert everywhere(flow, ends("first", 1), ends("second", 1)) == [0, 1]


def test_an_event_wait_races_a_step_and_a_timer() -> None:
    async def flow(ctx: Context) -> Any:
        tasks = {
            "step": asyncio.create_task(ctx.do("work", _noop)),
            "event": asyncio.create_task(ctx.wait_for_event("answer", type="answer")),
            "timer": asyncio.create_task(asyncio.sleep(5)),
        }
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        return [name for name, task in tasks.items() if task.done()]

    assert everywhere(flow, comes("answer", 1)) == ["event"]
    assert everywhere(flow, ends("work")) == ["step"]
    assert everywhere(flow, passes(5)) == ["timer"]
