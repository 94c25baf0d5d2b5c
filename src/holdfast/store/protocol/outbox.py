"""The outbox: outbound events, written in the commit of the step that publishes them, and delivered at least once.

One event of each run is being delivered at a time: the first one that is neither delivered nor parked. The events of a
run are therefore delivered in order, and an event that cannot be delivered does not block the later ones forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.store.protocol.requests import OutboxRequest, Query


class Outbound(NamedTuple):
    """An outbound event. Numbered from 1 in each run."""

    type: str
    payload: bytes | None
    step: str
    trace: str | None = None
    """The trace context of the turn that publishes the event, which the telemetry sets."""


@dataclass(slots=True)
class OutboxRow:
    """An outbound event that is pending, delivered (``delivered_at``), or parked as undeliverable (``parked_at``)."""

    run: int
    n: int
    workflow: str
    instance_id: str
    number: int
    """The run's number."""
    step: str
    type: str
    payload: bytes | None
    created_at: int
    attempts: int
    """The number of delivery attempts that failed or whose owner's lease expired."""
    run_at: int
    """The time at which the next attempt is due."""
    error: str | None = None
    """The error of the last failed attempt."""
    delivered_at: int | None = None
    parked_at: int | None = None
    trace: str | None = None
    """The trace context of the turn that published the event."""


@dataclass(frozen=True, slots=True)
class OutboxQuery(Query[list[OutboxRow]]):
    """All outbound events of a run, in their order."""

    run: int


@dataclass(slots=True)
class OutboxClaim:
    rows: list[OutboxRow]
    next_due: int | None
    """The time at which the next event can be claimed; None if no event is pending."""


@dataclass(frozen=True, slots=True)
class ClaimOutbox(OutboxRequest[OutboxClaim]):
    """Claim due outbound events: of each run the first pending event, unless it has an owner with a valid lease.

    Claiming an event whose owner's lease has expired counts an attempt.
    """

    owner: str
    lease_ms: int
    limit: int
    """Maximum number of events."""


class Delivered(NamedTuple):
    """The outcome of a delivery that succeeded."""

    run: int
    n: int


class DeliveryFailure(NamedTuple):
    """The outcome of a delivery that failed: retried at ``run_at``, or parked if that is None."""

    run: int
    n: int
    error: str
    run_at: int | None


@dataclass(frozen=True, slots=True)
class SettleOutbox(OutboxRequest[int]):
    """Record the outcomes of deliveries; the reply is the number of outcomes recorded.

    Events that ``owner`` no longer owns are ignored.
    """

    owner: str
    outcomes: Sequence[Delivered | DeliveryFailure]
