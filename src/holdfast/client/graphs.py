"""A run of a graph as it is stored: the keys of the state-first form, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.core import codec
from holdfast.core.failure import Failure
from holdfast.graph.history import status_of
from holdfast.graph.mermaid import mermaid
from holdfast.graph.shape import Shape
from holdfast.kernel.definition import Definition
from holdfast.kernel.units import PLAN_KEY
from holdfast.store.protocol import Fact, FactState, RunRecord, Store

_STATES = {"result/": FactState.RESULT, "start/": FactState.START, "tombstone": FactState.TOMBSTONE}


async def facts(store: Store, run: RunRecord, prefix: str) -> dict[str, Any]:
    """Everything under a prefix, by its key. What lies under one state is one range scan."""
    state = next((state for start, state in _STATES.items() if prefix.startswith(start)), None)
    rows = await store.facts(run.run) if state is None else await store.facts(run.run, state)
    return {key: value for key, value in _entries(rows) if key.startswith(prefix)}


def _entries(rows: Iterable[Fact]) -> Iterable[tuple[str, Any]]:
    for fact in rows:
        match fact.state:
            case FactState.PLAN:
                yield fact.key, codec.plain(fact.value)
            case FactState.START:
                yield f"start/{fact.key}/{fact.at}", codec.plain(fact.value)
            case FactState.RESULT:
                yield f"result/{fact.key}", {"status": status_of(fact), "data": data_of(fact), "ts": fact.at}
            case FactState.ITEM:
                yield f"item/{fact.key}/{fact.n}", {"status": status_of(fact), "data": data_of(fact), "ts": fact.at}
            case FactState.TOMBSTONE:
                yield "tombstone", {"reason": codec.plain(fact.value), "ts": fact.at}


def data_of(result: Fact) -> Any:
    """The value, or what is known of an error."""
    if result.ok or result.value is None:
        return codec.plain(result.value)
    error = Failure.decode(result.value)
    return {"name": error.name, "message": error.message}


async def results(store: Store, run: RunRecord) -> dict[str, Any]:
    """What the nodes came to that ran to their end."""
    rows = await store.facts(run.run, FactState.RESULT)
    return {fact.key: codec.plain(fact.value) for fact in rows if status_of(fact) == "ok"}


async def shape(store: Store, run: RunRecord) -> Shape:
    [meta] = await store.facts(run.run, FactState.PLAN, [PLAN_KEY])
    return Shape.of_meta(meta.value or b"")


async def drawn(store: Store, run: RunRecord) -> str:
    """The run as a Mermaid flowchart, coloured by what its nodes came to."""
    rows = await store.facts(run.run)
    states = {fact.key.partition("[")[0]: "running" for fact in rows if fact.state == FactState.START}
    states |= {fact.key: status_of(fact) for fact in rows if fact.state == FactState.RESULT}
    return mermaid(_shape_of(rows), states)


def drawn_as_defined(graph: Definition) -> str:
    """What a run that started now would look like."""
    return mermaid(_shape_of(graph.blueprint(0).plan if graph.blueprint is not None else ()))


def killed(rows: Iterable[Fact]) -> bool:
    return any(fact.state == FactState.TOMBSTONE for fact in rows)


def _shape_of(rows: Sequence[Fact]) -> Shape:
    meta = next(fact for fact in rows if fact.state == FactState.PLAN and fact.key == PLAN_KEY)
    return Shape.of_meta(meta.value or b"")


def started_at(rows: Iterable[Fact]) -> int | None:
    """With its first node. The row itself learns of it with the first result."""
    return min((fact.at for fact in rows if fact.state == FactState.START), default=None)
