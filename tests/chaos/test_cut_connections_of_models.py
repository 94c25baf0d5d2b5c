"""The connection breaks before or after a commit of a chain or graph: nothing runs twice, nothing is lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast import ChainTask, Graph, Holdfast, Outbound, OutboundEvent, Retry, Waiting

from .environment import Environment
from .proxy import Proxy, When

pytestmark = pytest.mark.parametrize("when", ["before", "after"])

ONCE = Retry(limit=0)


def layered(app: Holdfast, ran: Counter[str]) -> Graph:
    """A graph whose nodes have one attempt each: a node that is started twice fails."""
    graph = app.graph("layered")

    @graph.node(retry=ONCE)
    async def first() -> list[int]:
        ran["first"] += 1
        return [1, 2, 3]

    @graph.node(map=first, retry=ONCE)
    async def square(first: int) -> int:
        ran[f"square {first}"] += 1
        return first * first

    @graph.node(after=[square], retry=ONCE)
    async def total(square: list[int]) -> int:
        ran["total"] += 1
        return sum(square)

    return graph


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
async def test_an_advance_is_applied_once(env: Environment, proxy: Proxy, when: When, nth: int) -> None:
    ran: Counter[str] = Counter()
    app = env.app()
    graph = layered(app, ran)
    async with app:
        cut = proxy.cut(when, nth=nth, matching="holdfast_advance")
        run = await app.start(graph)
        assert await run.result(timeout=60) == {"first": [1, 2, 3], "square": [1, 4, 9], "total": 14}
        starts = Counter(key.split("/")[1] for key in await run.facts("start/"))
    if nth < 4:
        assert cut.fired is not None
    assert set(ran.values()) == {1}
    assert starts == {"first": 1, "square": 2, "square[0]": 1, "square[1]": 1, "square[2]": 1, "total": 1}
    assert await env.checker.one("SELECT count(*) FROM holdfast.holdfast_task") == 0


async def test_a_graph_is_started_once(env: Environment, proxy: Proxy, when: When) -> None:
    ran: Counter[str] = Counter()
    app = env.app()
    graph = layered(app, ran)
    async with app:
        cut = proxy.cut(when, matching="holdfast_create")
        run = await app.start(graph)
        assert (await run.result(timeout=60))["total"] == 14
    assert cut.fired is not None
    assert ran["first"] == 1


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_step_of_a_chain_is_written_once(env: Environment, proxy: Proxy, when: When, nth: int) -> None:
    delivered: list[str] = []
    app = env.app()
    chain = app.chain("chain")

    @chain.step("ASK", max_attempts=1)
    async def ask(task: ChainTask) -> Any:
        if task.event is None:
            return Waiting("answer", timeout="1 hour", outbound=[Outbound("asked", task.instance_id)])
        return task.event.payload

    @chain.step("TELL", max_attempts=1)
    async def tell(task: ChainTask) -> str:
        return f"told {task.outputs['ASK']}"

    @app.outbox
    async def deliver(event: OutboundEvent) -> None:
        delivered.append(event.id)

    async with app:
        cut = proxy.cut(when, nth=nth, matching="holdfast_commit")
        run = await app.start(chain)
        await run.send_event("answer", 42, id="the answer")
        assert await run.result(timeout=60) == "told 42"
        [event] = await run.outbox()
    assert cut.fired is not None or nth == 3
    assert set(delivered) <= {event.id}
    rows = await env.checker.rows("SELECT count(*) FROM holdfast.holdfast_fact WHERE state IN (0, 4) GROUP BY run")
    assert [row[0] for row in rows] == [3]  # two results, one wake-up
