"""``CrashingHarness``: a harness that loses its worker after one commit and continues with another worker."""

from __future__ import annotations

from holdfast.core.durations import Duration, to_ms
from holdfast.core.model import to_ms as time_ms
from holdfast.testing.harness import Harness
from holdfast.testing.virtual import later


class CrashingHarness(Harness):
    """A harness whose worker is lost right after commit number ``crash_after``; None: it is not lost.

    The test drives it like any harness. A call that drives the run also lets another worker take over, which costs the
    virtual time of the lost worker's lease.
    """

    crashed = False
    """True once the worker was lost."""

    def crash_after(self, commit: int | None) -> None:
        self._store.drop_after = commit

    @property
    def commits(self) -> int:
        """Number of commits so far."""
        return self._store.commits

    async def run_until_idle(self) -> None:
        await super().run_until_idle()
        while self._store.dropped:
            self.crashed = True
            await self._lose_worker()
            await super().run_until_idle()

    async def advance(self, duration: Duration, *, run: bool = True) -> None:
        target = later(self._clock.now(), to_ms(duration))
        await super().advance(duration, run=run)
        remaining_ms = time_ms(target) - time_ms(self._clock.now())
        if remaining_ms > 0:  # the worker was lost during the advance
            await self.run_until_idle()
            await super().advance(remaining_ms / 1000)
