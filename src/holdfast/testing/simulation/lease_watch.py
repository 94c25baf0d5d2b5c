"""Compares the leases that the database grants with those that running steps of chains declare."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.store.protocol import TaskRef


class LeaseWatch:
    """The leases that the database grants, compared with those that running steps declare."""

    def __init__(self) -> None:
        self._granted: dict[TaskRef, int] = {}
        """The length in milliseconds of the last lease that each claim was granted."""
        self._running: dict[TaskRef, tuple[str, int]] = {}
        """The step that each claim runs, and its declared lease in milliseconds."""
        self._safe: dict[tuple[int, int], str] = {}
        """Steps that no fault can take from their workers, by run and unit."""

    def granted(self, task: TaskRef, ms: int) -> Iterator[str]:
        self._granted[task] = ms
        yield from self._compared(task)

    def called(self, task: TaskRef, step: str, lease_ms: int, *, safe: bool) -> Iterator[str]:
        """A step is called under a claim: from now on the claim has the lease of the step.

        ``safe``: no fault is under way, so the worker renews the lease to the end of the step.
        """
        self._running[task] = step, lease_ms
        if safe:
            self._safe[task.run, task.unit] = step
        yield from self._compared(task)

    def committed(self, task: TaskRef) -> None:
        """The step may have ended; until the next one is called, the claim may have either lease."""
        self._running.pop(task, None)
        self._safe.pop((task.run, task.unit), None)

    def freed(self, run: int, unit: int) -> Iterator[str]:
        """The lease of a claim has run out."""
        if (run, unit) in self._safe:
            yield f"run {run} lost its lease in step {self._safe[run, unit]}, and its worker is alive"

    def _compared(self, task: TaskRef) -> Iterator[str]:
        step, declared = self._running.get(task, ("", 0))
        granted = self._granted.get(task)
        if step and granted != declared:
            yield f"run {task.run} has a lease of {granted} ms in step {step}, whose lease is {declared} ms"
