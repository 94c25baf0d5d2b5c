"""Every state a node can be in, and everything that can happen then: what changes, and what must not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.driving import lose_worker
from holdfast import Graph, Handle, Holdfast, InstanceTerminalError, NonRetryableError, Retry
from holdfast.store.protocol import Advance, Claimant, Fact, FactState, TaskRef
from holdfast.testing import Harness

UNIT = 2  # of the node that is looked at: the one before it is 1


class World:
    """A graph of a node and the one before it, each of which does what the test says, and a third that lasts."""

    def __init__(self, h: Harness, graph: Graph, moods: dict[str, Any]) -> None:
        self.h = h
        self.graph = graph
        self.moods = moods
        self.run: Handle[Any]

    async def start(self) -> None:
        self.run = await self.h.start(self.graph)

    async def state(self) -> str:
        [node] = [step for step in (await self.run.history()).steps if step.step_key == "it"]
        return str(node.state)

    async def facts(self) -> dict[str, Any]:
        return {key: value for key, value in (await self.run.facts()).items() if "/it" in key}

    async def tell(self, node: str, mood: Any) -> None:
        self.moods[node].set_result(mood)
        self.moods[node] = asyncio.get_running_loop().create_future()
        await self.h.run_until_idle()


def make(app: Holdfast, h: Harness) -> World:
    graph = app.graph("g")
    loop = asyncio.get_running_loop()
    moods = {"before": loop.create_future(), "it": loop.create_future()}

    async def behave(name: str) -> str:
        mood = await asyncio.shield(moods[name])  # one that is given up leaves it to the next
        if isinstance(mood, Exception):
            raise mood
        return str(mood)

    @graph.node(retry=Retry(limit=0), timeout="1 day")
    async def before() -> str:
        return await behave("before")

    @graph.node(after=[before], retry=Retry(limit=1, delay="1 hour"), timeout="1 day")
    async def it(before: str) -> str:
        return await behave("it")

    @graph.node(timeout="1 day")
    async def lasting() -> None:
        await asyncio.Event().wait()

    return World(h, graph, moods)


# --- how a node gets into a state


async def pending(w: World) -> None:
    await w.start()
    await w.h.run_until_idle()


async def ready(w: World) -> None:
    """All before it are done, and nobody has taken it yet."""
    await w.start()
    await w.h.tick()
    w.moods["before"].set_result("go")
    w.moods["before"] = asyncio.get_running_loop().create_future()
    await w.h._settle()


async def started(w: World) -> None:
    await pending(w)
    await w.tell("before", "go")


async def retrying(w: World) -> None:
    await started(w)
    await w.tell("it", OSError("not now"))


async def ok(w: World) -> None:
    await started(w)
    await w.tell("it", "done")


async def error(w: World) -> None:
    await started(w)
    await w.tell("it", NonRetryableError("never"))


async def skipped(w: World) -> None:
    await pending(w)
    await w.tell("before", NonRetryableError("never"))


STATES = {f.__name__: f for f in (pending, ready, started, retrying, ok, error, skipped)}


# --- what can happen


async def works(w: World) -> None:
    await w.tell("it", "done")


async def fails(w: World) -> None:
    await w.tell("it", OSError("not now"))


async def fails_for_good(w: World) -> None:
    await w.tell("it", NonRetryableError("never"))


async def predecessor_works(w: World) -> None:
    await w.tell("before", "go")


async def predecessor_fails(w: World) -> None:
    await w.tell("before", NonRetryableError("never"))


async def processor(w: World) -> None:
    await w.h.run_until_idle()


async def time_passes(w: World) -> None:
    await w.h.advance("2 hours")


async def worker_dies(w: World) -> None:
    await lose_worker(w.h)
    await w.h.run_until_idle()


async def stranger_writes(w: World) -> None:
    """Somebody who never held it, or does not any more, comes with a result."""
    row = await w.h._store.find("g", w.run.id)
    for owner, epoch in (("stranger", 1), (w.h._the_worker().id, 99), (w.h._the_worker().id, 0)):
        task = TaskRef(row.run, UNIT, owner, epoch)
        result = Fact(FactState.RESULT, "it", 0, "node", 1, 1, value=b'"forged"')
        answer = await w.h._store.advance([Advance(task, results=[result])], Claimant(owner, 1000, ["default"]), 0)
        assert answer.applied == [False]


async def pause_and_work(w: World) -> None:
    await w.run.pause()
    await w.h.run_until_idle()


async def killed(w: World) -> None:
    await w.run.kill("enough")
    w.moods["it"].set_result("too late")
    await w.h.run_until_idle()


EVENTS: dict[str, Callable[[World], Awaitable[None]]] = {
    f.__name__: f
    for f in (
        works, fails, fails_for_good, predecessor_works, predecessor_fails, processor, time_passes, worker_dies,
        stranger_writes, pause_and_work, killed,
    )
}  # fmt: skip

CHANGES = {
    ("pending", "predecessor_works"): "started",
    ("pending", "predecessor_fails"): "skipped",
    ("pending", "worker_dies"): "skipped",  # the node before it had one attempt
    ("ready", "processor"): "started",
    ("ready", "time_passes"): "started",
    ("ready", "worker_dies"): "started",
    **{
        ("ready", deaf): "started"
        for deaf in ("works", "fails", "fails_for_good", "predecessor_works", "predecessor_fails")
    },
    ("started", "works"): "ok",
    ("started", "fails"): "retrying",
    ("started", "fails_for_good"): "error",
    ("started", "worker_dies"): "started",  # again
    ("retrying", "time_passes"): "started",
}
"""All that changes a node; what is said by one that does not run is not heard. The rest leaves it as it is."""


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
async def test_transition(app: Holdfast, h: Harness, state: str, event: str) -> None:
    w = make(app, h)
    await STATES[state](w)
    assert await w.state() == ("pending" if state == "ready" else state)
    before = await w.facts()

    await EVENTS[event](w)

    wanted = CHANGES.get((state, event), "pending" if state == "ready" else state)
    assert await w.state() == wanted
    after = await w.facts()
    assert {key: after.get(key) for key in before} == before, "something that was written has changed"
    if (state, event) not in CHANGES:
        assert after == before
    if event == "killed":
        assert "tombstone" in await w.run.facts("tombstone")
        with pytest.raises(InstanceTerminalError):
            await w.run.kill()
