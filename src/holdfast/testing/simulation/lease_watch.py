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

    def granted(self, task: TaskRef, ms: int) -> Iterator[str]:
        self._granted[task] = ms
        yield from self._compared(task)

    def called(self, task: TaskRef, step: str, lease_ms: int) -> Iterator[str]:
        """A step is called under a claim: from now on the claim has the lease of the step."""
        self._running[task] = step, lease_ms
        yield from self._compared(task)

    def committed(self, task: TaskRef) -> None:
        """The step may have ended; until the next one is called, the claim may have either lease."""
        self._running.pop(task, None)

    def _compared(self, task: TaskRef) -> Iterator[str]:
        step, declared = self._running.get(task, ("", 0))
        granted = self._granted.get(task)
        if step and granted != declared:
            yield f"run {task.run} has a lease of {granted} ms in step {step}, whose lease is {declared} ms"
