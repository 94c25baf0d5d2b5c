"""The authoring model of graphs: how runs of graphs are displayed, and the units of a successor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.core import codec
from holdfast.core.limits import Limits
from holdfast.core.records import PlannedStep, StepRecord
from holdfast.core.retention import Retention
from holdfast.graph import history, views
from holdfast.graph.definition import Graph
from holdfast.graph.node_rules import GraphDriver
from holdfast.graph.repair import GraphRepairRules, resolve
from holdfast.kernel.definition import Definition
from holdfast.kernel.model import Model, RecordedRun, UnitModel
from holdfast.kernel.repair import Resolution
from holdfast.store.protocol import GRAPH, Advance, Fact, NewUnit, RunRecord, Store

if TYPE_CHECKING:
    from holdfast.core.redaction import Redaction
    from holdfast.graph.inspection import GraphInspection
    from holdfast.kernel.inspection import Subject
    from holdfast.kernel.requests import Requests


class GraphUnitModel(UnitModel):
    async def successor_units(self, store: Store, run: RunRecord) -> Sequence[NewUnit]:
        return (await views.shape(store, run)).units

    async def facts(self, store: Store, run: RunRecord, prefix: str) -> dict[str, Any]:
        return await views.facts(store, run, prefix)

    async def results(self, store: Store, run: RunRecord) -> dict[str, Any]:
        return await views.results(store, run)

    async def draw_run(self, store: Store, run: RunRecord) -> str:
        return await views.draw_run(store, run)

    def resolve(self, run: RecordedRun, resolution: Resolution) -> Advance:
        return resolve(run, resolution)

    def draw_definition(self, definition: Definition) -> str:
        return views.draw_definition(definition)


class GraphModel(Model):
    kind = GRAPH
    step_states = history.NodeState
    units = GraphUnitModel()
    repair = GraphRepairRules()

    def steps(self, run: RecordedRun) -> list[StepRecord]:
        return history.nodes_of(run.row.number, run.facts)

    def current_step(self, steps: Sequence[StepRecord]) -> StepRecord | None:
        return history.current_node(steps)

    def why(self, run: RecordedRun, steps: Sequence[StepRecord], now_ms: int) -> str | None:
        """The sentence for a run whose units are not all done. Unit 0 is due when all units are done."""
        if run.row.run_at is not None:
            return None
        nodes = views.shape_of(run.facts).nodes if steps else ()
        runs = {node.name: node.run for node in nodes if node.run is not None}
        return history.why(steps, now_ms, run.positions, runs)

    def planned(self, facts: Sequence[Fact]) -> Sequence[PlannedStep]:
        if not facts:
            return ()
        return [PlannedStep(node.name, node.after, node.map, node.run) for node in views.shape_of(facts).nodes]

    def started_at(self, run: RecordedRun) -> int | None:
        return views.started_at(run.facts)

    def killed(self, run: RecordedRun) -> bool:
        return views.killed(run.facts)


def define(
    graph: Graph[Any], limits: Limits, *, pinned: bool = False, retention: Retention | None = None
) -> Definition:
    """The definition of a graph as it is now. A graph that gets another node needs a new definition."""
    return Definition(
        graph.name,
        GRAPH,
        None,
        graph.decode_params,
        codec.decoder(Any),
        params_type=graph.params_type,
        version=graph.version,
        blueprint=graph.blueprint,
        unit_driver=GraphDriver(graph, limits),
        inspect=partial(_inspect, graph),
        check=graph.check_types,
        annotations=graph.annotations,
        pinned=pinned,
        retention=retention,
    )


def _inspect(graph: Graph[Any], subject: Subject, requests: Requests, redaction: Redaction) -> GraphInspection:
    from holdfast.graph.inspection import GraphInspection  # noqa: PLC0415  (loaded to look at runs)

    return GraphInspection(graph, subject, requests, redaction)
