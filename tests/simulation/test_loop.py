"""The simulated loop: processes that can be stopped and killed, virtual time, no way to hang."""

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


def test_an_hour_passes_at_once(loop: SimulatedLoop) -> None:
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.time() == 3600


def test_a_process_keeps_its_order_and_processes_mix(loop: SimulatedLoop) -> None:
    said: list[tuple[str, int]] = []

    async def talk(name: str) -> None:
        for n in range(20):
            said.append((name, n))
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(*(loop.spawn(loop.start_process(name), talk(name)) for name in "ab"))

    loop.run_until_complete(both())

    assert [n for name, n in said if name == "a"] == list(range(20))
    assert [name for name, _ in said] not in (["a"] * 20 + ["b"] * 20, ["b"] * 20 + ["a"] * 20)


def test_a_stopped_process_goes_on_where_it_was(loop: SimulatedLoop) -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(loop.time())
            await asyncio.sleep(1)

    async def story() -> None:
        process = loop.start_process("clock")
        loop.spawn(process, tick())
        await asyncio.sleep(1.5)
        process.stopped = True
        await asyncio.sleep(10)
        process.stopped = False
        await asyncio.sleep(0.5)

    loop.run_until_complete(story())
    assert ticks == [0, 1, 11.5]


def test_a_killed_process_does_not_even_clean_up(loop: SimulatedLoop) -> None:
    said: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            said.append("cleaned up")
            await asyncio.sleep(0)
            said.append("and more")

    async def story() -> list[str]:
        process = loop.start_process("worker")
        loop.spawn(process, work())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(10)
        return list(said)

    assert loop.run_until_complete(story()) == []


def test_what_waits_for_nothing_is_a_deadlock(loop: SimulatedLoop) -> None:
    with pytest.raises(Deadlock, match="nothing can run"):
        loop.run_until_complete(_forever(loop))


def test_what_never_waits_is_a_livelock(loop: SimulatedLoop) -> None:
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
