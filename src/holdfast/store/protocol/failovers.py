"""Notification of failovers: another server, which may lack the last commits of the one before, has taken over."""

from __future__ import annotations

from collections.abc import Callable


class Failovers:
    """Listeners that a store calls when it notices a failover, before its next write.

    The store has ended all claims in the database by then. A listener must forget everything that it knows of claimed
    runs: their latest facts may be gone. A store whose database cannot fail over never calls the listeners.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Add a listener; returns a function that removes it."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def notify(self) -> None:
        for listener in list(self._listeners):
            listener()
