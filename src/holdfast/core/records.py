"""The records that users read.

Records are frozen; their field names are the snake_case forms of the HTTP fields. This module does not depend on a
store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from holdfast.core.model import DEFAULT_KIND, DEFAULT_QUEUE, Status
from holdfast.core.rate import Rate
from holdfast.errors import ErrorInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """The status of a run. ``error`` and ``output`` are set only after the run has ended."""

    status: str
    error: ErrorInfo | None = None
    output: Any = None
    kind: str = DEFAULT_KIND
    native_status: str | None = None
    """The status in the terms of the run's kind, or None if the kind has no terms of its own. A chain is RUNNING,
    COMPLETED, FAILED or CANCELED."""

    @property
    def ended(self) -> bool:
        return Status(self.status).terminal


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One durable step, sleep or wait, derived from its facts."""

    id: str
    run_number: int
    step_key: str
    name: str
    type: str
    status: str
    attempts: int
    max_attempts: int | None
    timeout_ms: int | None
    next_retry_at: datetime | None
    wake_at: datetime | None
    wait_event_type: str | None
    result: Any
    error: ErrorInfo | None
    created_at: datetime
    updated_at: datetime
    state: str | None = None
    """The state of a chain's step (PENDING, READY, RUNNING, WAITING, DONE or DEAD) or of a graph's node (pending,
    started, retrying, ok, error or skipped). None in workflows."""
    step_seq: int | None = None
    """The position of a chain's step, from 0. None in workflows and graphs."""
    progress: Any = None
    """The value reported by the last heartbeat of a step that is not completed."""
    heartbeat_at: datetime | None = None
    """The time of the last heartbeat."""
    resolved: bool = False
    """True if the outcome was decided by hand (``run.resolve``, or ``outputs`` of a fork)."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event sent to a run. ``delivered_at`` is set when a wait or a listener has consumed the event."""

    id: str
    run_number: int
    type: str
    payload: Any
    created_at: datetime
    delivered_at: datetime | None
    consumed_by_step_key: str | None
    sender: str | None = None
    """The pid of the run that sent the event. None: the event came from outside."""


@dataclass(frozen=True, slots=True)
class LogLine:
    id: str
    run_number: int
    step_key: str | None
    attempt: int | None
    level: str
    category: str
    message: str
    data: Any
    is_replay: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class OriginRecord:
    """The run whose history a run continues, and the request that created the continuation."""

    action: str
    """``retry``, ``fork`` or ``resolve``."""
    pid: str
    run_number: int
    at: datetime
    actor: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class History:
    """The history of one run: its steps in the order they began, its events in the order they arrived."""

    run_number: int
    steps: list[StepRecord]
    events: list[EventRecord]
    origin: OriginRecord | None = None
    """The request that created the run, if the run continues from the history of another one."""


@dataclass(frozen=True, slots=True)
class ChildRecord:
    """A run started by the described run."""

    pid: str
    status: str


@dataclass(frozen=True, slots=True)
class CodePosition:
    """A line of user code. ``file`` is relative to the directory from which its module was imported."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class WhyParts:
    """The parts of ``why``, for programs. Fields that do not apply are None."""

    kind: str
    """``event``, ``sleep``, ``retry``, ``step``, ``child``, ``reply``, ``message``, ``node``: what the run waits for or
    runs; ``timer``: a time; ``due``: a worker; ``no_code``: a worker that has the workflow;
    ``queue_paused``: the end of the pause of its queue; ``start``: its start;
    ``running``, ``pausing``, ``paused``, ``parked``, ``ended``, ``damaged``; ``nothing``: no timer,
    event or other run can wake the code."""
    step_key: str | None = None
    name: str | None = None
    """The name of the step, the pid of the child, the topics of messages."""
    event_type: str | None = None
    until: datetime | None = None
    position: CodePosition | None = None
    """The line of code that waits, or for ``ended`` the line that raised the error; None if it is not known."""
    attempt: int | None = None
    """For ``retry``: the number of the attempt that failed last."""
    max_attempts: int | None = None
    error: ErrorInfo | None = None
    """For ``retry``: the error of the attempt that failed last."""
    code: str | None = None
    """For ``parked``: the reason, such as ``NON_DETERMINISTIC`` or ``WORKER_LOST``; None: another error."""
    others: tuple[WhyParts, ...] = ()
    """Waits of the other tasks of the run."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An audit record of a control request: time, actor, action, target, reason and outcome."""

    at: datetime
    actor: str | None
    """None: the request named no actor."""
    action: str
    target: str
    """The pid of the instance."""
    reason: str | None
    outcome: str
    """``done``, ``refused``, or the new run of a retry or fork."""


