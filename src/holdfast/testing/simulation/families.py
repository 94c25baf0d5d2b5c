"""A graph whose nodes run other instances: a workflow, a chain, another graph, and one that may fail.

The twins, one for each number of the source, end at almost the same time, so that the end of one often arrives while
the end of another is handled. ``fits_family`` says which results are possible.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

from holdfast.app import Holdfast
from holdfast.core.retry import Retry
from holdfast.testing.simulation.code import GRAPH, MAY_FAIL, WORKFLOW, ExternalSystem
from holdfast.testing.simulation.models import ANY_RUN, CHAIN, chain_params, fits_chain, fits_graph
from holdfast.testing.simulation.programs import Program, ProgramGenerator, fits

FAMILY = "family"
FAILING_NODE = "mortal"
_TWINS = 3
_NOTHING_SENT: frozenset[str] = frozenset()
_UNLIMITED = Retry(limit=math.inf, delay="40 ms", backoff="constant")


def family_params(draw: Random, instance: str) -> list[Any]:
    """Instance, number, failures of each function, whether a child fails, program of a child, steps of a chain."""
    number, failures, dies = draw.randrange(10), draw.choice([0, 0, 1]), draw.random() < 0.3
    return [instance, number, failures, dies, ProgramGenerator(draw).short(), chain_params(draw)]


def family_fails(params: list[Any]) -> bool:
    return bool(params[3])


def family_program(params: list[Any]) -> Program:
    program: Program = params[4]
    return program


def fits_family(params: list[Any], result: Any) -> bool:
    _, n, _, dies, program, steps = params
    twins = [*range(n, n + _TWINS)]
    rest = {"source": twins, "twins": twins, "total": sum(twins), FAILING_NODE: n, "last": n}
    return (
        not dies
        and {key: value for key, value in result.items() if key in rest} == rest
        and fits(program, result["flow"][0], _NOTHING_SENT)
        and fits_chain(steps, result["relay"], _NOTHING_SENT)
        and fits_graph(_nested(params), result["nested"])
    )


def _nested(params: list[Any]) -> list[Any]:
    return [f"{params[0]}-nested", params[1], params[2]]


def register_family(app: Holdfast, external: ExternalSystem) -> None:
    graph = app.graph(FAMILY, params=list[Any])

    async def call(params: list[Any], key: str, value: Any) -> Any:
        return await external.work([params[0], ANY_RUN, key], value, params[2], 0, "step")

    @graph.node(retry=_UNLIMITED)
    async def source(params: list[Any]) -> Any:
        return await call(params, "source", [*range(params[1], params[1] + _TWINS)])

    graph.node(run=WORKFLOW, name="flow", input=lambda params: [[family_program(params)], []])
    graph.node(run=CHAIN, name="relay", input=lambda params: params[5])
    graph.node(run=GRAPH, name="nested", after=[source], input=_nested)
    graph.node(run=MAY_FAIL, name=FAILING_NODE, after=[source], input=lambda params: [params[1], family_fails(params)])
    graph.node(run=MAY_FAIL, name="twins", map=source, input=lambda source: [source, False])

    @graph.node(after=["flow", "relay", "nested", "twins"], retry=_UNLIMITED)
    async def total(twins: list[int], params: list[Any]) -> Any:
        return await call(params, "total", sum(twins))

    @graph.node(after=[FAILING_NODE], retry=_UNLIMITED)
    async def last(mortal: int, params: list[Any]) -> Any:
        return await call(params, "last", mortal)
