"""What runs tell the world: written with the step that says it, delivered at least once afterwards.

Of each run one event is under way at a time, the first that is neither delivered nor parked: so they go out in order,
and one that cannot be delivered does not hold up the others for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Outbound(NamedTuple):
    """An event to go out. Numbered from 1 in each run."""

    type: str
    payload: bytes | None
    step: str


@dataclass(slots=True)
class OutboxRow:
    """An event on its way, delivered (``delivered_at``), or given up (``parked_at``)."""

    run: int
    n: int
    workflow: str
    instance_id: str
    number: int
    """Of the run."""
    step: str
    type: str
    payload: bytes | None
    created_at: int
    attempts: int
    """How often its delivery failed, or was lost with who tried."""
    run_at: int
    """When it is tried, or tried again."""
    error: str | None = None
    """Of the last attempt that failed."""
    delivered_at: int | None = None
    parked_at: int | None = None


@dataclass(slots=True)
class OutboxClaim:
    rows: list[OutboxRow]
    next_due: int | None
    """When another one can be claimed; None: none is left."""


class Delivered(NamedTuple):
    """It arrived."""

    run: int
    n: int


class Undelivered(NamedTuple):
    """It did not: counted as an attempt, and tried again at ``run_at``, or (None) parked."""

    run: int
    n: int
    error: str
    run_at: int | None
