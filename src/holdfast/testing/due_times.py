"""The time at which the harness has something to do next."""

from __future__ import annotations

from holdfast.app import Holdfast
from holdfast.store.protocol import ClaimOutbox, ClaimRequest, DueQuery, OutboxClaim
from holdfast.testing.counting_store import CountingStore
from holdfast.testing.virtual import VirtualTimers


async def next_due(app: Holdfast, store: CountingStore, timers: VirtualTimers) -> int | None:
    """Return the time at which a task, an outbound event or a timer of an owned run is due next."""
    config = app.worker_config
    request = ClaimRequest("harness", 1000, 0, config.queue_names, app.registry.runnable())
    queued = (await store.claim(request)).next_due
    scheduled = (await store.read(DueQuery(sorted(app.registry.runnable()), 0))).next_due
    times = queued, scheduled, await _next_outbound(app, store), timers.next_at()
    return min((t for t in times if t is not None), default=None)


async def _next_outbound(app: Holdfast, store: CountingStore) -> int | None:
    """Return the time at which the next outbound event is due."""
    if app.registry.outbox is None:
        return None
    claim: OutboxClaim = await store.outbox(ClaimOutbox("harness", 1000, 0))
    return claim.next_due
