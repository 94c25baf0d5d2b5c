"""The timeline of a run, derived from its facts: steps with every attempt, and the workers that held the run.

Nothing here is stored. All times are in milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core import codec, history
from holdfast.core.facts import Fact, FactState
from holdfast.core.model import StepType, to_ms
from holdfast.core.records import StepRecord
from holdfast.errors import ErrorInfo

OK, FAILED, LOST, RUNNING = "ok", "failed", "lost", "running"
"""Outcomes of attempts."""
_LOST_ERRORS = ("WorkerLost", "LEASE_EXPIRED")
_SAME_START_MS = 5
"""Steps that begin within this time of each other were started together."""
_SAME_HOLD_MS = 2_000
"""Attempts of one worker with a shorter pause between them count as one hold."""


@dataclass(frozen=True, slots=True)
class Attempt:
    n: int
    start: int
    end: int | None
    outcome: str
    error: ErrorInfo | None = None
    worker: str | None = None
    retry_at: int | None = None
    heartbeat_at: int | None = None
    progress: Any = None


@dataclass(frozen=True, slots=True)
class Item:
    """One step of the timeline."""

    step: StepRecord
    start: int
    end: int | None
    updated: int
    attempts: Sequence[Attempt] = ()
    event: int | None = None
    """The number of the event that the step consumed."""
    child: str | None = None
    parallel: int | None = None
    """Items with the same number were started together."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The time in which a worker held the run, as far as the facts show it."""

    worker: str
    start: int
    end: int | None
    lost: bool = False


def items_of(steps: Iterable[StepRecord], facts: Iterable[Fact], *, planned: bool = False) -> list[Item]:
    """The items of a run's steps, in the order of their starts. ``planned``: also of steps that have not begun."""
    by_key: dict[str, list[Fact]] = {}
    for fact in facts:
        key = f"{fact.key}[{fact.n}]" if fact.state == FactState.ITEM else fact.key
        if fact.state != FactState.PLAN:  # a planned step has not begun
            by_key.setdefault(key, []).append(fact)
    begun = [step for step in steps if planned or step.step_key in by_key]
    items = [_item(step, by_key.get(step.step_key, [])) for step in begun]
    return _with_groups(sorted(items, key=lambda item: item.start))


def _item(step: StepRecord, facts: Sequence[Fact]) -> Item:
    if len(facts) == 1 and facts[0].state == FactState.RESULT and step.type == StepType.DO:  # most of a long run
        [fact] = facts
        return Item(step, fact.started_at, fact.at, fact.at, [_ended(fact, fact.attempts or 1, None)], fact.event)
    if not facts:  # a planned step that has not begun
        at = to_ms(step.created_at)
        return Item(step, at, None, at)
    result = next((fact for fact in facts if fact.state in (FactState.RESULT, FactState.ITEM)), None)
    attempts = [*_attempts(step, facts, result)]
    return Item(
        step,
        min(fact.started_at for fact in facts),
        None if result is None else result.at,
        max(fact.at for fact in facts),
        attempts,
        None if result is None else result.event,
        step.name if step.type == StepType.CHILD else None,
    )


def _attempts(step: StepRecord, facts: Sequence[Fact], result: Fact | None) -> Iterator[Attempt]:
    """The attempts of a step, the earliest first. Waits and sleeps have none."""
    calls = step.type in (StepType.DO, StepType.NODE)
    if len(facts) == 1 and result is not None:  # most steps of a long run
        if calls:
            yield _ended(result, result.attempts or 1, None)
        return
    begun = [fact for fact in facts if fact.state == FactState.START and calls]
    starts = {fact.n: fact for fact in begun if fact.event_type is None}  # a chain's step that waits has no attempt
    beats = {fact.n: fact for fact in facts if fact.state == FactState.HEARTBEAT}
    failures = [fact for fact in facts if fact.state == FactState.FAILURE]
    for failure in failures:
        yield _beating(_failed(failure, starts.get(failure.n)), beats.get(failure.n))
    last = max([0, *starts, *(failure.n for failure in failures)])
    if result is not None:
        if calls and not (failures and failures[-1].n == last and not result.ok and last == result.attempts):
            number = result.attempts or last or 1
            yield _beating(_ended(result, number, starts.get(number)), beats.get(number))
        return
    running = starts.get(last)
    if running is not None and not any(failure.n == last for failure in failures):
        attempt = Attempt(last, running.started_at, None, RUNNING, worker=_worker(running))
        yield _beating(attempt, beats.get(last))


