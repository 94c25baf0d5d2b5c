"""Reading the stored facts of a graph's run: facts by key, node results, Mermaid flowcharts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.core import codec
from holdfast.core.failure import Failure
from holdfast.errors import InstanceNotFoundError
from holdfast.graph.history import status_of
from holdfast.graph.mermaid import mermaid
from holdfast.graph.shape import Shape
from holdfast.kernel.definition import Definition
from holdfast.kernel.unit_driver import PLAN_KEY
from holdfast.store.protocol import Fact, FactsQuery, FactState, RunRecord, Store

_STATES = {"result/": FactState.RESULT, "start/": FactState.START, "tombstone": FactState.TOMBSTONE}


async def facts(store: Store, run: RunRecord, prefix: str) -> dict[str, Any]:
    """The facts whose keys begin with a prefix. A prefix within one state needs one range scan."""
    state = next((state for start, state in _STATES.items() if prefix.startswith(start)), None)
    rows = await store.read(FactsQuery(run.run)) if state is None else await store.read(FactsQuery(run.run, state))
    return {key: value for key, value in _entries(rows) if key.startswith(prefix)}


def _entries(rows: Iterable[Fact]) -> Iterable[tuple[str, Any]]:
    for fact in rows:
        match fact.state:
            case FactState.PLAN:
                yield fact.key, codec.displayed(fact.value)
            case FactState.START:
                yield f"start/{fact.key}/{fact.at}", codec.displayed(fact.value)
            case FactState.RESULT:
                yield f"result/{fact.key}", {"status": status_of(fact), "data": data_of(fact), "ts": fact.at}
            case FactState.ITEM:
                yield f"item/{fact.key}/{fact.n}", {"status": status_of(fact), "data": data_of(fact), "ts": fact.at}
            case FactState.TOMBSTONE:
                yield "tombstone", {"reason": codec.displayed(fact.value), "ts": fact.at}


def data_of(result: Fact) -> Any:
    """The value of a result, or the name and message of its error."""
    if result.ok or result.value is None:
        return codec.displayed(result.value)
    error = Failure.decode(result.value)
    return {"name": error.name, "message": error.message}


async def results(store: Store, run: RunRecord) -> dict[str, Any]:
    """The results of the nodes that succeeded, by node."""
    rows = await store.read(FactsQuery(run.run, FactState.RESULT))
    return {fact.key: codec.plain(fact.value) for fact in rows if status_of(fact) == "ok"}


async def shape(store: Store, run: RunRecord) -> Shape:
    facts = await store.read(FactsQuery(run.run, FactState.PLAN, [PLAN_KEY]))
    return planned_shape(facts, run)


def planned_shape(facts: Sequence[Fact], run: RunRecord) -> Shape:
    """The shape that is stored with a run. ``facts``: its PLAN facts, and possibly others."""
    plan = next((fact for fact in facts if fact.state == FactState.PLAN and fact.key == PLAN_KEY), None)
    if plan is None or plan.value is None:
        raise InstanceNotFoundError(f"run {run.number} of {run.pid} has no stored plan: it was deleted meanwhile")
    return Shape.of_meta(plan.value)


async def draw_run(store: Store, run: RunRecord) -> str:
    """The run as a Mermaid flowchart, coloured by the states of its nodes."""
    rows = await store.read(FactsQuery(run.run))
    states = {fact.key.partition("[")[0]: "running" for fact in rows if fact.state == FactState.START}
    states |= {fact.key: status_of(fact) for fact in rows if fact.state == FactState.RESULT}
    return mermaid(shape_of(rows), states)


def draw_definition(graph: Definition) -> str:
    """The Mermaid flowchart of a run that would start now."""
    return mermaid(shape_of(graph.blueprint(0).plan if graph.blueprint is not None else ()))


def killed(rows: Iterable[Fact]) -> bool:
    return any(fact.state == FactState.TOMBSTONE for fact in rows)


def shape_of(rows: Sequence[Fact]) -> Shape:
    """The shape in the PLAN facts of a run."""
    meta = next(fact for fact in rows if fact.state == FactState.PLAN and fact.key == PLAN_KEY)
    return Shape.of_meta(meta.value or b"")


def started_at(rows: Iterable[Fact]) -> int | None:
    """The start time of the first node. The run's row gets its ``started_at`` only with the first result."""
    return min((fact.at for fact in rows if fact.state == FactState.START), default=None)
