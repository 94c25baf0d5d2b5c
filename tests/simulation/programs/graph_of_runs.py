"""A graph whose nodes run other instances: a workflow, a chain, another graph, and a workflow that may fail.

The runs of the mapped node ``twins`` end at almost the same time, so the exit event of one run often arrives while
that of another is processed. ``fits_graph_of_runs`` decides whether a result is possible.
"""

from __future__ import annotations

from random import Random
from typing import Any

from holdfast.app import Holdfast
from simulation.programs.chain_and_graph import chain_params, fits_chain, fits_graph
from simulation.programs.external_system import ANY_RUN, ExternalSystem
from simulation.programs.generator import ProgramGenerator
from simulation.programs.names import CHAIN, GRAPH, GRAPH_OF_RUNS, MAY_FAIL, PROGRAM
from simulation.programs.program import Program, fits
from simulation.programs.retries import UNLIMITED

FAILING_NODE = "mortal"
_TWINS = 3
_NOTHING_SENT: frozenset[str] = frozenset()


def graph_of_runs_params(draw: Random, instance: str) -> list[Any]:
    """Instance, number, failures of each function, True if a child fails, program of a child, steps of a chain."""
    number, failures, child_fails = draw.randrange(10), draw.choice([0, 0, 1]), draw.random() < 0.3
    return [instance, number, failures, child_fails, ProgramGenerator(draw).short(), chain_params(draw)]


def graph_of_runs_fails(params: list[Any]) -> bool:
    return bool(params[3])


def child_program(params: list[Any]) -> Program:
    program: Program = params[4]
    return program


def fits_graph_of_runs(params: list[Any], result: Any) -> bool:
    _, n, _, child_fails, program, steps = params
    twins = [*range(n, n + _TWINS)]
    rest = {"source": twins, "twins": twins, "total": sum(twins), FAILING_NODE: n, "last": n}
    return (
        not child_fails
        and {key: value for key, value in result.items() if key in rest} == rest
        and fits(program, result["flow"][0], _NOTHING_SENT)
        and fits_chain(steps, result["relay"], _NOTHING_SENT)
        and fits_graph(_nested(params), result["nested"])
    )


def _nested(params: list[Any]) -> list[Any]:
    return [f"{params[0]}-nested", params[1], params[2]]


def register_graph_of_runs(app: Holdfast, external: ExternalSystem) -> None:
    graph = app.graph(GRAPH_OF_RUNS, params=list[Any])

    async def call(params: list[Any], key: str, value: Any) -> Any:
        return await external.work([params[0], ANY_RUN, key], value, params[2], 0, "step")

    @graph.node(retry=UNLIMITED)
    async def source(params: list[Any]) -> Any:
        return await call(params, "source", [*range(params[1], params[1] + _TWINS)])

    graph.node(run=PROGRAM, name="flow", input=lambda params: [[child_program(params)], []])
    graph.node(run=CHAIN, name="relay", input=lambda params: params[5])
    graph.node(run=GRAPH, name="nested", after=[source], input=_nested)
    graph.node(
        run=MAY_FAIL, name=FAILING_NODE, after=[source], input=lambda params: [params[1], graph_of_runs_fails(params)]
    )
    graph.node(run=MAY_FAIL, name="twins", map=source, input=lambda source: [source, False])

    @graph.node(after=["flow", "relay", "nested", "twins"], retry=UNLIMITED)
    async def total(twins: list[int], params: list[Any]) -> Any:
        return await call(params, "total", sum(twins))

    @graph.node(after=[FAILING_NODE], retry=UNLIMITED)
    async def last(mortal: int, params: list[Any]) -> Any:
        return await call(params, "last", mortal)
