"""An event as the code sees it that it was sent to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """An event that a run has consumed. ``sender`` is the pid of a run, or None: from outside."""

    type: str
    payload: T
    timestamp: datetime
    sender: str | None = None
