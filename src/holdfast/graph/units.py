"""What a node does and what follows from it: results, openings, skips. Pure; the runner reads and writes.

A node that is mapped over a list is claimed twice: first it adds a unit for each item, then, when all have ended, it
puts their results together, or fails with their errors. A node that starts another run waits, held by nobody, until the
end of that run comes as mail; whoever holds unit 0 then writes its result.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from holdfast.core import codec, failure
from holdfast.core.failure import Failure
from holdfast.core.limits import Limits
from holdfast.core.model import Status
from holdfast.errors import DefinitionError, ParamsInvalidError
from holdfast.graph.definition import PARAMS, Function, Graph, NodeSpec
from holdfast.graph.items import collected, error_of, values_of
from holdfast.graph.shape import MOST_ITEMS, NodeShape, Place, Shape
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.kernel.driver import Call, Outcome
from holdfast.kernel.options import RunOptions
from holdfast.kernel.requests import Requests
from holdfast.kernel.units import Needs
from holdfast.store.protocol import (
    Advance,
    Delivery,
    Fact,
    FactState,
    Finish,
    GiveBack,
    Mail,
    NewRun,
    NewUnit,
    Opening,
    RunRecord,
    TaskRef,
)

NODE = "node"
SKIPPED = "skipped"


class GraphDriver:
    """Opens runs of one graph."""

    def __init__(self, graph: Graph[Any], limits: Limits) -> None:
        self._graph = graph
        self._limits = limits

    def open(self, run: RunRecord, plan: bytes, requests: Requests) -> GraphUnits:
        return GraphUnits(self._graph, run, Shape.of_meta(plan), requests, self._limits)


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

    def arguments(self, tx: StepTx | Transaction) -> tuple[tuple[Any, ...], Mapping[str, Any]]:  # noqa: ARG002
        raise RuntimeError("a node has no transaction")

    def record(self, value: Any) -> tuple[bytes, Any]:
        what = f"result of node {self.key!r}"
        data = codec.encode(value, what=what, limit=self.limit)
        return data, codec.recorded(what, value, data, self.spec.decode)

    def note(self, attempt: int, at: int) -> Fact | None:  # noqa: ARG002
        return None  # its START was written with the claim


class GraphUnits:
    """The nodes of one run."""

    def __init__(self, graph: Graph[Any], run: RunRecord, shape: Shape, requests: Requests, limits: Limits) -> None:
        self._graph = graph
        self._run = run
        self._shape = shape
        self._requests = requests
        self._limits = limits
        self._options = RunOptions.decode(run.options)
        self._lists: dict[str, list[Any]] = {}
        """Of nodes that others are mapped over: read once, and not for each item."""

    def key(self, unit: int) -> str:
        return self._shape.key(unit)

    def units(self) -> Sequence[NewUnit]:
        return self._shape.units

    def needs(self, unit: int) -> Needs:
        place = Place.of(unit)
        node = self._shape.node(place.node)
        results = [name for name in node.after if place.item is None or name not in self._lists]
        return Needs(results, node.name if node.map is not None and place.item is None else None)

    # --- beginning

    def begin(
        self, task: TaskRef, results: Mapping[str, Fact], items: Sequence[Fact], now_ms: int
    ) -> Call | NewRun | Advance:
        place = Place.of(task.unit)
        node = self._shape.node(place.node)
        spec = self._spec(node)
        if place.item is not None and node.map is not None and node.map not in self._lists:
            self._lists[node.map] = codec.plain(results[node.map].value)
        if node.map is not None and place.item is None:
            if items:
                return self._gathered(task, node, items, now_ms)
        elif spec.retry.max_attempts is not None and task.epoch > spec.retry.max_attempts:
            used_up = failure.attempts_used_up(self.key(task.unit), task.epoch - 1)
            return self._failed_for_good(task, used_up, now_ms, now_ms, task.epoch - 1)
        try:
            return self._begin(task, place, node, spec, results, now_ms)
        except Exception as error:  # a user's predicate, or an input that does not fit
            return self._failed(task, Failure.of(error), now_ms, now_ms)

    def _spec(self, node: NodeShape) -> NodeSpec:
        spec = self._graph.specs.get(node.name)
        if spec is None or (spec.run, spec.map) != (node.run, node.map):
            raise DefinitionError(
                f"graph {self._graph.name!r} has no such node {node.name!r} in this process any more, and this run was "
                "started with one; deploy it again and resume the run"
            )
        return spec

    def _begin(
        self, task: TaskRef, place: Place, node: NodeShape, spec: NodeSpec, results: Mapping[str, Fact], now_ms: int
    ) -> Call | NewRun | Advance:
        known = _Values(self._run, results, self._lists)
        if place.item is None:
            if spec.when is not None and not spec.when.call(**self._arguments(spec.when, known)):
                return self._skipped(task, now_ms)
            if node.map is not None:
                return self._spread(task, node, known, now_ms)
        else:
            known = known.with_item(node.map or "", place.item)
        if node.run is not None:
            return self._child(task, node.run, spec.input, known, node)
        if spec.function is None:
            raise DefinitionError(f"node {node.name!r} has nothing to run")
        return NodeCall(
            key=self.key(task.unit),
            attempt=task.epoch,
            kwargs=self._arguments(spec.function, known),
            values=self._options.context,
            spec=spec,
            function=spec.function.call,
            limit=self._limits.result,
        )

    def _arguments(self, function: Function, known: _Values) -> dict[str, Any]:
        given = {}
        for parameter in function.parameters:
            if not parameter.required and not known.has(parameter.name):
                continue
            try:
                given[parameter.name] = parameter.decode(known[parameter.name])
            except ParamsInvalidError as error:
                raise ParamsInvalidError(f"parameter {parameter.name!r}: {error}", error.issues) from None
        return given

    def _spread(self, task: TaskRef, node: NodeShape, known: _Values, now_ms: int) -> Advance:
        """A unit for each item, after which the node itself is due again."""
        items = known[node.map or ""]
        if not isinstance(items, list):
            raise TypeError(f"node {node.name!r} is mapped over {node.map!r}, whose result is no list")
        if len(items) > MOST_ITEMS:
            raise ValueError(f"node {node.name!r} is mapped over {len(items)} items; at most {MOST_ITEMS} are possible")
        self._lists[node.map or ""] = items
        if not items:
            return self._done(task, b"[]", now_ms, now_ms)
        units = [Place(task.unit, n).unit for n in range(len(items))]
        return Advance(task, adds=[NewUnit(unit, self.key(unit)) for unit in units], then=GiveBack(missing=len(units)))

    def _gathered(self, task: TaskRef, node: NodeShape, items: Sequence[Fact], now_ms: int) -> Advance:
        items = sorted(items, key=lambda item: item.n)
        if node.collects:
            return self._done(task, collected(items), now_ms, now_ms)
        error = error_of(items)
        if error is not None:
            return self._failed_for_good(task, error, now_ms, now_ms, task.epoch)
        return self._done(task, values_of(items), now_ms, now_ms)

    # --- other runs as nodes

    def _child(
        self, task: TaskRef, workflow: str, make_input: Function | None, known: _Values, node: NodeShape
    ) -> NewRun:
        new = self._requests.new_run(
            workflow,
            _sole_input(known, node) if make_input is None else make_input.call(**self._arguments(make_input, known)),
            id=self._child_id(task.unit),
            context=self._options.context or None,
        )
        new.parent, new.parent_run, new.sender = self._run.pid, self._run.run, self._run.pid
        return new

    def _child_id(self, unit: int) -> str:
        """Another one for each run and unit, from which the unit can be told."""
        run = self._run
        text = f"{run.seed}/{run.pid}/{run.number}/{unit}"
        return f"{hashlib.sha256(text.encode()).hexdigest()[:24]}-{unit}"

    def started(self, task: TaskRef) -> Advance:
        return Advance(task, then=GiveBack(missing=1))  # which nobody opens: it goes with its result

    def exited(self, keeper: TaskRef, mail: Sequence[Mail], now_ms: int) -> Advance:
        whole = Advance(keeper, then=GiveBack())
        facts: list[Fact] = []
        results: list[Fact] = []
        opens: list[Opening] = []
        drops: list[int] = []
        for one in mail:
            unit = self._unit_of(one.sender)
            if unit is None:
                continue
            part = self._child_ended(TaskRef(keeper.run, unit, keeper.owner, 1), one, now_ms)
            facts += part.facts
            results += part.results
            opens += part.opens
            drops += [unit, *part.drops]
        whole.facts, whole.results, whole.opens, whole.drops = facts, results, opens, drops
        whole.deliveries = [Delivery(one.n, one.sender or "", now_ms) for one in mail]
        return whole

    def _unit_of(self, pid: str | None) -> int | None:
        text = (pid or "").rpartition("-")[2]
        unit = int(text) if text.isascii() and text.isdigit() else 0
        known = 0 < Place.of(unit).node <= len(self._shape.nodes)
        return unit if known and (pid or "").endswith(f"/{self._child_id(unit)}") else None

    def _child_ended(self, task: TaskRef, mail: Mail, now_ms: int) -> Advance:
        content = codec.plain(mail.payload)
        if content["status"] == Status.COMPLETE:
            output = codec.encode(content["output"], what="output")
            return self._done(task, output, mail.created_at, now_ms)
        if content["error"] is not None:
            error = Failure.from_content(content["error"])
        else:
            reason = content.get("note") or "no reason given"
            error = Failure("Terminated", f"it was terminated ({reason})", kind="Terminated", retryable=False)
        child = replace(error, name="ChildError", message=f"{mail.sender} ended {content['status']}: {error.message}")
        return self._failed_for_good(task, child, mail.created_at, now_ms, 1)

    # --- what follows

    def ended(self, task: TaskRef, outcome: Outcome) -> Advance:
        if outcome.failure is not None:
            advance = self._failed(task, outcome.failure, outcome.started_at, outcome.at)
        else:
            advance = self._done(task, outcome.value, outcome.started_at, outcome.at)
        advance.logs = outcome.logs
        return advance

    def _done(self, task: TaskRef, value: bytes | None, started_at: int, at: int) -> Advance:
        place = Place.of(task.unit)
        name = self._shape.node(place.node).name
        if place.item is not None:
            return _item_ended(task, name, at, started_at, ok=True, value=value, attempts=task.epoch)
        return Advance(
            task,
            results=[_result(name, at, started_at, value=value, attempts=task.epoch)],
            opens=[Opening(n) for n in self._shape.successors(place.node)],
        )

    def _failed(self, task: TaskRef, error: Failure, started_at: int, at: int) -> Advance:
        place = Place.of(task.unit)
        retry = self._spec(self._shape.node(place.node)).retry
        final = error.retryable is False or not retry.retries(error.lineage or (error.name,))
        if final or not retry.allows(task.epoch):
            return self._failed_for_good(task, error, started_at, at, task.epoch)
        key = self.key(task.unit)
        jitter = Random(f"{self._run.seed}/{key}/{task.epoch}").random()  # noqa: S311  (spreads retries)
        again = at + retry.delay_after(task.epoch, jitter)
        fact = Fact(
            FactState.FAILURE, key, task.epoch, NODE, at, started_at, ok=False, value=error.encode(),
            attempts=task.epoch, max_attempts=retry.max_attempts, wake_at=again,
        )  # fmt: skip
        return Advance(task, facts=[fact], then=GiveBack(again))

    def _failed_for_good(self, task: TaskRef, error: Failure, started_at: int, at: int, attempts: int) -> Advance:
        """Its descendants will not run. Everything else does, the other items of a mapped node included."""
        place = Place.of(task.unit)
        name, value = self._shape.node(place.node).name, error.encode()
        if place.item is not None:
            return _item_ended(task, name, at, started_at, ok=False, value=value, attempts=attempts)
        fact = _result(name, at, started_at, ok=False, value=value, attempts=attempts)
        return self._without_descendants(task, place.node, fact)

    def _skipped(self, task: TaskRef, now_ms: int) -> Advance:
        name = self._shape.node(task.unit).name
        return self._without_descendants(task, task.unit, _result(name, now_ms, now_ms, kind=SKIPPED))

    def _without_descendants(self, task: TaskRef, number: int, fact: Fact) -> Advance:
        below = self._shape.descendants(number)
        skips = [_result(self._shape.node(n).name, fact.at, fact.at, kind=SKIPPED) for n in below]
        return Advance(task, results=[fact, *skips])  # the skipped miss something for ever

    # --- the end

    def finish(self, results: Sequence[Fact], now_ms: int) -> Finish | None:
        if len(results) < len(self._shape.nodes):
            return None
        # The first of the graph, not of the clock: what a run ends with does not depend on who was quicker.
        number = self._shape.number
        failed = min((fact for fact in results if not fact.ok), key=lambda fact: number[fact.key], default=None)
        if failed is None:
            return self._with_next(Finish(Status.COMPLETE, output=self._output(results)), now_ms)
        cause = Failure.decode(failed.value or b"{}")
        error = Failure(
            "NodeFailedError", f"node {failed.key!r} failed: {cause.name}: {cause.message}", cause.kind,
            cause.retryable, {"node": failed.key}, cause=replace(cause, traceback=None), traceback=cause.traceback,
        )  # fmt: skip
        return self._with_next(Finish(Status.ERRORED, error=error.encode()), now_ms, retryable=cause.retryable)

    def _output(self, results: Sequence[Fact]) -> bytes | None:
        """All results by name; of one that would be too large nothing, for they are there one by one."""
        parts = [
            codec.encode(fact.key, what="name") + b":" + (fact.value or b"null")
            for fact in results
            if fact.kind != SKIPPED
        ]
        whole = b"{" + b",".join(parts) + b"}"
        return whole if len(whole) <= self._limits.output else None

    def _with_next(self, finish: Finish, now_ms: int, *, retryable: bool | None = False) -> Finish:
        chance = Random(f"{self._run.seed}//{self._run.attempt}").random()  # noqa: S311  (spreads retries)
        following = self._options.successor(
            self._run, finish, retryable=retryable is not False, now=now_ms, chance=chance
        )
        return finish if following is None else replace(finish, next=replace(following, units=self.units()))


class _Values:
    """What parameters can get, as plain JSON: the run's input and the results of predecessors."""

    def __init__(
        self,
        run: RunRecord,
        results: Mapping[str, Fact],
        lists: Mapping[str, list[Any]],
        item: tuple[str, int] | None = None,
    ) -> None:
        self._run = run
        self._results = results
        self._lists = lists
        self._item = item

    def with_item(self, name: str, place: int) -> _Values:
        return _Values(self._run, self._results, self._lists, (name, place))

    def has(self, name: str) -> bool:
        return self._run.params is not None if name == PARAMS else name in self._results or name in self._lists

    def __getitem__(self, name: str) -> Any:
        if name == PARAMS:
            return codec.plain(self._run.params)
        if self._item is not None and name == self._item[0]:
            return copy.deepcopy(self._lists[name][self._item[1]])  # the next attempt gets it as it was
        if name in self._results:
            return codec.plain(self._results[name].value)
        return copy.deepcopy(self._lists[name])


def _sole_input(known: _Values, node: NodeShape) -> Any:
    """What a run is started with if nobody says: the result it comes after, or of several all by name, or the input."""
    if not node.after:
        return known[PARAMS] if known.has(PARAMS) else None
    return known[node.after[0]] if len(node.after) == 1 else {name: known[name] for name in node.after}


def _item_ended(
    task: TaskRef, node: str, at: int, started_at: int, *, ok: bool, value: bytes | None, attempts: int
) -> Advance:
    """One item of a mapped node has its outcome; the node is due again with the last of them."""
    number, item = Place.of(task.unit)
    fact = Fact(FactState.ITEM, node, item or 0, NODE, at, started_at, ok=ok, value=value, attempts=attempts)
    return Advance(task, facts=[fact], opens=[Opening(number)])


def _result(
    name: str, at: int, started_at: int, *, ok: bool = True, value: bytes | None = None, kind: str = NODE,
    attempts: int = 0,
) -> Fact:  # fmt: skip
    return Fact(FactState.RESULT, name, 0, kind, at, started_at, ok=ok, value=value, attempts=attempts)
