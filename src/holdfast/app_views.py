"""The views of an app on its database, and actions on many runs."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Unpack

from holdfast.core.actor import acting_as

if TYPE_CHECKING:
    from holdfast.client import Handle
    from holdfast.client.bulk import Bulk, BulkResult
    from holdfast.core.filters import Filter, ListConditions
    from holdfast.core.records import AuditRecord, InstanceSummary, Page, QueueInfo, Stats, VersionInfo, WorkerInfo
    from holdfast.kernel.startable import Startable
    from holdfast.open_app import OpenApp


class AppViews:
    """Lists, statistics, audit records and bulk actions of an open app."""

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
        return await self._opened().client.audit.records(None if run is None else run.pid, cursor=cursor)

    def acting_as(self, actor: str) -> AbstractContextManager[None]:
        """Name the actor of the control requests in a ``with`` block, for their audit records.

        Example::

            with app.acting_as("ann"):
                await run.retry(reason="the gateway is back")
        """
        return acting_as(actor)

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

    async def queues(self) -> builtins.list[QueueInfo]:
        """The queues that have tasks or living workers, by name."""
        return await self._opened().client.queues()
