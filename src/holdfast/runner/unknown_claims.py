"""Tasks that the store reports as owned by this worker although the worker has no turn for them.

The reply to a start or a claim was lost, or has not arrived yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from holdfast.store.protocol import HeldTask, TaskRef

_ClaimKey = tuple[int, int, int]
"""Run, unit and epoch."""


class UnknownClaims:
    """Detects unknown claims, and remembers which of them were released."""

    def __init__(self) -> None:
        self._reported: Collection[_ClaimKey] = ()
        """Unknown claims in the last heartbeat."""
        self._released: set[_ClaimKey] = set()
        """Unknown claims that were released; a late reply to such a claim must not begin a turn."""

    def report(self, unknown: Iterable[HeldTask]) -> list[HeldTask]:
        """Note the unknown claims of a heartbeat; returns those that the previous heartbeat reported, too."""
        by_key = {(held.run, held.unit, held.epoch): held for held in unknown}
        lost = [held for key, held in by_key.items() if key in self._reported]
        self._reported = by_key.keys()
        return lost

    def add_released(self, tasks: Iterable[TaskRef]) -> None:
        self._released.update((task.run, task.unit, task.epoch) for task in tasks)

    def was_released(self, task: TaskRef) -> bool:
        return bool(self._released) and (task.run, task.unit, task.epoch) in self._released

    def forget_released(self) -> None:
        """Forget the released claims. Called when no request is in flight: no late reply can arrive any more."""
        self._released.clear()
