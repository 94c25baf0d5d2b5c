"""The permits of a worker: requests and returns of its turns, in one exchange with the store at a time.

Requests and returns that come during an exchange are sent with the next one. A waiting request is granted by the reply
to a later exchange: after a return of this worker, a change of the database, or at the time at which a rate has room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from holdfast.errors import AppClosedError, StoreError
from holdfast.kernel.flow import DeclaredQueue
from holdfast.kernel.notify import Hub
from holdfast.kernel.options import RunOptions
from holdfast.ports import Alarm, Randomness, Timers
from holdfast.runner.claim_schedule import ClaimSchedule
from holdfast.store.protocol import (
    Claimant,
    DeclareLimits,
    LimitKey,
    LimitValues,
    PermitExchange,
    PermitReply,
    PermitRequest,
    PermitResult,
    PermitReturn,
    RunRecord,
    Store,
    TaskRef,
)
from holdfast.store.retry import backoff

_log = logging.getLogger("holdfast")

Listener = Callable[..., None]

_Key = tuple[int, int, str, int]
"""Run, unit, step and attempt of a permit."""


class Permits:
    """Requests and returns permits for the turns of one worker."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        claimant: Claimant,
        declared: dict[str, LimitValues],
        queues: Mapping[str, DeclaredQueue],
        schedule: ClaimSchedule,
        timers: Timers,
        random: Randomness,
        run_in_background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``declared``: the limits in the code, which may grow until the first exchange.

        ``queues``: the declared queues by name.
        """
        self._store = store
        self._hub = hub
        self._claimant = claimant
        self._declared = declared
        self._queues = queues
        self._schedule = schedule
        self._timers = timers
        self._random = random
        self._run_in_background = run_in_background
        self._has_declared = False
        self._requests: dict[_Key, PermitRequest] = {}
        """Requests to send with the next exchange."""
        self._returns: list[PermitReturn] = []
        self._waiting: dict[_Key, tuple[PermitRequest, asyncio.Future[PermitResult]]] = {}
        """Requests without a final result."""
        self._exchanging: asyncio.Future[None] | None = None
        self._again = False
        """True if another exchange is needed after the running one."""
        self._alarm: Alarm | None = None
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Number of attempts that wait for a permit."""
        return len(self._waiting)

    def subscribe(self, wrap: Callable[[Listener], Listener], unsubscribe: Listener) -> Listener:
        """Exchange when a limit was changed in this process; returns a function that ends the subscription, too."""
        forget = self._hub.subscribe_to_limits(wrap(self.wake))

        def end() -> None:
            unsubscribe()
            forget()

        return end

    # --- for turns

    def of_queue(self, run: RunRecord) -> Sequence[LimitKey]:
        """The limits of a run that its queue has, if the queue is declared with a concurrency."""
        queue = self._queues.get(run.queue)
        if queue is None or queue.limit is None:
            return ()
        return queue.limits_of(None if queue.keys is None else RunOptions.decode(run.options).key)

    async def enter(self, task: TaskRef, limits: Sequence[LimitKey], *, priority: int, until_end: bool = False) -> bool:
        """Request the permit of a whole task. False: the task is released until the permit is granted, or is lost."""
        request = PermitRequest(task, "", 0, limits, priority, until_end, park=True)
        return await self._request(request) is PermitResult.HELD

    async def acquire(self, task: TaskRef, step: str, attempt: int, limits: Sequence[LimitKey], priority: int) -> bool:
        """Wait for the permit of an attempt. False: the task is lost. A cancelled call withdraws the request."""
        try:
            return await self._request(PermitRequest(task, step, attempt, limits, priority)) is PermitResult.HELD
        except asyncio.CancelledError:
            self.give_back(task, step, attempt)
            raise

    def give_back(self, task: TaskRef, step: str, attempt: int) -> None:
        """Return the permit of an attempt."""
        key = (*task[:2], step, attempt)
        self._requests.pop(key, None)
        self._waiting.pop(key, None)
        self._returns.append(PermitReturn(task, step, attempt))
        self.wake()

    def _request(self, request: PermitRequest) -> asyncio.Future[PermitResult]:
        key = (*request.task[:2], request.step, request.attempt)
        future: asyncio.Future[PermitResult] = asyncio.get_running_loop().create_future()
        self._requests[key] = request
        self._waiting[key] = (request, future)
        self.wake()
        return future

    # --- exchanges

    def wake(self) -> None:
        """Exchange soon: there may be requests, returns, or permits that were granted to this worker."""
        self._again = True
        if self._exchanging is None and not self._stopped:
            self._exchanging = asyncio.get_running_loop().create_future()
            self._run_in_background(self._exchange_all(self._exchanging))

    async def refresh(self) -> None:
        """Exchange now, so that tasks whose permits were granted are due."""
        self.wake()
        while (exchanging := self._exchanging) is not None:
            await asyncio.wait([exchanging])

    def stop(self) -> None:
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()

    async def _exchange_all(self, done: asyncio.Future[None]) -> None:
        """Exchange until there is nothing more to send; ``done`` is set at the end."""
        failures = 0
        try:
            while self._again and not self._stopped:
                self._again = False
                await asyncio.sleep(0)  # requests and returns of one iteration of the event loop share an exchange
                failures = await self._exchange(failures)
        finally:
            self._exchanging = None
            done.set_result(None)
            if self._again and not self._stopped:
                self.wake()

    async def _exchange(self, failures: int) -> int:
        """Exchange once; returns the number of consecutive failures."""
        requests, self._requests = self._requests, {}
        returns, self._returns = self._returns, []
        sent = list(requests.values())
        try:
            if not self._has_declared:
                await self._store.limits(DeclareLimits(self._declared))
                self._has_declared = True
            reply = await self._store.exchange_permits(PermitExchange(self._claimant.owner, returns, sent))
        except AppClosedError:
            self._stopped = True
            return failures
        except StoreError as error:
            _log.warning("could not exchange permits: %s", error)
            self._send_again(returns)
            await asyncio.sleep(backoff(failures + 1, self._random))
            return failures + 1
        self._apply(sent, reply)
        return 0

    def _send_again(self, returns: list[PermitReturn]) -> None:
        """Repeat everything after an exchange whose result is unknown: waiting permits may be held by now."""
        self._returns = [*returns, *self._returns]
        self._requests = {key: request for key, (request, _) in self._waiting.items()} | self._requests
        self._again = True

    def _apply(self, sent: Sequence[PermitRequest], reply: PermitReply) -> None:
        for request, result in zip(sent, reply.results, strict=True):
            if result is not PermitResult.WAITING or request.park:
                self._resolve((*request.task[:2], request.step, request.attempt), result)
        for permit in reply.granted:
            self._resolve((permit.run, permit.unit, permit.step, permit.attempt), PermitResult.HELD)
        if reply.due:
            self._schedule.wake()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if reply.next_at is not None and not self._stopped:
            self._alarm = self._timers.call_at(reply.next_at, self.wake)

    def _resolve(self, key: _Key, result: PermitResult) -> None:
        found = self._waiting.pop(key, None)
        if found is not None and not found[1].done():
            found[1].set_result(result)
