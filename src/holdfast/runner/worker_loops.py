"""The loops of a worker. Each of them also does one pass by a call, for workers that are driven by hand."""

from __future__ import annotations

from holdfast.kernel.definition import Registry
from holdfast.kernel.notify import Hub
from holdfast.ports import Randomness
from holdfast.runner.attempts import Ports
from holdfast.runner.background_loop import BackgroundLoop
from holdfast.runner.blob_loop import BlobLoop
from holdfast.runner.claim_schedule import ClaimSchedule
from holdfast.runner.claiming import Claimer
from holdfast.runner.config import WorkerConfig
from holdfast.runner.lease_keeper import LeaseKeeper
from holdfast.runner.outbox import OutboxDispatcher
from holdfast.runner.permits import Permits
from holdfast.runner.retention import RetentionLoop
from holdfast.runner.run_cache import RunCaches
from holdfast.runner.schedules import ScheduleLoop
from holdfast.runner.slots import Slots
from holdfast.runner.small_loops import ChangeWatcher, ProgressRecorder, Reaper
from holdfast.runner.stalls import StallWatch
from holdfast.runner.turn_runner import TurnRunner
from holdfast.runner.turn_table import TurnTable
from holdfast.store.protocol import Claimant, Store


class WorkerLoops:
    """Starts and stops the loops of a worker together."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        hub: Hub,
        ports: Ports,
        random: Randomness,
        config: WorkerConfig,
        claimant: Claimant,
        table: TurnTable,
        slots: Slots,
        run_caches: RunCaches,
        runner: TurnRunner,
        leases: LeaseKeeper,
        claim_loop: BackgroundLoop,
        schedule: ClaimSchedule,
        permits: Permits | None,
    ) -> None:
        self._registry = registry
        self._claim_loop = claim_loop
        self.outbox = OutboxDispatcher(store, registry, ports, random, claimant, config.poll_ms)
        self.reaper = Reaper(
            store, config.max_losses, min(config.poll_ms, config.lease_ms), leases, schedule, random, ports.telemetry
        )
        self.claimer = Claimer(
            store, registry, hub, claimant, table, slots, run_caches, runner, self.reaper, schedule, permits
        )
        self.recorder = ProgressRecorder(store, table, random)
        self.schedules = ScheduleLoop(store, registry, hub, ports, random, config.poll_ms)
        self.retention = RetentionLoop(store, registry, random)
        self.blobs = BlobLoop(store, random)
        watcher = ChangeWatcher(
            store, hub, claimant, table, runner, leases, schedule, self.outbox, self.schedules, random, permits
        )
        self._all = [
            claim_loop, leases.loop, watcher.loop, self.reaper.loop, self.recorder.loop, self.retention.loop,
            self.schedules.loop,
        ]  # fmt: skip
        if self.blobs.needed:
            self._all.append(self.blobs.loop)
        self._stalls = None if config.stall_ms is None else StallWatch(ports.spawn, config.stall_ms)

    def start(self) -> None:
        for loop in self._all:
            loop.start()
        if self._stalls is not None:
            self._stalls.start()
        if self._registry.outbox is not None:
            self.outbox.start()

    async def stop_claiming(self) -> None:
        await self._claim_loop.stop()

    async def stop(self) -> None:
        """Stop the loops after the calls in flight have ended, and store what the running steps have reported."""
        await self.recorder.record_running()
        for loop in self._all:
            await loop.stop()
        await self.recorder.record_heartbeats()
        self._stop_stall_watch()

    def abandon(self) -> None:
        """Drop the deliveries, as a killed process does."""
        self.outbox.abandon()
        self._stop_stall_watch()

    def _stop_stall_watch(self) -> None:
        if self._stalls is not None:
            self._stalls.stop()
