"""A run of a graph as people read it: every node of its shape with what is known of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core import codec, history
from holdfast.core.failure import Failure
from holdfast.core.model import StepRecord, StepStatus, StepType, from_ms, optional_from_ms
from holdfast.graph.shape import Shape
from holdfast.graph.units import SKIPPED
from holdfast.kernel.units import PLAN_KEY
from holdfast.store.protocol import Fact, FactState

_SHOWN = 5
"""How many nodes a sentence names."""


class _Known:
    """What there is of one node, or of one item."""

    def __init__(self) -> None:
        self.starts: list[Fact] = []
        self.failure: Fact | None = None
        self.result: Fact | None = None
        self.heartbeat: Fact | None = None


def status_of(result: Fact) -> str:
    """The word of the stored form: ok, error or skipped."""
    return "skipped" if result.kind == SKIPPED else "ok" if result.ok else "error"


def nodes_of(run_number: int, facts: Iterable[Fact]) -> list[StepRecord]:
    """Nodes in the order of their definition, each followed by the items it was mapped over."""
    known: dict[str, _Known] = {}
    items: dict[str, set[int]] = {}
    plan: Fact | None = None
    for fact in facts:
        match fact.state:
            case FactState.PLAN if fact.key == PLAN_KEY:
                plan = fact
            case FactState.START:
                known.setdefault(fact.key, _Known()).starts.append(fact)
                node, bracket, place = fact.key.partition("[")
                if bracket:
                    items.setdefault(node, set()).add(int(place[:-1]))
            case FactState.FAILURE:
                known.setdefault(fact.key, _Known()).failure = fact
            case FactState.RESULT:
                known.setdefault(fact.key, _Known()).result = fact
            case FactState.HEARTBEAT:
                known.setdefault(fact.key, _Known()).heartbeat = fact
            case FactState.ITEM:
                known.setdefault(f"{fact.key}[{fact.n}]", _Known()).result = fact
    if plan is None or plan.value is None:
        return []
    keys = [
        key
        for node in Shape.of_meta(plan.value).nodes
        for key in (node.name, *(f"{node.name}[{n}]" for n in sorted(items.get(node.name, ()))))
    ]
    for node in items:  # the start that only put the items together was no attempt
        if known[node].result is not None and known[node].starts[1:]:
            known[node].starts.pop()
    return [_record(run_number, key, known.get(key, _Known()), plan.at) for key in keys]


def _record(run_number: int, key: str, known: _Known, planned_at: int) -> StepRecord:
    result, failure = known.result, known.failure
    last = known.starts[-1] if known.starts else None
    retrying = result is None and failure is not None and (last is None or failure.n >= last.n)
    state = "pending" if last is None else "started"
    if result is not None:
        state = status_of(result)
    elif retrying:
        state = "retrying"
    failed = result if result is not None and not result.ok else failure if retrying else None
    times = [f.at for f in (*known.starts, failure, result, known.heartbeat) if f is not None]
    error = None if failed is None or failed.value is None else Failure.decode(failed.value).info
    return StepRecord(
        id=f"{run_number}:{key}",
        run_number=run_number,
        step_key=key,
        name=key,
        type=StepType.NODE,
        status=_STATUS[state],
        attempts=len(known.starts),
        max_attempts=None if failure is None else failure.max_attempts,
        timeout_ms=None,
        next_retry_at=optional_from_ms(failure.wake_at) if retrying and failure is not None else None,
        wake_at=None,
        wait_event_type=None,
        result=codec.plain(result.value) if result is not None and result.ok else None,
        error=error,
        created_at=from_ms(min(times, default=planned_at)),
        updated_at=from_ms(max(times, default=planned_at)),
        state=state,
        **history.heartbeat(known.heartbeat, _STATUS[state]),
    )


_STATUS = {
    "pending": StepStatus.PENDING,
    "started": StepStatus.PENDING,
    "retrying": StepStatus.WAITING,
    "ok": StepStatus.COMPLETED,
    "skipped": StepStatus.COMPLETED,
    "error": StepStatus.ERRORED,
}


def current_node(nodes: Sequence[StepRecord]) -> StepRecord | None:
    """One of those under way, the last that was started; else the last that got a result."""
    open_nodes = [node for node in nodes if node.state in ("started", "retrying")]
    done = [node for node in nodes if node.state in ("ok", "error", "skipped")]
    return max(open_nodes or done, key=lambda node: node.updated_at, default=None)


def why(nodes: Sequence[StepRecord], now_ms: int) -> str:
    """One sentence: how far it is, and what it is at."""
    whole = [node for node in nodes if not node.step_key.endswith("]")]
    done = sum(node.state in ("ok", "error", "skipped") for node in whole)
    at = [node for node in nodes if node.state in ("started", "retrying")]
    clauses = history.why_waiting(at[:_SHOWN], now_ms) or "those that are ready wait for a worker"
    more = f"; and {len(at) - _SHOWN} more" if len(at) > _SHOWN else ""
    return f"{done} of {len(whole)} nodes have a result; {clauses}{more}"
