"""Limits on sizes, lengths and durations, the same for every store and for HTTP.

This module owns the numbers. The code that checks a limit decides which error is raised.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from holdfast.core.checks import check_count
from holdfast.core.durations import Duration, describe, option_ms
from holdfast.errors import InvalidOptionError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of an app. Names are counted in characters, payloads in bytes of JSON in UTF-8.

    >>> Limits(steps=10_000, result=4 * MIB, sleep="1000 days").sleep_ms
    86400000000
    """

    workflow_name: int = 64
    instance_id: int = 100
    event_type: int = 100
    step_name: int = 256
    params: int = MIB
    result: int = MIB
    """The result of a step, of a graph's node, or of any step of a chain except the last."""
    output: int = 8 * MIB
    """The output of a run: a workflow's return value, the result of a chain's last step, all results of a graph."""
    event_payload: int = MIB
    log_data: int = MIB
    log_message: int = 2048
    log_category: int = 64
    heartbeat: int = 64 * 1024
    stream_item: int = 256 * 1024
    stream_items: int = 1_000_000
    """Items of one stream, of all its writers."""
    stream_bytes: int = 256 * MIB
    """Size of one stream."""
    stream_rate: int = 100_000
    """Items that one writer, an attempt of a step or the workflow's code, writes to a stream in a second."""
    steps: int = 1024
    sleep: Duration = "365 days"
    event_wait_min: Duration = "1 second"
    event_wait_max: Duration = "365 days"
    batch: int = 100
    """Instances in one HTTP request."""
    body: int = 3 * MIB + 64 * 1024
    """Bytes in the body of one HTTP request: a payload of 1 MiB takes up to 3 MiB when its text is escaped."""
    page_size: int = 100
    blob: int = 1024 * MIB
    """Bytes of one value in the blob store (``Holdfast(blobs=...)``), in place of the limits of payloads."""

    sleep_ms: int = field(init=False, repr=False, compare=False)
    event_wait_min_ms: int = field(init=False, repr=False, compare=False)
    event_wait_max_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in _COUNTS:
            check_count(f"Limits.{name}", getattr(self, name))
        for name in _DURATIONS:
            object.__setattr__(self, f"{name}_ms", option_ms(f"Limits.{name}", getattr(self, name)))
        if self.event_wait_min_ms > self.event_wait_max_ms:
            longest = describe(self.event_wait_max_ms)
            raise InvalidOptionError(f"Limits.event_wait_min is above event_wait_max ({longest})")

    def with_blobs(self) -> Limits:
        """The limits of an app with a blob store: a large value is stored outside of its row."""
        values = {name: getattr(self, name) for name in (*_COUNTS, *_DURATIONS)}
        return Limits(**values | {name: max(values[name], self.blob) for name in _IN_BLOBS})


_IN_BLOBS = ("params", "result", "output", "event_payload", "stream_item")
_DURATIONS = ("sleep", "event_wait_min", "event_wait_max")
_COUNTS = tuple(limit.name for limit in fields(Limits) if limit.init and limit.name not in _DURATIONS)
