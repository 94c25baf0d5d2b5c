"""Inspection of graphs: a graph has no code to replay, so a position is the state that a number of facts gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core import codec
from holdfast.core.facts import Fact, FactState
from holdfast.core.frames import function_info, position_of_function
from holdfast.core.model import StepType
from holdfast.core.records import StepRecord
from holdfast.core.redaction import Redaction
from holdfast.core.views import PendingRequest, TaskStack
from holdfast.errors import ParamsInvalidError
from holdfast.graph.history import NodeState, nodes_of
from holdfast.graph.node_spec import PARAMS, Function, NodeSpec
from holdfast.graph.shape import NodeShape, Shape
from holdfast.kernel.fact_inspection import FactInspection
from holdfast.kernel.fact_order import in_order
from holdfast.kernel.inspection import Difference, DifferenceKind, Subject
from holdfast.kernel.unit_driver import PLAN_KEY

if TYPE_CHECKING:
    from holdfast.graph.definition import Graph
    from holdfast.kernel.requests import Requests

_OPEN = (NodeState.STARTED, NodeState.RETRYING)
_DONE = (NodeState.OK, NodeState.ERROR, NodeState.SKIPPED)


class GraphInspection(FactInspection):
    """A run of a graph at a position in its history."""

    def __init__(self, graph: Graph[Any], subject: Subject, requests: Requests, redaction: Redaction) -> None:
        super().__init__(subject, redaction)
        self._graph = graph
        self._requests = requests
        meta = next((fact.value for fact in self._plan if fact.key == PLAN_KEY), None)
        self._shape = Shape([] if meta is None else Shape.of_meta(meta).nodes)
        self.facts: Sequence[Fact] = in_order(subject.snapshot.facts, lambda key: self._shape.number.get(_node(key), 0))

    def _nodes(self) -> list[StepRecord]:
        return nodes_of(self._subject.run.number, self._replayed())

    # --- where it is

    def tasks(self, *, all: bool = False) -> list[TaskStack]:
        """The nodes and items that have started. A mapped node whose items run is not shown itself."""
        started = [node for node in self._nodes() if node.state in _OPEN]
        mapped = {_node(node.step_key) for node in started if node.step_key.endswith("]")}
        return [self._task(node) for node in started if node.step_key not in mapped]

    def _task(self, node: StepRecord) -> TaskStack:
        spec = self._graph.specs.get(_node(node.step_key))
        frames = []
        if spec is not None and spec.function is not None:
            frames = [function_info(spec.function.call, self._arguments(spec, node.step_key), self._redaction)]
        return TaskStack(node.step_key, frames, str(self._request(node)))

    def _arguments(self, spec: NodeSpec, key: str) -> dict[str, Any]:
        """The arguments of a node as plain JSON."""
        results = _results(self.facts[: self.position])
        results[PARAMS] = codec.plain(self._subject.run.params)
        names = () if spec.function is None else (parameter.name for parameter in spec.function.parameters)
        arguments = {name: results[name] for name in names if name in results}
        if spec.map in arguments and key.endswith("]"):
            arguments[spec.map] = arguments[spec.map][int(key[:-1].rpartition("[")[2])]
        return arguments

    def pending(self) -> list[PendingRequest]:
        """The nodes and items that have started, and those that can start."""
        nodes = self._nodes()
        done = {node.step_key for node in nodes if node.state in _DONE}
        after = {node.name: node.after for node in self._shape.nodes}
        return [
            self._request(node)
            for node in nodes
            if node.state in _OPEN
            or (node.state == NodeState.PENDING and done.issuperset(after.get(node.step_key, [node.step_key])))
        ]

    def _request(self, node: StepRecord) -> PendingRequest:
        spec = self._graph.specs.get(_node(node.step_key))
        child = None if spec is None else spec.run
        function = None if spec is None or spec.function is None else spec.function.call
        return PendingRequest(
            step_key=node.step_key,
            type=(StepType.NODE if child is None else StepType.CHILD).value,
            name=child or node.step_key,
            wake_at=node.next_retry_at,
            attempts=max(0, node.attempts - (node.state == NodeState.STARTED)),
            recorded=node.state != NodeState.PENDING,
            position=None if function is None else position_of_function(function),
        )

    # --- differences

    def differences(self) -> list[Difference]:
        facts = self._subject.snapshot.facts
        if any(fact.state == FactState.TOMBSTONE for fact in facts):
            return []
        done = {fact.key for fact in facts if fact.state == FactState.RESULT}
        return [found for node in self._shape.nodes if node.name not in done for found in self._node_differences(node)]

    def _node_differences(self, node: NodeShape) -> Iterator[Difference]:
        spec = self._graph.specs.get(node.name)
        if spec is None or (spec.run, spec.map) != (node.run, node.map):
            how = "has no such node" if spec is None else "has changed it: another map= or run="
            yield Difference(
                DifferenceKind.PARKED,
                f"the plan of the run has node {node.name!r}, and graph {self._graph.name!r} {how}",
            )
            return
        if spec.run is not None and not self._requests.knows(spec.run):
            text = f"node {node.name!r} starts {spec.run!r}, and no workflow of this name is registered"
            yield Difference(DifferenceKind.FAILED, text)
        for what, function in spec.functions:
            yield from self._unfit_arguments(node, what, function)

    def _unfit_arguments(self, node: NodeShape, what: str, function: Function) -> Iterator[Difference]:
        results = _results(self._subject.snapshot.facts)
        results[PARAMS] = codec.plain(self._subject.run.params)
        for parameter in function.parameters:
            if parameter.name not in results:
                continue
            value = results[parameter.name]
            as_items = parameter.name == node.map and what != "its when=" and isinstance(value, list)
            for passed in value if as_items else [value]:
                try:
                    parameter.decode(passed)
                except ParamsInvalidError as error:
                    source = "recorded params" if parameter.name == PARAMS else f"recorded result of {parameter.name!r}"
                    yield Difference(
                        DifferenceKind.VALUE,
                        f"the {source} does not fit parameter {parameter.name!r} of node {node.name!r}: {error}",
                    )
                    return


def _node(key: str) -> str:
    """The node of a key, which may be that of an item."""
    return key.partition("[")[0]


def _results(facts: Sequence[Fact]) -> dict[str, Any]:
    return {fact.key: codec.plain(fact.value) for fact in facts if fact.state == FactState.RESULT and fact.ok}
