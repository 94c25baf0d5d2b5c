"""The turn of a claimed run whose stored data cannot be read."""

from __future__ import annotations

from holdfast.store.protocol import Claim, Heartbeat, Signal


class DamagedTurn:
    """A turn that only raises the error of its run's data; the turn runner then parks the run.

    Without this turn the error would end the loop that begins the turns of a batch of claims, and the other runs of
    the batch would wait for their leases to expire.
    """

    lease_ms = None
    idle = False
    finish = None
    suspended = None
    due_at = None
    suspect = False
    waiting = False
    lost = False

    def __init__(self, claim: Claim, error: Exception) -> None:
        self.claim = claim
        self.task = claim.task
        self._error = error

    async def run(self) -> None:
        raise self._error

    def signal(self, signal: Signal | None) -> None:
        """Do nothing: the turn ends at once."""

    def stop(self) -> None:
        """Do nothing: the turn ends at once."""

    def record_running(self) -> None:
        """There is no running step."""

    def heartbeats(self) -> list[Heartbeat]:
        return []
