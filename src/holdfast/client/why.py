"""``why``: one sentence that explains the current state of a run. ``why_parts.py`` has the same for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.client.flow import why_limited
from holdfast.client.records import error_of
from holdfast.core import durations, history
from holdfast.core.model import Status, from_ms
from holdfast.core.records import StepRecord
from holdfast.kernel.model import Model, RecordedRun
from holdfast.store.protocol import (
    ANY_TOPIC,
    PermitPosition,
    Relations,
    RunRecord,
    Watch,
    single_of,
)

_SHOWN = 5
"""Maximum number of runs that a sentence names."""


@dataclass(slots=True, eq=False)
class Reasons:
    """The data from which the sentence is built."""

    run: RecordedRun
    model: Model
    steps: Sequence[StepRecord]
    relations: Relations
    before: RunRecord | None
    """The previous run, if this run waits for its start."""
    permits: Sequence[PermitPosition] = ()
    """Permits for which the run waits."""
    abandoned: bool = False
    """The run is pinned to a version for which no worker is alive."""
    queue_paused: bool = False
    """The queue of the run is paused."""


def why(reasons: Reasons, now: int, *, known: bool) -> str:
    """Explain the state of a run. ``known``: this process implements its workflow."""
    row, relations = reasons.run.row, reasons.relations
    return _state(reasons, now, known=known) + _after(reasons.before) + _linked(row, relations)


def _state(reasons: Reasons, now: int, *, known: bool) -> str:
    row, model, positions, relations = reasons.run.row, reasons.model, reasons.run.positions, reasons.relations
    if row.status.terminal:
        return _why_ended(row)
    if row.pausing:
        return "a pause was requested; it takes effect when the step in flight has ended"
    where = history.at(positions, None)
    if row.status is Status.PAUSED:
        reason = f"paused: {row.note}" if row.note else "paused by a request; resume the run to continue"
        return f"{reason}; the code waits{where}" if where else reason
    if reasons.permits:
        return why_limited(reasons.permits)
    explained = model.why(reasons.run, reasons.steps, now)
    if explained is not None:
        return f"{explained}; {_without_worker(row)}" if reasons.abandoned else explained
    steps = model.open_steps(reasons.steps)
    clauses = history.why_waiting(list(steps), now, positions), _awaited(reasons, steps, now)
    waiting = "; ".join(filter(None, clauses))
    if row.owner is not None:
        return waiting or f"running workflow code or its {'next' if reasons.steps else 'first'} step{where}"
    begun = row.started_at is not None and (row.origin is None or waiting or relations.watches)
    if row.run_at is None and not begun and single_of(row.options) is not None:
        return "waiting for the end of the run before it: both were started as singletons with the same key"
    if row.run_at is None:
        return waiting or _never_due(relations) + where
    if row.run_at > now:
        return waiting or _why_later(row) + (f", waiting{where}" if where else "")
    if reasons.queue_paused:
        return f"due, but queue {row.queue!r} is paused; resume the queue, or move its runs to another one"
    if reasons.abandoned:
        return _without_worker(row)
    if not known:
        return f"due, but this process has no workflow {row.workflow!r} registered; another worker must claim it"
    return f"due, and waiting for a worker of queue {row.queue!r}"


def _without_worker(row: RunRecord) -> str:
    return f"pinned to version {row.version!r}, for which no worker is alive; start one, or move the run"


def _never_due(relations: Relations) -> str:
    if relations.watches:
        return f"waiting for {_watched(relations)} to end, or for a cancellation"
    return "waiting, but no timer, event or other run can wake the code"


def _why_ended(row: RunRecord) -> str:
    error = error_of(row)
    if error is not None:
        return f"{row.status.value}: {error.name}: {error.message}"
    return f"{row.status.value}: {row.note}" if row.note else row.status.value


def _why_later(row: RunRecord) -> str:
    """The explanation of a later due time that no step explains."""
    when = f"{from_ms(row.run_at or 0):%Y-%m-%d %H:%M:%S} UTC"
    if row.started_at is not None:
        return f"due at {when}"
    if row.attempt > 1:
        return f"waiting for attempt {row.attempt} of the workflow at {when}"
    return f"waiting for its start at {when}"


def awaited_topics(row: RunRecord, steps: Sequence[StepRecord]) -> list[str]:
    """The message types that the code of a released run waits for, without those that a step names."""
    return [] if row.owner is not None else sorted(row.topics - {step.wait_event_type for step in steps})


def _awaited(reasons: Reasons, steps: Sequence[StepRecord], now: int) -> str:
    row, topics = reasons.run.row, awaited_topics(reasons.run.row, steps)
    if not topics:
        return ""
    since = durations.describe_rounded(max(0, now - row.updated_at))
    if ANY_TOPIC in topics:
        return f"waiting for a message ({since} so far){history.at(reasons.run.positions, 'listen any')}"
    where = history.at(reasons.run.positions, f"listen {topics[0]}")
    return f"waiting for message {' or '.join(map(repr, topics))} ({since} so far){where}"


def waits_for_start(row: RunRecord) -> bool:
    return row.number > 0 and row.started_at is None and not row.status.terminal


def _after(before: RunRecord | None) -> str:
    """The end of the previous attempt, or of the run of the previous tick of a schedule."""
    return "" if before is None else f"; run {before.number} was {_why_ended(before)}"


def _watched(relations: Relations) -> str:
    pids = [pid for pid, _ in relations.watches]
    return ", ".join(pids[:_SHOWN]) + (" …" if len(pids) > _SHOWN else "")


def _linked(row: RunRecord, relations: Relations) -> str:
    links = [pid for pid, watch in relations.watches if watch & Watch.LINK][:_SHOWN]
    return f"; linked to {', '.join(links)}" if links and not row.status.terminal else ""
