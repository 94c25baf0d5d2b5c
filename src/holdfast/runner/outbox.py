"""The courier: takes outbound events to the app's handler.

Those of one run go out in their order, one at a time, at least once each. One that fails is tried again later, with
growing pauses; after ``max_attempts`` it is parked and does not hold up the others any longer.
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
from holdfast.runner.looper import Looper
from holdfast.store.protocol import Delivered, OutboxRow, Store, Undelivered

_log = logging.getLogger("holdfast")

BACKOFF = Retry(delay="1 second", backoff="exponential", max_delay="5 minutes", jitter=0.2)
"""Between two deliveries of the same event."""

_LONGEST_ERROR = 2000


class Courier:
    """Delivers what is due, by a loop of its own or one pass at a time."""

    def __init__(
        self, store: Store, registry: Registry, ports: Ports, random: Randomness, owner: str, poll_ms: int
    ) -> None:
        self._store = store
        self._registry = registry
        self._ports = ports
        self._random = random
        self._owner = owner
        self._poll = poll_ms / 1000
        self._loop = Looper("outbox", self._step, random)
        self._under_way: dict[asyncio.Task[None], OutboxRow] = {}
        self._outcomes: list[Delivered | Undelivered] = []
        """To be written down."""
        self._next_due: int | None = None

    # --- life

    def start(self) -> None:
        self._loop.start()

    def wake(self) -> None:
        """There may be something to deliver."""
        self._loop.wake()

    async def stop(self, seconds: float) -> None:
        """Take nothing new, let deliveries end within the bound, give back the others."""
        await self._loop.stop()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)
        rows = list(self._under_way.values())
        await self._cancel()
        now = self._ports.now_ms()
        self._outcomes += [Undelivered(row.run, row.n, "its worker was stopped", now) for row in rows]
        try:
            await self._settle()
        except StoreError as error:
            _log.warning("could not write down what was delivered, it will be again: %s", error)

    def abandon(self) -> None:
        """Die as a killed process does. For crash tests."""
        for task in self._under_way:
            task.cancel()
        self._under_way.clear()
        self._outcomes.clear()

    async def _cancel(self) -> None:
        tasks = list(self._under_way)
        self._under_way.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- delivering

    async def deliver_due(self) -> int:
        """One pass: all that is due now, and what is due after that; how many were tried."""
        handler, tried = self._registry.outbox, 0
        while handler is not None and (begun := await self._begin(handler)):
            tried += begun
            await asyncio.wait(self._under_way)
            await self._settle()
        return tried

    async def _step(self) -> float:
        handler = self._registry.outbox
        await self._settle()
        if handler is None or len(self._under_way) >= handler.concurrency:
            return self._poll  # or when one has ended
        await self._begin(handler)
        if self._next_due is None:
            return self._poll
        return min(self._poll, max(0.0, (self._next_due - self._ports.now_ms()) / 1000))

    async def _begin(self, handler: OutboxHandler) -> int:
        room = handler.concurrency - len(self._under_way)
        claim = await self._store.outbox_claim(self._owner, handler.lease_ms, room)
        self._next_due = claim.next_due
        for row in claim.rows:
            task = asyncio.get_running_loop().create_task(self._deliver(row, handler))
            self._under_way[task] = row
        return len(claim.rows)

    async def _deliver(self, row: OutboxRow, handler: OutboxHandler) -> None:
        try:
            error = await self._attempt(row, handler)
        except Exception as broken:  # of the engine: no event may keep its place for ever
            error = f"{type(broken).__name__}: {broken}"
        task = asyncio.current_task()
        if task is None or self._under_way.pop(task, None) is None:
            return  # it was stopped, and is given back
        self._outcomes.append(Delivered(row.run, row.n) if error is None else self._failed(row, handler, error))
        self._loop.wake()

    async def _attempt(self, row: OutboxRow, handler: OutboxHandler) -> str | None:
        """Hand it over; what went wrong, if anything did."""
        if row.attempts >= handler.max_attempts:
            return row.error or "its workers died with it"  # not once more: it may be what they died of
        future = self._call(handler, _event(row))
        alarm = self._ports.timers.call_at(self._ports.now_ms() + handler.timeout_ms, lambda: _give_up(future))
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            future.cancel()
            raise
        finally:
            alarm.cancel()
        if future.cancelled():
            return f"it took longer than {describe(handler.timeout_ms)}, or was cancelled from inside"
        error = future.exception()
        return None if error is None else f"{type(error).__name__}: {error}"

    def _call(self, handler: OutboxHandler, event: OutboundEvent) -> asyncio.Future[Any]:
        context, spawn = contextvars.copy_context(), self._ports.spawn
        if handler.is_async:
            return spawn.coroutine(_guarded(handler.function, event), context)
        return spawn.function(partial(handler.function, event), context)

    def _failed(self, row: OutboxRow, handler: OutboxHandler, error: str) -> Undelivered:
        attempts = row.attempts + 1
        parked = attempts >= handler.max_attempts
        delay = BACKOFF.delay_after(attempts, self._random.random())
        what = "is parked" if parked else f"is tried again in {describe(delay)}"
        event = f"{row.type} of {row.workflow}/{row.instance_id}"
        _log.warning("outbound event %s %s after attempt %d: %s", event, what, attempts, error[:_LONGEST_ERROR])
        return Undelivered(row.run, row.n, error[:_LONGEST_ERROR], None if parked else self._ports.now_ms() + delay)

    async def _settle(self) -> None:
        outcomes = self._outcomes[:]
        if outcomes:
            await self._store.outbox_settle(self._owner, outcomes)
            del self._outcomes[: len(outcomes)]


def _give_up(future: asyncio.Future[Any]) -> None:
    future.cancel()


async def _guarded(function: Callable[[OutboundEvent], Any], event: OutboundEvent) -> None:
    """Whatever it raises, ``sys.exit()`` included, is its own failure and not the worker's."""
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
