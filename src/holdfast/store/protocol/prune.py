"""Deletion of finished runs: ``PruneRuns`` and ``Pruned``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.model import Status
from holdfast.store.protocol.requests import MaintenanceRequest

LARGE_RUN = 100
"""Number of facts, log lines or events above which the rows of a run are deleted in several transactions."""
LEFTOVER_ROWS = 1000
"""Maximum number of rows of a large run that one transaction deletes."""


class PrunePosition(NamedTuple):
    """A position among the finished runs with one status: by workflow, then in the order of their ends."""

    at: int = 0
    run: int = 0
    workflow: str = ""
    """Only for a request without a workflow."""


_START = PrunePosition()


class Pruned(NamedTuple):
    runs: int
    """Number of deleted runs."""
    next: PrunePosition | None
    """The position at which the next request continues; None: there are no more such runs."""
    stored: int
    """About how many runs are stored."""
    free_pages: int = 0
    """With ``compact``: pages that can still be returned to the file system."""
    seconds: float = 0.0
    """The time for which the transaction held its locks, without the time for which it waited."""


@dataclass(frozen=True, slots=True)
class PruneRuns(MaintenanceRequest[Pruned]):
    """Delete runs with one status that ended long ago, at most ``limit``.

    The current run of an instance is deleted together with all earlier runs of the instance, and its id is free again.
    An earlier run is deleted alone; if the current run belongs to the same line, the keys of its events are kept, so
    that an event that is sent again is still recognised. A run is not deleted while its parent has not ended, or while
    it has outbound events that are not delivered.

    The transaction is short enough not to delay others noticeably. The rows of a large run are deleted in several
    transactions: such a request examines no runs, and the reply has its own position.
    """

    workflow: str | None
    """None: one workflow after the other."""
    status: Status
    age_ms: int
    """Only runs that ended at least this long ago."""
    keep: int = 0
    """Number of the workflow's newest finished runs, of any status, that are not deleted."""
    after: PrunePosition = _START
    """Continue after this position, so that runs that cannot be deleted yet are examined once."""
    limit: int = 50
    """Maximum number of runs to examine in this transaction; 0 examines none."""
    dry_run: bool = False
    """Only count the runs."""
    compact: bool = False
    """Return all free space of the file to the file system; else only what exceeds a tenth of the file."""
