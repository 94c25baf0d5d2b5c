"""The readable history of a graph's run: one record for each node of its shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from holdfast.core import codec, history
from holdfast.core.failure import Failure
from holdfast.core.model import StepStatus, StepType, from_ms, optional_from_ms
from holdfast.core.records import StepRecord
from holdfast.graph.outcomes import SKIPPED
from holdfast.graph.shape import Shape
from holdfast.kernel.unit_driver import PLAN_KEY
from holdfast.store.protocol import RESOLVE, Fact, FactState

_MAX_NAMED = 5
"""Maximum number of clauses about open nodes in ``why``."""
_MAX_FAILED = 3
"""Maximum number of failed nodes named in ``why``."""


class NodeState(StrEnum):
    """The states of a graph's node."""

    PENDING = "pending"
    STARTED = "started"
    RETRYING = "retrying"
    OK = "ok"
    ERROR = "error"
    SKIPPED = "skipped"


_OPEN = (NodeState.STARTED, NodeState.RETRYING)
_ENDED = (NodeState.OK, NodeState.ERROR, NodeState.SKIPPED)


class _UnitFacts:
    """The facts of one node or one item."""

    def __init__(self) -> None:
        self.starts: list[Fact] = []
        self.failure: Fact | None = None
        self.result: Fact | None = None
        self.heartbeat: Fact | None = None


def status_of(result: Fact) -> NodeState:
    """The status of a result: ok, error or skipped."""
    return NodeState.SKIPPED if result.kind == SKIPPED else NodeState.OK if result.ok else NodeState.ERROR


def nodes_of(run_number: int, facts: Iterable[Fact]) -> list[StepRecord]:
    """The records of nodes in the order of their definition, each followed by the records of its items."""
    facts_by_key: dict[str, _UnitFacts] = {}
    items: dict[str, set[int]] = {}
    plan: Fact | None = None
    for fact in facts:
        match fact.state:
            case FactState.PLAN if fact.key == PLAN_KEY:
                plan = fact
            case FactState.START:
                facts_by_key.setdefault(fact.key, _UnitFacts()).starts.append(fact)
                node, bracket, index = fact.key.partition("[")
                if bracket:
                    items.setdefault(node, set()).add(int(index[:-1]))
            case FactState.FAILURE:
                facts_by_key.setdefault(fact.key, _UnitFacts()).failure = fact
            case FactState.RESULT:
                facts_by_key.setdefault(fact.key, _UnitFacts()).result = fact
            case FactState.HEARTBEAT:
                facts_by_key.setdefault(fact.key, _UnitFacts()).heartbeat = fact
            case FactState.ITEM:
                facts_by_key.setdefault(f"{fact.key}[{fact.n}]", _UnitFacts()).result = fact
    if plan is None or plan.value is None:
        return []
    keys = [
        key
        for node in Shape.of_meta(plan.value).nodes
        for key in (node.name, *(f"{node.name}[{n}]" for n in sorted(items.get(node.name, ()))))
    ]
    for node in items:  # the last START fact is that of the claim that combined the items, which is not an attempt
        if facts_by_key[node].result is not None and facts_by_key[node].starts[1:]:
            facts_by_key[node].starts.pop()
    return [_record(run_number, key, facts_by_key.get(key, _UnitFacts()), plan.at) for key in keys]


def _record(run_number: int, key: str, unit: _UnitFacts, planned_at: int) -> StepRecord:
    result, failure = unit.result, unit.failure
    last = unit.starts[-1] if unit.starts else None
    retrying = result is None and failure is not None and (last is None or failure.n >= last.n)
    state = NodeState.PENDING if last is None else NodeState.STARTED
    if result is not None:
        state = status_of(result)
    elif retrying:
        state = NodeState.RETRYING
    failed = result if result is not None and not result.ok else failure if retrying else None
    times = [f.at for f in (*unit.starts, failure, result, unit.heartbeat) if f is not None]
    error = None if failed is None or failed.value is None else Failure.displayed(failed.value).info
    return StepRecord(
        id=f"{run_number}:{key}",
        run_number=run_number,
        step_key=key,
        name=key,
        type=StepType.NODE,
        status=_STATUS[state],
        attempts=len(unit.starts),
        max_attempts=None if failure is None else failure.max_attempts,
        timeout_ms=None,
        next_retry_at=optional_from_ms(failure.wake_at) if retrying and failure is not None else None,
        wake_at=None,
        wait_event_type=None,
        result=codec.displayed(result.value) if result is not None and result.ok else None,
        error=error,
        created_at=from_ms(min(times, default=planned_at)),
        updated_at=from_ms(max(times, default=planned_at)),
        state=state.value,
        resolved=result is not None and result.event_type == RESOLVE,
        **history.heartbeat(unit.heartbeat, _STATUS[state]),
    )


