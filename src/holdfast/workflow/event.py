"""What ``ctx.wait_for_event`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """An event that a run has consumed."""

    type: str
    payload: T
    timestamp: datetime
