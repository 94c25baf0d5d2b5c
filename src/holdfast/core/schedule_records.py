"""Schedules as users read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.core.schedule_spec import ScheduleSpec


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """A tick of a schedule and its outcome."""

    scheduled_for: datetime
    id: str
    """The id of the run."""
    workflow_name: str
    outcome: str
    """The status of the run, or ``queued``, ``skipped``, ``missed`` or ``gone`` (the run was deleted)."""
    cause: str
    """``tick``, ``trigger`` or ``backfill``."""
    at: datetime
    """The time at which the outcome was recorded; for an open run, the time of its start."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A stored schedule."""

    name: str
    workflow_name: str
    paused: bool
    note: str | None
    """The reason of the pause, or the error because of which the last tick could not be taken up."""
    spec: ScheduleSpec
    overlap: str
    catch_up: str | None
    params: Any
    queue: str
    priority: int
    options: Mapping[str, Any]
    """The other start options of the runs, by name. Timeouts are texts such as ``"1 hour"``."""
    declared: bool
    """True if the code declares the schedule; False if it was created at run time, or is no longer declared."""
    created_at: datetime
    updated_at: datetime
    next_ticks: Sequence[datetime]
    """The next ticks; empty while the schedule is paused."""
    last_runs: Sequence[ScheduledRun]
    """The newest ticks and their outcomes, the newest first."""