_STATUS = {
    NodeState.PENDING: StepStatus.PENDING,
    NodeState.STARTED: StepStatus.PENDING,
    NodeState.RETRYING: StepStatus.WAITING,
    NodeState.OK: StepStatus.COMPLETED,
    NodeState.SKIPPED: StepStatus.COMPLETED,
    NodeState.ERROR: StepStatus.ERRORED,
}


def current_node(nodes: Sequence[StepRecord]) -> StepRecord | None:
    """The open node that changed last; without an open node, the last node that got a result."""
    open_nodes = [node for node in nodes if node.state in ("started", "retrying")]
    done = [node for node in nodes if node.state in ("ok", "error", "skipped")]
    return max(open_nodes or done, key=lambda node: node.updated_at, default=None)


def why(nodes: Sequence[StepRecord], now_ms: int, positions: history.Positions, runs: Mapping[str, str]) -> str:
    """One sentence: the number of nodes with a result, what the open nodes are doing, and which nodes failed.

    ``runs``: the workflows that nodes with ``run=`` start. No worker owns such a node while it waits for its run.
    """
    whole_nodes = [node for node in nodes if not _is_item(node)]
    done = sum(node.state in _ENDED for node in whole_nodes)
    clauses = [*filter(None, _open_clauses(nodes, now_ms, positions, runs))] or ["ready nodes wait for a worker"]
    if len(clauses) > _MAX_NAMED:
        clauses[_MAX_NAMED:] = [f"and {len(clauses) - _MAX_NAMED} more"]
    failed = [
        f"{node.step_key!r} failed" + (f" ({node.error.name}: {node.error.message})" if node.error else "")
        for node in whole_nodes
        if node.state == NodeState.ERROR
    ]
    if failed:
        clauses.append(f"{', '.join(failed[:_MAX_FAILED])}, so the run will end errored")
    return f"{done} of {len(whole_nodes)} nodes have a result; {'; '.join(clauses)}"


def _open_clauses(
    nodes: Sequence[StepRecord], now_ms: int, positions: history.Positions, runs: Mapping[str, str]
) -> Iterator[str]:
    """One clause for each open node. A node with items has one for those that run and one for those that retry.

    The clause of several items names the first of them: of 500 items, the sentence would name only some anyway.
    """
    items: dict[str, list[StepRecord]] = {}
    for node in nodes:
        if _is_item(node):
            items.setdefault(_node_of(node), []).append(node)
    for node in nodes:
        if _is_item(node) or node.state not in _OPEN:
            continue
        of_node = items.get(node.step_key, [])
        open_items = [item for item in of_node if item.state in _OPEN]
        if not open_items:
            yield _clause(node, now_ms, positions, runs)
            continue
        yield f"{sum(item.state in _ENDED for item in of_node)} items of {node.step_key!r} have a result"
        for state in _OPEN:
            same = sorted((item for item in open_items if item.state == state), key=_due)
            if same:
                others = "" if len(same) == 1 else f", and {len(same) - 1} more"
                yield _clause(same[0], now_ms, positions, runs) + others


def _clause(node: StepRecord, now_ms: int, positions: history.Positions, runs: Mapping[str, str]) -> str:
    run = runs.get(node.step_key.partition("[")[0])
    if run is None or node.state != NodeState.STARTED:
        return history.why_waiting([node], now_ms, positions)
    return f"node {node.step_key!r} waits for child {run!r} to end{history.at(positions, node.step_key)}"


def _is_item(node: StepRecord) -> bool:
    return node.step_key.endswith("]")


def _node_of(item: StepRecord) -> str:
    return item.step_key.rpartition("[")[0]


def _due(item: StepRecord) -> float:
    """Order of items that retry: by the time of the next attempt. Others keep the order of their numbers."""
    return 0.0 if item.next_retry_at is None else item.next_retry_at.timestamp()
