"""Outbound events: the argument of the app's outbox handler, and the records of the outbox."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class OutboundEvent:
    """An event that is being delivered. ``id`` is the same at each attempt to deliver the event."""

    id: str
    type: str
    payload: Any
    workflow: str
    instance_id: str
    step: str
    """The type of the step that emitted the event."""
    created_at: datetime
    attempt: int
    """The number of the delivery attempt, from 1."""


class OutboxState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    PARKED = "parked"
    """Not delivered again until a request redelivers the event: too many deliveries have failed."""


@dataclass(frozen=True, slots=True)
class OutboxRecord:
    """An event in the outbox of a run."""

    id: str
    type: str
    payload: Any
    step: str
    state: str
    """pending, delivered or parked"""
    attempts: int
    """Number of failed deliveries."""
    error: str | None
    """The error of the last failed delivery."""
    created_at: datetime
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    parked_at: datetime | None


def outbound_id(workflow: str, instance_id: str, run_number: int, n: int) -> str:
    return f"{workflow}/{instance_id}/{run_number}/{n}"
