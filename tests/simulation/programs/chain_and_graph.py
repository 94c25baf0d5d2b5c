"""A chain with waits and an outbox, and a graph with a map and a condition.

Their shapes are fixed; the parameters determine the behaviour of the steps. ``fits_chain`` and ``fits_graph`` decide
whether a result is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from holdfast.app import Holdfast
from holdfast.chain.values import ChainTask, ChainTaskKind, Completed, Outbound, RetryStep, Waiting
from holdfast.core.outbound import OutboundEvent
from holdfast.kernel.step_info import step_info
from simulation.programs.external_system import ANY_RUN, ExternalSystem
from simulation.programs.names import CHAIN, GRAPH
from simulation.programs.program import LATE, graph_result, resolve_token, resolved
from simulation.programs.retries import MAX_ATTEMPTS, UNLIMITED

_STEPS = ("A", "B", "C", "D")
BREAKABLE = ("source", "each[0]", "total")
"""Nodes of the graph that can fail until the run has been retried."""
LEAF = "total"
"""The node that clients may resolve: no other node depends on its result."""

Outcome = Completed | Waiting | RetryStep


# --- the chain: a step ["say", value, fails] calls the external system, ["wait", type, ms] waits for an event,
# ["break", value, times] fails without retries in its first calls


def chain_params(draw: Random) -> list[Any]:
    return [_say_step(draw) if draw.random() < 0.6 else _wait_step(draw, step) for step in _STEPS]


def broken_chain_params(draw: Random, times: int) -> list[Any]:
    """The parameters of a chain one step of which fails until the run has been retried."""
    return with_broken_step(chain_params(draw), draw, times)


def with_broken_step(params: list[Any], draw: Random, times: int) -> list[Any]:
    broken = draw.randrange(len(params))
    return [["break", draw.randrange(100), times] if n == broken else step for n, step in enumerate(params)]


def _say_step(draw: Random) -> list[Any]:
    return ["say", draw.randrange(100), draw.choice([0, 0, 1, 2])]


def _wait_step(draw: Random, step: str) -> list[Any]:
    return ["wait", f"event.{step}", draw.choice([50, 400, 1500])]


def fits_chain(params: list[Any], result: Any, sent: frozenset[str]) -> bool:
    match params[-1]:
        case ["say", value, _]:
            return bool(result == value)
        case ["break", value, _]:
            return result == value or (resolve_token(_STEPS[-1]) in sent and result == resolved(_STEPS[-1]))
        case ["wait", type_, _]:
            return result == LATE or (type_ in sent and result == type_)
        case _:
            return False


def register_chain(app: Holdfast, external: ExternalSystem) -> None:
    chain = app.chain(CHAIN)
    for index, step in enumerate(_STEPS):
        chain.step(step, max_attempts=MAX_ATTEMPTS)(_handler(external, index))

    @app.outbox(max_attempts=MAX_ATTEMPTS, timeout="2 seconds")
    async def deliver(event: OutboundEvent) -> None:
        external.deliver(event.id)


def _handler(external: ExternalSystem, index: int) -> Callable[[ChainTask], Coroutine[Any, Any, Outcome]]:
    async def handle(task: ChainTask) -> Outcome:
        match task.params[index]:
            case ["say", value, fails]:
                external.reached(task.instance_id, "outbox")
                try:
                    effect = [task.instance_id, task.run_number, task.step_type]
                    await external.work(effect, value, fails, 0, "step")
                except ValueError as error:
                    return RetryStep("40 ms", str(error))
                return Completed(value, outbound=[Outbound("said", value)])
            case ["break", value, times]:
                external.reached(task.instance_id, "failing_step")
                effect = [task.instance_id, task.run_number, task.step_type]
                return Completed(await external.break_down(effect, value, times), outbound=[Outbound("said", value)])
            case ["wait", type_, ms]:
                external.reached(task.instance_id, "chain_waits", "outbox")
                return _wait_outcome(task, type_, ms)
            case _:
                raise ValueError(f"not a step: {task.params[index]}")

    return handle


def _wait_outcome(task: ChainTask, type_: str, ms: int) -> Outcome:
    match task.kind:
        case ChainTaskKind.RUN:
            return Waiting(type_, ms / 1000, outbound=[Outbound("asked", type_)])
        case ChainTaskKind.EVENT if task.event is not None:
            return Completed(task.event.payload)
        case _:
            return Completed(LATE)


# --- the graph: a source, a mapped node over its list, a total of the items, and a node that runs on a condition


def graph_params(draw: Random, instance: str) -> list[Any]:
    return [instance, draw.randrange(10), draw.choice([0, 0, 1])]


def fits_graph(params: list[Any], result: Any, sent: frozenset[str] = frozenset()) -> bool:
    expected = graph_result(params[1])
    decided = expected | {LEAF: resolved(LEAF)}
    return bool(result == expected or (resolve_token(LEAF) in sent and result == decided))


def register_graph(app: Holdfast, external: ExternalSystem) -> None:
    graph = app.graph(GRAPH, params=list[Any])

    async def call(params: list[Any], key: str, value: Any) -> Any:
        instance, _, fails, *broken = params
        if broken and broken[0][0] == key:
            external.reached(step_info().instance_id, "failing_step")
            return await external.break_down([instance, ANY_RUN, key], value, broken[0][1])
        return await external.work([instance, ANY_RUN, key], value, fails, 0, "step")

    @graph.node(retry=UNLIMITED)
    async def source(params: list[Any]) -> Any:
        return await call(params, "source", [params[1], params[1] + 1])

    @graph.node(after=[source], map=source, retry=UNLIMITED)
    async def each(source: int, params: list[Any]) -> Any:
        external.reached(step_info().instance_id, "map", "condition")  # the condition is evaluated with the map
        return await call(params, f"each[{source - params[1]}]", 2 * source)

    @graph.node(after=[source], when=lambda source: source[0] % 2 == 0, retry=UNLIMITED)
    async def even(source: list[int], params: list[Any]) -> Any:
        return await call(params, "even", source[0])

    @graph.node(after=[each], retry=UNLIMITED)
    async def total(each: list[int], params: list[Any]) -> Any:
        return await call(params, "total", sum(each))
