"""The eager start of coroutines behaves as Python's own eager tasks do."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast.core import eager_tasks
from holdfast.core.tracebacks import coroutine_frames

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outer")


def start(coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
    return eager_tasks.start(coro, contextvars.copy_context(), asyncio.get_running_loop())


async def test_a_coroutine_that_does_not_suspend_ends_without_a_task() -> None:
    seen: list[Any] = []

    async def work() -> None:
        seen.append(asyncio.current_task())

    outer = asyncio.current_task()
    assert start(work()) is None

    assert isinstance(seen[0], asyncio.Task)
    assert seen[0] is not outer
    assert asyncio.current_task() is outer


async def test_a_coroutine_that_suspends_keeps_its_task_and_its_context() -> None:
    async def work() -> tuple[bool, str]:
        first = asyncio.current_task()
        variable.set("inner")
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return asyncio.current_task() is first, variable.get()

    task = start(work())

    assert task is not None
    assert task in asyncio.all_tasks()
    assert await task == (True, "inner")
    assert variable.get() == "outer"


async def test_the_first_part_runs_outside_of_any_task_too() -> None:
    done = asyncio.get_running_loop().create_future()

    def callback() -> None:
        before = asyncio.current_task()
        task = start(asyncio.sleep(0, "slept"))
        assert task is not None
        assert asyncio.current_task() is before is None
        task.add_done_callback(lambda ended: done.set_result(ended.result()))

    asyncio.get_running_loop().call_soon(callback)

    assert await done == "slept"


async def test_errors_of_the_first_part_and_of_later_parts_are_raised_by_the_task() -> None:
    async def fail(suspending: bool) -> None:
        if suspending:
            await asyncio.sleep(0)
        raise ValueError("no")

    for suspending in (False, True):
        task = start(fail(suspending))
        assert task is not None
        with pytest.raises(ValueError, match="no"):
            await task


async def test_a_timeout_that_begins_in_the_first_part_cancels_the_task() -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(60)
        except TimeoutError:
            return "timed out"
        return "slept"

    task = start(work())

    assert task is not None
    assert await task == "timed out"


async def test_a_task_group_in_the_first_part_waits_for_its_tasks() -> None:
    async def work() -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, n)) for n in range(3)]
        return sum(task.result() for task in tasks)

    task = start(work())

    assert task is not None
    assert await task == 3


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_cancellation_reaches_what_the_first_part_awaits(at_once: bool) -> None:
    inner = asyncio.get_running_loop().create_future()
    cleaned = []

    async def work() -> None:
        try:
            await inner
        finally:
            cleaned.append(True)

    task = start(work())
    assert task is not None
    if not at_once:
        await asyncio.sleep(0.001)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert inner.cancelled()
    assert cleaned == [True]


async def test_a_cancellation_of_a_bare_yield_is_raised_there() -> None:
    async def work() -> str:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return "cancelled"
        return "slept"

    task = start(work())
    assert task is not None
    task.cancel()

    assert await task == "cancelled"


async def test_code_of_the_first_part_can_use_its_task() -> None:
    ends: list[Any] = []

    async def work() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("mine")
        task.add_done_callback(lambda ended: ends.append((ended.get_name(), ended.result())))
        assert task.get_loop() is asyncio.get_running_loop()
        assert not task.done()
        return "done"

    assert start(work()) is None
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert ends == [("mine", "done")]


async def test_code_of_the_first_part_can_cancel_its_task() -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    task = start(work())

    assert task is not None
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_stack_of_a_suspended_coroutine_is_shown() -> None:
    async def inner() -> None:
        await asyncio.get_running_loop().create_future()

    async def work() -> None:
        await inner()

    task = start(work())
    assert task is not None
    await asyncio.sleep(0)

    assert [frame.f_code.co_name for frame in coroutine_frames(task.get_coro())][:2] == ["work", "inner"]
    task.cancel()


@pytest.mark.usefixtures("frozen_heap")
async def test_ended_coroutines_leave_no_garbage() -> None:
    async def work() -> None: ...

    async def suspend() -> None:
        await asyncio.sleep(0)

    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            start(work())
            task = start(suspend())
            assert task is not None
            await task
        del task
        assert gc.collect() == 0
    finally:
        gc.enable()
