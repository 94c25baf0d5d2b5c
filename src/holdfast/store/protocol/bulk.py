"""Bulk jobs: bulk actions that are stored, so that they survive the process that runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class BulkJobRow(NamedTuple):
    id: str
    created_at: int
    content: bytes
    """The action, its arguments, the filters and the actor, as JSON."""
    position: int
    """The last instance that was visited."""
    upto: int
    """The last instance to visit."""
    progress: bytes
    """The counts so far, and the instances of the batch after the position on which a process acts, as JSON."""
    ended_at: int | None


class NewBulkJob(NamedTuple):
    id: str
    content: bytes
    upto: int
    progress: bytes


class TakeBulkJobs(NamedTuple):
    """Take jobs that have not ended and that no process works on: all of them, or one."""

    owner: str
    """A name of this request. A process uses another one each time, so that late saves of earlier work are refused."""
    lease_ms: int
    id: str | None = None
    working: Sequence[str] = ()
    """Jobs on which the owner still works, also if it has lost them: they are not taken."""


class SaveBulkJob(NamedTuple):
    """Save the progress of a job and renew the lease. The result is empty if another process has taken the job."""

    id: str
    owner: str
    lease_ms: int
    position: int
    progress: bytes
    ended: bool = False


class BulkJobById(NamedTuple):
    id: str


BulkRequest = NewBulkJob | TakeBulkJobs | SaveBulkJob | BulkJobById
