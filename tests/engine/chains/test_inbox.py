"""Events from outside: each is one wake-up, however often and however concurrently it is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import ChainTask, Completed, Handle, Holdfast, Waiting
from holdfast.testing import Harness

from ..conftest import MakeApp


def counting(app: Holdfast, most: int) -> tuple[Any, list[Any]]:
    """A chain that waits again and again, and writes down what woke it."""
    chain, woken = app.chain("counting"), []

    @chain.step("COUNT")
    async def count(task: ChainTask) -> Any:
        if task.event is not None:
            woken.append(task.event.payload)
        return Waiting("tick", "1 hour") if len(woken) < most else Completed(woken)

    return chain, woken


async def test_the_same_id_a_thousand_times_is_one_wake_up(make_app: MakeApp) -> None:
    app = make_app()
    chain, woken = counting(app, 2)
    async with app:
        run = await app.start(chain)
        await asyncio.gather(*(run.send_event("tick", "first", id="the same") for _ in range(1000)))
        await run.send_event("tick", "second", id="another")
        assert await run.result(timeout=20) == ["first", "second"]
    assert woken == ["first", "second"]


async def test_each_event_is_one_wake_up(make_app: MakeApp) -> None:
    app = make_app()
    chain, _ = counting(app, 100)
    async with app:
        run = await app.start(chain)
        await asyncio.gather(*(run.send_event("tick", n) for n in range(100)))
        assert sorted(await run.result(timeout=20)) == list(range(100))
        events = (await run.history()).events
    assert {event.consumed_by_step_key for event in events} == {"COUNT"}


async def test_the_same_wherever_the_worker_is_lost(h: Harness, app: Holdfast) -> None:
    chain = app.chain("collects")

    @chain.step("A")
    async def a(task: ChainTask) -> Any:
        return Waiting("tick", "1 hour") if task.event is None else task.event.payload

    @chain.step("B")
    async def b(task: ChainTask) -> Any:
        return Waiting("tick", "1 hour") if task.event is None else [task.outputs["A"], task.event.payload]

    async def sends(_h: Harness, run: Handle[Any]) -> None:
        await run.send_event("tick", 1, id="one")
        await run.send_event("tick", 2, id="two")

    assert await h.crash_everywhere(chain, drive=sends) == [1, 2]


@pytest.mark.parametrize("extra", [0, 3])
async def test_what_nobody_waits_for_is_left_in_the_mailbox(h: Harness, app: Holdfast, extra: int) -> None:
    chain, woken = counting(app, 1)
    run = await h.start(chain)
    for n in range(1 + extra):
        await run.send_event("tick", n)
    await run.send_event("other", None)
    await h.run_until_idle()
    assert woken == [0]
    left = [event.type for event in (await run.history()).events if event.delivered_at is None]
    assert left == ["tick"] * extra + ["other"]
