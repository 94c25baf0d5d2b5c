"""The outbox dispatcher: delivers outbound events to the app's handler.

The events of one run are delivered in order, one at a time, at least once each. A failed delivery is retried with
exponential backoff. After ``max_attempts`` the event is parked and no longer delays the events after it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.core import codec
from holdfast.core.durations import describe
from holdfast.core.model import from_ms
from holdfast.core.outbound import OutboundEvent, outbound_id
from holdfast.core.retry import Retry
from holdfast.errors import StoreError
from holdfast.kernel.definition import Registry
from holdfast.kernel.outbox import OutboxHandler
from holdfast.ports import Randomness
from holdfast.runner.attempts import Ports
from holdfast.runner.background_loop import BackgroundLoop
from holdfast.store.protocol import (
    Claimant,
    ClaimOutbox,
    Delivered,
    DeliveryFailure,
    OutboxRow,
    RunRecord,
    RunsById,
    SettleOutbox,
    Store,
)

_log = logging.getLogger("holdfast")

BACKOFF = Retry(delay="1 second", backoff="exponential", max_delay="5 minutes", jitter=0.2)
"""Backoff between two delivery attempts of the same event."""

_MAX_ERROR_LENGTH = 2000


class OutboxDispatcher:
    """Delivers due outbound events, in a background loop or one pass at a time."""

    def __init__(
        self, store: Store, registry: Registry, ports: Ports, random: Randomness, claimant: Claimant, poll_ms: int
    ) -> None:
        self._store = store
        self._registry = registry
        self._ports = ports
        self._random = random
        self._claimant = claimant
        self._poll = poll_ms / 1000
        self._loop = BackgroundLoop("outbox", self._step, random)
        self._in_progress: dict[asyncio.Task[None], OutboxRow] = {}
        self._outcomes: list[Delivered | DeliveryFailure] = []
        """Outcomes of deliveries that are not stored yet."""
        self._next_due: int | None = None

    # --- start and stop

    def start(self) -> None:
        self._loop.start()

    def wake(self) -> None:
        """Check for due events now."""
        self._loop.wake()

    async def stop(self, seconds: float) -> None:
        """Claim nothing more, wait up to ``seconds`` for deliveries in progress, and release the others."""
        await self._loop.stop()
        if self._in_progress:
            await asyncio.wait(self._in_progress, timeout=seconds)
        rows = list(self._in_progress.values())
        await self._cancel()
        now = self._ports.now_ms()
        self._outcomes += [DeliveryFailure(row.run, row.n, "the worker was stopped", now) for row in rows]
        try:
            await self._settle()
        except StoreError as error:
            _log.warning("could not record which events were delivered, they will be delivered again: %s", error)

    def abandon(self) -> None:
        """Drop the deliveries in progress, as a killed process does: store and release nothing."""
        for task in self._in_progress:
            task.cancel()
        self._in_progress.clear()
        self._outcomes.clear()

    async def _cancel(self) -> None:
        tasks = list(self._in_progress)
        self._in_progress.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- delivering

    async def deliver_due(self) -> int:
        """Deliver until no event is due; returns the number of attempted deliveries."""
        handler, tried = self._registry.outbox, 0
        while handler is not None and (begun := await self._begin(handler)):
            tried += begun
            await asyncio.wait(self._in_progress)
            await self._settle()
        return tried

    async def _step(self) -> float:
        handler = self._registry.outbox
        await self._settle()
        if handler is None or len(self._in_progress) >= handler.concurrency:
            return self._poll  # a delivery that ends wakes the loop earlier
        await self._begin(handler)
        if self._next_due is None:
            return self._poll
        return min(self._poll, max(0.0, (self._next_due - self._ports.now_ms()) / 1000))

    async def _begin(self, handler: OutboxHandler) -> int:
        slots = handler.concurrency - len(self._in_progress)
        claim = await self._store.outbox(ClaimOutbox(self._claimant.owner, handler.lease_ms, slots))
        self._next_due = claim.next_due
        for row in claim.rows:
            task = asyncio.get_running_loop().create_task(self._deliver(row, handler))
            self._in_progress[task] = row
        return len(claim.rows)

    async def _deliver(self, row: OutboxRow, handler: OutboxHandler) -> None:
        try:
            error = await self._attempt(row, handler)
        except Exception as engine_error:  # without an outcome, the event would stay claimed
            error = f"{type(engine_error).__name__}: {engine_error}"
        task = asyncio.current_task()
        if task is None or self._in_progress.pop(task, None) is None:
            return  # the dispatcher was stopped and releases the event
        self._outcomes.append(Delivered(row.run, row.n) if error is None else self._failed(row, handler, error))
        self._loop.wake()

    async def _attempt(self, row: OutboxRow, handler: OutboxHandler) -> str | None:
        """Call the handler; returns the error, or None if the event was delivered."""
        if row.attempts >= handler.max_attempts:
            return row.error or "the workers died during the delivery"  # not called again: the event may be the cause
        context = contextvars.copy_context()
        telemetry = self._ports.telemetry
        ended = None if telemetry is None else context.run(telemetry.delivery_began, row, await self._run_of(row))
        future = self._call(handler, _event(row), context)
        if future is None:
            if ended is not None:
                ended(None)
            return None
        alarm = self._ports.timers.call_at(self._ports.now_ms() + handler.timeout_ms, lambda: _give_up(future))
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            future.cancel()
            raise
        finally:
            alarm.cancel()
            if ended is not None:
                ended(_error_of(future))
        if future.cancelled():
            return f"the delivery took longer than {describe(handler.timeout_ms)}, or the handler cancelled itself"
        error = future.exception()
        return None if error is None else f"{type(error).__name__}: {error}"

    async def _run_of(self, row: OutboxRow) -> RunRecord | None:
        found = await self._store.read(RunsById([row.run]))
        return found[0] if found else None

    def _call(
        self, handler: OutboxHandler, event: OutboundEvent, context: contextvars.Context
    ) -> asyncio.Future[Any] | None:
        """Call the handler; None: it has ended without an error."""
        spawn = self._ports.spawn
        if handler.is_async:
            return spawn.coroutine(_guarded(handler.function, event), context)
        return spawn.function(partial(handler.function, event), context)

    def _failed(self, row: OutboxRow, handler: OutboxHandler, error: str) -> DeliveryFailure:
        attempts = row.attempts + 1
        parked = attempts >= handler.max_attempts
        delay = BACKOFF.delay_after(attempts, self._random.random())
        what = "is parked" if parked else f"is tried again in {describe(delay)}"
        event = f"{row.type} of {row.workflow}/{row.instance_id}"
        _log.warning("outbound event %s %s after attempt %d: %s", event, what, attempts, error[:_MAX_ERROR_LENGTH])
        return DeliveryFailure(
            row.run, row.n, error[:_MAX_ERROR_LENGTH], None if parked else self._ports.now_ms() + delay
        )

    async def _settle(self) -> None:
        outcomes = self._outcomes[:]
        if outcomes:
            await self._store.outbox(SettleOutbox(self._claimant.owner, outcomes))
            del self._outcomes[: len(outcomes)]


def _error_of(future: asyncio.Future[Any]) -> BaseException | None:
    if not future.done() or future.cancelled():
        return asyncio.CancelledError()
    return future.exception()


def _give_up(future: asyncio.Future[Any]) -> None:
    future.cancel()


async def _guarded(function: Callable[[OutboundEvent], Any], event: OutboundEvent) -> None:
    """Call the handler. Any exception, ``SystemExit`` included, fails the delivery and not the worker."""
    try:
        await function(event)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _event(row: OutboxRow) -> OutboundEvent:
    return OutboundEvent(
        id=outbound_id(row.workflow, row.instance_id, row.number, row.n),
        type=row.type,
        payload=codec.plain(row.payload),
        workflow=row.workflow,
        instance_id=row.instance_id,
        step=row.step,
        created_at=from_ms(row.created_at),
        attempt=row.attempts + 1,
    )
