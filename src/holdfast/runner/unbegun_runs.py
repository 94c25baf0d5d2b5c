"""Runs that this worker released before they began, because their permit had to wait.

Nothing is recorded of such a run: if this worker has the next claim, too, the turn begins without reading the history.
"""

from __future__ import annotations

from collections import OrderedDict

from holdfast.store.protocol import FIRST_EPOCH, Claim, TaskRef

_MAX_RUNS = 50_000
"""Number of runs that are remembered. For each other one, the next turn reads an empty history."""


class UnbegunRuns:
    """Runs without a history, with the claims under which they were released."""

    def __init__(self) -> None:
        self._released: OrderedDict[int, TaskRef] = OrderedDict()

    def add(self, task: TaskRef) -> None:
        """Remember a run that was released under this claim, whose turn has written nothing."""
        self._released[task.run] = task
        if len(self._released) > _MAX_RUNS:
            self._released.popitem(last=False)

    def is_new(self, claim: Claim) -> bool:
        """True if no turn of the run can have recorded anything: the claim is the first, or follows a remembered one.

        After a failover, which may assign epochs again, the worker has another id.
        """
        task, released = claim.task, self._released.pop(claim.task.run, None)
        if claim.run.started_at is not None:
            return False
        follows = released is not None and released._replace(epoch=released.epoch + 1) == task
        return follows or task.epoch == FIRST_EPOCH
