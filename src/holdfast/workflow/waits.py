"""Sleeps and waits for events, as workflow code requests them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core import durations, failure
from holdfast.core.event import Event
from holdfast.core.failure import Failure, note_step
from holdfast.core.model import StepType, from_ms
from holdfast.errors import DamagedRunError, EventInvalidError, WaitForEventTimeoutError
from holdfast.kernel.events import Decode, read_payload
from holdfast.store.protocol import Delivery, Fact, FactState, StoredEvent
from holdfast.workflow import guard
from holdfast.workflow.execution import Execution
from holdfast.workflow.keys import Keys
from holdfast.workflow.pending import DecisionBuffer, PendingWait
from holdfast.workflow.position import Position
from holdfast.workflow.recorded_history import RecordedHistory
from holdfast.workflow.wait_queue import WaitQueue


class Waits:
    """The sleeps and event waits of one run."""

    __slots__ = ("_buffer", "_counts", "_execution", "_history", "_keys", "_position", "_received", "_wait_queue")

    def __init__(
        self,
        keys: Keys,
        execution: Execution,
        position: Position,
        history: RecordedHistory,
        wait_queue: WaitQueue,
        buffer: DecisionBuffer,
    ) -> None:
        self._keys = keys
        self._execution = execution
        self._position = position
        self._history = history
        self._wait_queue = wait_queue
        self._buffer = buffer
        self._counts: dict[str, int] = {}
        """Number of the waits so far, by key."""
        self._received: dict[str, StoredEvent] = {}
        """Events that ended a wait in this process, by key."""

    # --- requested by workflow code

    async def sleep(self, key: str, due: Callable[[], int]) -> None:
        if self._keys.use(key, StepType.SLEEP) is None:
            await self._wait(self._open(key, StepType.SLEEP, due(), None))

    async def wait_for_event(self, key: str, event_type: str, timeout_ms: int, decode: Decode) -> Event[Any]:
        result = self._keys.use(key, StepType.WAIT)
        if result is None:
            wait = self._open(key, StepType.WAIT, self._position.now_ms + timeout_ms, event_type)
            wait.decode = decode
            result = await self._wait(wait)
            if wait.event is not None:
                return wait.event
        if not result.ok:
            raise _wait_error(result)
        event = self.event_of(result)
        try:
            payload = read_payload(event.type, event.payload, decode)
        except EventInvalidError as error:
            text = f"the event that {key!r} received does not fit the code's payload type any more: {error}"
            never: Event[Any] = await self._execution.diverge_by_value(text)
            return never
        except DamagedRunError as error:
            unread: Event[Any] = await self._execution.diverge_by_damage(f"the event that {key!r} received", error)
            return unread
        return Event(event.type, payload, from_ms(event.created_at), event.sender)

    def _open(self, key: str, kind: StepType, due: int, event_type: str | None) -> PendingWait:
        n = self._counts.get(key, 0)
        self._counts[key] = n + 1
        start = self._history.starts.get((key, n))
        if start is not None and start.wake_at is not None:
            due = start.wake_at  # the recorded deadline applies, even if the code has another duration now
        now = self._position.now_ms
        wait = PendingWait(key, kind, asyncio.Future(loop=self._execution.loop), now, due)
        wait.event_type, wait.n = event_type, n
        self._keys.pending[key] = wait
        self._wait_queue.wait_until(due, wait)
        if event_type is not None:
            self._wait_queue.wait_for(event_type, wait)
        if start is None:
            fact = Fact(FactState.START, key, n, kind, now, now, wake_at=due, event_type=event_type)
            self._buffer.add_opened(fact)
        return wait

    async def _wait(self, wait: PendingWait) -> Fact:
        """Wait for the result fact. An event that a cancelled wait awaited stays in the mailbox for the next wait."""
        try:
            result: Fact = await wait.future
        except asyncio.CancelledError:
            if self._keys.abandon(wait) and (wait.key, wait.n) in self._history.starts:
                self._note_cancelled(wait)
            raise
        return result

    def _note_cancelled(self, wait: PendingWait) -> None:
        last = self._history.failures.get(wait.key)
        if last is not None and last.n > wait.n:
            return  # recorded before this replay
        fact = Fact(
            FactState.FAILURE, wait.key, wait.n + 1, wait.kind, self._position.wall_ms, wait.started_at,
            ok=False, value=failure.cancelled(wait.key).encode(), event_type=wait.event_type,
        )  # fmt: skip
        self._history.failures[wait.key] = fact
        self._buffer.add_opened(fact)

    # --- waits without a key

    def event_future(self) -> asyncio.Future[Any]:
        """A future that an event will complete."""
        guard.check(self._execution.loop, "a wait of workflow code")
        return asyncio.Future(loop=self._execution.loop)

    async def poll(self) -> bool:
        """Deliver the events that are in the mailbox now.

        A timer that is due at once ends the poll. The timer's fact records that no more events came, so a replay finds
        the same events.
        """
        polled = self.event_future()
        self._execution.loop.call_with_fact(self._position.wall_ms, _set_done, polled)
        await polled
        return True

    # --- results and commits

    def receive(self, wait: PendingWait, event: StoredEvent) -> Fact:
        """Consume an event by a wait. Returns the wait's result. Raises if the payload cannot be read."""
        now = self._position.wall_ms
        result = wait.received(event, self._position.seq + 1, now)
        self._received[wait.key] = event
        self._buffer.add_delivery(Delivery(event.n, wait.key, now))
        return result

    def event_of(self, result: Fact) -> StoredEvent:
        """The event that ended a wait."""
        return self._received.get(result.key) or self._history.events[result.event or 0]

    def take_opened(self) -> Sequence[Fact]:
        """Take the facts that opened or cancelled waits, without the START facts of waits that are over already."""
        facts = self._buffer.take_opened()
        if not facts:
            return ()
        opened = [f for f in facts if f.state != FactState.START or f.key in self._keys.pending]
        self._history.starts.update({(f.key, f.n): f for f in opened if f.state == FactState.START})
        return opened


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _wait_error(result: Fact) -> BaseException:
    """The error of a wait that failed: its deadline passed, or its event's payload does not match its type."""
    if result.event is not None:
        return note_step(Failure.decode(result.value or b"{}").as_cause(), result.key)
    waited = max(0, (result.wake_at or result.at) - result.started_at)
    error = WaitForEventTimeoutError(
        f"no event of type {result.event_type!r} came for {result.key!r} within {durations.describe(waited)}"
    )
    return note_step(error, result.key)
