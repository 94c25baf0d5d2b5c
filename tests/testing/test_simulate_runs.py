"""A simulation runs beside the caller's loop, is the same each time, and refuses I/O."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, WorkflowNotFoundError
from holdfast.testing import FindingKind, SimulationError, SimulationReport, simulate
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.scenario import BASELINE_SEED, Scenario
from holdfast.testing.simulation.scenario_loop import ScenarioLoop
from holdfast.testing.simulation.seed_run import run_seed
from simulation.planted import planted

PROGRAM = """
import asyncio
from holdfast import Context, Holdfast
from holdfast.testing import simulate

app, done = Holdfast("sqlite://"), []

@app.step
async def add(n: int) -> int:
    done.append(n)
    return n

@app.workflow
async def numbers(ctx: Context) -> list[int]:
    return list(await asyncio.gather(*(ctx.do(f"add {n}", add, n) for n in range(3))))

def fresh():
    done.clear()
    return done

report = asyncio.run(simulate(app, numbers, seeds=8, world=fresh, fail=False))
print(report.digest, report)
"""


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("sqlite://")


async def test_the_same_seeds_have_the_same_digest() -> None:
    reports = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    }

    [said] = reports
    assert "numbers: 1 finding in 8 seeds" in said or "numbers: 2 findings in 8 seeds" in said


async def test_two_seeds_have_different_digests(app: Holdfast) -> None:
    @app.step
    async def work() -> int:
        return 1

    @app.workflow
    async def order(_ctx: Context) -> int:
        return await work()

    async def of(first: int) -> SimulationReport:
        return await simulate(app, order, seeds=3, first=first)

    assert (await of(1)).digest == (await of(1)).digest != (await of(4)).digest


async def test_hours_inside_a_step_take_no_time(app: Holdfast) -> None:
    @app.step(timeout="1 hour")
    async def slow() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(300)
        async with asyncio.timeout(100):
            await asyncio.to_thread(lambda: None)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return round(asyncio.get_running_loop().time() - began)

    @app.workflow
    async def order(_ctx: Context) -> float:
        return await slow()

    async with asyncio.timeout(60):
        report = await simulate(app, order, seeds=3)
    assert [*report.endings] == ["returned 305.0"]


def test_retries_and_sleeps_end_at_their_exact_times_although_time_is_skipped(app: Holdfast) -> None:
    calls: list[float] = []

    @app.step(retry=Retry(limit=3, delay="1 minute", backoff="constant"))
    async def third_time() -> int:
        calls.append(asyncio.get_running_loop().time())
        if len(calls) < 3:
            raise ConnectionError("busy")
        return len(calls)

    @app.workflow
    async def order(ctx: Context) -> float:
        await third_time()
        began = ctx.now()
        await ctx.sleep("a long time", "100 days")
        return (ctx.now() - began).total_seconds()

    seen = run_seed(Scenario(app, "order", None, "i", {}, (), None, None, ()), BASELINE_SEED)

    assert [later - before for before, later in pairwise(calls)] == pytest.approx([60, 60], abs=0.05)
    assert seen.run.result == pytest.approx(100 * 86_400, abs=0.05)


@pytest.mark.usefixtures("frozen_heap")
def test_a_seed_run_leaves_no_database_in_memory(app: Holdfast) -> None:
    @app.workflow
    async def order(_ctx: Context) -> None: ...

    scenario = Scenario(app, "order", None, "i", {}, (), None, None, ())
    before = _databases()
    run_seed(scenario, BASELINE_SEED)

    assert _databases() == before


def _databases() -> int:
    gc.collect()
    return sum(isinstance(value, SimulatedDatabase) for value in gc.get_objects())


async def test_the_callers_loop_continues_meanwhile(app: Holdfast) -> None:
    here, ticks = asyncio.get_running_loop(), 0

    @app.step
    async def elsewhere() -> bool:
        return asyncio.get_running_loop() is not here

    @app.workflow
    async def order(_ctx: Context) -> bool:
        return await elsewhere()

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    report = await simulate(app, order, seeds=3)
    ticking.cancel()

    assert [*report.endings] == ["returned True"]
    assert ticks > 3
    assert asyncio.get_running_loop() is here


async def test_steps_see_the_context_variables_of_the_caller(app: Holdfast) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")
    tenant.set("ann")

    @app.step
    async def whose() -> str:
        return tenant.get()

    @app.workflow
    async def order(_ctx: Context) -> str:
        return await whose()

    assert [*(await simulate(app, order, seeds=2)).endings] == ["returned 'ann'"]


async def test_a_cancelled_simulation_leaves_nothing_running(app: Holdfast) -> None:
    called, begun, ended = threading.Event(), [], []

    @app.step
    def work() -> None:
        if not called.is_set():
            called.set()
            time.sleep(0.2)  # the caller is cancelled meanwhile

    @app.workflow
    async def order(_ctx: Context) -> None:
        await work()

    simulating = asyncio.ensure_future(
        simulate(app, order, world=lambda: begun.append("a run"), view=lambda _: ended.append("a run"))
    )
    while not called.is_set():
        await asyncio.sleep(0.001)
    simulating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await simulating

    assert len(begun) == len(ended) == 1


def test_skipped_time_moves_timers() -> None:
    loop = ScenarioLoop(Random(1), 1000)
    rung: list[float] = []

    async def skip() -> None:
        alarm = loop.call_later(2, lambda: rung.append(loop.time()))
        loop.skip_time(3600)
        assert alarm.when() == 3602
        await asyncio.sleep(5)

    loop.run_until_complete(skip())
    loop.end()
    assert rung == [3602]


async def test_the_app_itself_is_not_changed(app: Holdfast) -> None:
    @app.workflow
    async def order(_ctx: Context) -> int:
        return 1

    async with app:
        await simulate(app, order, seeds=2)
        assert (await app.list()).items == []
        assert await (await app.start(order)).result(timeout=60) == 1


# --- errors of workflows that cannot be simulated


async def refused(app: Holdfast, workflow: Any) -> str:
    with pytest.raises(SimulationError) as raised:
        await simulate(app, workflow, seeds=3)
    return str(raised.value)


async def test_a_step_that_opens_a_connection_is_refused(app: Holdfast) -> None:
    @app.step
    async def call() -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    @app.workflow
    async def order(_ctx: Context) -> None:
        await call()

    said = await refused(app, order)
    assert said.startswith("Step 'call' of order/simulated does I/O (create_connection)")
    assert "put a fake in its place" in said


async def test_a_step_that_uses_a_socket_is_refused(app: Holdfast) -> None:
    @app.step
    async def call() -> bytes:
        one, other = socket.socketpair()
        with one, other:
            one.setblocking(False)
            return await asyncio.get_running_loop().sock_recv(one, 1)

    @app.workflow
    async def order(_ctx: Context) -> None:
        await call()

    assert "does I/O (sock_recv)" in await refused(app, order)


async def test_a_step_with_its_own_thread_is_refused(app: Holdfast) -> None:
    @app.step(timeout="1 hour")
    async def call() -> None:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(future.set_result, None))
        thread.start()
        thread.join()
        await future

    @app.workflow
    async def order(_ctx: Context) -> None:
        await call()

    assert "works in its own thread" in await refused(app, order)


async def test_an_unexpected_error_of_the_engine_is_an_error_and_not_a_finding(app: Holdfast) -> None:
    @app.step
    async def work() -> None: ...

    @app.workflow
    async def order(_ctx: Context) -> None:
        await work()

    with (
        planted("epoch_not_incremented"),
        pytest.raises(SimulationError, match="This is a bug of Holdfast, seen with seed"),
    ):
        await simulate(app, order)


async def test_an_unknown_workflow_is_an_error(app: Holdfast) -> None:
    with pytest.raises(WorkflowNotFoundError):
        await simulate(app, "nothing")


async def test_a_child_of_another_process_is_a_wait_that_never_ends(app: Holdfast) -> None:
    far = app.remote("far")

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.run(far, id="one")

    [finding] = (await simulate(app, order, seeds=2, fail=False)).findings
    assert finding.kind is FindingKind.WAIT
    assert "no workflow 'far' registered" in finding.message
