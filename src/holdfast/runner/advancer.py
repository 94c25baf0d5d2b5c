"""Group advance: units that finish at the same time share one transaction, as turns do with the committer.

The transaction also claims units that it makes due, as many as the worker has free slots, so that the next node of
a graph begins without a separate claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.errors import StoreError
from holdfast.ports import Randomness
from holdfast.runner.batch_limit import batch_limit
from holdfast.runner.store_retry import log_and_pause
from holdfast.store.batching import Batcher
from holdfast.store.protocol import Advance, Claimant, Store, TaskRef
from holdfast.store.retry import call_with_retry


class Advancer:
    """Writes advances to the store in batches."""

    def __init__(
        self,
        store: Store,
        random: Randomness,
        sharing_loop: Callable[[], bool],
        claimant: Claimant,
        reserve: Callable[[int], int],
        applied: Callable[[Advance], None],
        claimed: Callable[[int, Sequence[TaskRef], bool], None],
    ) -> None:
        self._store = store
        self._pause_after = log_and_pause("advance", random)
        self._claimant = claimant
        self._reserve = reserve
        """Reserve up to this many slots; returns the number reserved."""
        self._applied = applied
        """Called with each advance that was written."""
        self._claimed = claimed
        """Called with the number of reserved slots, the claimed units, and whether more units are due."""
        self._batcher = Batcher(
            "holdfast-advancer", self._write, max_items=batch_limit(sharing_loop), by_caller=lambda: False
        )

    async def advance(self, advance: Advance) -> bool:
        """Write the advance; True once it is durable, False if it was refused because the unit is lost."""
        [applied] = await self._batcher([advance])
        return applied

    def abandon(self) -> None:
        """Stop writing; callers that wait get no result. For crash tests."""
        self._batcher.abandon()

    async def _write(self, advances: list[Advance]) -> list[bool]:
        slots = self._reserve(sum(len(one.decrements) + len(one.new_units) for one in advances))
        try:
            advanced = await call_with_retry(
                lambda: self._store.advance(advances, self._claimant, slots), StoreError, self._pause_after
            )
        except BaseException:
            self._claimed(slots, (), False)
            raise
        for advance, applied in zip(advances, advanced.applied, strict=True):
            if applied:
                self._applied(advance)
        self._claimed(slots, advanced.claimed, advanced.due)
        return list(advanced.applied)
