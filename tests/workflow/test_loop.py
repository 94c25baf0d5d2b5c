"""The workflow loop refuses I/O, keeps sets of tasks in one order, and closes dropped code."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from holdfast import Context, IOInWorkflowError

from .machine_bench import Bench

IO_CALLS: dict[str, Callable[[], Any]] = {
    "run_in_executor": lambda: asyncio.get_running_loop().run_in_executor(None, print),
    "to_thread": lambda: asyncio.to_thread(print),
    "open_connection": lambda: asyncio.open_connection("localhost", 1),
    "start_server": lambda: asyncio.start_server(print, "localhost", 0),
    "open_unix_connection": lambda: asyncio.open_unix_connection("/nowhere"),
    "create_subprocess_exec": lambda: asyncio.create_subprocess_exec("true"),
    "create_subprocess_shell": lambda: asyncio.create_subprocess_shell("true"),
    "getaddrinfo": lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
    "getnameinfo": lambda: asyncio.get_running_loop().getnameinfo(("127.0.0.1", 1)),
    "sock_recv": lambda: asyncio.get_running_loop().sock_recv(None, 1),  # type: ignore[arg-type]
    "add_reader": lambda: asyncio.get_running_loop().add_reader(0, print),
    "add_writer": lambda: asyncio.get_running_loop().add_writer(1, print),
    "add_signal_handler": lambda: asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print),
    "call_soon_threadsafe": lambda: asyncio.get_running_loop().call_soon_threadsafe(print),
    "connect_read_pipe": lambda: asyncio.get_running_loop().connect_read_pipe(asyncio.Protocol, None),
    "create_datagram_endpoint": lambda: asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol),
    "subprocess_exec": lambda: asyncio.get_running_loop().subprocess_exec(
        asyncio.SubprocessProtocol, "true", stdin=subprocess.DEVNULL
    ),
    "sock_connect": lambda: asyncio.get_running_loop().sock_connect(socket.socket(), ("localhost", 1)),
    "run_until_complete": lambda: asyncio.get_running_loop().run_until_complete(None),  # type: ignore[arg-type]
    "stop": lambda: asyncio.get_running_loop().stop(),
}

# The method of the loop that asyncio calls, where its name differs from that of the user's call.
LOOP_METHODS = {
    "to_thread": "run_in_executor",
    "open_connection": "create_connection",
    "start_server": "create_server",
    "open_unix_connection": "create_unix_connection",
    "create_subprocess_exec": "subprocess_exec",
    "create_subprocess_shell": "subprocess_shell",
}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", IO_CALLS)
def test_io_raises_an_error_that_names_the_call_and_advises_a_step(name: str) -> None:
    async def flow(ctx: Context) -> str:
        try:
            found = IO_CALLS[name]()
            if asyncio.iscoroutine(found) or asyncio.isfuture(found):
                await found
        except IOInWorkflowError as error:
            return str(error)
        return "nothing was raised"

    bench = Bench(flow)
    bench.advance()
    assert f"{LOOP_METHODS.get(name, name)}()" in bench.result
    assert "step" in bench.result
    assert "ctx.do" in bench.result


def test_every_method_of_an_event_loop_is_implemented_or_refused() -> None:
    from holdfast.workflow.loop import WorkflowLoop

    own = {"get_exception_handler", "get_task_factory"}
    missing = [
        name
        for name in vars(asyncio.AbstractEventLoop)
        if not name.startswith("_") and name not in vars(WorkflowLoop) and name not in own
    ]
    assert missing == []


def test_the_outer_loop_is_the_running_loop_again_after_an_advance() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.sleep(1)

    async def outside() -> bool:
        before = asyncio.get_running_loop()
        Bench(flow).advance()
        return asyncio.get_running_loop() is before

    assert asyncio.run(outside())


def test_sets_of_tasks_have_the_same_order_on_every_replay() -> None:
    async def flow(ctx: Context) -> list[str]:
        tasks = {asyncio.create_task(asyncio.sleep(1), name=f"t{n}") for n in range(64)}
        done, _ = await asyncio.wait(tasks)
        return [task.get_name() for task in done]

    orders = set()
    for _ in range(3):
        bench = Bench(flow)
        bench.advance()
        bench.sleep(1)
        orders.add(tuple(bench.result))
        bench.replay()
        orders.add(tuple(bench.result))
    assert len(orders) == 1


def test_as_completed_imported_before_the_library_is_refused_for_bare_coroutines() -> None:
    from holdfast.workflow.loop import _as_completed

    async def flow(ctx: Context) -> None:
        coro = asyncio.sleep(1)
        try:
            for one in _as_completed([coro]):
                await one
        finally:
            coro.close()

    bench = Bench(flow)
    bench.advance()
    assert bench.error.name == "IOInWorkflowError"
    assert "as_completed" in bench.error.message


def test_an_exception_that_is_never_retrieved_becomes_a_system_log_line() -> None:
    async def flow(ctx: Context) -> None:
        async def broken() -> None:
            raise ValueError("unseen")

        task = asyncio.create_task(broken())
        await asyncio.sleep(1)
        del task
        await asyncio.sleep(1)

    bench = Bench(flow)
    bench.advance()
    bench.sleep(2)
    assert bench.result is None
    assert any("unseen" in line.message and line.category == "system" for line in bench.logs)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["sys.exit", "ctrl-c"])
def test_an_exit_in_workflow_code_fails_its_run(error: BaseException) -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.sleep(1)
        raise error

    bench = Bench(flow)
    bench.advance()
    bench.sleep(1)
    assert bench.error.name == type(error).__name__


def test_a_step_call_that_is_not_awaited_is_reported_and_does_not_run() -> None:
    async def flow(ctx: Context) -> str:
        ctx.do("forgotten", print)
        return "done"

    bench = Bench(flow)
    bench.advance()
    assert bench.result == "done"
    assert bench.calls == {}
    [line] = bench.logs
    assert (line.level, line.category) == ("warn", "system")
    assert "'forgotten'" in line.message
    assert "await" in line.message


def test_cleanup_that_awaits_is_closed_at_once_when_a_run_is_dropped() -> None:
    seen: list[str] = []

    async def flow(ctx: Context) -> None:
        try:
            try:
                await ctx.sleep("nap", 60)
            finally:
                seen.append("first")
                await ctx.do("cleanup", print)
                seen.append("never")
        finally:
            seen.append("second")
            await asyncio.sleep(1)

    bench = Bench(flow)
    bench.advance()
    assert bench.machine is not None
    bench.machine.close()
    assert seen == ["first", "second"]


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.filterwarnings("always")  # an error in a destructor would not reach the test
def test_a_task_that_cleanup_creates_is_closed_when_a_run_is_dropped(recwarn: pytest.WarningsRecorder) -> None:
    async def report() -> None:
        await asyncio.sleep(1)

    async def flow(ctx: Context) -> None:
        try:
            await ctx.sleep("nap", 60)
        finally:
            await asyncio.shield(report())

    bench = Bench(flow)
    bench.advance()
    bench.close()
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []  # no coroutine that was never awaited


def _numbers(ctx: Context, seen: list[str]) -> AsyncGenerator[int, None]:
    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for n in range(5):
                await ctx.sleep(f"n{n}", 1)
                yield n
        finally:
            seen.append(type(asyncio.get_running_loop()).__name__)
            await ctx.do("cleanup", print)
            seen.append("cleaned up")

    return numbers()


def test_the_cleanup_of_an_async_generator_left_behind_is_durable() -> None:
    seen: list[str] = []

    async def flow(ctx: Context) -> None:
        async for n in _numbers(ctx, seen):
            if n == 1:
                break
        await ctx.sleep("after", 10)

    bench = Bench(flow)
    bench.advance()
    bench.sleep(2)
    assert list(bench.calls) == ["cleanup"]
    bench.replay()
    assert list(bench.calls) == ["cleanup"]
    bench.finish("cleanup")
    bench.sleep(10)
    assert bench.result is None
    assert seen == ["WorkflowLoop", "WorkflowLoop", "cleaned up"]


@pytest.mark.usefixtures("frozen_heap")
def test_an_async_generator_of_a_dropped_run_is_closed_on_the_workflow_loop() -> None:
    seen: list[str] = []

    async def flow(ctx: Context) -> None:
        async for _ in _numbers(ctx, seen):
            await ctx.sleep("busy", 60)

    bench = Bench(flow)
    bench.advance()
    bench.sleep(1)
    hooks = sys.get_asyncgen_hooks()
    bench.close()
    gc.collect()
    assert seen == ["WorkflowLoop"]
    assert sys.get_asyncgen_hooks() == hooks


def test_callbacks_run_in_the_order_in_which_they_became_ready_also_after_one_that_raises() -> None:
    order: list[str] = []

    async def flow(ctx: Context) -> list[str]:
        loop = asyncio.get_running_loop()

        def first() -> None:
            order.append("first")
            loop.call_soon(order.append, "called by first")

        loop.call_soon(first)
        loop.call_soon(order.remove, "not in the list")
        loop.call_soon(order.append, "after the error")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return order

    Bench(flow).advance()

    assert order == ["first", "after the error", "called by first"]
