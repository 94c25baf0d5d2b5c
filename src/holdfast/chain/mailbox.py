"""The events of a run that the machine has read, and which of them are consumed."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.protocol import CANCEL, EXIT, RESOLVE, Snapshot, StoredEvent


class Mailbox:
    def __init__(self, snapshot: Snapshot) -> None:
        self._events: dict[int, StoredEvent] = dict(snapshot.events)
        """The events read so far, by number: consumed ones, and ones that may be consumed."""
        self._consumed = {f.event for f in snapshot.facts if f.event is not None}
        self._resolutions: list[StoredEvent] = []
        """Unconsumed outcomes that were decided by hand."""
        self._control_events: dict[int, StoredEvent] = {}
        """Unconsumed events of the engine: cancellations, and exits of watched runs."""

    def __getitem__(self, n: int) -> StoredEvent:
        """The event with this number."""
        return self._events[n]

    def add(self, events: Sequence[StoredEvent]) -> None:
        for event in events:
            if event.type == RESOLVE:
                self._resolutions.append(event)
            else:
                (self._control_events if event.type in (CANCEL, EXIT) else self._events)[event.n] = event

    def take_resolutions(self) -> Sequence[StoredEvent]:
        if not self._resolutions:
            return ()
        taken, self._resolutions = self._resolutions, []
        return taken

    def oldest(self, event_type: str) -> StoredEvent | None:
        """The oldest unconsumed event of a type."""
        candidates = (
            event for n, event in self._events.items() if event.type == event_type and n not in self._consumed
        )
        return min(candidates, key=lambda event: event.n, default=None)

    def consume(self, event: StoredEvent) -> None:
        self._consumed.add(event.n)

    def take_control_event(self) -> StoredEvent | None:
        """Consume the oldest event of the engine; None if there is none."""
        if not self._control_events:
            return None
        event = self._control_events.pop(min(self._control_events))
        self._consumed.add(event.n)
        return event
