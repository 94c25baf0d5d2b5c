"""The views of an app on its database, its metrics, and actions on many runs."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Unpack

from holdfast.core.actor import acting_as
from holdfast.core.durations import Duration, to_ms
from holdfast.errors import StoreError

if TYPE_CHECKING:
    from holdfast.client import Handle
    from holdfast.client.bulk import Bulk, BulkResult
    from holdfast.client.flow import LimitChanges
    from holdfast.client.schedules import Schedules
    from holdfast.core.filters import Filter, ListConditions
    from holdfast.core.records import (
        AuditRecord,
        InstanceSummary,
        LimitInfo,
        Page,
        QueueInfo,
        Stats,
        VersionInfo,
        WorkerInfo,
    )
    from holdfast.kernel.startable import Startable
    from holdfast.kernel.telemetry import Telemetry
    from holdfast.open_app import OpenApp
    from holdfast.payloads.parts import BlobParts
    from holdfast.telemetry.metrics import Metrics

_log = logging.getLogger("holdfast")
_DRAIN_POLL_SECONDS = 0.05


class AppViews:
    """Lists, statistics, metrics, audit records and bulk actions of an open app."""

    telemetry: builtins.list[Telemetry]

    def _opened(self) -> OpenApp:
        raise NotImplementedError

    async def list(
        self,
        workflow: Startable[Any, Any] | str | None = None,
        *,
        cursor: str | None = None,
        limit: int = 25,
        order: Literal["asc", "desc"] = "desc",
        **conditions: Unpack[ListConditions],
    ) -> Page[InstanceSummary]:
        """A page of instances, newest first (``order="asc"``: oldest first).

        ``conditions`` are those of a ``Filter``: ``status``, ``search`` (conditions on search attributes, equal such
        as ``{"customer": "c-1"}`` or compared such as ``{"total": (">=", 100)}``), ``error``, ``created_after``,
        ``created_before``, ``ended_after``, ``ended_before``, ``id_prefix``, ``version`` and ``queue``.
        """
        return await self._opened().client.instances.list(
            workflow, cursor=cursor, limit=limit, order=order, **conditions
        )

    def bulk(
        self, filter: Filter, *, rate: float | None = None, progress: Callable[[BulkResult], None] | None = None
    ) -> Bulk:
        """Actions on all instances that match a filter: ``count``, ``sample``, ``retry``, ``terminate`` and others.

        ``rate``: the number of instances per second. ``progress``: is called with the result so far.

        Example::

            failed = app.bulk(Filter(workflow="fulfil", status="errored", error="KeyError"))
            print(await failed.count())
            print(await failed.retry(reason="fixed in 1.2"))
        """
        return self._opened().client.bulk([filter], rate=rate, progress=progress)

    async def audit(self, run: Handle[Any] | None = None, cursor: str | None = None) -> Page[AuditRecord]:
        """Records of control requests, the newest first: of one instance, or of all."""
        return await self._opened().client.audit.of_run(run, cursor)

    def acting_as(self, actor: str) -> AbstractContextManager[None]:
        """Name the actor of the control requests in a ``with`` block, for their audit records.

        Example::

            with app.acting_as("ann"):
                await run.retry(reason="the gateway is back")
        """
        return acting_as(actor)

    def collect_metrics(self) -> Metrics:
        """Count what this process does, for ``metrics_text``; from the next time the app is opened."""
        from holdfast.telemetry.metrics import Metrics

        for member in self.telemetry:
            if isinstance(member, Metrics):
                return member
        metrics = Metrics()
        self.telemetry.append(metrics)
        return metrics

    async def metrics_text(self) -> str:
        """The metrics of this process and its database in the text format of Prometheus."""
        stats, limits, client = None, [], self._opened().client
        try:
            stats, limits = await client.stats.counts(), await client.flow.limits()
        except StoreError as error:
            _log.warning("the metrics lack the figures of the database: %s", error)
        return self.collect_metrics().text(stats, limits)

    async def workers(self) -> builtins.list[WorkerInfo]:
        """The workers of this database, the oldest first, including workers that died within the last day."""
        return [*await self._opened().client.workers()]

    async def versions(self) -> builtins.list[VersionInfo]:
        """Releases with open runs or living workers (``WorkerConfig(version=)``)."""
        return await self._opened().client.versions()

    async def stats(self) -> Stats:
        """Statistics of the database: runs by workflow and status, throughput, due tasks, errors, slow steps.

        The cost does not depend on the number of finished runs.
        """
        return await self._opened().client.stats.fresh()

    @property
    def schedules(self) -> Schedules:
        """The stored schedules: ``list``, ``get``, ``create``, ``update``, ``pause``, ``resume``, ``trigger`` ..."""
        return self._opened().client.schedules

    @property
    def blobs(self) -> BlobParts:
        """Bytes in the blob store that are written and read in parts: ``write`` and ``read``, for values of any size.

        Example::

            blob = await app.blobs.write(parts)
            async for part in app.blobs.read(blob): ...
        """
        from holdfast.payloads.parts import BlobParts

        return BlobParts(self._opened().store)

    async def list_limits(self) -> builtins.list[LimitInfo]:
        """The limits of this database with their use, by name."""
        return await self._opened().client.flow.limits()

    async def set_limit(self, name: str, **values: Unpack[LimitChanges]) -> LimitInfo:
        """Change ``concurrency``, ``rate``, ``fair`` or ``weights`` of a limit, for all workers and without a deploy.

        The change stays until the code declares other values than before. It is audited, with the ``reason``.
        """
        return await self._opened().client.flow.set_limit(name, **values)

    async def queues(self) -> builtins.list[QueueInfo]:
        """The queues that have tasks or living workers, and the paused ones, by name."""
        return await self._opened().client.queues()

    async def pause_queue(self, name: str, *, reason: str | None = None) -> None:
        """Pause a queue: no worker claims from it.

        Runs and nodes that workers execute continue until they suspend or end.
        """
        await self._opened().client.flow.pause_queue(name, reason=reason)

    async def resume_queue(self, name: str, *, reason: str | None = None) -> None:
        await self._opened().client.flow.resume_queue(name, reason=reason)

    async def drain_queue(self, name: str, *, timeout: Duration | None = None, reason: str | None = None) -> None:
        """Pause a queue, and wait until no worker executes a task of it. ``TimeoutError``: the queue stays paused."""
        await self.pause_queue(name, reason=reason)
        async with asyncio.timeout(None if timeout is None else to_ms(timeout, "timeout") / 1000):
            while any(one.name == name and one.running for one in await self.queues()):  # noqa: ASYNC110  (workers of other processes, too)
                await asyncio.sleep(_DRAIN_POLL_SECONDS)

    async def move_queue(self, source: str, target: str, *, reason: str | None = None) -> int:
        """Move the runs of a queue that no worker executes to another queue; returns their number."""
        return await self._opened().client.flow.move_queue(source, target, reason=reason)

    async def drain_worker(self, id: str, *, reason: str | None = None) -> None:
        """Drain a worker: it claims nothing more, and gives up its runs once their steps in flight have ended.

        The worker receives the request with its next heartbeat, three times within a lease. Its process continues,
        and can be stopped without interrupting a step as soon as the worker holds no run.
        """
        await self._opened().client.flow.drain_worker(id, reason=reason)

    async def resume_worker(self, id: str, *, reason: str | None = None) -> None:
        """End the drain of a worker: it claims again."""
        await self._opened().client.flow.resume_worker(id, reason=reason)
