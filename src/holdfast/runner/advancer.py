"""Group advance: units that are ready at the same time share one transaction, as turns do with the committer.

What becomes due by it is partly taken at once, as far as the worker has room: the next node of a graph needs no look
for work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.ports import Randomness
from holdfast.runner.grouping import GroupWriter
from holdfast.runner.patience import patiently
from holdfast.store.protocol import Advance, Claimant, Store, TaskRef


class Advancer:
    """Hands advances to the store in batches."""

    def __init__(
        self,
        store: Store,
        random: Randomness,
        in_company: Callable[[], bool],
        claimant: Claimant,
        reserve: Callable[[int], int],
        applied: Callable[[Advance], None],
        taken: Callable[[int, Sequence[TaskRef], bool], None],
    ) -> None:
        self._store = store
        self._random = random
        self._claimant = claimant
        self._reserve = reserve
        """Keeps places free for what is taken; answers how many of those asked for."""
        self._applied = applied
        """This was written."""
        self._taken = taken
        """So many places were kept, these units have come, and whether there are more."""
        self._group = GroupWriter("holdfast-advancer", self._write, in_company)

    async def advance(self, advance: Advance) -> bool:
        """Write it; returns once it is durable, or (False) refused because the unit is not held any more."""
        return await self._group.put(advance)

    def abandon(self) -> None:
        """Stop writing, whoever waits for it. For crash tests."""
        self._group.abandon()

    async def _write(self, advances: list[Advance]) -> Sequence[bool]:
        room = self._reserve(sum(len(one.opens) + len(one.adds) for one in advances))
        try:
            advanced = await patiently(
                lambda: self._store.advance(advances, self._claimant, room), "advance", self._random
            )
        except BaseException:
            self._taken(room, (), False)
            raise
        for advance, applied in zip(advances, advanced.applied, strict=True):
            if applied:
                self._applied(advance)
        self._taken(room, advanced.taken, advanced.due)
        return advanced.applied
