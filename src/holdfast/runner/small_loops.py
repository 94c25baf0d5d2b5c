"""The small loops of a worker: *watch*, *reap* and *record*."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from holdfast.errors import StoreError
from holdfast.kernel.notify import Hub
from holdfast.kernel.telemetry import Telemetry
from holdfast.ports import Randomness
from holdfast.runner import report
from holdfast.runner.background_loop import BackgroundLoop
from holdfast.runner.claim_schedule import ClaimSchedule
from holdfast.runner.lease_keeper import LeaseKeeper
from holdfast.runner.outbox import OutboxDispatcher
from holdfast.runner.permits import Permits
from holdfast.runner.running_records import record_heartbeats
from holdfast.runner.schedules import ScheduleLoop
from holdfast.runner.turn_runner import TurnRunner
from holdfast.runner.turn_table import TurnTable
from holdfast.store.protocol import Claimant, ExpiredTask, RunsById, Store

_log = logging.getLogger("holdfast")

_RECORD_SECONDS = 0.5
_PAUSE_PER_SECOND = 20
"""Pause after a pass over all turns, as a multiple of its duration: with many turns the passes are less frequent."""


class ChangeWatcher:
    """Notices writes of other processes."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        claimant: Claimant,
        table: TurnTable,
        runner: TurnRunner,
        leases: LeaseKeeper,
        schedule: ClaimSchedule,
        outbox: OutboxDispatcher,
        schedules: ScheduleLoop,
        random: Randomness,
        permits: Permits | None,
    ) -> None:
        self._permits = permits
        self.loop = BackgroundLoop("watch", self.step, random)
        self._store = store
        self._hub = hub
        self._claimant = claimant
        self._table = table
        self._runner = runner
        self._leases = leases
        self._schedule = schedule
        self._outbox = outbox
        self._schedules = schedules
        self._seen_version: int | None = None

    async def step(self) -> float:
        """Wait for a write of another process, then check for due tasks, outbound events and signals."""
        version = await self._store.wait_for_change(self._seen_version)
        if version != self._seen_version:
            self._seen_version = self._hub.store_version = version
            self._schedule.wake()
            self._outbox.wake()
            self._schedules.notice_change()
            if self._permits is not None:
                self._permits.wake()
            if self._table:
                for held in await self._leases.fetch_signals(lambda: self._store.fetch_signals(self._claimant.owner)):
                    self._runner.signal(held.run, held.signal)
        return 0


class Reaper:
    """Frees tasks whose lease expired, of any worker."""

    def __init__(
        self,
        store: Store,
        max_losses: int,
        pause_ms: int,
        leases: LeaseKeeper,
        schedule: ClaimSchedule,
        random: Randomness,
        telemetry: Telemetry | None,
    ) -> None:
        self.loop = BackgroundLoop("reap", self.step, random)
        self._store = store
        self._leases = leases
        self._max_losses = max_losses
        self._pause_ms = pause_ms
        self._schedule = schedule
        self._telemetry = telemetry

    async def step(self) -> float:
        if await self.reap():
            self._schedule.wake()
        return self._pause_ms / 1000

    async def reap(self) -> int:
        """Free expired tasks once; returns their number."""
        await self._leases.renew_if_late()
        freed = await self._store.reap(self._max_losses)
        if freed:
            await self._report(freed)
        return len(freed)

    async def _report(self, freed: Sequence[ExpiredTask]) -> None:
        try:
            runs = {run.run: run for run in await self._store.read(RunsById([lost.run for lost in freed]))}
        except StoreError as error:
            _log.warning("%d leases expired; the names of their runs cannot be read: %s", len(freed), error)
            return
        for lost in freed:
            run = runs.get(lost.run)
            if run is None:
                continue
            if lost.parked:
                report.parked(run, (run.note or "").removeprefix("parked: "))
                if self._telemetry is not None:
                    self._telemetry.parked(run, "losses")
            else:
                name, losses = report.named(run), lost.losses
                _log.warning(
                    "the lease of run %s expired (%d in a row): its worker died or stalled; "
                    "the run can be claimed again",
                    name,
                    losses,
                )


class ProgressRecorder:
    """Writes START facts, log lines and heartbeats of steps that are still running."""

    def __init__(self, store: Store, table: TurnTable, random: Randomness) -> None:
        self.loop = BackgroundLoop("record", self.step, random)
        self._store = store
        self._table = table

    async def step(self) -> float:
        clock = asyncio.get_running_loop().time
        began = clock()
        self._table.record_running(only_waiting=True)
        heartbeats = self._table.heartbeats()
        pause = max(_RECORD_SECONDS, (clock() - began) * _PAUSE_PER_SECOND)
        await record_heartbeats(self._store, heartbeats)
        return pause

    async def record_heartbeats(self) -> None:
        """Store the latest heartbeats of all running steps in one write."""
        await record_heartbeats(self._store, self._table.heartbeats())

    async def record_running(self) -> None:
        """Write the START facts and log lines of all running attempts, before the attempts are cancelled."""
        writes = self._table.record_running(only_waiting=False)
        if writes:
            await asyncio.wait(writes, timeout=_RECORD_SECONDS)
