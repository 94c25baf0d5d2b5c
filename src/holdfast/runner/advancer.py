"""Group advance: units that finish at the same time share one transaction, as turns do with the committer.

The transaction also claims units that become due by it, as many as the worker has free slots, so that the next node of
a graph begins without a separate claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.ports import Randomness
from holdfast.runner.grouping import GroupWriter
from holdfast.runner.store_retry import call_with_retry
from holdfast.store.protocol import Advance, Claimant, Store, TaskRef


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
        self._random = random
        self._claimant = claimant
        self._reserve = reserve
        """Reserve up to this many slots; returns the number reserved."""
        self._applied = applied
        """Called with each advance that was written."""
        self._claimed = claimed
        """Called with the number of reserved slots, the claimed units, and whether more units are due."""
        self._group = GroupWriter("holdfast-advancer", self._write, sharing_loop)

    async def advance(self, advance: Advance) -> bool:
        """Write the advance; True once it is durable, False if it was refused because the unit is lost."""
        return await self._group.put(advance)

    def abandon(self) -> None:
        """Stop writing; callers that wait are not answered. For crash tests."""
        self._group.abandon()

    async def _write(self, advances: list[Advance]) -> Sequence[bool]:
        slots = self._reserve(sum(len(one.decrements) + len(one.new_units) for one in advances))
        try:
            advanced = await call_with_retry(
                lambda: self._store.advance(advances, self._claimant, slots), "advance", self._random
            )
        except BaseException:
            self._claimed(slots, (), False)
            raise
        for advance, applied in zip(advances, advanced.applied, strict=True):
            if applied:
                self._applied(advance)
        self._claimed(slots, advanced.claimed, advanced.due)
        return advanced.applied
