"""The harness waits for steps that a thread, a process or a socket ends, and for no others."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.to_thread
import pytest

from driving import finish
from holdfast import Context, Holdfast, Retry
from holdfast.testing import Harness, HarnessError

pytestmark = pytest.mark.above_the_store

SECONDS = 0.05


def slowly() -> str:
    time.sleep(SECONDS)
    return "ended"


async def in_the_default_executor() -> str:
    return await asyncio.get_running_loop().run_in_executor(None, slowly)


async def in_its_own_executor() -> str:
    with ThreadPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, slowly)


async def in_a_thread_of_asyncio() -> str:
    return await asyncio.to_thread(slowly)


async def in_a_thread_of_anyio() -> str:
    return await anyio.to_thread.run_sync(slowly)


async def in_threads_of_a_task_group() -> str:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(anyio.to_thread.run_sync(slowly)), group.create_task(asyncio.to_thread(slowly))]
    return tasks[0].result()


async def in_threads_of_gather() -> str:
    loop = asyncio.get_running_loop()
    return (await asyncio.gather(*[loop.run_in_executor(None, slowly) for _ in range(2)]))[0]


async def in_a_process() -> str:
    code = f"import time; time.sleep({SECONDS}); print('ended')"
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return output.decode().strip()


async def in_a_process_without_pipes() -> str:
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", f"import time; time.sleep({SECONDS})")
    await process.wait()
    return "ended"


async def over_a_socket() -> str:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(slowly)
        writer.write(b"ended\n")
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        line = await reader.readline()
        writer.close()
        return line.decode().strip()


async def through_a_queue_filled_by_a_thread() -> str:
    queue: asyncio.Queue[str] = asyncio.Queue()
    filling = asyncio.create_task(asyncio.to_thread(slowly))
    filling.add_done_callback(lambda done: queue.put_nowait(done.result()))
    return await queue.get()


@pytest.mark.parametrize(
    "work",
    [
        in_the_default_executor,
        in_its_own_executor,
        in_a_thread_of_asyncio,
        in_a_thread_of_anyio,
        in_threads_of_a_task_group,
        in_threads_of_gather,
        in_a_process,
        in_a_process_without_pipes,
        over_a_socket,
        through_a_queue_filled_by_a_thread,
    ],
    ids=lambda work: work.__name__,
)
async def test_the_harness_waits_for_a_step_that_is_working(
    app: Holdfast, h: Harness, work: Callable[[], Awaitable[str]]
) -> None:
    step = app.step(work)

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        return [await step(), await step()]

    run = await h.start(flow)
    await h.run_until_idle()

    assert (await run.status()).output == ["ended", "ended"]


async def test_the_harness_waits_for_threads_of_chain_steps_and_nodes(app: Holdfast, h: Harness) -> None:
    chain, graph = app.chain("chain"), app.graph("graph")

    @chain.step("WAIT")
    async def wait(task: object) -> str:
        return await anyio.to_thread.run_sync(slowly)

    @graph.node
    async def node() -> str:
        return await asyncio.to_thread(slowly)

    runs = [await h.start(chain), await h.start(graph)]
    await h.run_until_idle()

    assert [(await run.status()).status for run in runs] == ["complete", "complete"]


async def test_the_harness_does_not_wait_for_a_step_that_waits_for_the_test(app: Holdfast, h: Harness) -> None:
    """Only the test or the virtual clock can end a wait for an event, a lock, a queue or a bare future."""
    event, future = asyncio.Event(), asyncio.get_running_loop().create_future()
    anyio_event, queue = anyio.Event(), asyncio.Queue[int]()
    locked = anyio.Lock()
    await locked.acquire()

    async def in_a_group() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio_event.wait)
            group.start_soon(queue.get)

    async def for_the_lock() -> None:
        async with locked:
            pass

    @app.workflow
    async def flow(ctx: Context) -> str:
        async def for_the_future() -> None:
            await future

        waits = [event.wait, for_the_future, in_a_group, for_the_lock]
        await asyncio.gather(*[ctx.do(f"wait {n}", wait) for n, wait in enumerate(waits)])
        return "all"

    began = time.process_time()
    run = await h.start(flow)
    await h.run_until_idle()
    assert (await run.status()).status == "active"
    event.set(), future.set_result(None), anyio_event.set(), queue.put_nowait(1), locked.release()
    await h.run_until_idle()

    assert (await run.status()).output == "all"
    assert time.process_time() - began < 2


async def test_the_harness_does_not_wait_for_sockets_and_timers_of_others(app: Holdfast) -> None:
    """A connection of the test, and a timer and a connection that a step left behind, are not the open step's."""
    loop = asyncio.get_running_loop()
    pairs = [socket.socketpair() for _ in range(2)]
    timers: list[asyncio.TimerHandle] = []

    async def leaves_something() -> None:
        loop.add_reader(pairs[0][0], lambda: None)
        timers.append(loop.call_later(50, lambda: None))

    async def hangs() -> None:
        await loop.create_future()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("leave", leaves_something)
        await ctx.do("hang", hangs, timeout="1 minute", retry=Retry(limit=0))

    async with Harness(app, real_timeout=1) as h:
        loop.add_reader(pairs[1][0], lambda: None)
        run = await h.start(flow)
        await h.advance("1 minute")
        assert (await run.status()).status == "errored"

    for one, other in pairs:
        loop.remove_reader(one)
        one.close(), other.close()
    timers[0].cancel()


