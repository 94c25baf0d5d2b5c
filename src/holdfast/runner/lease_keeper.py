"""The heartbeat of a worker: it registers the worker, renews its leases, and receives signals and drains."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from holdfast.errors import StoreError
from holdfast.ports import Randomness
from holdfast.runner.background_loop import BackgroundLoop
from holdfast.runner.claim_schedule import ClaimSchedule
from holdfast.runner.slots import Slots
from holdfast.runner.turn_table import TurnTable
from holdfast.runner.unknown_claims import UnknownClaims
from holdfast.store.protocol import HeldTask, ReadQueues, RunByName, Signal, Store, TaskRef, WorkerProfile

_log = logging.getLogger("holdfast")

_BEATS_PER_LEASE = 3
_DRAIN_SECONDS = 1.0
"""Minimum time between two reads of drains, for short leases with frequent heartbeats."""


class LeaseKeeper:
    """Renews the leases of the worker's tasks and releases tasks that have no turn."""

    def __init__(
        self,
        store: Store,
        profile: WorkerProfile,
        lease_ms: int,
        table: TurnTable,
        slots: Slots,
        unknown_claims: UnknownClaims,
        schedule: ClaimSchedule,
        random: Randomness,
        now_ms: Callable[[], int],
    ) -> None:
        self.lease_ms = lease_ms
        self.loop = BackgroundLoop("heartbeat", self.step, random)
        self._store = store
        self._profile = profile
        self._table = table
        self._slots = slots
        self._unknown_claims = unknown_claims
        self._schedule = schedule
        self._now_ms = now_ms
        self._renewed_at = 0
        """Time of the last heartbeat, by the machine's clock, which goes on while the machine is suspended."""
        self._registered = False
        self._since_drain_read = 0.0
        """Seconds since drains were last read, as the sum of the pauses between heartbeats."""

    async def step(self) -> float:
        if self._slots.accepting and not self._registered:
            await self._store.register_worker(self._profile, self.lease_ms)
            self._registered = True
        held = await self._renew()
        await self._release_unknown_claims(held)
        pause = min(self.leases()) / _BEATS_PER_LEASE / 1000
        self._since_drain_read += pause
        if self._since_drain_read >= _DRAIN_SECONDS:
            self._since_drain_read = 0.0
            await self._read_drain()
        return pause

    @property
    def _owner(self) -> str:
        return self._profile.id

    def register_again(self) -> None:
        """Register the worker, whose id has changed, with the next heartbeat, which is due now."""
        self._registered = False
        self.loop.wake_at_most(0)

    def heartbeat_within(self, lease_ms: int) -> None:
        """Schedule the next heartbeat early enough for a lease of this many milliseconds."""
        self.loop.wake_at_most(lease_ms / _BEATS_PER_LEASE / 1000)

    def leases(self) -> list[int]:
        """Durations of the worker's lease and of the individual leases of owned tasks."""
        return [self.lease_ms, *self._table.leases()]

    async def _renew(self) -> list[HeldTask]:
        """Renew all leases and pass the signals to the turns; returns the owned tasks."""
        turns, began = self._table.snapshot(), self._now_ms()
        held = await self.fetch_signals(lambda: self._store.heartbeat(self._owner, self.lease_ms))
        self._renewed_at = began
        self._table.deliver_signals(turns, held)
        return held

    async def renew_if_late(self) -> None:
        """Renew all leases if a heartbeat is overdue, because this process or the whole machine was suspended.

        Called before expired tasks are freed: a worker that continues after a pause keeps the tasks that no other
        worker has taken over, and does not repeat their steps.
        """
        if self._table and 2 * (self._now_ms() - self._renewed_at) > min(self.leases()):
            await self._renew()

    async def fetch_signals(self, read: Callable[[], Awaitable[list[HeldTask]]]) -> list[HeldTask]:
        """Read the signals of owned tasks.

        Reading clears the EVENTS signal, so after a lost reply every turn re-reads its mailbox.
        """
        try:
            return await read()
        except StoreError:
            self._table.signal_all(Signal.EVENTS)
            raise

    async def _read_drain(self) -> None:
        """Begin or end a drain. While it lasts, every heartbeat also stops turns that a claim in flight began."""
        draining = (await self._store.queues(ReadQueues(self._owner))).draining
        if self._slots.draining and not draining:
            self._schedule.wake()
        self._slots.draining = draining
        if draining:
            self._table.stop()

    # --- release

    async def _release_unknown_claims(self, held: Sequence[HeldTask]) -> None:
        """Release tasks that two heartbeats in a row report as owned although they have no turn here.

        The reply to a start or a claim was lost, and the heartbeat would otherwise renew their leases without end.
        """
        unknown_twice = self._unknown_claims.report(h for h in held if (h.run, h.unit) not in self._table)
        if not self._slots.has_requests and not self._slots.manual:
            self._unknown_claims.forget_released()
        await self._release(unknown_twice)

    async def release_instance(self, workflow: str, instance_id: str) -> None:
        """Release the run of an instance if this worker owns it without a turn."""
        held = await self._renew()
        for run in await self._store.read(RunByName(workflow, instance_id)):
            task_key = run.run, 0
            await self._release(h for h in held if (h.run, h.unit) == task_key and task_key not in self._table)

    async def _release(self, claims: Iterable[HeldTask]) -> None:
        tasks = [TaskRef(h.run, h.unit, self._owner, h.epoch) for h in claims]
        self._unknown_claims.add_released(tasks)
        if tasks:
            await self._store.release(tasks)
            self._schedule.wake()

    async def release_all(self) -> None:
        """Release every task that the store reports as owned, including claims whose reply was lost."""
        try:
            held = await self._store.heartbeat(self._owner, self.lease_ms)
            if held:
                await self._store.release([TaskRef(h.run, h.unit, self._owner, h.epoch) for h in held])
            if self._registered:
                await self._store.unregister_worker(self._owner)
                self._registered = False
        except StoreError as error:
            _log.warning("could not release the leases, they will expire: %s", error)
