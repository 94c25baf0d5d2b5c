"""Rules of a graph's nodes: what a claimed node does, and what its outcome changes for other nodes.

This module does no I/O; the runner reads facts and writes the returned ``Advance``.

A node that is mapped over a list is claimed twice: first it creates a unit for each item; when all items have ended, it
combines their results or fails with their errors. A node that starts another run is released until the exit event of
that run arrives; the owner of unit 0 then writes the node's result.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from holdfast.core import codec, failure
from holdfast.core.failure import Failure
from holdfast.core.jitter import retry_jitter
from holdfast.core.limits import Limits
from holdfast.core.model import Status
from holdfast.errors import DamagedRunError, DefinitionError, ParamsInvalidError
from holdfast.graph import outcomes
from holdfast.graph.definition import Graph
from holdfast.graph.items import collected, error_of, values_of
from holdfast.graph.node_spec import PARAMS, Function, NodeSpec
from holdfast.graph.outcomes import NODE, SKIPPED
from holdfast.graph.shape import MAX_ITEMS, NodeShape, Shape, UnitPosition
from holdfast.kernel.attempt import NO_VALUES, StepTx, Transaction
from holdfast.kernel.driver import Call, Outcome
from holdfast.kernel.options import RunOptions
from holdfast.kernel.requests import Requests
from holdfast.kernel.unit_driver import Needs
from holdfast.store.protocol import (
    Advance,
    Delivery,
    Fact,
    FactState,
    Finish,
    LimitKey,
    MissingDecrement,
    NewRun,
    NewUnit,
    RunRecord,
    StoredEvent,
    TaskRef,
    UnitRelease,
)


class GraphDriver:
    """Opens runs of one graph."""

    def __init__(self, graph: Graph[Any], limits: Limits) -> None:
        self._graph = graph
        self._limits = limits

    def open(self, run: RunRecord, plan: bytes, requests: Requests) -> GraphUnits:
        return GraphUnits(self._graph, run, Shape.of_meta(plan), requests, self._limits)

    def check_result(self, key: str, value: bytes) -> bytes:
        node, bracket, _ = key.partition("[")
        spec = self._graph.specs.get(node)
        if spec is None or spec.function is None:
            return value
        decode = spec.decode if bracket or spec.map is None else codec.decoder(spec.returns)
        return codec.check_result(f"result of node {key!r}", codec.plain(value), value, decode)


@dataclass(slots=True, eq=False)
class NodeCall:
    """One attempt of a node, or of one of its items."""

    key: str
    attempt: int
    kwargs: Mapping[str, Any]
    values: Mapping[str, Any]
    spec: NodeSpec
    function: Any
    limit: int
    args: tuple[Any, ...] = ()
    wants_tx: type[StepTx] | type[Transaction] | None = None
    progress: bytes | None = None

    @property
    def max_attempts(self) -> int | None:
        return self.spec.retry.max_attempts

    @property
    def is_async(self) -> bool:
        return self.spec.is_async

    @property
    def timeout_ms(self) -> int | None:
        return self.spec.timeout_ms

    @property
    def limited_by(self) -> Sequence[LimitKey]:
        return [limit.of_arguments((), self.kwargs, self.kwargs) for limit in self.spec.limits]

    def arguments(self, tx: StepTx | Transaction) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        raise RuntimeError("a node has no transaction")

    def record(self, value: Any) -> tuple[bytes, Any]:
        return codec.record(value, self.spec.decode, self.limit, "node", self.key)

    def start_fact(self, attempt: int, at: int) -> Fact | None:
        return None  # the claim of the unit writes the START fact


class GraphUnits:
    """The nodes of one run."""

    def __init__(self, graph: Graph[Any], run: RunRecord, shape: Shape, requests: Requests, limits: Limits) -> None:
        self._graph = graph
        self._run = run
        self._shape = shape
        self._requests = requests
        self._limits = limits
        self._options = RunOptions.decode(run.options)
        self._mapped_lists: dict[str, list[Any]] = {}
        """Decoded results of nodes that others are mapped over, by name: decoded once, not for each item."""

    def key(self, unit: int) -> str:
        return self._shape.key(unit)

    def units(self) -> Sequence[NewUnit]:
        return self._shape.units

    def needs(self, unit: int) -> Needs:
        position = UnitPosition.of(unit)
        node = self._shape.node(position.node)
        results = [name for name in node.after if position.item is None or name not in self._mapped_lists]
        return Needs(results, node.name if node.map is not None and position.item is None else None)

    # --- beginning

    def begin(
        self, task: TaskRef, results: Mapping[str, Fact], items: Sequence[Fact], now_ms: int
    ) -> Call | NewRun | Advance:
        position = UnitPosition.of(task.unit)
        node = self._shape.node(position.node)
        spec = self._spec(node)
        if position.item is not None and node.map is not None and node.map not in self._mapped_lists:
            self._mapped_lists[node.map] = codec.plain(results[node.map].value)
        if node.map is not None and position.item is None:
            if items:
                return self._combine_items(task, node, items, now_ms)
        elif spec.retry.max_attempts is not None and task.epoch > spec.retry.max_attempts:
            exceeded = failure.max_attempts_exceeded(self.key(task.unit), task.epoch - 1)
            return self._fail_permanently(task, exceeded, now_ms, now_ms, task.epoch - 1)
        try:
            return self._begin(task, position, node, spec, results, now_ms)
        except DamagedRunError:  # the worker parks the run
            raise
        except Exception as error:  # an error of a user's predicate, or a value that does not fit its parameter
            return self._fail_attempt(task, Failure.of(error), now_ms, now_ms)

    def _spec(self, node: NodeShape) -> NodeSpec:
        spec = self._graph.specs.get(node.name)
        if spec is None or (spec.run, spec.map) != (node.run, node.map):
            raise DefinitionError(
                f"node {node.name!r} of graph {self._graph.name!r} is missing or changed in this process, but this "
                "run was started with it; deploy the old node again and resume the run"
            )
        return spec

    def _begin(
        self,
        task: TaskRef,
        position: UnitPosition,
        node: NodeShape,
        spec: NodeSpec,
        results: Mapping[str, Fact],
        now_ms: int,
    ) -> Call | NewRun | Advance:
        values = _ParameterValues(self._run, results, self._mapped_lists)
        if position.item is None:
            if spec.when is not None and not spec.when.call(**self._arguments(spec.when, values)):
                return outcomes.skipped(self._shape, task, now_ms)
            if node.map is not None:
                return self._create_item_units(task, node, values, now_ms)
        else:
            values = values.with_item(node.map or "", position.item)
        if node.run is not None:
            return self._new_child(task, node.run, spec.input, values, node)
        if spec.function is None:
            raise DefinitionError(f"node {node.name!r} has nothing to run")
        return NodeCall(
            key=self.key(task.unit),
            attempt=task.epoch,
            kwargs=self._arguments(spec.function, values),
            values=MappingProxyType(self._options.context) if self._options.context else NO_VALUES,
            spec=spec,
            function=spec.function.call,
            limit=self._limits.result,
        )

    def _arguments(self, function: Function, values: _ParameterValues) -> dict[str, Any]:
        arguments = {}
        for parameter in function.parameters:
            if not parameter.required and not values.has(parameter.name):
                continue
            try:
                arguments[parameter.name] = parameter.decode(values[parameter.name])
            except ParamsInvalidError as error:
                raise ParamsInvalidError(f"parameter {parameter.name!r}: {error}", error.issues) from None
        return arguments

    def _create_item_units(self, task: TaskRef, node: NodeShape, values: _ParameterValues, now_ms: int) -> Advance:
        """Create a unit for each item. The node is due again when all of them have ended."""
        items = values[node.map or ""]
        if not isinstance(items, list):
            raise TypeError(f"node {node.name!r} is mapped over {node.map!r}, whose result is not a list")
        if len(items) > MAX_ITEMS:
            raise ValueError(f"node {node.name!r} is mapped over {len(items)} items; at most {MAX_ITEMS} are possible")
        self._mapped_lists[node.map or ""] = items
        if not items:
            return self._complete(task, b"[]", now_ms, now_ms)
        units = [UnitPosition(task.unit, n).unit for n in range(len(items))]
        return Advance(
            task, new_units=[NewUnit(unit, self.key(unit)) for unit in units], release=UnitRelease(missing=len(units))
        )

    def _combine_items(self, task: TaskRef, node: NodeShape, items: Sequence[Fact], now_ms: int) -> Advance:
        items = sorted(items, key=lambda item: item.n)
        if node.collects:
            return self._complete(task, collected(items), now_ms, now_ms)
        error = error_of(items)
        if error is not None:
            attempts = max(1, task.epoch - 1)  # the claim that combines the items is not an attempt
            return self._fail_permanently(task, error, now_ms, now_ms, attempts)
        return self._complete(task, values_of(items), now_ms, now_ms)

    # --- other runs as nodes

    def _new_child(
        self, task: TaskRef, workflow: str, make_input: Function | None, values: _ParameterValues, node: NodeShape
    ) -> NewRun:
        new = self._requests.new_run(
            workflow,
            _default_input(values, node)
            if make_input is None
            else make_input.call(**self._arguments(make_input, values)),
            id=self._child_id(task.unit),
            context=self._options.context or None,
        )
        new.parent, new.parent_run, new.sender = self._run.pid, self._run.run, self._run.pid
        return new

    def _child_id(self, unit: int) -> str:
        """The instance id of a child, unique for each run and unit. ``_unit_of_child`` finds the unit in it."""
        run = self._run
        text = f"{run.seed}/{run.pid}/{run.number}/{unit}"
        return f"{hashlib.sha256(text.encode()).hexdigest()[:24]}-{unit}"

    def started(self, task: TaskRef) -> Advance:
        # ``missing`` is never decremented: the unit is removed when its result is written.
        return Advance(task, release=UnitRelease(missing=1))

    def exited(self, task: TaskRef, events: Sequence[StoredEvent], now_ms: int) -> Advance:
        advance = Advance(task, release=UnitRelease())
        facts: list[Fact] = []
        results: list[Fact] = []
        decrements: list[MissingDecrement] = []
        removed_units: list[int] = []
        for event in events:
            unit = self._unit_of_child(event.sender)
            if unit is None:
                continue
            part = self._child_ended(TaskRef(task.run, unit, task.owner, 1), event, now_ms)
            facts += part.facts
            results += part.results
            decrements += part.decrements
            removed_units += [unit, *part.removed_units]
        advance.facts, advance.results = facts, results
        advance.decrements, advance.removed_units = decrements, removed_units
        advance.deliveries = [Delivery(event.n, event.sender or "", now_ms) for event in events]
        return advance

    def _unit_of_child(self, pid: str | None) -> int | None:
        text = (pid or "").rpartition("-")[2]
        unit = int(text) if text.isascii() and text.isdigit() else 0
        is_node = 0 < UnitPosition.of(unit).node <= len(self._shape.nodes)
        return unit if is_node and (pid or "").endswith(f"/{self._child_id(unit)}") else None

    def _child_ended(self, task: TaskRef, event: StoredEvent, now_ms: int) -> Advance:
        content = codec.plain(event.payload)
        if content["status"] == Status.COMPLETE:
            output = codec.encode(content["output"], what="output")
            return self._complete(task, output, event.created_at, now_ms)
        if content["error"] is not None:
            error = Failure.from_content(content["error"])
        else:
            reason = content.get("note") or "no reason given"
            error = Failure("Terminated", f"the run was terminated ({reason})", kind="Terminated", retryable=False)
        child = replace(error, name="ChildError", message=f"{event.sender} ended {content['status']}: {error.message}")
        return self._fail_permanently(task, child, event.created_at, now_ms, 1)

    # --- outcomes

    def ended(self, task: TaskRef, outcome: Outcome) -> Advance:
        if outcome.failure is not None:
            advance = self._fail_attempt(task, outcome.failure, outcome.started_at, outcome.at)
        else:
            advance = self._complete(task, outcome.value, outcome.started_at, outcome.at)
        advance.logs = outcome.logs
        return advance

    def _complete(self, task: TaskRef, value: bytes | None, started_at: int, at: int) -> Advance:
        return outcomes.completed(self._shape, task, value, started_at, at, task.epoch)

    def _fail_attempt(self, task: TaskRef, error: Failure, started_at: int, at: int) -> Advance:
        position = UnitPosition.of(task.unit)
        retry = self._spec(self._shape.node(position.node)).retry
        final = error.retryable is False or not retry.retries(error.lineage or (error.name,))
        if final or not retry.allows(task.epoch):
            return self._fail_permanently(task, error, started_at, at, task.epoch)
        key = self.key(task.unit)
        jitter = retry_jitter(self._run.seed, key, task.epoch)
        retry_at = at + retry.delay_after(task.epoch, jitter)
        fact = Fact(
            FactState.FAILURE, key, task.epoch, NODE, at, started_at, ok=False, value=error.encode(),
            attempts=task.epoch, max_attempts=retry.max_attempts, wake_at=retry_at,
        )  # fmt: skip
        return Advance(task, facts=[fact], release=UnitRelease(retry_at))

    def _fail_permanently(self, task: TaskRef, error: Failure, started_at: int, at: int, attempts: int) -> Advance:
        return outcomes.failed(self._shape, task, error.encode(), started_at, at, attempts)

    # --- the end

    def finish(self, results: Sequence[Fact], now_ms: int) -> Finish | None:
        if len(results) < len(self._shape.nodes):
            return None
        # The first failed node in the order of the graph, so that the error does not depend on timing.
        number = self._shape.number
        failed = min((fact for fact in results if not fact.ok), key=lambda fact: number[fact.key], default=None)
        if failed is None:
            return self._with_successor(Finish(Status.COMPLETE, output=self._output(results)), now_ms)
        cause = Failure.decode(failed.value or b"{}")
        error = Failure(
            "NodeFailedError", f"node {failed.key!r} failed: {cause.name}: {cause.message}", cause.kind,
            cause.retryable, {"node": failed.key}, cause=replace(cause, traceback=None), traceback=cause.traceback,
        )  # fmt: skip
        return self._with_successor(Finish(Status.ERRORED, error=error.encode()), now_ms, retryable=cause.retryable)

    def _output(self, results: Sequence[Fact]) -> bytes | None:
        """All results by node name. None if that would be too large: the results can be read one by one."""
        parts = [
            codec.encode(fact.key, what="name") + b":" + (fact.value or b"null")
            for fact in results
            if fact.kind != SKIPPED
        ]
        output = b"{" + b",".join(parts) + b"}"
        return output if len(output) <= self._limits.output else None

    def _with_successor(self, finish: Finish, now_ms: int, *, retryable: bool | None = False) -> Finish:
        if self._options.retry is None and self._options.cron is None:
            return finish
        chance = retry_jitter(self._run.seed, "", self._run.attempt)
        successor = self._options.successor(
            self._run, finish, retryable=retryable is not False, now=now_ms, chance=chance
        )
        return finish if successor is None else replace(finish, next=replace(successor, units=self.units()))


class _ParameterValues:
    """Values for parameters, as plain JSON: the run's input and the results of predecessors."""

    def __init__(
        self,
        run: RunRecord,
        results: Mapping[str, Fact],
        lists: Mapping[str, list[Any]],
        item: tuple[str, int] | None = None,
    ) -> None:
        self._run = run
        self._results = results
        self._mapped_lists = lists
        self._item = item

    def with_item(self, name: str, index: int) -> _ParameterValues:
        return _ParameterValues(self._run, self._results, self._mapped_lists, (name, index))

    def has(self, name: str) -> bool:
        return self._run.params is not None if name == PARAMS else name in self._results or name in self._mapped_lists

    def __getitem__(self, name: str) -> Any:
        if name == PARAMS:
            return codec.plain(self._run.params)
        if self._item is not None and name == self._item[0]:
            # A copy, so that the next attempt gets the item unchanged.
            return copy.deepcopy(self._mapped_lists[name][self._item[1]])
        if name in self._results:
            return codec.plain(self._results[name].value)
        return copy.deepcopy(self._mapped_lists[name])


def _default_input(values: _ParameterValues, node: NodeShape) -> Any:
    """The input of a child run without ``input=``: the predecessor's result, or the results of several by name.

    A node without predecessors passes the input of its own run.
    """
    if not node.after:
        return values[PARAMS] if values.has(PARAMS) else None
    return values[node.after[0]] if len(node.after) == 1 else {name: values[name] for name in node.after}
