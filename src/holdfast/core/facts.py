"""Facts, events and logs: the history of a run, its mailbox, and the lines that its code logged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple


class FactState(IntEnum):
    RESULT = 0
    """The final outcome of a step, timer or wait: written once, never changed."""
    START = 1
    """The start of a wait (with its ``wake_at``), or of an attempt that has been running long enough to be shown."""
    FAILURE = 2
    """An attempt that failed or was lost; ``wake_at`` is the earliest start of the next attempt."""
    PLAN = 3
    """A part of the run's definition: a step of a chain (``n`` is its position), or the shape of a graph. Successors
    of the run have the same PLAN facts."""
    WOKEN = 4
    """The end of a chain step's wait: ``event`` is the event that the step waited for, None after a timeout. ``n`` is
    that of the wait (START)."""
    ITEM = 5
    """The result of one item of a node that maps over a list; ``n`` is the item's position."""
    TOMBSTONE = 6
    """The kill, termination or cancellation of a graph: no node of it starts any more. The value is the reason."""
    HEARTBEAT = 7
    """The latest progress that a running attempt reported; ``n`` is the attempt. The only fact that is overwritten:
    see ``Store.record_heartbeats``."""
    SETTLEMENT = 8
    """The end of an attempt that wrote to streams; ``ok``: its items belong to the output. Only streams read it: see
    ``store/protocol/streams.py``."""


class Fact(NamedTuple):
    """One row of a run's history, keyed ``(run, state, key, n)``. A tuple, because it is bound as the row itself."""

    state: int
    key: str
    n: int
    """0 for a result, else the number of the attempt, the wait (from 0), the planned step or the item."""
    kind: str
    at: int
    started_at: int
    seq: int | None = None
    """The position of the fact in the order in which the code received results; None if it receives no result."""
    ok: bool = True
    value: bytes | None = None
    """The result, or the error when ``ok`` is false."""
    name: str | None = None
    """The registered function that a step called; None if the step was named by ``ctx.do``. Shown instead of the
    key."""
    attempts: int = 0
    max_attempts: int | None = None
    timeout_ms: int | None = None
    wake_at: int | None = None
    event_type: str | None = None
    event: int | None = None
    """The number of the event that a wait consumed. The payload is stored once, with the event."""


class Watch(IntFlag):
    """The reasons why a watcher receives the EXIT event of a run."""

    MONITOR = 1
    LINK = 2
    ASK = 4
    """The watched run was asked, and may end without a reply."""


EXIT = "@exit"
"""Topic of the event that a watcher receives: ``sender`` is the pid of the run that ended.

The payload is ``{"watch", "status", "output", "error", "note"}``. ``watch`` is the integer value of the Watch flags;
output and error are the run's own JSON, or null; note is text, or null.
"""
REPLY = "@reply"
"""Topic of the reply to an event with ``ask``: ``{"ask", "ok", "value"}``. ``sender`` is the replying run's pid."""
CANCEL = "@cancel"
"""Topic of a cancellation request: ``{"reason", "deadlineMs"}``, each of which may be null."""

RESOLVE = "@resolve"
"""Topic of the outcome of a step that was decided by hand: ``{"step", "ok", "value"}``. The RESULT fact that follows
from it has this topic as ``event_type``."""


def cancel_reason(cancellation: bytes | None) -> str | None:
    """The reason in the payload of a CANCEL event."""
    reason: str | None = json.loads(cancellation or b"{}").get("reason")
    return reason


ANY_TOPIC = "*"
"""A topic that matches events of every type."""


class StoredEvent(NamedTuple):
    """An event in the mailbox of a run. ``n`` counts from 1 in each run, in the order of arrival."""

    n: int
    type: str
    payload: bytes | None
    created_at: int
    sender: str | None = None
    delivered_at: int | None = None
    consumed_by: str | None = None
    ask: str | None = None
    """The key under which the sender waits for a reply; None if it does not wait."""
    trace: str | None = None
    """The trace context of the sender, which only the telemetry reads."""


class Delivery(NamedTuple):
    """The consumption of an event by a wait or a listener."""

    event: int
    step_key: str
    at: int


@dataclass(slots=True)
class MailboxPage:
    """A page of undelivered events of a run, the oldest first."""

    events: Sequence[StoredEvent]
    complete: bool
    """True if the page holds all undelivered events (of the requested topics)."""
    last: int
    """The number of the last event that the run has received, delivered or not; 0 if it has received none."""


class Log(NamedTuple):
    level: str
    category: str
    message: str
    data: bytes | None
    at: int
    step_key: str | None = None
    attempt: int | None = None
    is_replay: bool = False


class StoredLog(NamedTuple):
    n: int
    log: Log
