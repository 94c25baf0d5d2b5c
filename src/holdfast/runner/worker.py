"""The worker: claims due tasks, renews their leases and runs their turns.

The loops of a worker: *claim* (``claiming.py``) claims due tasks and is woken by notifications, the next due time or
the poll interval; *heartbeat* (``lease_keeper.py``) renews the leases and receives signals; *watch* notices writes of
other processes, *reap* frees tasks whose lease expired, *record* writes START facts and log lines of steps that are
still running (``small_loops.py``); *outbox* (``outbox.py``) delivers outbound events. A pass (``app.tick``, the test
harness) does the same work once, without the loops.

``WorkerLoops`` holds the loops, ``TurnTable`` the turns, ``TurnRunner`` begins and ends them, ``Slots`` limits their
number. ``LocalStarts`` and ``EventSender`` begin turns without a separate claim. ``WorkerHost`` is the part of
the worker that its turns use.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.kernel.definition import Registry
from holdfast.kernel.notify import Hub
from holdfast.kernel.streams import StreamPort
from holdfast.ports import Randomness
from holdfast.runner.advancer import Advancer
from holdfast.runner.attempts import Ports
from holdfast.runner.background_loop import BackgroundLoop
from holdfast.runner.background_tasks import BackgroundTasks
from holdfast.runner.blob_loop import BlobLoop
from holdfast.runner.cache import MachineCache
from holdfast.runner.claim_schedule import ClaimSchedule
from holdfast.runner.committer import Committer
from holdfast.runner.config import WorkerConfig
from holdfast.runner.event_sender import EventSender
from holdfast.runner.identity import worker_id
from holdfast.runner.lease_keeper import LeaseKeeper
from holdfast.runner.local_starts import LocalStarts
from holdfast.runner.permits import Permits
from holdfast.runner.run_cache import RunCaches
from holdfast.runner.slots import Slots
from holdfast.runner.streams import StreamWriter
from holdfast.runner.turn_context import Budget, TurnContext
from holdfast.runner.turn_runner import TurnRunner
from holdfast.runner.turn_table import TurnTable
from holdfast.runner.unknown_claims import UnknownClaims
from holdfast.runner.worker_host import WorkerHost
from holdfast.runner.worker_loops import WorkerLoops
from holdfast.store.protocol import (
    Claimant,
    Created,
    Fact,
    NewEvent,
    NewRun,
    RunRecord,
    Sent,
    Store,
    WorkerProfile,
)

Listener = Callable[..., None]

_MAX_CLAIMS = 1_000_000
"""Maximum number of tasks that one pass claims."""


class Worker:
    """Runs the registered workflows of one app."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        hub: Hub,
        ports: Ports,
        random: Randomness,
        config: WorkerConfig,
        app: str = "holdfast",
    ) -> None:
        """``app``: the name of the program, for the worker's id."""
        host, pid = platform.node(), os.getpid()
        self._new_id = partial(worker_id, app, host, pid, random)
        self.profile = WorkerProfile(self._new_id(), host, pid, config.queue_names, config.concurrency, config.version)
        self.lease_ms = config.lease_ms
        self._store, self._registry, self._hub, self._config = store, registry, hub, config
        self._claimant = claimant = Claimant(self.profile.id, config.lease_ms, config.queue_names, config.version)
        self._unknown_claims = unknown_claims = UnknownClaims()
        self._cache = MachineCache(config.cache)
        self._run_caches = run_caches = RunCaches(ports.telemetry)
        self._background = BackgroundTasks()
        self._table = table = TurnTable()
        self.executes = table.executes
        self.noting_ends = table.noting_ends
        self._slots = slots = Slots(config.concurrency, table)
        slots.by_queue = config.queue_slots
        claim_loop = BackgroundLoop("claim", lambda: self._loops.claimer.step(), random)  # noqa: PLW0108  (made below)
        self._schedule = schedule = ClaimSchedule(claim_loop, ports.now_ms, config.poll_ms)
        self._runner = runner = TurnRunner(
            registry, hub, table, slots, self._cache, run_caches, unknown_claims, schedule
        )
        self._leases = leases = LeaseKeeper(
            store, self.profile, config.lease_ms, table, slots, unknown_claims, schedule, random, ports.now_ms
        )
        self._permits = permits = _permits(
            store, hub, registry, claimant, slots, schedule, ports, random, self._background
        )
        self._starts = starts = LocalStarts(registry, hub, claimant, table, slots, run_caches, runner)
        self._streams = StreamWriter(store, hub, random, lambda work: self._background.run(work, "write to streams"))
        ports.engine.streams = StreamPort(self._streams, ports.engine.limits, ports.now_ms)
        self._host = WorkerHost(store, hub, starts, leases, self._background)
        self._context = runner.context = TurnContext(
            store,
            Committer(store, random, hub.sharing_loop, slots.is_alone, ports.telemetry),
            Advancer(
                store, random, hub.sharing_loop, claimant, starts.reserve_units, run_caches.remember, starts.begin_units
            ),
            ports, random, config.lease_ms, self._host, permits, strict=config.replay == "strict",
        )  # fmt: skip
        self._sender = EventSender(
            store, registry, claimant, self._cache, slots, starts, runner, leases, self._background
        )
        self._loops = WorkerLoops(
            store, registry, hub, ports, random, config, claimant, table, slots, run_caches, runner, leases, claim_loop,
            schedule, permits,
        )  # fmt: skip
        self._unsubscribe: Callable[[], None] = lambda: None
        self._ignore_failovers = store.failovers.subscribe(self._failed_over)

    # --- start and stop

    def start(self) -> None:
        self.subscribe()
        self._slots.accepting = True
        self._loops.start()

    def start_manual(self) -> None:
        """Renew leases and record running steps, but claim tasks only in ``start_units``."""
        self._unsubscribe = self._hub.subscribe(lambda _: None, self._runner.signal, self._loops.outbox.wake)
        self._slots.accepting = self._slots.manual = True
        self._leases.loop.start()
        self._loops.recorder.loop.start()

    def subscribe(self, wrap: Callable[[Listener], Listener] = lambda listener: listener) -> None:
        """Receive the notifications of the hub. ``wrap`` is applied to each listener."""
        on_work, on_signal, on_outbox = self._schedule.due, self._runner.signal, self._loops.outbox.wake
        unsubscribe = self._hub.subscribe(wrap(on_work), wrap(on_signal), wrap(on_outbox))
        if self._permits is not None:
            unsubscribe = self._permits.subscribe(wrap, unsubscribe)
        self._unsubscribe = self._loops.schedules.subscribe(wrap, unsubscribe)

    async def stop(self, drain_ms: int | None = None) -> None:
        """Claim nothing more, wait up to ``drain_ms`` for steps in flight, and release all tasks."""
        self._slots.accepting = False
        self._table.stop()
        await self._loops.stop_claiming()
        self._table.stop()  # also turns that a claim in flight has begun since
        drain = (self._config.drain_ms if drain_ms is None else drain_ms) / 1000
        await asyncio.gather(self._table.wait(drain), self._loops.outbox.stop(drain))
        await self._loops.stop()
        if self._permits is not None:
            self._permits.stop()
        await asyncio.gather(*self._table.cancel(), *self._background, return_exceptions=True)
        await self._leases.release_all()
        self._unsubscribe()
        self._ignore_failovers()
        self._cache.clear()

    def abandon(self) -> None:
        """Stop as a killed process does: write nothing and release nothing. For crash tests."""
        self._slots.accepting = False
        self._host.abandoned = self._streams.abandoned = True
        if self._permits is not None:
            self._permits.stop()
        self._table.signal_all(None)
        self._table.cancel()
        self._context.committer.abandon()
        self._context.advancer.abandon()
        self._loops.abandon()
        self._unsubscribe()
        self._ignore_failovers()
        self._cache.clear()

    def _failed_over(self) -> None:
        """Drop all turns and caches, and continue under a new id, as a process does that was killed and restarted.

        The store has ended all claims. A server without the last commits assigns the same epochs again, so the fence
        would not always refuse a late write of an earlier turn if the worker kept its id.
        """
        self.profile.id = self._claimant.owner = self._new_id()
        self._table.signal_all(None)
        self._cache.clear()
        self._run_caches.clear()
        self._unknown_claims.forget_released()
        self._loops.outbox.abandon()
        self._loops.outbox.wake()
        self._leases.register_again()
        self._schedule.wake()

    # --- starts and events of clients in the same process

    def reserve(self, new: NewRun) -> int:
        """Reserve slots for a run that is about to be created; returns their number, 0 if the run cannot begin here.

        Sets this worker as the owner of the run. The caller must call ``begin`` or ``cancel_reservation`` afterwards.
        """
        return self._starts.reserve(new)

    def cancel_reservation(self, slots: int = 1) -> None:
        self._slots.end_reservation(slots)

    def begin(self, created: Created, slots: int, plan: Sequence[Fact] = ()) -> None:
        """Begin the turns of a run that was created claimed by this worker, or of its claimed units.

        ``slots``: the number of reserved slots to give up. ``plan``: the PLAN facts, if the caller has them.
        """
        self._starts.begin(created, slots, plan)

    def send(self, event: NewEvent) -> Coroutine[Any, Any, Sent]:
        """Send an event. If a slot is free, a run that the event wakes begins its turn here at once."""
        return self._sender.send(event)

    # --- parts of a pass

    async def claim_due(self, limit: int) -> int:
        """Claim due tasks and begin their turns; returns the number of claimed tasks."""
        return await self._loops.claimer.claim_due(limit)

    async def start_units(self, run: RunRecord) -> list[str] | None:
        """Claim the due units of a run and begin their turns; returns the keys of the units.

        None: only unit 0 was due. Its turn has ended by now, and the run may have ended or have other due units.
        """
        return await self._loops.claimer.start_units(run)

    async def keep_leases(self) -> None:
        """Renew the leases once."""
        await self._leases.step()

    async def reap(self) -> int:
        """Free expired tasks once; returns their number."""
        return await self._loops.reaper.reap()

    async def prune(self) -> int:
        """Delete the finished runs that are older than their retention; returns their number."""
        deleted = await self._loops.retention.prune()
        await self._loops.blobs.collect()
        return deleted

    async def take_up_schedules(self) -> int:
        """Take up the due schedules once; returns their number."""
        return await self._loops.schedules.take_up_due()

    async def deliver_due(self) -> int:
        """Deliver the due outbound events; returns the number of attempted deliveries."""
        return await self._loops.outbox.deliver_due()

    async def run_pass(self, max_instances: int | None = None, max_steps: int | None = None) -> int:
        """Claim due tasks once and run their turns to the end; returns the number of claimed tasks."""
        self.subscribe()
        try:
            await self.reap()
            limit = self._config.concurrency if max_instances is None else min(max_instances, _MAX_CLAIMS)
            claimed = 0
            if limit > 0:
                await self.take_up_schedules()
                claimed = await self._loops.claimer.claim_due(limit, replace(self._context, budget=Budget(max_steps)))
            self._leases.loop.start()
            self._loops.recorder.loop.start()
            await self._table.wait_until_empty()
            await self.deliver_due()
            return claimed
        finally:
            await self.stop(drain_ms=0)

    # --- state

    @property
    def blobs(self) -> BlobLoop:
        return self._loops.blobs

    @property
    def id(self) -> str:
        """The owner of this worker's claims."""
        return self._claimant.owner

    @property
    def busy(self) -> int:
        """Number of turns and background tasks."""
        return len(self._table) + len(self._background)

    def blocked(self) -> bool:
        """True if every turn waits and no background task runs: nothing happens until a step ends or time passes."""
        return not self._background and self._table.blocked

    @property
    def occupied(self) -> bool:
        """True if the worker has turns, reserved slots or graph runs in memory."""
        return bool(self._slots.reserved or self._table or self._run_caches)

    @property
    def longest_lease_ms(self) -> int:
        """Time without a heartbeat after which every lease of this worker has expired."""
        return max(self._leases.leases())


def _permits(
    store: Store,
    hub: Hub,
    registry: Registry,
    claimant: Claimant,
    slots: Slots,
    schedule: ClaimSchedule,
    ports: Ports,
    random: Randomness,
    background: BackgroundTasks,
) -> Permits | None:
    """The permits of a worker whose app declares limits; otherwise None."""
    if not registry.limits:
        return None
    declared = {name: limit.values() for name, limit in registry.limits.items()}
    permits = Permits(
        store, hub, claimant, declared, registry.queues, schedule, ports.timers, random,
        lambda work: background.run(work, "exchange permits"),
    )  # fmt: skip
    slots.waiting_for_permits = lambda: permits.waiting
    return permits