def _failed(failure: Fact, start: Fact | None) -> Attempt:
    error = history.fact_error(failure, {})
    outcome = LOST if error is not None and error.name in _LOST_ERRORS else FAILED
    return Attempt(failure.n, failure.started_at, failure.at, outcome, error, _worker(start), failure.wake_at)


def _ended(result: Fact, number: int, start: Fact | None) -> Attempt:
    error = None if result.ok else history.fact_error(result, {})
    begun = result.started_at if start is None else start.started_at
    return Attempt(number, begun, result.at, OK if result.ok else FAILED, error, _worker(start))


def _beating(attempt: Attempt, beat: Fact | None) -> Attempt:
    if beat is None:
        return attempt
    return replace(attempt, heartbeat_at=beat.at, progress=codec.displayed(beat.value))


def _worker(start: Fact | None) -> str | None:
    content = None if start is None else codec.displayed(start.value)
    owner = content.get("owner") if isinstance(content, dict) else None
    return owner if isinstance(owner, str) else None


def _with_groups(items: Sequence[Item]) -> list[Item]:
    """Number the groups of items that were started together and overlapped."""
    numbered: list[Item] = []
    group: list[Item] = []
    number = 0
    for item in [*items, None]:
        if item is not None and group and _together(group, item):
            group.append(item)
            continue
        if len(group) > 1:
            number += 1
            group = [
                Item(one.step, one.start, one.end, one.updated, one.attempts, one.event, one.child, number)
                for one in group
            ]
        numbered += group
        group = [] if item is None else [item]
    return numbered


def _together(group: Sequence[Item], item: Item) -> bool:
    first, before = group[0], group[-1]
    return item.start - first.start <= _SAME_START_MS and (before.end is None or before.end > item.start)


def holds_of(items: Iterable[Item], seen: Mapping[str, int]) -> list[Hold]:
    """The workers that held the run. ``seen``: the time of the last heartbeat of each worker that is known."""
    attempts = sorted((one for item in items for one in item.attempts if one.worker), key=lambda one: one.start)
    holds: list[Hold] = []
    for attempt in attempts:
        hold = _hold(attempt, seen)
        last = holds[-1] if holds else None
        if last is not None and last.worker == hold.worker and _continues(last, hold):
            ends = [last.end, hold.end]
            end = None if None in ends else max(end for end in ends if end is not None)
            holds[-1] = replace(last, end=end, lost=last.lost or hold.lost)
        else:
            holds.append(hold)
    return holds


def _hold(attempt: Attempt, seen: Mapping[str, int]) -> Hold:
    worker, lost, end = attempt.worker or "", attempt.outcome == LOST, attempt.end
    if lost and end is not None:  # the attempt ends when its lease expires; the worker was lost earlier
        end = min(end, max(attempt.start, seen.get(worker, end), attempt.heartbeat_at or 0))
    return Hold(worker, attempt.start, end, lost)


def _continues(last: Hold, hold: Hold) -> bool:
    return last.end is None or hold.start - last.end <= (0 if last.lost else _SAME_HOLD_MS)


def working_ms(items: Iterable[Item], now: int) -> int:
    """The time in which at least one attempt ran, without lost attempts, whose duration is not known."""
    attempts = (one for item in items for one in item.attempts if one.outcome != LOST)
    spans = sorted((one.start, now if one.end is None else one.end) for one in attempts)
    total, reached = 0, 0
    for start, end in spans:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
