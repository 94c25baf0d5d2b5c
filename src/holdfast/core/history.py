"""The readable history of a run, derived from its facts. Nothing here is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from holdfast.core import codec, envelope
from holdfast.core.durations import describe_rounded
from holdfast.core.facts import RESOLVE, Fact, FactState
from holdfast.core.failure import Failure
from holdfast.core.model import StepStatus, StepType, from_ms, optional_from_ms
from holdfast.core.records import CodePosition, StepRecord
from holdfast.core.show import shown
from holdfast.errors import ErrorInfo

_HIDDEN = (StepType.TIMER, StepType.MESSAGE, StepType.WATCH, StepType.NOTE)
_REFUSED = {
    "missing": ErrorInfo("InstanceNotFoundError", "there is no such run"),
    "ended": ErrorInfo("InstanceTerminalError", "the run has ended"),
    "exists": ErrorInfo("InstanceExistsError", "a run with this id exists already"),
}


def steps_of(
    run_number: int, facts: Iterable[Fact], payloads: Mapping[int, Any], *, results: bool = True
) -> list[StepRecord]:
    """The steps recorded by ``facts``, in the order they began. ``payloads``: the consumed events by number.

    ``results`` False: successful steps are without their result, which need not be decoded then.
    """
    by_key: dict[str, list[Fact]] = {}
    for fact in facts:
        if fact.kind not in _HIDDEN:
            by_key.setdefault(fact.key, []).append(fact)
    records = [
        (_order(group), _plain_step(run_number, group[0]))
        if not results and _is_plain(group)
        else (_order(group), _step(run_number, group, payloads))
        for group in by_key.values()
    ]
    return [record for _, record in sorted(records, key=lambda pair: pair[0])]


def _is_plain(facts: list[Fact]) -> bool:
    """True if the only fact of a step is a successful result: most steps of a long run."""
    fact = facts[0]
    return len(facts) == 1 and fact.state == FactState.RESULT and fact.ok and fact.kind == StepType.DO


def _plain_step(run_number: int, fact: Fact) -> StepRecord:
    key = fact.key
    return StepRecord(
        f"{run_number}:{key}", run_number, key, fact.name or key, fact.kind, StepStatus.COMPLETED, fact.attempts,
        fact.max_attempts, fact.timeout_ms, None, None, None, None, None, from_ms(fact.started_at), from_ms(fact.at),
        resolved=fact.event_type == RESOLVE,
    )  # fmt: skip


def _order(facts: list[Fact]) -> tuple[int, int]:
    if len(facts) == 1:  # most steps of a long run: one result
        [only] = facts
        return only.started_at, 2**62 if only.seq is None else only.seq
    return min(f.started_at for f in facts), min((f.seq for f in facts if f.seq is not None), default=2**62)


def _step(run_number: int, facts: list[Fact], payloads: Mapping[int, Any]) -> StepRecord:
    last, started, updated, attempts = facts[0], facts[0].started_at, facts[0].at, facts[0].attempts
    last_heartbeat = last if last.state == FactState.HEARTBEAT else None
    if len(facts) > 1:
        last = max(facts, key=_finality)
        started, updated = min(f.started_at for f in facts), max(f.at for f in facts)
        attempts = max(f.attempts for f in facts)
        last_heartbeat = max((f for f in facts if f.state == FactState.HEARTBEAT), key=_number, default=None)
    status = _status(last)
    retry_at = last.wake_at if last.state == FactState.FAILURE and last.kind == StepType.DO else None
    return StepRecord(
        id=f"{run_number}:{last.key}",
        run_number=run_number,
        step_key=last.key,
        name=last.name or last.key,
        type=last.kind,
        status=status,
        attempts=attempts,
        max_attempts=last.max_attempts,
        timeout_ms=last.timeout_ms,
        next_retry_at=optional_from_ms(retry_at) if status == StepStatus.WAITING else None,
        wake_at=optional_from_ms(last.wake_at) if last.kind != StepType.DO else None,
        wait_event_type=None if last.event_type == RESOLVE else last.event_type,
        result=fact_result(last, payloads),
        error=fact_error(last, payloads),
        created_at=from_ms(started),
        updated_at=from_ms(updated),
        resolved=last.event_type == RESOLVE,
        **heartbeat(last_heartbeat, status),
    )


def heartbeat(fact: Fact | None, status: str) -> dict[str, Any]:
    """The fields of a step's record that come from its last heartbeat. ``fact``: the HEARTBEAT fact, or None."""
    if fact is None or status == StepStatus.COMPLETED:
        return {}
    return {"progress": codec.displayed(fact.value), "heartbeat_at": from_ms(fact.at)}


def _number(fact: Fact) -> int:
    return fact.n


_RANK_IN_ATTEMPT: dict[int, int] = {FactState.HEARTBEAT: 0, FactState.START: 1, FactState.FAILURE: 2}


def _finality(fact: Fact) -> tuple[int, int, int]:
    """Sort key: a result is last. Without a result, the latest attempt is last, and its failure follows its start."""
    if fact.state == FactState.RESULT:
        return (1, 0, 0)
    if fact.kind == StepType.DO:
        return (0, fact.n, _RANK_IN_ATTEMPT[fact.state])
    return (0, fact.n + (fact.state == FactState.START), fact.state)  # the START facts of waits are numbered from 0


