"""Events as user code receives them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """An event that a run has consumed. ``sender`` is the pid of the sending run, or None for an event from outside."""

    type: str
    payload: T
    timestamp: datetime
    sender: str | None = None
