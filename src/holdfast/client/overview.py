"""The overview of a database: groups of runs that need attention, and starts and ends over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.client.records import error_of
from holdfast.client.stats import StatsReader
from holdfast.client.why_parts import park_code, raised_at
from holdfast.core.model import Status, optional_from_ms
from holdfast.core.records import AttentionGroup, RunSample
from holdfast.errors import ErrorInfo
from holdfast.store.protocol import (
    AttentionCount,
    MinuteCount,
    RunRecord,
    RunsById,
    StatsQuery,
    Store,
    WorkerRecord,
    WorkersQuery,
)

_SEVERITY = ("diverged", "parked", "no_worker", "lost", "errored", "failing", "outbox", "overdue")
_ACTIONS = {"errored": "retry", "parked": "resume", "lost": "resume", "no_worker": "queue", "outbox": "redeliver"}
_WINDOWS = {"1h": (60, 1), "6h": (360, 5), "24h": (1440, 15), "7d": (10080, 120)}
"""Length in minutes and minutes per bucket."""
WINDOWS = tuple(_WINDOWS)
_MINUTE_MS = 60_000


@dataclass(slots=True)
class Series:
    """Counts per bucket, the oldest bucket first. The last bucket is not finished."""

    start: int
    step_ms: int
    totals: Mapping[str, list[int]]
    """Counts by ``started`` and each final status."""
    ended: dict[str, list[int]] = field(default_factory=dict)
    """Ended runs by workflow."""
    errored: dict[str, list[int]] = field(default_factory=dict)


class Overview:
    """Reads the overview; repeated reads within five seconds get the same figures."""

    def __init__(self, store: Store, stats: StatsReader) -> None:
        self._store = store
        self._stats = stats

    async def attention(self) -> list[AttentionGroup]:
        """Groups of runs that need attention, the most severe first."""
        counts = (await self._stats.cached(StatsQuery(attention=True))).attention
        rows = await self._store.read(RunsById([*{count.run for count in counts}]))
        samples = {row.run: row for row in rows}
        workers = [worker for worker in await self._store.read(WorkersQuery()) if worker.alive]
        groups = [_group(counts, samples.get(counts[0].run), workers) for counts in _by_cause(counts)]
        return sorted(groups, key=lambda group: (_SEVERITY.index(group.kind), -group.count, group.workflow))

    async def series(self, window: str, workflow: str | None = None) -> Series:
        """Starts and ends in a window of ``WINDOWS``, of all workflows or of one."""
        length, step = _WINDOWS[window]
        stats = await self._stats.cached(StatsQuery(minutes=length))
        last = stats.at // _MINUTE_MS // step
        first = last - length // step + 1
        series = Series(
            first * step * _MINUTE_MS, step * _MINUTE_MS, {what: [0] * (last - first + 1) for what in _WHAT}
        )
        for count in stats.minutes:
            if workflow in (None, count.workflow):
                _add(series, count, count.minute // step - first)
        return series


_WHAT = ("started", Status.COMPLETE, Status.ERRORED, Status.CANCELLED, Status.TERMINATED)


def _add(series: Series, count: MinuteCount, bucket: int) -> None:
    numbers = series.totals[count.what]
    if not 0 <= bucket < len(numbers):
        return
    numbers[bucket] += count.count
    of_workflow = {Status.ERRORED: [series.ended, series.errored], "started": []}.get(count.what, [series.ended])
    for by_workflow in of_workflow:
        by_workflow.setdefault(count.workflow, [0] * len(numbers))[bucket] += count.count


def _by_cause(counts: Iterable[AttentionCount]) -> list[list[AttentionCount]]:
    """Counts of the same cause together: errors of several releases are one group. The earliest count comes first."""
    groups: dict[tuple[str, str, str | None, str | None], list[AttentionCount]] = {}
    for count in sorted(counts, key=lambda count: count.since or 0):
        version = None if count.kind == "errored" else count.version
        groups.setdefault((count.kind, count.workflow, count.name, version), []).append(count)
    return [*groups.values()]


def _group(
    counts: Sequence[AttentionCount], sample: RunRecord | None, workers: Sequence[WorkerRecord]
) -> AttentionGroup:
    first, total = counts[0], sum(count.count for count in counts)
    error = _error(first, sample)
    kind = _kind(first, workers)
    last = max((count.last for count in counts if count.last is not None), default=None)
    return AttentionGroup(
        kind=kind,
        workflow=first.workflow,
        count=total,
        since=optional_from_ms(first.since),
        last_at=optional_from_ms(last),
        why=_why(kind, first, error),
        error=None if error is None else ErrorInfo(error.name, error.message),  # a list of causes needs no tracebacks
        step_key=first.name if kind == "failing" else None,
        version=first.version if first.kind == "errored" and len(counts) == 1 else None,
        queue=first.name if first.kind == "due" else None,
        action=_ACTIONS.get(kind, "open"),
        samples=() if sample is None else (RunSample(sample.workflow, sample.instance_id),),
        filter=_filter(first),
    )


def _kind(count: AttentionCount, workers: Sequence[WorkerRecord]) -> str:
    if count.kind == "paused":
        code = park_code(count.name or "")
        return {"NON_DETERMINISTIC": "diverged", "WORKER_LOST": "lost"}.get(code or "", "parked")
    if count.kind == "due":
        return "overdue" if any(_serves(worker, count) for worker in workers) else "no_worker"
    return count.kind


def _serves(worker: WorkerRecord, count: AttentionCount) -> bool:
    return count.name in worker.profile.queues and count.version in ("", None, worker.profile.version)


def _error(count: AttentionCount, sample: RunRecord | None) -> ErrorInfo | None:
    if count.kind != "errored":
        return None
    error = None if sample is None or sample.damage else error_of(sample)
    if error is None:
        return ErrorInfo(count.name or "Error", "")
    return replace(error, name=count.name or error.name)


def _why(kind: str, count: AttentionCount, error: ErrorInfo | None) -> str:
    pinned = f" of version {count.version!r}" if count.kind == "due" and count.version else ""
    match kind:
        case "errored" if error is not None:
            message = f": {error.message}" if error.message else ""
            position = raised_at(error)
            return f"errored: {error.name}{message}" + ("" if position is None else f" at {position}")
        case "no_worker":
            return f"due, and waiting for a worker{pinned} of queue {count.name!r}; none is alive"
        case "overdue":
            return f"due for more than a minute in queue {count.name!r}; its workers{pinned} are busy"
        case "failing":
            return f"waiting to retry step {count.name!r} after at least three failed attempts"
        case "outbox":
            return f"outbound events of type {count.name!r} are parked after too many failed deliveries"
        case "lost" if count.kind == "lost":
            return "lost the last workers in a row; a step may crash the process"
    return f"paused: {count.name}"


def _filter(count: AttentionCount) -> dict[str, str]:
    """The query of a list that shows the runs of the group, as far as a list can select them."""
    status = {"errored": "errored", "paused": "paused", "failing": "waiting"}.get(count.kind)
    found = {"workflow": count.workflow}
    if status is not None:
        found["status"] = status
    if count.kind == "errored" and count.name is not None:
        found["error"] = count.name
    if count.kind == "due" and count.name is not None:
        found["queue"] = count.name
    return found
