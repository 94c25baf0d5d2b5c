"""``Metrics``: counters and histograms of the work of this process's workers, for Prometheus.

The counters count written facts, so an attempt is counted once, however often its worker was lost. The gauges are
those of the whole database, read by one query that is repeated at most every five seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.core.facts import Fact, FactState
from holdfast.core.model import StepType, to_ms
from holdfast.core.records import LimitInfo
from holdfast.kernel.telemetry import Telemetry
from holdfast.store.protocol import (
    FIRST_EPOCH,
    Advance,
    Claim,
    Commit,
    Committed,
    Finish,
    Park,
    RunRecord,
    StoreStats,
    Verdict,
)
from holdfast.store.protocol.units import first_unit
from holdfast.telemetry.instruments import Counter, Gauge, Histogram, Labels, Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_STEPS = 200
"""Names of steps that are counted separately, for each workflow; further steps are counted as ``other``."""

_APPLIED = Verdict.APPLIED
_WRITTEN = (Verdict.PAUSING, Verdict.PAUSED)
_STEPS = (StepType.DO, StepType.NODE)
_CODE = re.compile(r"([A-Z][A-Z_]+): ")


@dataclass(slots=True)
class _Cell:
    """The counter and the histogram of one outcome of a step. The counter is read when the metrics are shown."""

    series: Series
    count: int = 0


class Metrics(Telemetry):
    """Counters and histograms of this process."""

    unguarded = frozenset({"turn_began", "batch_written", "commit_written", "advance_written", "parked"})

    def __init__(self) -> None:
        self._started = Counter("holdfast_runs_started_total", "Runs whose first turn was written.", ["workflow"])
        self._ended = Counter(
            "holdfast_runs_ended_total", "Runs that a worker of this process ended.", ["workflow", "status"]
        )
        self._steps = Counter(
            "holdfast_steps_total",
            "Recorded attempts of steps: completed, errored (no attempts left), retried.",
            ["workflow", "step", "outcome"],
        )
        self._durations = Histogram(
            "holdfast_step_duration_seconds", "Duration of recorded attempts.", ["workflow", "step"]
        )
        self._latency = Histogram(
            "holdfast_start_latency_seconds", "Time from when a new run is due to its first turn.", ["queue"]
        )
        self._commits = Histogram("holdfast_commit_seconds", "Duration of the writes of a batch of commits.")
        self._takeovers = Counter("holdfast_lease_takeovers_total", "Tasks taken over from workers that lost them.")
        self._parked = Counter("holdfast_parked_total", "Runs that were parked.", ["reason"])
        self._step_names: dict[str, set[str]] = {}
        self._counted: dict[Labels, _Cell] = {}
        """The cells by the labels of their counters."""
        self._cells: dict[tuple[str, str, str, int, bool], _Cell] = {}
        """The place at which a fact is counted, by workflow, name, kind, state and success."""

    # --- observed points

    def turn_began(self, claim: Claim, now_ms: int) -> None:
        run, task = claim.run, claim.task
        if claim.lost:
            self._takeovers.add()
        elif run.started_at is None and task.epoch == FIRST_EPOCH and task.unit == first_unit(run.kind):
            due = run.created_at if run.run_at is None else max(run.run_at, run.created_at)
            self._latency.observe(max(0, now_ms - due) / 1000, (run.queue,))

    def batch_written(self, seconds: float) -> None:
        self._commits.observe(seconds)

    def commit_written(self, run: RunRecord, commit: Commit, result: Committed) -> None:
        applied = result.verdict is _APPLIED
        if not applied and result.verdict not in _WRITTEN:
            return
        if commit.started_at is not None and run.started_at is None:
            self._started.add((run.workflow,))
        self._count_steps(run.workflow, commit.observed.facts)
        end = commit.following.next
        if end is None or not applied:
            return
        if isinstance(end, Finish):
            self._ended.add((run.workflow, end.status.value))
        elif isinstance(end, Park):
            self._parked.add((_reason(end.note),))

    def advance_written(self, run: RunRecord, advance: Advance) -> None:
        if advance.started_at is not None and run.started_at is None:
            self._started.add((run.workflow,))
        self._count_steps(run.workflow, advance.results)
        self._count_steps(run.workflow, advance.facts)

    def parked(self, run: RunRecord, reason: str) -> None:
        self._parked.add((reason,))

    def _count_steps(self, workflow: str, facts: Iterable[Fact]) -> None:
        cells = self._cells
        for fact in facts:
            key = (workflow, fact.name or fact.key, fact.kind, fact.state, fact.ok)
            cell = cells.get(key) or self._new_cell(key)
            if cell is not None:
                cell.count += 1
                cell.series.observe_ms(fact.at - fact.started_at)

    def _new_cell(self, key: tuple[str, str, str, int, bool]) -> _Cell | None:
        """The place at which a fact is counted. Only facts of steps have an entry: other keys are not bounded."""
        workflow, name, kind, state, ok = key
        if kind not in _STEPS or state not in (FactState.RESULT, FactState.FAILURE):
            return None
        outcome = "retried" if state == FactState.FAILURE else "completed" if ok else "errored"
        step = self._step_name(workflow, name)
        labels = self._steps.ensure((workflow, step, outcome))
        cell = self._counted.get(labels)
        if cell is None:
            cell = self._counted[labels] = _Cell(self._durations.of((workflow, step)))
        if step == name:
            self._cells[key] = cell
        return cell

    def _step_name(self, workflow: str, name: str) -> str:
        names = self._step_names.get(workflow)
        if names is None:
            names = self._step_names[workflow] = set()
        if name not in names:
            if len(names) >= MAX_STEPS:
                return "other"
            names.add(name)
        return name

    # --- text

    def text(self, stats: StoreStats | None, limits: Sequence[LimitInfo] = ()) -> str:
        """The metrics in the format of Prometheus. ``stats``: the figures of the database; None: not available.

        ``limits``: the limits of the database with their use.
        """
        self._steps.values = {labels: cell.count for labels, cell in self._counted.items()}
        metrics = (
            self._started, self._ended, self._steps, self._durations, self._latency, self._commits, self._takeovers,
            self._parked,
        )  # fmt: skip
        lines = [line for metric in metrics for line in metric.lines()]
        if stats is not None:
            lines += _gauges(stats)
            lines += _LIMIT_USED.lines(((limit.name,), limit.used) for limit in limits)
            lines += _LIMIT_WAITING.lines(((limit.name,), limit.waiting) for limit in limits)
            lines += _LIMIT_OLDEST.lines(((limit.name,), _seconds(limit, stats.at)) for limit in limits)
        return "\n".join(lines) + "\n" + _other_metrics()


_RUNS = Gauge("holdfast_runs", "Runs in the database.", ["workflow", "status"])
_DUE = Gauge("holdfast_queue_due", "Tasks that are due and that no worker owns.", ["queue"])
_OLDEST = Gauge(
    "holdfast_queue_oldest_due_seconds", "Time for which the oldest task without an owner has been due.", ["queue"]
)
_LIMIT_USED = Gauge("holdfast_limit_in_use", "Permits of a limit that are in use, over all keys.", ["limit"])
_LIMIT_WAITING = Gauge("holdfast_limit_waiting", "Attempts, nodes and runs that wait at a limit.", ["limit"])
_LIMIT_OLDEST = Gauge(
    "holdfast_limit_oldest_waiting_seconds",
    "Time for which the attempt, node or run that has waited the longest at a limit has waited.",
    ["limit"],
)
_WORKERS = Gauge("holdfast_workers_alive", "Workers whose lease has not expired.")

NAMES = (
    "holdfast_runs_started_total", "holdfast_runs_ended_total", "holdfast_steps_total",
    "holdfast_step_duration_seconds", "holdfast_start_latency_seconds", "holdfast_commit_seconds",
    "holdfast_queue_due", "holdfast_queue_oldest_due_seconds", "holdfast_workers_alive", "holdfast_runs",
    "holdfast_lease_takeovers_total", "holdfast_parked_total", "holdfast_limit_in_use", "holdfast_limit_waiting",
    "holdfast_limit_oldest_waiting_seconds",
)  # fmt: skip


def _gauges(stats: StoreStats) -> list[str]:
    ages = [
        ((queue.queue,), 0.0 if queue.oldest_due is None else max(0, stats.at - queue.oldest_due) / 1000)
        for queue in stats.queues
    ]
    return [
        *_RUNS.lines(((count.workflow, count.status), count.count) for count in stats.runs),
        *_DUE.lines(((queue.queue,), queue.due) for queue in stats.queues),
        *_OLDEST.lines(ages),
        *_WORKERS.lines([((), stats.workers_alive)]),
    ]


def _seconds(limit: LimitInfo, now_ms: int) -> float:
    return 0.0 if limit.oldest_waiting is None else max(0, now_ms - to_ms(limit.oldest_waiting)) / 1000


def _reason(note: str) -> str:
    """The code at the beginning of a note, in lower case. The codes are few, so the number of labels is bounded."""
    code = _CODE.match(note)
    return "other" if code is None else code[1].lower()


def _other_metrics() -> str:
    """The metrics of the program itself, if it uses ``prometheus_client``."""
    try:
        from prometheus_client import generate_latest  # noqa: PLC0415  (an extra, which adds metrics of the process)
    except ImportError:
        return ""
    return generate_latest().decode()
