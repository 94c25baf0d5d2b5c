"""Statistics of a database: counts of runs, the state of the queues, throughput, errors and durations of steps.

The cost of a read does not depend on the number of finished runs. Runs that ended are counted by **tallies**, stored
counts of all runs that ended up to a *watermark*; a read adds the runs that ended since. Instances that were started
up to the watermark are tallied by time only. ``Tally`` moves the watermark forward. A retry adds one to the tally of
retried runs, which a read subtracts; the end of a run that was retried stays in the numbers of ends by time and in
those of errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.store.protocol.requests import MaintenanceRequest, Query

TALLY_MARGIN_MS = 30_000
"""The watermark stays this far behind the store's clock: a transaction may take time from its end of a run to its
commit."""
MAX_MINUTES = 7 * 1440
"""Counts are kept for seven days."""
EXACT_MINUTES = 1440
"""Counts by minute are kept for a day. The older ones are added up by hour, as counts of the hour's first minute."""
TALLY_PAUSE_MS = 5_000
"""The watermark moves at most this often."""


@dataclass(frozen=True, slots=True)
class RunCount:
    workflow: str
    status: str
    count: int


@dataclass(frozen=True, slots=True)
class QueueCount:
    """The tasks of a queue. A task is a run, or a node of a graph."""

    queue: str
    due: int
    """Tasks that are due and have no owner."""
    oldest_due: int | None
    """Due time of the task that has been due for the longest time."""
    running: int
    """Tasks that workers own."""


@dataclass(frozen=True, slots=True)
class ErrorCount:
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations of a step's last attempts, in the latest runs."""

    workflow: str
    step: str | None
    """None: all steps of the workflow."""
    count: int
    mean_ms: float
    max_ms: int
    p50_ms: int
    p95_ms: int


@dataclass(frozen=True, slots=True)
class AttentionCount:
    """Runs of one workflow that need attention for the same reason."""

    kind: str
    """``errored``, ``paused`` (by the engine), ``due`` (for a minute), ``lost``, ``failing`` or ``outbox``."""
    workflow: str
    name: str | None
    """The name of the error, the note of the pause, the queue, or the key of the failing step."""
    version: str | None
    """The release of errored runs, the pin of due tasks."""
    count: int
    since: int | None
    last: int | None
    run: int
    """One of the runs."""


@dataclass(frozen=True, slots=True)
class MinuteCount:
    """Runs of a workflow that started, or ended with a status, in one minute."""

    what: str
    """``started``, or the status."""
    workflow: str
    minute: int
    """Minutes since 1970."""
    count: int


@dataclass(slots=True)
class StoreStats:
    at: int
    """The store's time of the read."""
    runs: Sequence[RunCount] = ()
    """Runs by workflow and status, including those that have a successor, except runs that were retried: the successor
    of a retried run continues from its history, and is counted in its place."""
    queues: Sequence[QueueCount] = ()
    workers_alive: int = 0
    ended_last_minute: int = 0
    ended_last_hour: int = 0
    started_last_minute: int = 0
    started_last_hour: int = 0
    """The numbers of started instances, errors and durations are read only if the query asks for details."""
    errors: Sequence[ErrorCount] = ()
    """Names of the errors of runs that errored within the last hour, the most frequent first."""
    slowest_steps: Sequence[StepTimes] = ()
    """Steps of the latest runs that ended within the last hour, the slowest first."""
    workflow_steps: Sequence[StepTimes] = ()
    """The same for all steps of each workflow, by name."""
    attention: Sequence[AttentionCount] = ()
    minutes: Sequence[MinuteCount] = ()
    """Not summed: a minute may have several counts of the same kind."""

    def set_steps(self, times: Sequence[StepTimes]) -> None:
        self.slowest_steps = sorted((one for one in times if one.step is not None), key=lambda one: -one.mean_ms)
        self.workflow_steps = sorted((one for one in times if one.step is None), key=lambda one: one.workflow)


@dataclass(frozen=True, slots=True)
class StatsQuery(Query[StoreStats]):
    """Statistics of the database; the cost does not depend on the number of finished runs."""

    details: bool = False
    """Read also the numbers of starts, the errors and the slowest steps."""
    attention: bool = False
    """Read also the runs that need attention. The cost grows with the number of open runs."""
    minutes: int = 0
    """Read also the counts of this many minutes before now, at most ``MAX_MINUTES``; those that are older than
    ``EXACT_MINUTES`` are counts of hours."""


@dataclass(frozen=True, slots=True)
class Tally(MaintenanceRequest[bool]):
    """Move the watermark of the tallies; the reply is True if there is more to count.

    A repeated request has no effect for ``TALLY_PAUSE_MS``.
    """

    limit: int
    """Approximate maximum number of runs of each workflow and status."""


@dataclass(slots=True)
class _Queues:
    due: dict[str, tuple[int, int]] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)


def stats_of(at: int, rows: Iterable[Sequence[Any]]) -> StoreStats:
    """The statistics in the rows of a store's query: (kind, name, status, number, time)."""
    stats, queues = StoreStats(at), _Queues()
    runs: dict[tuple[str, str], int] = {}
    errors: list[ErrorCount] = []
    for kind, name, status, number, time in rows:
        match kind:
            case "runs":
                runs[name, status] = runs.get((name, status), 0) + number
            case "due":
                queues.due[name] = (number, time)
            case "running":
                queues.running[name] = number
            case "error":
                errors.append(ErrorCount(name, number))
            case _:
                setattr(stats, kind, number)
    stats.runs = [RunCount(*key, count) for key, count in sorted(runs.items()) if count > 0]
    stats.queues = [
        _queue(name, queues.due.get(name), queues.running.get(name, 0))
        for name in sorted(queues.due.keys() | queues.running)
    ]
    stats.errors = errors
    return stats


def _queue(name: str, due: tuple[int, int] | None, running: int) -> QueueCount:
    return QueueCount(name, 0, None, running) if due is None else QueueCount(name, *due, running)
