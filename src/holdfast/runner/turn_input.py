"""The input of a turn from outside: events, signals and timers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from holdfast.ports import Alarm
from holdfast.runner.mailbox_cursor import UNREAD, MailboxCursor
from holdfast.runner.turn_context import TurnContext
from holdfast.store.protocol import Claim, MailboxQuery, Signal, StoredEvent


class TurnInput:
    """Reads the mailbox of a run, keeps the signals to its owner, and lets the turn wait."""

    pausing = False
    """A pause of the run was requested."""
    task_lost = False
    _events_waiting = False
    _waiter: asyncio.Future[None] | None = None
    _alarm: Alarm | None = None

    def __init__(self, context: TurnContext, claim: Claim) -> None:
        self._context = context
        self._claim = claim
        self._run = claim.run
        self._events: Sequence[StoredEvent] = claim.mailbox_page.events
        self._cursor = MailboxCursor(claim.mailbox_page)
        self._read_at: int | None = claim.at
        """The time of the last read of the mailbox for the next advance; None: the advance uses the current time.

        Later events are unknown to the machine, so a deadline after this time does not count as missed yet.
        """

    # --- signals

    def signal(self, signal: Signal) -> None:
        if signal & Signal.EVENTS:
            self._events_waiting = True
        if signal & Signal.PAUSE:
            self.pausing = True
        self.wake()

    def withdraw_pause(self) -> None:
        self.pausing = False

    def lose_task(self) -> None:
        self.task_lost = True
        self.wake()

    # --- wait

    def wait(self, wake_at: int | None) -> Awaitable[None]:
        """A future that is done after the next wake or at ``wake_at``."""
        self.clear_alarm()
        if wake_at is not None and not self.pausing:
            self._alarm = self._context.ports.timers.call_at(wake_at, self.wake)
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def waiting(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def clear_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def is_due(self, wake_at: int | None) -> bool:
        return wake_at is not None and wake_at <= self._context.ports.now_ms()

    # --- events

    @property
    def seen(self) -> int:
        """The number of the last event in the mailbox at the last read."""
        return self._cursor.seen

    @property
    def known(self) -> int | None:
        """The number of the last event; None if not all events up to it were read."""
        return self._cursor.known

    def has_all(self, topics: frozenset[str]) -> bool:
        """True if all events of these topics were read."""
        return self._cursor.has_all(topics)

    def may_have_events(self, topics: frozenset[str]) -> bool:
        return self._events_waiting or not (self._cursor.complete or self._cursor.has_all(topics))

    def must_read_events(self, topics: frozenset[str], wake_at: int | None) -> bool:
        """True if there may be new events. Events that came in time are read before a deadline counts as missed."""
        return self.may_have_events(topics) or (bool(topics) and self.is_due(wake_at))

    def take_events(self, now: int) -> tuple[Sequence[StoredEvent], int]:
        """The events for the next advance, and the time up to which they are complete, at most ``now``."""
        events, self._events = self._events, ()
        read_at, self._read_at = self._read_at, None
        return events, now if read_at is None else min(now, read_at)

    def read_from_start(self, topics: frozenset[str]) -> Awaitable[None]:
        """Read the mailbox for a new machine, which has not received any event."""
        self._cursor = MailboxCursor(UNREAD)
        return self.read_events(topics)

    async def read_events(self, topics: frozenset[str]) -> None:
        self._events_waiting = False
        self._read_at = self._context.ports.now_ms()
        context, run = self._context, self._run
        self._events = await self._cursor.read_next(
            topics,
            lambda types, after: context.call_store(
                run, lambda: context.store.read(MailboxQuery(run.run, types, after))
            ),
        )
        if self._events and context.ports.telemetry is not None:
            context.ports.telemetry.events_read(self._claim, self._events)
