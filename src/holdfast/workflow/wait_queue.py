"""The queue of what a run waits for: due times, steps to call, events. The machine handles what becomes due."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Container, Iterable

from holdfast.store.protocol import StoredEvent
from holdfast.workflow.pending import Pending, PendingStep, PendingTimer, PendingWait

NO_TOPICS: frozenset[str] = frozenset()


class WaitQueue:
    """The open waits of one run. Closed waits stay queued until they reach the front, and are dropped there."""

    __slots__ = ("_delivered", "_known", "_order", "due", "events", "has_failed_steps", "ready", "waits")

    def __init__(self) -> None:
        self.ready: list[PendingStep] = []
        """Steps to be called at their ``not_before``."""
        self.has_failed_steps = False
        """True if a step has failed, so that it may have no attempts left."""
        self.due: list[tuple[int, int, Pending]] = []
        """Heap of the waits that are due at a time."""
        self._order = 0
        self.waits: dict[str, deque[PendingWait]] = {}
        """Waits for events, by the type of the event."""
        self.events: dict[str, deque[StoredEvent]] = {}
        """Events that no wait and no channel has taken yet, by type."""
        # Dicts as sets of numbers: the garbage collector does not visit them.
        self._known: dict[int, None] = {}
        self._delivered: dict[int, None] = {}

    def wait_until(self, due: int, pending: PendingWait | PendingTimer) -> None:
        self._order += 1
        heapq.heappush(self.due, (due, self._order, pending))

    def wait_for(self, event_type: str, pending: PendingWait) -> None:
        self.waits.setdefault(event_type, deque()).append(pending)

    def receive(self, event: StoredEvent) -> None:
        """Queue an event until a wait or a channel can take it. An event that was received before is ignored."""
        if event.n not in self._known:
            self._known[event.n] = None
            self.events.setdefault(event.type, deque()).append(event)

    def mark_delivered(self, n: int) -> None:
        """Note that an event was delivered before this machine was opened."""
        self._known[n] = self._delivered[n] = None

    def first(self, event_type: str) -> StoredEvent | None:
        events = self.events.get(event_type)
        return events[0] if events else None

    def take_type(self, event_type: str) -> Iterable[StoredEvent]:
        """Remove and return the queued events of a type."""
        return self.events.pop(event_type, ())

    def _drop_delivered(self) -> None:
        """Remove events that the replay has delivered. Each type is delivered in order, so they are at the front."""
        for event_type, events in list(self.events.items()):
            while events and events[0].n in self._delivered:
                events.popleft()
            if not events:
                del self.events[event_type]
        self._delivered.clear()

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self.waits) if self.waits else NO_TOPICS

    def clear(self) -> None:
        """Break reference cycles when the machine is dropped: pending waits hold errors that refer to it."""
        self.ready.clear()
        self.due.clear()
        self.waits.clear()

    # --- due waits, events and steps

    def next_due(self) -> tuple[int | None, bool]:
        """The earliest time at which a wait or a retry is due, and True if that is a retry."""
        self._drop_closed()
        timer = self.due[0][0] if self.due else None
        retry = min((a.not_before for a in self.ready if not a.closed), default=None) if self.ready else None
        if retry is not None and (timer is None or retry <= timer):
            return retry, True
        return timer, False

    def due_wait(self, now_ms: int) -> PendingWait | PendingTimer | None:
        """The wait with the earliest due time, if it has passed."""
        self._drop_closed()
        if self.due and self.due[0][0] <= now_ms:
            return self.due[0][2]  # type: ignore[return-value]  # by wait_until
        return None

    def next_event(self, may_arrive: Callable[[str], bool]) -> StoredEvent | None:
        """The oldest event with an open wait, or of a type for which ``may_arrive`` is true."""
        if self.waits:
            self._drop_closed_waits()
        if self._delivered:
            self._drop_delivered()
        oldest: StoredEvent | None = None
        for event_type, events in self.events.items():
            if (oldest is None or events[0].n < oldest.n) and (event_type in self.waits or may_arrive(event_type)):
                oldest = events[0]
        return oldest

    def take_event(self, event: StoredEvent) -> PendingWait | None:
        """Remove an event from the queue. Returns the oldest wait for its type, if any, and removes it too."""
        events = self.events.get(event.type)
        if events and events[0].n == event.n:
            events.popleft()
            if not events:
                del self.events[event.type]
        waits = self.waits.get(event.type)
        return waits.popleft() if waits else None

    def _drop_closed_waits(self) -> None:
        for event_type in list(self.waits):
            waits = self.waits[event_type]
            while waits and waits[0].closed:
                waits.popleft()
            if not waits:
                del self.waits[event_type]

    def exhausted_step(self) -> PendingStep | None:
        """Remove and return a step that is to be called although it has no attempts left."""
        for pending in self.ready:
            max_attempts = pending.spec.retry.max_attempts
            if max_attempts is not None and pending.failures >= max_attempts and not pending.closed:
                self.ready.remove(pending)
                return pending
        return None

    def new_steps(self, now_ms: int, recorded: Container[str]) -> list[PendingStep]:
        """Steps to be called now that have no recorded fact."""
        return [
            pending
            for pending in self.ready
            if pending.not_before <= now_ms and not pending.closed and pending.key not in recorded
        ]

    def due_steps(self, now_ms: int) -> list[PendingStep]:
        """Remove and return the steps to be called now."""
        queued, self.ready = self.ready, []
        due: list[PendingStep] = []
        for pending in queued:
            if not pending.closed:
                (due if pending.not_before <= now_ms else self.ready).append(pending)
        return due

    def _drop_closed(self) -> None:
        while self.due and self.due[0][2].closed:
            heapq.heappop(self.due)
