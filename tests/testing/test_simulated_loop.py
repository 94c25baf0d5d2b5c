"""The simulated loop: processes that can be stopped and killed, virtual time, deadlocks and livelocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from holdfast.testing.simulation.loop import Deadlock, Livelock, SimulatedLoop


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    made = SimulatedLoop(Random(1), max_callbacks=10_000)
    yield made
    made.end()


def test_an_hour_takes_no_real_time(loop: SimulatedLoop) -> None:
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.time() == 3600


def test_callbacks_of_a_process_keep_their_order_and_processes_interleave(loop: SimulatedLoop) -> None:
    log: list[tuple[str, int]] = []

    async def work(name: str) -> None:
        for n in range(20):
            log.append((name, n))
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(*(loop.spawn(loop.start_process(name), work(name)) for name in "ab"))

    loop.run_until_complete(both())

    assert [n for name, n in log if name == "a"] == list(range(20))
    assert [name for name, _ in log] not in (["a"] * 20 + ["b"] * 20, ["b"] * 20 + ["a"] * 20)


def test_a_stopped_process_continues_where_it_was(loop: SimulatedLoop) -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(loop.time())
            await asyncio.sleep(1)

    async def scenario() -> None:
        process = loop.start_process("clock")
        loop.spawn(process, tick())
        await asyncio.sleep(1.5)
        process.stopped = True
        await asyncio.sleep(10)
        process.stopped = False
        await asyncio.sleep(0.5)

    loop.run_until_complete(scenario())
    assert ticks == [0, 1, 11.5]


def test_a_killed_process_runs_no_cleanup(loop: SimulatedLoop) -> None:
    log: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            log.append("cleaned up")
            await asyncio.sleep(0)
            log.append("and more")

    async def scenario() -> list[str]:
        process = loop.start_process("worker")
        loop.spawn(process, work())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(10)
        return list(log)

    assert loop.run_until_complete(scenario()) == []


def test_a_wait_that_nothing_can_end_is_a_deadlock(loop: SimulatedLoop) -> None:
    with pytest.raises(Deadlock, match="nothing can run"):
        loop.run_until_complete(_forever(loop))


def test_code_that_never_waits_is_a_livelock(loop: SimulatedLoop) -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="10,000 callbacks"):
        loop.run_until_complete(spin())


def test_sets_of_futures_have_one_order(loop: SimulatedLoop) -> None:
    made = [loop.create_future() for _ in range(50)]
    assert [hash(future) for future in made] == list(range(hash(made[0]), hash(made[0]) + 50))


async def _forever(loop: SimulatedLoop) -> Any:
    return await loop.create_future()
