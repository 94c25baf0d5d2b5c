"""The slots of a worker: the number of its turns, and of turns that are about to begin, is limited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sized

# Maximum number of tasks per claim: a small batch keeps claims short and leaves work to other processes.
_MAX_CLAIM = 200
# How long a nearly full worker waits for more free slots before it claims tasks for the few that it has.
_SLOT_WAIT_SECONDS = 0.02
_WAITING_PER_SLOT = 10
"""Number of turns per slot that may wait for permits in memory; more are claimed later."""


class Slots:
    """Counts the slots that turns, reservations and claims in flight take."""

    accepting = False
    """New turns may begin. False before the start and after the stop of the worker."""
    draining = False
    """True if no turn may begin until the end of the drain (``DrainWorker``)."""
    manual = False
    """True if units begin only in ``app.advance``."""
    by_queue: Mapping[str, int] | None = None
    """The number of slots of each queue. Every task is then claimed by the claim loop, which counts them."""
    on_freed: Callable[[], None] | None = None
    """Called when a turn ends."""

    def __init__(self, number: int, turns: Sized) -> None:
        self.reserved = 0
        """Slots reserved for starts and events in flight."""
        self._number = number
        self._turns = turns
        self._claiming = 0
        """Slots reserved for claims in flight, most of which return fewer tasks."""
        self._min_claim = min(_MAX_CLAIM, max(1, number // 5))
        self._freed = asyncio.Event()
        self.waiting_for_permits: Callable[[], int] = lambda: 0
        """Number of attempts that wait for a permit."""

    @property
    def free(self) -> int:
        """Number of free slots. A turn that waits for a permit takes none, as long as such turns are not too many."""
        idle = min(self.waiting_for_permits(), len(self._turns), _WAITING_PER_SLOT * self._number)
        return self._number - len(self._turns) + idle - self.reserved - self._claiming

    def is_alone(self) -> bool:
        """True if there is at most one turn, counting starts and events in flight but not claims in flight."""
        return len(self._turns) + self.reserved <= 1

    @property
    def has_requests(self) -> bool:
        """True while a start, an event or a claim is in flight."""
        return bool(self.reserved or self._claiming)

    # --- reservations

    def reserve(self) -> bool:
        """Reserve a slot; False if there is none."""
        if not self.accepting or self.draining or self.free <= 0 or self.by_queue is not None:
            return False
        self.reserved += 1
        return True

    def reserve_units(self, most: int) -> int:
        """Reserve up to this many slots for units; returns their number."""
        begins_here = self.accepting and not self.draining and not self.manual and self.by_queue is None
        slots = max(0, min(most, self.free)) if begins_here else 0
        self.reserved += slots
        return slots

    def end_reservation(self, slots: int) -> None:
        self.reserved -= slots

    # --- claims

    async def claim_limit(self) -> int:
        """Maximum number of tasks for the next claim of the claim loop.

        Waits a moment if few slots are free: one transaction per freed slot costs more than the work.
        """
        if self.free < self._min_claim:
            self._freed.clear()
            alarm = asyncio.get_running_loop().call_later(_SLOT_WAIT_SECONDS, self._freed.set)
            try:
                await self._freed.wait()
            finally:
                alarm.cancel()
        return min(self.free, _MAX_CLAIM)

    def begin_claim(self, limit: int) -> None:
        self._claiming += limit

    def end_claim(self, limit: int) -> None:
        self._claiming -= limit

    def turn_ended(self) -> None:
        """End the wait in ``claim_limit`` if enough slots are free now."""
        if self.free >= self._min_claim:
            self._freed.set()
        if self.on_freed is not None:
            self.on_freed()
