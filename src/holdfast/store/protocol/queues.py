"""Queues as stored objects: a paused queue, and the move of its tasks to another queue.

A queue exists as soon as a run names it. It has a row only if the code declares it or if it was paused. No task of a
**paused** queue is claimed, whatever makes the task due: a start, an event, a timer, the release of a lost lease.
Tasks that workers own at the time of the pause continue. Runs whose time has expired are still claimed, to be ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.store.protocol.control import Audit


@dataclass(frozen=True, slots=True)
class DeclareQueues:
    """Store the queues that the code declares: for each name, whether the queue is paused.

    A queue that was paused or resumed at run time stays so until the code declares another value than before.
    """

    declared: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class PauseQueue:
    """Pause a queue, or resume it."""

    name: str
    paused: bool
    audit: Audit | None = None


@dataclass(frozen=True, slots=True)
class MoveQueue:
    """Move the tasks of a queue that no worker owns, with their runs, to another queue."""

    source: str
    target: str
    audit: Audit | None = None


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Drain a registered worker, or end its drain. The worker reads the change with its next heartbeat.

    A draining worker claims nothing and gives up its turns once their calls in flight have ended, so that its process
    can be stopped without interrupting a step. The drain ends with the registration of the worker.
    """

    worker: str
    draining: bool
    audit: Audit | None = None


@dataclass(frozen=True, slots=True)
class ReadQueues:
    """Read the queues that have a row, and whether a worker is draining."""

    worker: str | None = None


QueueRequest = DeclareQueues | PauseQueue | MoveQueue | DrainWorker | ReadQueues


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """A queue that has a row."""

    name: str
    paused: bool


@dataclass(frozen=True, slots=True)
class QueueReply:
    """The queues that have a row, by name, after the request."""

    queues: tuple[QueueRecord, ...]
    moved: int = 0
    """Number of runs whose tasks were moved."""
    draining: bool = False
    """True if the worker of ``ReadQueues`` is draining."""

    @property
    def paused(self) -> frozenset[str]:
        return frozenset(queue.name for queue in self.queues if queue.paused)
