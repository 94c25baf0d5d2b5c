"""Suspended machines, so that a run that wakes soon needs no replay. Bounded; the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from holdfast.kernel.driver import Machine
from holdfast.store.protocol import ABOUT_NOW_MS, ANY_TOPIC, NewEvent, RunRecord


@dataclass(slots=True)
class Rested:
    """A run as its last turn left it."""

    run: RunRecord
    epoch: int
    machine: Machine
    topics: frozenset[str]
    """Of which events one would wake it."""
    due_at: int | None
    """When it is due by itself."""
    seen: int | None
    """The number of its last event; None: its mailbox was not read to the end."""

    def is_ready_for(self, event: NewEvent, now: int) -> bool:
        """Whether that event is the next thing that happens to it, as far as anybody here knows."""
        if event.ask is not None or self.seen is None:
            return False
        if event.type not in self.topics and ANY_TOPIC not in self.topics:
            return False
        soon, due_at, expires_at = now + ABOUT_NOW_MS, self.due_at, self.run.expires_at
        return (due_at is None or due_at > soon) and (expires_at is None or expires_at > soon)


class MachineCache:
    """Machines by run, each good for exactly one epoch."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rested: OrderedDict[int, Rested] = OrderedDict()
        self._names: dict[tuple[str, str], int] = {}

    def put(self, rested: Rested) -> None:
        run = rested.run
        self.drop(run.run)
        self._rested[run.run] = rested
        self._names[run.workflow, run.instance_id] = run.run
        while len(self._rested) > self._size:
            self.drop(next(iter(self._rested)))

    def take(self, run: int, epoch: int) -> Machine | None:
        """The machine, if the claim with this epoch is the very next one: nobody else has moved the run."""
        found = self.pop(run)
        if found is None:
            return None
        if found.epoch + 1 != epoch:
            found.machine.close()
            return None
        return found.machine

    def find(self, workflow: str, instance_id: str) -> Rested | None:
        run = self._names.get((workflow, instance_id))
        return None if run is None else self._rested[run]

    def pop(self, run: int) -> Rested | None:
        found = self._rested.pop(run, None)
        if found is not None:
            name = found.run.workflow, found.run.instance_id
            if self._names.get(name) == run:  # and not one that came after it
                del self._names[name]
        return found

    def drop(self, run: int) -> None:
        found = self.pop(run)
        if found is not None:
            found.machine.close()

    def clear(self) -> None:
        for run in list(self._rested):
            self.drop(run)

    def __len__(self) -> int:
        return len(self._rested)