async def test_a_step_timeout_is_virtual_also_while_the_step_waits_in_a_group(app: Holdfast, h: Harness) -> None:
    @app.step(timeout="1 hour", retry=Retry(limit=0))
    async def hangs() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(asyncio.sleep(24 * 3600))

    @app.workflow
    async def flow(ctx: Context) -> None:
        await hangs()

    run = await h.start(flow)
    await h.advance("59 minutes")
    assert (await run.status()).status == "active"
    await h.advance("1 minute")
    assert (await run.status()).status == "errored"


@pytest.mark.parametrize("wait", [anyio.to_thread.run_sync, asyncio.to_thread], ids=["anyio", "asyncio"])
async def test_the_error_names_a_step_that_takes_too_long_in_real_time(
    app: Holdfast, wait: Callable[..., Awaitable]
) -> None:
    release = threading.Event()

    @app.step
    async def fetch_prices() -> None:
        await wait(release.wait)

    @app.workflow
    async def flow(ctx: Context) -> None:
        await fetch_prices()

    async with Harness(app, real_timeout=0.1) as h:
        await h.start(flow, id="f-1")
        try:
            with pytest.raises(HarnessError, match=r"step 'fetch_prices' of flow/f-1 .*real_timeout"):
                await h.run_until_idle()
        finally:
            release.set()


async def test_the_error_names_a_plain_step_that_takes_too_long_in_real_time(app: Holdfast) -> None:
    release = threading.Event()

    @app.step
    def blocks() -> None:
        release.wait()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await blocks()

    async with Harness(app, real_timeout=0.1) as h:
        await h.start(flow, id="f-1")
        try:
            with pytest.raises(HarnessError, match="step 'blocks' of flow/f-1"):
                await h.run_until_idle()
        finally:
            release.set()


async def test_the_harness_does_not_wait_for_threads_of_the_test(app: Holdfast, h: Harness) -> None:
    release = threading.Event()
    own = asyncio.create_task(asyncio.to_thread(release.wait))
    waiting = asyncio.Event()

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.do("wait", waiting.wait)
        return "done"

    try:
        run = await h.start(flow)
        await h.run_until_idle()
        waiting.set()
        await h.run_until_idle()
        assert (await run.status()).output == "done"
    finally:
        release.set()
        await own


async def test_closing_the_harness_restores_the_event_loop(app: Holdfast) -> None:
    loop = asyncio.get_running_loop()

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await ctx.do("thread", in_a_thread_of_anyio)

    async with Harness(app) as outer:
        async with Harness(app) as inner:
            assert await finish(inner, flow) == "ended"
        assert await finish(outer, flow) == "ended"

    assert loop.get_task_factory() is None
    assert "run_in_executor" not in vars(loop)
