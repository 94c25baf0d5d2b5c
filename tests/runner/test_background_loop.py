"""The loop of a background task: when it calls its function again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.ports import SystemRandomness
from holdfast.runner.background_loop import BackgroundLoop

_HOUR = 3600.0


class Steps:
    """A loop whose function waits for ``release`` in each call, and then asks for a pause of an hour."""

    def __init__(self) -> None:
        self.calls = 0
        self.called = asyncio.Event()
        self.release = asyncio.Event()
        self.loop = BackgroundLoop("test", self._step, SystemRandomness())

    async def _step(self) -> float:
        self.calls += 1
        self.called.set()
        await self.release.wait()
        return _HOUR

    async def next_call(self) -> None:
        async with asyncio.timeout(60):
            await self.called.wait()
        self.called.clear()


@pytest_asyncio.fixture(loop_scope="session")
async def steps() -> AsyncIterator[Steps]:
    made = Steps()
    made.loop.start()
    yield made
    await made.loop.stop()


async def test_a_limit_of_the_wait_that_comes_while_the_function_runs_is_kept(steps: Steps) -> None:
    await steps.next_call()
    steps.loop.wake_at_most(_HOUR / 2)
    steps.loop.wake_at_most(0.01)
    steps.loop.wake_at_most(_HOUR / 3)
    steps.release.set()

    await steps.next_call()


async def test_a_limit_of_the_wait_that_comes_during_the_wait_shortens_it(steps: Steps) -> None:
    steps.release.set()
    await steps.next_call()
    await asyncio.sleep(0)
    steps.loop.wake_at_most(0.01)

    await steps.next_call()


async def test_a_limit_holds_for_one_wait(steps: Steps) -> None:
    await steps.next_call()
    steps.loop.wake_at_most(0.01)
    steps.release.set()
    await steps.next_call()
    await asyncio.sleep(0.05)

    assert steps.calls == 2
