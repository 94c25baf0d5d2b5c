"""``Client``: all operations on runs from outside, for handles, the HTTP API and the command line alike.

The client makes handles and waits for runs. The other operations are grouped in parts: ``instances`` (find and list),
``reads`` (one run), ``views`` (one run on the code of this process), ``starts``, ``control``, ``events``, ``units``
(runs that consist of units) and ``outbox``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from holdfast.client.audit import AuditReader
from holdfast.client.bulk import Bulk, BulkActions
from holdfast.client.bulk_jobs import BulkJobs
from holdfast.client.control import Control
from holdfast.client.events import EventSender
from holdfast.client.flow import Flow
from holdfast.client.handle import Handle
from holdfast.client.instances import Instances
from holdfast.client.local_worker import LocalWork
from holdfast.client.locator import Locator
from holdfast.client.outbox import Outbox
from holdfast.client.overview import Overview
from holdfast.client.reads import RunReader
from holdfast.client.repair import Repair
from holdfast.client.replaying import Replayer
from holdfast.client.run_details import RunDetails
from holdfast.client.schedules import Schedules
from holdfast.client.starts import Start, Starts
from holdfast.client.stats import StatsReader
from holdfast.client.streams import StreamReads
from holdfast.client.units import UnitReader
from holdfast.client.views import Views
from holdfast.core.durations import Duration
from holdfast.core.filters import Filter
from holdfast.core.limits import Limits
from holdfast.core.model import from_ms
from holdfast.core.names import check_instance_id
from holdfast.core.records import InstanceStatus, QueueInfo, VersionInfo, WorkerInfo
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError
from holdfast.kernel.definition import Registry
from holdfast.kernel.end_waiter import EndWaiter, ExpectedEnd
from holdfast.kernel.notify import Hub
from holdfast.kernel.requests import Requests
from holdfast.kernel.telemetry import Telemetry
from holdfast.ports import Clock, milliseconds
from holdfast.store.protocol import Finish, RunRecord, RunsById, Store, VersionsQuery, WorkersQuery


class Client:
    """The operations on runs from outside, through the store only."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        hub: Hub,
        requests: Requests,
        limits: Limits,
        clock: Clock,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._requests = requests
        self._limits = limits
        self._hub = hub
        self.now = clock.now
        self.telemetry = telemetry
        self._ends = EndWaiter(store, hub)
        self.local = LocalWork()
        self.instances = Instances(store, registry, requests, limits)
        replayer = Replayer(registry, requests, milliseconds(clock))
        self.reads = RunReader(store, registry, hub, clock, self.instances, Locator(replayer))
        self.views = Views(store, self.instances, replayer)
        self.units = UnitReader(store, registry, self.instances)
        self.repair = Repair(store, registry, hub, requests, clock, self.instances, replayer)
        self.audit = AuditReader(store, limits)
        self.flow = Flow(store, registry, hub)
        self.starts = Starts(
            store,
            hub,
            requests,
            self.instances,
            self._ends,
            self.local,
            telemetry,
            self.repair.retry_or_restart,
            self.flow.declare,
        )
        self.control = Control(store, registry, hub, requests, clock, self.instances, self.units, self.repair)
        self.events = EventSender(store, hub, requests, self.instances, self.local, telemetry)
        self.bulk_actions = BulkActions(self.control, self.repair, self.events)
        self.bulk_jobs = BulkJobs(store, self.bulk_actions, self.local, requests)
        self.outbox = Outbox(store, hub, self.instances)
        self.details = RunDetails(store, registry, clock, self.instances)
        self.schedules = Schedules(store, requests, milliseconds(clock), hub.schedules_changed, self._handle)
        self.stats = StatsReader(store, clock.monotonic)
        self.overview = Overview(store, self.stats)
        self.streams = StreamReads(store, hub, self.instances, limits)

    async def close(self) -> None:
        self.bulk_jobs.stop()
        await self.local.wait()
        await self._ends.close()
        await self.streams.close()

    def bulk(self, filters: Sequence[Filter], **options: Any) -> Bulk:
        """Control requests on the instances that match all filters. ``options``: ``rate`` and ``progress``."""
        for one in filters:
            if not isinstance(one, Filter):
                raise InvalidOptionError(f"bulk takes a Filter(...), not {shown(one)}")
        return Bulk(self.bulk_actions, self.instances, self._store, filters, **options)

    @property
    def has_local_worker(self) -> bool:
        """True if a worker of this process writes to the store without notifications."""
        return self._hub.has_workers

    async def wait_for_change(self, since: int | None) -> int:
        """As ``Store.wait_for_change``: wait for a write of another process."""
        return await self._store.wait_for_change(since)

    async def check(self) -> None:
        """Check that the store answers a read; raises an error if it does not."""
        await self._store.read(RunsById([0]))

    async def start(self, workflow: Any, params: Any = None, **options: Any) -> Handle[Any]:
        """Start a run. ``options``: the start options, and ``connection``."""
        run, expected = await self.starts.start(workflow, params, **options)
        return Handle(self, self._registry.get(run.workflow), run.instance_id, expected)

    async def start_many(self, workflow: Any, starts: Iterable[Start[Any]]) -> list[Handle[Any]]:
        """Start many runs in one transaction, without ids that exist or repeat; an invalid entry prevents all."""
        definition = self._requests.definition(workflow)
        created = await self.starts.start_many(definition.name, starts)
        return [Handle(self, definition, run.instance_id, run=run.run) for run in created]

    def _handle(self, workflow: str, id: str) -> Handle[Any]:
        return Handle(self, self._registry.get(workflow), id)

    async def get(self, workflow: Any, id: str) -> Handle[Any]:
        definition = self._requests.definition(workflow)
        row = await self.instances.find(definition.name, check_instance_id(id, self._limits))
        return Handle(self, definition, id, run=row.run)

    async def wait_for_end(
        self, workflow: str, id: str, expected: ExpectedEnd | None, run: int | None = None
    ) -> RunRecord | Finish:
        """Wait until the instance's current run has ended. ``run``: the current run at an earlier time, if known."""
        finish: Finish | None = None
        if expected is not None:
            finish = await self._ends.wait(expected)
        elif run is not None:
            finish = await self._ends.wait_for_run(run, self.local.executes)
        if finish is not None:
            return finish
        while True:
            row = await self.instances.find(workflow, id)
            if row.status.terminal:
                return row
            finish = await self._ends.wait_for_run(row.run, self.local.executes)
            if finish is not None:
                return finish

    async def wait_for_status(self, workflow: str, id: str, seconds: float) -> InstanceStatus:
        """The status of the instance's current run, after waiting up to ``seconds`` for its end."""
        row = await self.instances.find(workflow, id)
        if seconds and not row.status.terminal:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.wait_for_end(workflow, id, None)
            row = await self.instances.find(workflow, id)
        return self.instances.status(row)

    async def ask(self, workflow: str, id: str, topic: str, payload: Any, timeout: Duration | None) -> Any:
        """Send a message and wait for the reply of the run's code."""
        return await self.events.ask(workflow, id, topic, payload, timeout)

    async def workers(self) -> Sequence[WorkerInfo]:
        return [
            WorkerInfo(
                id=row.profile.id,
                host=row.profile.host,
                pid=row.profile.pid,
                queues=row.profile.queues,
                concurrency=row.profile.concurrency,
                started_at=from_ms(row.started_at),
                seen_at=from_ms(row.seen_at),
                alive=row.alive,
                version=row.profile.version,
                draining=row.draining,
                held=row.held,
            )
            for row in await self._store.read(WorkersQuery())
        ]

    async def queues(self) -> list[QueueInfo]:
        """The queues that have tasks or living workers, and the paused ones, by name."""
        return await self.stats.queues([*await self.workers()], await self.flow.paused_queues())

    async def versions(self, workflow: str | None = None) -> list[VersionInfo]:
        """Releases that have open runs or living workers, by name; runs and workers without a version come last.

        ``workflow``: count only its runs.
        """
        counts = {count.version: count.open_runs for count in await self._store.read(VersionsQuery(workflow))}
        workers: dict[str | None, list[str]] = {version: [] for version in counts}
        for row in await self._store.read(WorkersQuery()):
            if row.alive:
                workers.setdefault(row.profile.version, []).append(row.profile.id)
        names = sorted(workers, key=lambda version: (version is None, version or ""))
        return [VersionInfo(name, counts.get(name, 0), tuple(workers[name])) for name in names]