@dataclass(frozen=True, slots=True)
class InstanceDescription:
    """A full description of an instance. ``why`` states in one sentence what the instance is waiting for."""

    id: str
    workflow_name: str
    kind: str
    status: str
    error: ErrorInfo | None
    output: Any
    run_number: int
    params: Any
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    current_step: StepRecord | None
    why: str
    why_parts: WhyParts
    memo: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    children: list[ChildRecord] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    monitors: list[str] = field(default_factory=list)
    attempt: int = 1
    summary: str | None = None
    native_status: str | None = None
    """As in ``InstanceStatus``."""
    cron: str | None = None
    """The ``cron`` option of the start."""
    schedule: str | None = None
    """The schedule that started the run."""
    scheduled_for: datetime | None = None
    """The tick of that schedule."""
    workflow_version: int | None = None
    """The version of the definition that the run was started with. None: the definition has no version."""
    origin: OriginRecord | None = None
    """The run whose history this run continues. None: the run began with no history."""
    forks: list[str] = field(default_factory=list)
    """Pids of the runs that were forked from this instance, the newest first."""
    queue: str = DEFAULT_QUEUE
    version: str | None = None
    """The release that started the run (``WorkerConfig.version``)."""
    owner: str | None = None
    """The worker that holds the run."""
    killed: bool = False
    """True if the run is a graph with a tombstone: it was killed, terminated or cancelled."""


@dataclass(frozen=True, slots=True)
class InstanceSummary:
    """One row of a list of instances."""

    id: str
    workflow_name: str
    details: InstanceStatus
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step of a chain or a node of a graph, as the plan of a run has it."""

    key: str
    after: tuple[str, ...] = ()
    """The keys of the steps before it."""
    map: str | None = None
    """The predecessor over whose list the node is mapped."""
    run: str | None = None
    """The workflow, chain or graph that the node starts."""
    max_attempts: int | None = None


@dataclass(frozen=True, slots=True)
class RunSample:
    workflow: str
    id: str


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Runs of one workflow that need attention for the same reason."""

    kind: str
    """``diverged``, ``parked``, ``no_worker``, ``lost``, ``errored``, ``failing``, ``outbox`` or ``overdue``."""
    workflow: str
    count: int
    since: datetime | None
    last_at: datetime | None
    why: str
    error: ErrorInfo | None
    step_key: str | None
    version: str | None
    """The only release whose runs have the error; None: several, or none is known."""
    queue: str | None
    action: str
    """The usual next action: ``retry``, ``resume``, ``redeliver``, ``queue`` or ``open``."""
    samples: tuple[RunSample, ...]
    filter: dict[str, str]
    """The query of a list that shows the runs."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker that is running, or that died within the last day."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    started_at: datetime
    seen_at: datetime
    """The time of the worker's last heartbeat."""
    alive: bool
    version: str | None = None
    """The release of its program (``WorkerConfig.version``)."""
    draining: bool = False
    """True if the worker claims nothing and gives up its runs (``app.drain_worker``)."""
    held: int = 0
    """Number of runs and nodes that the worker executes."""


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """A limit as the database has it."""

    name: str
    concurrency: int | None
    rate: Rate | None
    fair: bool
    weights: Mapping[str, float]
    used: int
    """Attempts, nodes and runs in progress under the limit, over all keys."""
    waiting: int
    """Attempts, nodes and runs that wait for the limit."""
    keys: int
    """Keys with something in progress."""
    changed: bool
    """The values were set at run time, and differ from those in the code."""
    rate_used: int = 0
    """Starts that count against the burst of the rate now, under the key that has started the most."""
    oldest_waiting: datetime | None = None
    """The time since when the attempt, node or run that has waited the longest waits; None: none waits."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue that has tasks or living workers, or that is paused. A task is a run, or a node of a graph."""

    name: str
    due: int
    """Tasks that are due and that no worker owns."""
    oldest_due: datetime | None
    """The time at which the oldest due task became due."""
    running: int
    """Tasks that workers own."""
    workers: int
    """Living workers that claim tasks of the queue."""
    paused: bool = False
    """No worker claims tasks of the queue."""


@dataclass(frozen=True, slots=True)
class StepStats:
    """Durations of a step in the latest runs, in seconds."""

    workflow: str
    step: str
    count: int
    mean: float
    max: float
    p50: float
    """Half of the calls took at most this long."""
    p95: float


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of the database."""

    runs: dict[str, dict[str, int]]
    """Number of runs by workflow and status."""
    started_per_minute: int
    """Instances that were started within the last minute."""
    ended_per_minute: int
    """Runs that ended within the last minute."""
    started_last_hour: int
    ended_last_hour: int
    due: int
    """Tasks that are due and that no worker owns, in all queues."""
    oldest_due: datetime | None
    """The time at which the oldest due task became due."""
    workers: int
    """Number of living workers."""
    errors: dict[str, int]
    """Errors of the runs that errored within the last hour, by name, the most frequent first."""
    slowest_steps: list[StepStats]
    """Steps of the latest runs, the slowest first."""
    step_p95: dict[str, float]
    """95th percentile of the durations of steps in the latest runs, by workflow, in seconds."""


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A release that has runs or workers: the number of its open runs, and the ids of its living workers."""

    version: str | None
    """None: runs and workers without a version."""
    open_runs: int
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    cursor: str | None = None
    """The cursor of the next page; None: there is none."""
    previous: str | None = None
    """The cursor of the page before; None: there is none, or the list has no such cursors."""
