"""The time of the next claim of the claim loop."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.runner.background_loop import BackgroundLoop


class ClaimSchedule:
    """The next due time that is known, and the claim loop that it wakes."""

    def __init__(self, loop: BackgroundLoop, now_ms: Callable[[], int], poll_ms: int) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._poll_ms = poll_ms
        self._next_due: int | None = None

    def wake(self) -> None:
        """Claim now."""
        self._loop.wake()

    def due(self, at: int | None) -> None:
        """Wake the claim loop at this time (None: now) if that is earlier than its next due time."""
        if at is None or self._next_due is None or at < self._next_due:
            self._next_due = at
            self._loop.wake_at_most((at - self._now_ms()) / 1000 if at is not None else 0.0)

    def claimed(self, next_due: int | None) -> None:
        """Replace the next due time by that of the store, after a claim."""
        self._next_due = next_due

    def poll(self) -> float:
        """Seconds to wait if nothing may be claimed now."""
        return self._poll_ms / 1000

    def pause(self) -> float:
        """Seconds to wait until the next claim."""
        poll = self._poll_ms / 1000
        return poll if self._next_due is None else min(poll, max(0.0, (self._next_due - self._now_ms()) / 1000))
