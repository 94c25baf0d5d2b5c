"""A bounded cache of suspended machines: a run that wakes while its machine is cached needs no replay."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from holdfast.kernel.driver import Machine
from holdfast.store.protocol import ANY_TOPIC, MAX_CLOCK_SKEW_MS, NewEvent, RunRecord


@dataclass(slots=True)
class SuspendedRun:
    """The state of a run after its last turn."""

    run: RunRecord
    epoch: int
    machine: Machine
    topics: frozenset[str]
    """Event types that wake this run."""
    due_at: int | None
    """The time at which the task is due without an event; None: it waits for an event only."""
    seen: int | None
    """The number of the last event in the mailbox; None: the mailbox was not read to the end."""

    def is_ready_for(self, event: NewEvent, now: int) -> bool:
        """True if the event would wake the run, and nothing else is expected to wake or end it before."""
        if event.ask is not None or self.seen is None:
            return False
        if event.type not in self.topics and ANY_TOPIC not in self.topics:
            return False
        soon, due_at, expires_at = now + MAX_CLOCK_SKEW_MS, self.due_at, self.run.expires_at
        return (due_at is None or due_at > soon) and (expires_at is None or expires_at > soon)


class MachineCache:
    """Suspended runs, of which the oldest are evicted first. Each machine is valid for one epoch only."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._suspended: OrderedDict[int, SuspendedRun] = OrderedDict()
        self._names: dict[tuple[str, str], int] = {}

    def put(self, suspended: SuspendedRun) -> None:
        run = suspended.run
        self.drop(run.run)
        self._suspended[run.run] = suspended
        self._names[run.workflow, run.instance_id] = run.run
        while len(self._suspended) > self._size:
            self.drop(next(iter(self._suspended)))

    def take(self, run: int, epoch: int) -> Machine | None:
        """The machine for a claim with this epoch; None unless the claim directly follows the cached turn.

        With any other epoch, another worker has claimed the run in between.
        """
        suspended = self.pop(run)
        if suspended is None:
            return None
        if suspended.epoch + 1 != epoch:
            suspended.machine.close()
            return None
        return suspended.machine

    def find(self, workflow: str, instance_id: str) -> SuspendedRun | None:
        run = self._names.get((workflow, instance_id))
        return None if run is None else self._suspended[run]

    def pop(self, run: int) -> SuspendedRun | None:
        suspended = self._suspended.pop(run, None)
        if suspended is not None:
            name = suspended.run.workflow, suspended.run.instance_id
            if self._names.get(name) == run:  # the name may already belong to a successor
                del self._names[name]
        return suspended

    def drop(self, run: int) -> None:
        suspended = self.pop(run)
        if suspended is not None:
            suspended.machine.close()

    def clear(self) -> None:
        for run in list(self._suspended):
            self.drop(run)

    def __len__(self) -> int:
        return len(self._suspended)
