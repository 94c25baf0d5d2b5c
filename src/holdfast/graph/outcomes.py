"""The writes that follow from the outcome of a unit: its result, nodes that become ready, nodes that are skipped.

This module needs the stored shape of a run, and not the functions of the graph. It does no I/O.
"""

from __future__ import annotations

from holdfast.graph.shape import Shape, UnitPosition
from holdfast.store.protocol import Advance, Fact, FactState, MissingDecrement, TaskRef

NODE = "node"
SKIPPED = "skipped"


def completed(shape: Shape, task: TaskRef, value: bytes | None, started_at: int, at: int, attempts: int) -> Advance:
    """Write the result of a node, or of an item of a mapped node."""
    position = UnitPosition.of(task.unit)
    name = shape.node(position.node).name
    if position.item is not None:
        return _end_item(task, name, at, started_at, ok=True, value=value, attempts=attempts)
    return Advance(
        task,
        results=[_result(name, at, started_at, value=value, attempts=attempts)],
        decrements=shape.decrements(position.node),
    )


def failed(shape: Shape, task: TaskRef, error: bytes, started_at: int, at: int, attempts: int) -> Advance:
    """Write the error of a node and skip its descendants. A failed item ends alone; the other items still run."""
    position = UnitPosition.of(task.unit)
    name = shape.node(position.node).name
    if position.item is not None:
        return _end_item(task, name, at, started_at, ok=False, value=error, attempts=attempts)
    fact = _result(name, at, started_at, ok=False, value=error, attempts=attempts)
    return _skip_descendants(shape, task, position.node, fact)


def skipped(shape: Shape, task: TaskRef, now_ms: int) -> Advance:
    """Skip a node and its descendants."""
    name = shape.node(task.unit).name
    return _skip_descendants(shape, task, task.unit, _result(name, now_ms, now_ms, kind=SKIPPED))


def _skip_descendants(shape: Shape, task: TaskRef, number: int, fact: Fact) -> Advance:
    skips = [_result(shape.node(n).name, fact.at, fact.at, kind=SKIPPED) for n in shape.descendants(number)]
    # The units of skipped nodes never become ready: their ``missing`` stays above 0.
    return Advance(task, results=[fact, *skips])


def _end_item(
    task: TaskRef, node: str, at: int, started_at: int, *, ok: bool, value: bytes | None, attempts: int
) -> Advance:
    """Write the outcome of one item of a mapped node. The node is due again after the last item."""
    number, item = UnitPosition.of(task.unit)
    fact = Fact(FactState.ITEM, node, item or 0, NODE, at, started_at, ok=ok, value=value, attempts=attempts)
    return Advance(task, facts=[fact], decrements=[MissingDecrement(number)])


def _result(
    name: str, at: int, started_at: int, *, ok: bool = True, value: bytes | None = None, kind: str = NODE,
    attempts: int = 0,
) -> Fact:  # fmt: skip
    return Fact(FactState.RESULT, name, 0, kind, at, started_at, ok=ok, value=value, attempts=attempts)
