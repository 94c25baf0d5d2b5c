"""Events from outside: each event ends one wait, also when it is sent repeatedly or concurrently."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from holdfast import ChainTask, Completed, Handle, Holdfast, Waiting
from holdfast.testing import Harness

pytestmark = pytest.mark.promise("messages-once-in-order")


def counting_chain(app: Holdfast, count: int) -> tuple[Any, list[Any]]:
    """A chain that waits for ``count`` events, and the list of their payloads."""
    chain, payloads = app.chain("counting"), []

    @chain.step("COUNT")
    async def collect(task: ChainTask) -> Any:
        if task.event is not None:
            payloads.append(task.event.payload)
        return Waiting("tick", "1 hour") if len(payloads) < count else Completed(payloads)

    return chain, payloads


async def test_a_thousand_sends_with_one_id_wake_the_chain_once(make_app: MakeApp) -> None:
    app = make_app()
    chain, payloads = counting_chain(app, 2)
    async with app:
        run = await app.start(chain)
        await asyncio.gather(*(run.send_event("tick", "first", id="the same") for _ in range(1000)))
        await run.send_event("tick", "second", id="another")
        assert await run.result(timeout=60) == ["first", "second"]
    assert payloads == ["first", "second"]


async def test_each_event_ends_exactly_one_wait(make_app: MakeApp) -> None:
    app = make_app()
    chain, _ = counting_chain(app, 100)
    async with app:
        run = await app.start(chain)
        await asyncio.gather(*(run.send_event("tick", n) for n in range(100)))
        assert sorted(await run.result(timeout=60)) == list(range(100))
        events = (await run.history()).events
    assert {event.consumed_by_step_key for event in events} == {"COUNT"}


async def test_events_are_consumed_once_wherever_the_worker_is_lost(h: Harness, app: Holdfast) -> None:
    chain = app.chain("collects")

    @chain.step("A")
    async def a(task: ChainTask) -> Any:
        return Waiting("tick", "1 hour") if task.event is None else task.event.payload

    @chain.step("B")
    async def b(task: ChainTask) -> Any:
        return Waiting("tick", "1 hour") if task.event is None else [task.outputs["A"], task.event.payload]

    async def send_events(_h: Harness, run: Handle[Any]) -> None:
        await run.send_event("tick", 1, id="one")
        await run.send_event("tick", 2, id="two")

    assert await h.crash_everywhere(chain, drive=send_events) == [1, 2]


@pytest.mark.parametrize("extra", [0, 3])
async def test_events_without_a_wait_stay_in_the_mailbox(h: Harness, app: Holdfast, extra: int) -> None:
    chain, payloads = counting_chain(app, 1)
    run = await h.start(chain)
    for n in range(1 + extra):
        await run.send_event("tick", n)
    await run.send_event("other", None)
    await h.run_until_idle()
    assert payloads == [0]
    undelivered = [event.type for event in (await run.history()).events if event.delivered_at is None]
    assert undelivered == ["tick"] * extra + ["other"]