def _status(fact: Fact) -> StepStatus:
    if fact.state == FactState.RESULT or not (fact.ok or fact.state == FactState.FAILURE):
        return StepStatus.COMPLETED if fact.ok else StepStatus.ERRORED
    if fact.state == FactState.FAILURE:
        return StepStatus.ERRORED if fact.wake_at is None else StepStatus.WAITING
    return StepStatus.PENDING if fact.kind == StepType.DO else StepStatus.WAITING


def fact_result(fact: Fact, payloads: Mapping[int, Any]) -> Any:
    """The value of a fact as a user sees it; None unless it is a successful result."""
    if fact.state != FactState.RESULT or not fact.ok:
        return None
    if fact.event is None:
        return codec.displayed(fact.value)
    event = payloads.get(fact.event)
    if fact.kind in _RESULT_FIELD and event is not None:
        content = event["payload"]
        return content.get(_RESULT_FIELD[fact.kind], content)  # without the field if it cannot be read here
    return event


_RESULT_FIELD: dict[str, str] = {StepType.CHILD: "output", StepType.ASK: "value"}
"""The field of the consumed event's payload that holds the result."""


def fact_error(fact: Fact, payloads: Mapping[int, Any]) -> ErrorInfo | None:
    """The error of a fact as a user sees it; None if the fact is successful."""
    if fact.ok:
        return None
    if fact.event is not None and fact.kind != StepType.WAIT:
        return _error_from_event(fact, payloads.get(fact.event))
    if fact.value is None:
        return ErrorInfo("WaitForEventTimeoutError", f"no event of type {fact.event_type!r} came in time")
    if envelope.is_envelope(fact.value):
        return Failure.displayed(fact.value).info
    content = codec.plain(fact.value)
    return _REFUSED[content] if isinstance(content, str) else Failure.from_content(content).info


def _error_from_event(fact: Fact, event: Any) -> ErrorInfo:
    if event is None:
        return ErrorInfo("ChildError", "the child did not complete")
    content = event["payload"]
    if fact.kind == StepType.ASK:
        return ErrorInfo("Rejected", str(content["value"]))
    if content["error"] is not None:
        return Failure.from_content(content["error"]).info
    return ErrorInfo("Terminated", content.get("note") or "no reason given")


def current_step(steps: list[StepRecord]) -> StepRecord | None:
    """The unfinished step that began last; if all are finished, the last step."""
    open_steps = [s for s in steps if s.status in (StepStatus.PENDING, StepStatus.WAITING)]
    candidates = open_steps or steps
    return candidates[-1] if candidates else None


Positions: TypeAlias = Mapping[str | None, CodePosition]
"""Positions in the code by the key of the step that is awaited there; None: of the main task."""
NO_POSITIONS: Positions = {}


def why_waiting(steps: list[StepRecord], now_ms: int, positions: Positions = NO_POSITIONS) -> str:
    """One clause for each open step: what the step waits for, where in the code, and the remaining time."""
    return "; ".join(_clause(step, now_ms) + at(positions, step.step_key) for step in open_steps(steps))


def open_steps(steps: Iterable[StepRecord]) -> list[StepRecord]:
    return [step for step in steps if step.status in (StepStatus.PENDING, StepStatus.WAITING)]


def at(positions: Positions, key: str | None) -> str:
    """The position as part of a sentence, with a space before it; empty if it is not known."""
    return f" at {positions[key]}" if key in positions else ""


def waits_for_event(step: StepRecord) -> bool:
    return step.type == StepType.WAIT or (step.state is not None and step.wait_event_type is not None)


def _clause(step: StepRecord, now_ms: int) -> str:
    if waits_for_event(step):
        event = f"an event of type {step.wait_event_type!r} in {step.step_key!r}"
        return f"waiting for {event}{until(step.wake_at, now_ms)}"
    if step.type == StepType.CHILD:
        return f"waiting for child {step.name!r} to end"
    if step.type == StepType.ASK:
        return f"waiting for the reply to {step.name}"
    if step.type == StepType.SLEEP:
        return f"sleeping in {step.step_key!r}{until(step.wake_at, now_ms)}"
    if step.status == StepStatus.WAITING and step.next_retry_at is not None:
        most = "" if step.max_attempts is None else f" of {step.max_attempts}"
        cause = f" ({step.error.name}: {step.error.message})" if step.error else ""
        return (
            f"waiting to retry step {step.step_key!r} after failed attempt {step.attempts}{most}{cause}"
            f"{until(step.next_retry_at, now_ms)}{_progress(step)}"
        )
    # ``attempts`` of a chain's step counts failed attempts only.
    attempt = step.attempts if step.step_seq is None else step.attempts + 1
    return f"running step {step.step_key!r} (attempt {attempt}){_progress(step)}{_last_heartbeat(step, now_ms)}"


def _progress(step: StepRecord) -> str:
    return "" if step.progress is None else f", progress {shown(step.progress)}"


def _last_heartbeat(step: StepRecord, now_ms: int) -> str:
    if step.heartbeat_at is None:
        return ""
    seconds = max(0, now_ms - round(step.heartbeat_at.timestamp() * 1000)) // 1000
    return f", heartbeat {describe_rounded(seconds * 1000) if seconds else 'less than 1 s'} ago"


def until(when: Any, now_ms: int) -> str:
    """The end of a clause: the time until which a step waits, and the remaining duration."""
    if when is None:
        return ""
    left = round(when.timestamp() * 1000) - now_ms
    text = when.strftime("%Y-%m-%d %H:%M:%S UTC")
    return f" until {text} (in {describe_rounded(left)})" if left > 0 else f" until {text} (due now)"
