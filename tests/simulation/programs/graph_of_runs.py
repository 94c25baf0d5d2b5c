"""A graph whose nodes run other instances: a workflow, a chain, another graph, and a workflow that may fail.

The runs of the mapped node ``twins`` end at almost the same time, so the exit event of one run often arrives while
that of another is processed.
"""

from __future__ import annotations

from typing import Any

from holdfast.app import Holdfast
from holdfast.kernel.step_info import step_info
from simulation.programs.external_system import ANY_RUN, ExternalSystem
from simulation.programs.names import CHAIN, GRAPH, GRAPH_OF_RUNS, MAY_FAIL, PROGRAM
from simulation.programs.program import CHILD_PROGRAM, Program
from simulation.programs.retries import UNLIMITED

"""The parameters: instance, number, failures of each function, True if a child fails, program of a child, steps of a
chain."""
FAILING_NODE = "mortal"
TWINS = 3


def graph_of_runs_fails(params: list[Any]) -> bool:
    return bool(params[3])


def child_program(params: list[Any]) -> Program:
    program: Program = params[CHILD_PROGRAM]
    return program


def nested_params(params: list[Any]) -> list[Any]:
    return [f"{params[0]}-nested", params[1], params[2]]


def register_graph_of_runs(app: Holdfast, external: ExternalSystem) -> None:
    graph = app.graph(GRAPH_OF_RUNS, params=list[Any])

    async def call(params: list[Any], key: str, value: Any) -> Any:
        return await external.work([params[0], ANY_RUN, key], value, params[2], 0, "step")

    @graph.node(retry=UNLIMITED)
    async def source(params: list[Any]) -> Any:
        external.reached(step_info().instance_id, "nodes_with_runs")
        return await call(params, "source", [*range(params[1], params[1] + TWINS)])

    graph.node(run=PROGRAM, name="flow", input=lambda params: [[child_program(params)], []])
    graph.node(run=CHAIN, name="relay", input=lambda params: params[5])
    graph.node(run=GRAPH, name="nested", after=[source], input=nested_params)
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
