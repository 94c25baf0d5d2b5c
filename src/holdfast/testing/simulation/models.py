"""The other models of a simulation: a chain with waits and an outbox, a graph with a map and a condition.

Their shapes are fixed; what the steps do is in the parameters. ``fits_chain`` and ``fits_graph`` say what may come of
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from holdfast.app import Holdfast
from holdfast.chain.values import ChainTask, ChainTaskKind, Completed, Outbound, RetryStep, Waiting
from holdfast.core.outbound import OutboundEvent
from holdfast.core.retry import Retry
from holdfast.testing.simulation.code import GRAPH, ExternalSystem
from holdfast.testing.simulation.programs import LATE, diamond

CHAIN = "relay"
ANY_RUN = -1
"""The number of the run where a function does not know it."""
_STEPS = ("A", "B", "C", "D")
_ALWAYS = 1_000_000
_UNLIMITED = Retry(limit=math.inf, delay="40 ms", backoff="constant")

Outcome = Completed | Waiting | RetryStep


# --- the chain: ["say", value, fails] tells the world, ["wait", type, ms] waits for an event


def chain_params(draw: Random) -> list[Any]:
    return [_said(draw) if draw.random() < 0.6 else _waited(draw, step) for step in _STEPS]


def _said(draw: Random) -> list[Any]:
    return ["say", draw.randrange(100), draw.choice([0, 0, 1, 2])]


def _waited(draw: Random, step: str) -> list[Any]:
    return ["wait", f"event.{step}", draw.choice([50, 400, 1500])]


def fits_chain(params: list[Any], result: Any, sent: frozenset[str]) -> bool:
    match params[-1]:
        case ["say", value, _]:
            return bool(result == value)
        case ["wait", type_, _]:
            return result == LATE or (type_ in sent and result == type_)
        case _:
            return False


def register_chain(app: Holdfast, external: ExternalSystem) -> None:
    chain = app.chain(CHAIN)
    for place, step in enumerate(_STEPS):
        chain.step(step, max_attempts=_ALWAYS)(_handler(external, place))

    @app.outbox(max_attempts=_ALWAYS, timeout="2 seconds")
    async def deliver(event: OutboundEvent) -> None:
        external.deliver(event.id)


def _handler(external: ExternalSystem, place: int) -> Callable[[ChainTask], Coroutine[Any, Any, Outcome]]:
    async def handle(task: ChainTask) -> Outcome:
        match task.params[place]:
            case ["say", value, fails]:
                try:
                    at = [task.instance_id, task.run_number, task.step_type]
                    await external.work(at, value, fails, 0, "step")
                except ValueError as error:
                    return RetryStep("40 ms", str(error))
                return Completed(value, outbound=[Outbound("said", value)])
            case ["wait", type_, ms]:
                return _answer(task, type_, ms)
            case _:
                raise ValueError(f"no step: {task.params[place]}")

    return handle


def _answer(task: ChainTask, type_: str, ms: int) -> Outcome:
    match task.kind:
        case ChainTaskKind.RUN:
            return Waiting(type_, ms / 1000, outbound=[Outbound("asked", type_)])
        case ChainTaskKind.EVENT if task.event is not None:
            return Completed(task.event.payload)
        case _:
            return Completed(LATE)


# --- the graph: source, then each of its items, their total, and something that depends on it


def graph_params(draw: Random, instance: str) -> list[Any]:
    return [instance, draw.randrange(10), draw.choice([0, 0, 1])]


def fits_graph(params: list[Any], result: Any) -> bool:
    return bool(result == diamond(params[1]))


def register_graph(app: Holdfast, external: ExternalSystem) -> None:
    graph = app.graph(GRAPH, params=list[Any])

    async def call(params: list[Any], key: str, value: Any) -> Any:
        instance, _, fails = params
        return await external.work([instance, ANY_RUN, key], value, fails, 0, "step")

    @graph.node(retry=_UNLIMITED)
    async def source(params: list[Any]) -> Any:
        return await call(params, "source", [params[1], params[1] + 1])

    @graph.node(after=[source], map=source, retry=_UNLIMITED)
    async def each(source: int, params: list[Any]) -> Any:
        return await call(params, f"each[{source - params[1]}]", 2 * source)

    @graph.node(after=[source], when=lambda source: source[0] % 2 == 0, retry=_UNLIMITED)
    async def even(source: list[int], params: list[Any]) -> Any:
        return await call(params, "even", source[0])

    @graph.node(after=[each], retry=_UNLIMITED)
    async def total(each: list[int], params: list[Any]) -> Any:
        return await call(params, "total", sum(each))
