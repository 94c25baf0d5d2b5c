"""Events on their way out: what the app's handler is given, and what can be read of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class OutboundEvent:
    """An event to be delivered, perhaps not for the first time: ``id`` is the same each time."""

    id: str
    type: str
    payload: Any
    workflow: str
    instance_id: str
    step: str
    """The type of the step that said it."""
    created_at: datetime
    attempt: int
    """From 1."""


class OutboxState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    PARKED = "parked"
    """Given up, until somebody asks for it again."""


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
    """How many deliveries have failed."""
    error: str | None
    """Of the last one that did."""
    created_at: datetime
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    parked_at: datetime | None


def outbound_id(workflow: str, instance_id: str, run_number: int, n: int) -> str:
    return f"{workflow}/{instance_id}/{run_number}/{n}"
