"""Records of streams: ``StreamItem`` and ``StreamInfo``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

MAX_OFFSET = 10**18 - 1
"""The largest offset that a reader may begin after; both stores have a type for it."""


@dataclass(frozen=True, slots=True)
class StreamItem:
    """One item of a stream."""

    offset: int
    """The position in the stream, from 1. Offsets increase; they have gaps where items are left out."""
    value: Any
    step_key: str | None
    """The step that wrote the item; None: the workflow's code."""
    attempt: int | None
    at: datetime
    failed: bool = False
    """The attempt had failed when the item was read. Only with ``attempts="all"``."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream of a run."""

    name: str
    items: int
    """Number of items, those of failed attempts included. A close counts as an item."""
    size: int
    """Size in bytes."""
    closed: bool
