"""The transitions of a node: each state with each input."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from driving import lose_worker
from holdfast import Graph, Handle, Holdfast, InstanceTerminalError, NonRetryableError, Retry
from holdfast.store.protocol import Advance, Claimant, Fact, FactState, RunByName, TaskRef
from holdfast.testing import Harness

UNIT = 2  # the unit of the tested node; its predecessor is 1


class NodeScenario:
    """A graph of a tested node, its predecessor, and a third node that never ends. The test decides their outcomes."""

    def __init__(self, h: Harness, graph: Graph, outcomes: dict[str, Any]) -> None:
        self.h = h
        self.graph = graph
        self.outcomes = outcomes
        self.run: Handle[Any]

    async def start(self) -> None:
        self.run = await self.h.start(self.graph)

    async def state(self) -> str:
        [node] = [step for step in (await self.run.history()).steps if step.step_key == "tested"]
        return str(node.state)

    async def facts(self) -> dict[str, Any]:
        return {key: value for key, value in (await self.run.facts()).items() if "/tested" in key}

    async def end_call(self, node: str, outcome: Any) -> None:
        self.outcomes[node].set_result(outcome)
        self.outcomes[node] = asyncio.get_running_loop().create_future()
        await self.h.run_until_idle()


def make(app: Holdfast, h: Harness) -> NodeScenario:
    graph = app.graph("g")
    loop = asyncio.get_running_loop()
    outcomes = {"before": loop.create_future(), "tested": loop.create_future()}

    async def behave(name: str) -> str:
        outcome = await asyncio.shield(outcomes[name])  # a cancelled attempt leaves the outcome to the next one
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    @graph.node(retry=Retry(limit=0), timeout="1 day")
    async def before() -> str:
        return await behave("before")

    @graph.node(after=[before], retry=Retry(limit=1, delay="1 hour"), timeout="1 day")
    async def tested(before: str) -> str:
        return await behave("tested")

    @graph.node(timeout="1 day")
    async def lasting() -> None:
        await asyncio.Event().wait()

    return NodeScenario(h, graph, outcomes)


# --- the states of a node


async def pending(scenario: NodeScenario) -> None:
    await scenario.start()
    await scenario.h.run_until_idle()


async def ready(scenario: NodeScenario) -> None:
    """The predecessor is done, and no worker has claimed the node."""
    await scenario.start()
    await scenario.h.tick()
    scenario.outcomes["before"].set_result("go")
    scenario.outcomes["before"] = asyncio.get_running_loop().create_future()
    await scenario.h._settle()


async def started(scenario: NodeScenario) -> None:
    await pending(scenario)
    await scenario.end_call("before", "go")


async def retrying(scenario: NodeScenario) -> None:
    await started(scenario)
    await scenario.end_call("tested", OSError("not now"))


async def ok(scenario: NodeScenario) -> None:
    await started(scenario)
    await scenario.end_call("tested", "done")


async def error(scenario: NodeScenario) -> None:
    await started(scenario)
    await scenario.end_call("tested", NonRetryableError("never"))


async def skipped(scenario: NodeScenario) -> None:
    await pending(scenario)
    await scenario.end_call("before", NonRetryableError("never"))


STATES = {f.__name__: f for f in (pending, ready, started, retrying, ok, error, skipped)}


# --- inputs


async def succeeds(scenario: NodeScenario) -> None:
    await scenario.end_call("tested", "done")


async def fails(scenario: NodeScenario) -> None:
    await scenario.end_call("tested", OSError("not now"))


async def fails_permanently(scenario: NodeScenario) -> None:
    await scenario.end_call("tested", NonRetryableError("never"))


async def predecessor_succeeds(scenario: NodeScenario) -> None:
    await scenario.end_call("before", "go")


async def predecessor_fails(scenario: NodeScenario) -> None:
    await scenario.end_call("before", NonRetryableError("never"))


async def worker_runs(scenario: NodeScenario) -> None:
    await scenario.h.run_until_idle()


async def time_passes(scenario: NodeScenario) -> None:
    await scenario.h.advance("2 hours")


async def worker_dies(scenario: NodeScenario) -> None:
    await lose_worker(scenario.h)
    await scenario.h.run_until_idle()


async def unknown_worker_writes(scenario: NodeScenario) -> None:
    """A worker that never owned the unit, or no longer owns it, writes a result."""
    [row] = await scenario.h._store.read(RunByName("g", scenario.run.id))
    for owner, epoch in (("unknown worker", 1), (scenario.h._the_worker().id, 99), (scenario.h._the_worker().id, 0)):
        task = TaskRef(row.run, UNIT, owner, epoch)
        result = Fact(FactState.RESULT, "tested", 0, "node", 1, 1, value=b'"forged"')
        advanced = await scenario.h._store.advance(
            [Advance(task, results=[result])], Claimant(owner, 1000, ["default"]), 0
        )
        assert advanced.applied == [False]


async def is_paused(scenario: NodeScenario) -> None:
    await scenario.run.pause()
    await scenario.h.run_until_idle()


async def is_killed(scenario: NodeScenario) -> None:
    await scenario.run.kill("enough")
    scenario.outcomes["tested"].set_result("too late")
    await scenario.h.run_until_idle()


INPUTS: dict[str, Callable[[NodeScenario], Awaitable[None]]] = {
    f.__name__: f
    for f in (
        succeeds, fails, fails_permanently, predecessor_succeeds, predecessor_fails, worker_runs, time_passes,
        worker_dies, unknown_worker_writes, is_paused, is_killed,
    )
}  # fmt: skip

CHANGES = {
    ("pending", "predecessor_succeeds"): "started",
    ("pending", "predecessor_fails"): "skipped",
    ("pending", "worker_dies"): "skipped",  # the predecessor had only one attempt
    ("ready", "worker_runs"): "started",
    ("ready", "time_passes"): "started",
    ("ready", "worker_dies"): "started",
    **{
        ("ready", ignored): "started"
        for ignored in ("succeeds", "fails", "fails_permanently", "predecessor_succeeds", "predecessor_fails")
    },
    ("started", "succeeds"): "ok",
    ("started", "fails"): "retrying",
    ("started", "fails_permanently"): "error",
    ("started", "worker_dies"): "started",  # by the next worker
    ("retrying", "time_passes"): "started",
}
"""The state after an input, if the input changes it. Outcomes of a node that does not run are ignored."""


@pytest.mark.parametrize("input_name", INPUTS)
@pytest.mark.parametrize("state", STATES)
async def test_an_input_moves_a_node_to_the_expected_state(
    app: Holdfast, h: Harness, state: str, input_name: str
) -> None:
    scenario = make(app, h)
    await STATES[state](scenario)
    assert await scenario.state() == ("pending" if state == "ready" else state)
    before = await scenario.facts()

    await INPUTS[input_name](scenario)

    expected = CHANGES.get((state, input_name), "pending" if state == "ready" else state)
    assert await scenario.state() == expected
    after = await scenario.facts()
    assert {key: after.get(key) for key in before} == before, "a written fact has changed"
    if (state, input_name) not in CHANGES:
        assert after == before
    if input_name == "is_killed":
        assert "tombstone" in await scenario.run.facts("tombstone")
        with pytest.raises(InstanceTerminalError):
            await scenario.run.kill()
