"""Suspended machines, so that a run that wakes soon needs no replay. Bounded; the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict

from holdfast.kernel.driver import Machine


class MachineCache:
    """Machines by run, each good for exactly one epoch."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._machines: OrderedDict[int, tuple[int, Machine]] = OrderedDict()

    def put(self, run: int, epoch: int, machine: Machine) -> None:
        self.drop(run)
        self._machines[run] = (epoch, machine)
        while len(self._machines) > self._size:
            _, (_, oldest) = self._machines.popitem(last=False)
            oldest.close()

    def take(self, run: int, epoch: int) -> Machine | None:
        """The machine, if the claim with this epoch is the very next one: nobody else has moved the run."""
        found = self._machines.pop(run, None)
        if found is None:
            return None
        if found[0] + 1 != epoch:
            found[1].close()
            return None
        return found[1]

    def drop(self, run: int) -> None:
        found = self._machines.pop(run, None)
        if found is not None:
            found[1].close()

    def clear(self) -> None:
        for _, machine in self._machines.values():
            machine.close()
        self._machines.clear()

    def __len__(self) -> int:
        return len(self._machines)
