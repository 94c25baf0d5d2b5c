"""The queue: tasks, claims of tasks, leases, and the workers that own them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import NamedTuple

from holdfast.core.facts import Fact, MailboxPage, StoredEvent
from holdfast.core.model import TaskKind
from holdfast.store.protocol.runs import RunRecord
from holdfast.store.protocol.streams import StreamHead
from holdfast.store.protocol.units import TaskRef

SUSPECT_LOSSES = 2
"""Number of losses in a row that makes a task a suspect (see ``ClaimRequest.suspects``)."""


class Signal(IntFlag):
    """Requests to the owner of a task."""

    NONE = 0
    EVENTS = 1
    PAUSE = 2


@dataclass(slots=True)
class WorkerProfile:
    """The identity and the settings of a worker."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    version: str | None = None
    """The release of the program (``WorkerConfig.version``)."""


@dataclass(slots=True)
class WorkerRecord:
    """A worker's row. A worker that shuts down deletes its row; the row of a worker that died is kept for a day."""

    profile: WorkerProfile
    started_at: int
    seen_at: int
    """The time of the worker's last heartbeat."""
    alive: bool
    """True if the worker's lease has not expired."""
    draining: bool = False
    """True if a request drains the worker: it claims nothing and gives up its turns (``DrainWorker``)."""
    held: int = 0
    """Number of tasks that the worker owns."""


class VersionCount(NamedTuple):
    """The number of runs of a version that have not ended."""

    version: str | None
    """None: runs without a version."""
    open_runs: int


@dataclass(slots=True)
class ClaimRequest:
    owner: str
    lease_ms: int
    limit: int
    queues: Sequence[str]
    workflows: frozenset[str]
    """The workflows that the worker has registered; tasks of other workflows are left to other workers."""
    suspects: bool = True
    """Allow one suspect among the claimed tasks: a task whose last ``SUSPECT_LOSSES`` owners were lost in a row.

    A worker that dies loses all the tasks it owns, so tasks that did not cause the crash count a loss too. Each worker
    therefore owns at most one suspect at a time, and soon the task that causes the crashes is lost alone.
    """
    run: int | None = None
    """Claim only units of this run, in the order of their numbers; no overdue runs are claimed.

    A claim of unit 0 includes its mailbox page.
    """
    version: str | None = None
    """The release of the worker. Runs that are pinned to another version are left to workers of that version.

    A claimed run without a version gets this one.
    """
    pinned: frozenset[str] = frozenset()
    """Workflows whose runs are pinned when a claim sets their version."""


@dataclass(slots=True)
class Claim:
    task: TaskRef
    kind: TaskKind
    lost: bool
    """True if the previous owner did not release the task."""
    run: RunRecord
    mailbox_page: MailboxPage
    at: int | None = None
    """The store's time of the claim; the mailbox page has all events until then. None: the run was created claimed."""


@dataclass(slots=True)
class ClaimResult:
    claims: Sequence[Claim]
    next_due: int | None
    """The time at which an unowned task of these queues and workflows is due, or a run expires; None: neither."""
    now: int
    """The store's time of this claim."""
    overdue: Sequence[Claim] = ()
    """Expired runs of any workflow and queue, including paused runs and runs that another worker owned until now.

    Overdue runs do not count towards ``limit`` (with a limit of 0 there are none), and their number is bounded. Their
    mailbox pages are empty. The worker that receives them ends them.
    """


@dataclass(slots=True)
class Snapshot:
    """The data that a replay from the store needs besides the claim."""

    facts: Sequence[Fact]
    events: Mapping[int, StoredEvent]
    """The events that the facts refer to, by number."""
    log_count: int
    """The number of stored log lines of the workflow code itself. A replay logs these lines again."""
    streams: Sequence[StreamHead] = ()
    """The streams of the run. A replay writes the items of the workflow's code again."""


class HeldTask(NamedTuple):
    run: int
    unit: int
    epoch: int
    signal: Signal


class Heartbeat(NamedTuple):
    """Progress of an attempt that runs under this claim."""

    task: TaskRef
    fact: Fact
    """A fact with state HEARTBEAT."""


class Lease(NamedTuple):
    """The time for which a task stays owned without a heartbeat of its worker."""

    task: TaskRef
    lease_ms: int


class ExpiredTask(NamedTuple):
    """A task whose lease has expired: it can be claimed again, or its run was paused after too many losses."""

    run: int
    unit: int
    losses: int
    parked: bool
