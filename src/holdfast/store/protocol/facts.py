"""What happened in a run, what it was sent, and what its code said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class FactState(IntEnum):
    RESULT = 0
    """The final outcome of a step, timer or wait: written once, never changed."""
    START = 1
    """A wait that began (with its ``wake_at``), or an attempt that has been running long enough to be worth showing."""
    FAILURE = 2
    """An attempt that failed or was lost; ``wake_at`` is when the next one may start."""
    PLAN = 3
    """What the run was started to do: a step of a chain (``n`` is its place), the shape of a graph. All that come after
    the run have it too."""
    WOKEN = 4
    """A step of a chain that waited goes on: ``event`` is what it waited for, none if its time was up. ``n`` is that of
    the wait (START)."""
    ITEM = 5
    """The result of one item of a node that is mapped over a list; ``n`` is its place."""
    TOMBSTONE = 6
    """A graph was killed, terminated or cancelled: nothing of it starts any more. The value is the reason."""
    HEARTBEAT = 7
    """The latest progress that an attempt reported while it ran; ``n`` is the attempt. The only fact that is
    overwritten: see ``Store.record_heartbeats``."""


class Fact(NamedTuple):
    """One thing that happened in a run, keyed ``(run, state, key, n)``. A tuple, because it is also the row."""

    state: int
    key: str
    n: int
    """0 for results and waits, the attempt's number for attempts."""
    kind: str
    at: int
    started_at: int
    seq: int | None = None
    """The place of a RESULT in the order in which the code saw results; None for the other states."""
    ok: bool = True
    value: bytes | None = None
    """The result, or the error when ``ok`` is false."""
    name: str | None = None
    """Of a step: the registered function that was called; None for a name given to ``ctx.do``. Shown in place of the
    key."""
    attempts: int = 0
    max_attempts: int | None = None
    timeout_ms: int | None = None
    wake_at: int | None = None
    event_type: str | None = None
    event: int | None = None
    """The number of the event a wait consumed: its payload is stored once, with the event."""


EXIT = "@exit"
"""Of a run that was watched: ``sender`` is its pid, the payload ``{"watch", "status", "output", "error", "note"}``.

``watch`` is the number of the Watch flags; output and error are the run's own JSON, or null; note is text, or null.
"""
REPLY = "@reply"
"""The answer to an event with ``ask``: ``{"ask", "ok", "value"}``. ``sender`` is the pid of who answers."""
CANCEL = "@cancel"
"""A cancellation was asked for: ``{"reason", "deadlineMs"}``, each of which may be null."""


def reason_of(cancellation: bytes | None) -> str | None:
    """The reason that the payload of a CANCEL event has."""
    reason: str | None = json.loads(cancellation or b"{}").get("reason")
    return reason


ANY_TOPIC = "*"
"""Among topics: every event, whatever its type."""


class Mail(NamedTuple):
    """An event of a run. ``n`` counts from 1 in each run, in the order of arrival."""

    n: int
    type: str
    payload: bytes | None
    created_at: int
    sender: str | None = None
    delivered_at: int | None = None
    consumed_by: str | None = None
    ask: str | None = None
    """Set if the sender waits for an answer: the key under which it does."""


class Delivery(NamedTuple):
    """An event consumed by a wait."""

    event: int
    step_key: str
    at: int


@dataclass(slots=True)
class Mailbag:
    """Undelivered events of a run, the oldest first, and what is known of the rest."""

    mail: Sequence[Mail]
    complete: bool
    """These are all there are (of the topics asked for)."""
    last: int
    """The number of the last event the run has got at all, delivered or not; 0: none ever."""


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
    line: Log
