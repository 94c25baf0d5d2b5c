"""Checks that the database grants the leases that running chain steps declare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.store.protocol import TaskRef
from holdfast.testing.simulation.fence_watch import is_ended_transaction


class LeaseWatch:
    def __init__(self) -> None:
        self._granted: dict[TaskRef, int] = {}
        """For each claim: the length of its last granted lease in milliseconds."""
        self._running: dict[TaskRef, tuple[str, int]] = {}
        """For each claim: the running step, and the step's declared lease in milliseconds."""
        self._safe: dict[tuple[int, int], str] = {}
        """Running steps that no fault can take from their workers, by run and unit."""

    def before(self, _operation: str, _args: tuple[Any, ...]) -> None:
        return None

    def after(self, operation: str, args: tuple[Any, ...], answer: Any, _before: None) -> Iterator[str]:
        match operation:
            case "commit" if not is_ended_transaction(args[0], answer):
                for commit in args[0]:
                    self.committed(commit.task)
            case "reap":
                for freed in answer:
                    yield from self.freed(freed.run, freed.unit)
            case _:
                pass

    def granted(self, task: TaskRef, ms: int) -> Iterator[str]:
        self._granted[task] = ms
        yield from self._compared(task)

    def called(self, task: TaskRef, step: str, lease_ms: int, *, safe: bool) -> Iterator[str]:
        """Record the call of a step under a claim, which must have the lease of the step from now on.

        ``safe``: no fault is active, so the worker renews the lease until the step ends.
        """
        self._running[task] = step, lease_ms
        if safe:
            self._safe[task.run, task.unit] = step
        yield from self._compared(task)

    def committed(self, task: TaskRef) -> None:
        """Record a commit, after which the step may have ended: until the next call the claim may have either lease."""
        self._running.pop(task, None)
        self._safe.pop((task.run, task.unit), None)

    def freed(self, run: int, unit: int) -> Iterator[str]:
        """Record that the lease of a claim has expired."""
        if (run, unit) in self._safe:
            yield f"run {run} lost its lease in step {self._safe[run, unit]}, and its worker is alive"

    def _compared(self, task: TaskRef) -> Iterator[str]:
        step, declared = self._running.get(task, ("", 0))
        granted = self._granted.get(task)
        if step and granted != declared:
            yield f"run {task.run} has a lease of {granted} ms in step {step}, whose lease is {declared} ms"
