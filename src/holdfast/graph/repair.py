"""The history with which a retried, resolved or forked run of a graph continues, and its open units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from holdfast.core import codec
from holdfast.core.facts import RESOLVE, Fact, FactState
from holdfast.errors import StateError
from holdfast.graph import outcomes
from holdfast.graph.outcomes import NODE, SKIPPED
from holdfast.graph.shape import Shape, UnitPosition
from holdfast.graph.views import planned_shape
from holdfast.kernel.model import RecordedRun
from holdfast.kernel.repair import Continuation, RepairRules, Resolution, not_failed, replaced, unknown_step
from holdfast.store.protocol import Advance, NewUnit, TaskRef


class GraphRepairRules(RepairRules):
    def retry(self, run: RecordedRun, now: int, resolution: Resolution | None = None) -> Continuation:
        """The history without the failed nodes, the failed items, and the nodes that were skipped because of them."""
        shape = planned_shape(run.facts, run.row)
        results = {fact.key: fact for fact in run.facts if fact.state == FactState.RESULT}
        failed = {key for key, fact in results.items() if not fact.ok}
        done = results.keys() - failed  # a node that collects errors has a result although items failed
        failed_items = {
            _item_key(fact): fact
            for fact in run.facts
            if fact.state == FactState.ITEM and not fact.ok and fact.key not in done
        }
        if resolution is not None and resolution.step in failed_items:
            run, resolution = _with_item(run, failed_items[resolution.step], resolution), None
        elif resolution is not None and resolution.step not in failed:
            raise not_failed(run, resolution.step, failed | failed_items.keys())
        again = set(failed)
        for name in failed:
            again |= {shape.node(n).name for n in shape.descendants(shape.number[name])}
        kept = {key: fact for key, fact in results.items() if key not in again}
        if resolution is not None:
            kept[resolution.step] = resolution.result(results[resolution.step])
            if not resolution.ok:  # the nodes after it stay skipped
                kept |= {name: results[name] for name in _after(shape, resolution.step) if name in results}
        return _continuation(run, shape, kept)

    def fork(self, run: RecordedRun, before: str, outputs: Mapping[str, bytes]) -> Continuation:
        """The results of all nodes but ``before`` and those after it."""
        shape = planned_shape(run.facts, run.row)
        if before not in shape.number:
            raise unknown_step(run, before, shape.number)
        again = {before, *_after(shape, before)}
        results = [fact for fact in run.facts if fact.state == FactState.RESULT and fact.key not in again]
        failed = {fact.key for fact in results if not fact.ok}
        for name in failed:
            again |= {name, *_after(shape, name)}
        kept = replaced(run, [fact for fact in results if fact.key not in again], outputs, NODE)
        return _continuation(run, shape, {fact.key: fact for fact in kept}, items=False)


def resolve(run: RecordedRun, resolution: Resolution) -> Advance:
    """The outcome of a node that is running or retrying, or of an item of a mapped node."""
    shape = planned_shape(run.facts, run.row)
    position = _position(shape, resolution.step)
    starts = [fact for fact in run.facts if fact.state == FactState.START and fact.key == resolution.step]
    if position is None or not starts:
        raise StateError(
            f"node {resolution.step!r} of {run.row.pid} is not known, or has not been tried yet, so it cannot be "
            "resolved"
        )
    if _has_outcome(run.facts, shape, position):
        raise StateError(f"node {resolution.step!r} of {run.row.pid} has a result already")
    node = shape.node(position.node)
    if node.run is not None:
        raise StateError(
            f"node {resolution.step!r} of {run.row.pid} waits for a run of {node.run!r}: resolve a step of that "
            "run, or end it"
        )
    task = TaskRef(run.row.run, position.unit, "", 0)
    write = outcomes.completed if resolution.ok else outcomes.failed
    advance = write(shape, task, resolution.value, starts[-1].at, resolution.at, len(starts))
    advance.facts = [fact._replace(event_type=RESOLVE) for fact in advance.facts]
    advance.results = [*_decided(advance.results)]
    if node.map is not None and position.item is None:
        advance.removed_units = _item_units_of(shape, position.node, run.facts)
    return advance


def _with_item(run: RecordedRun, item: Fact, resolution: Resolution) -> RecordedRun:
    """The run with another outcome of a failed item."""
    if not resolution.ok:
        raise StateError(
            f"item {resolution.step!r} of {run.row.pid} has failed already; resolve node {item.key!r} with an error to "
            "end the node"
        )
    resolved = item._replace(at=resolution.at, ok=True, value=resolution.value, event_type=RESOLVE)
    return replace(run, facts=[resolved if fact is item else fact for fact in run.facts])


def _item_key(fact: Fact) -> str:
    return f"{fact.key}[{fact.n}]"


def _position(shape: Shape, key: str) -> UnitPosition | None:
    """The position of the unit with this key."""
    name, bracket, index = key.partition("[")
    number = shape.number.get(name)
    if number is None or (bracket and not (index[-1:] == "]" and index[:-1].isdecimal())):
        return None
    return UnitPosition(number, int(index[:-1]) if bracket else None)


def _has_outcome(facts: Sequence[Fact], shape: Shape, position: UnitPosition) -> bool:
    name = shape.node(position.node).name
    own = [fact for fact in facts if fact.key == name]
    is_item = any(fact.state == FactState.ITEM and fact.n == position.item for fact in own)
    return is_item or any(fact.state == FactState.RESULT for fact in own)


def _decided(results: Sequence[Fact]) -> Iterator[Fact]:
    """The results, the first of which was decided by hand; the others are those of skipped nodes."""
    for n, fact in enumerate(results):
        yield fact._replace(event_type=RESOLVE) if n == 0 else fact


def _item_units_of(shape: Shape, number: int, facts: Sequence[Fact]) -> list[int]:
    """The units of all items of a mapped node, which may have no tasks."""
    return [UnitPosition(number, n).unit for n in range(_item_count(shape, number, facts))]


def _item_count(shape: Shape, number: int, facts: Sequence[Fact]) -> int:
    """The length of the list that a node is mapped over. Items that never began have no facts."""
    source = shape.node(number).map
    lists = [fact.value for fact in facts if fact.state == FactState.RESULT and fact.key == source]
    return len(codec.plain(lists[0])) if lists else 0


def _after(shape: Shape, name: str) -> list[str]:
    return [shape.node(n).name for n in shape.descendants(shape.number[name])]


def _continuation(run: RecordedRun, shape: Shape, kept: Mapping[str, Fact], *, items: bool = True) -> Continuation:
    """``items``: results of items that succeeded stay, even if the mapped node is tried again."""
    facts = list(kept.values())
    units: list[NewUnit] = []
    open_nodes = [node.name for node in shape.nodes if node.name not in kept]
    for name in open_nodes:
        node = shape.node(shape.number[name])
        missing = sum(predecessor not in kept for predecessor in node.after)
        item_facts = [f for f in run.facts if f.state == FactState.ITEM and f.key == name and f.ok] if items else []
        if node.map is not None and item_facts and not missing:
            new = _item_units(shape, name, run.facts, item_facts)
            facts += item_facts
            units += new
            missing = len(new)
        units.append(NewUnit(shape.number[name], name, missing))
    done_items = {_item_key(fact) for fact in facts if fact.state == FactState.ITEM}
    done_items |= {_item_key(f) for f in run.facts if f.state == FactState.ITEM and f.key in kept}
    facts += [f for f in run.facts if f.state == FactState.ITEM and f.key in kept and kept[f.key].kind != SKIPPED]
    facts += [f for f in run.facts if f.state == FactState.START and (f.key in kept or f.key in done_items)]
    return Continuation(facts, units=units, open_nodes=len(open_nodes))


def _item_units(shape: Shape, name: str, facts: Sequence[Fact], done: Sequence[Fact]) -> list[NewUnit]:
    """Units for the items of a mapped node that have not succeeded."""
    finished, number = {fact.n for fact in done}, shape.number[name]
    items = range(_item_count(shape, number, facts))
    open_items = [UnitPosition(number, item).unit for item in items if item not in finished]
    return [NewUnit(unit, shape.key(unit), 0) for unit in open_items]
