"""Bulk actions in the background, stored so that they continue after a restart of the process.

This module creates, takes and shows jobs; ``bulk_work.py`` works on one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any

from holdfast.client.bulk import BulkActions, BulkResult, Visits, check_rate
from holdfast.client.bulk_work import BulkProgress, BulkWork, filter_content
from holdfast.client.local_worker import LocalWork
from holdfast.core import codec
from holdfast.core.actor import current_actor
from holdfast.core.filters import Filter
from holdfast.core.model import from_ms, optional_from_ms
from holdfast.errors import AppClosedError, StoreError
from holdfast.store.protocol import BulkJobById, BulkJobRow, NewBulkJob, Store, TakeBulkJobs

if TYPE_CHECKING:
    from holdfast.kernel.requests import Requests

_log = logging.getLogger("holdfast.bulk")
_LEASE_MS = 30_000


@dataclass(frozen=True, slots=True)
class BulkJob:
    """A stored bulk action and its progress."""

    id: str
    action: str
    actor: str | None
    reason: str | None
    total: int
    """The number of matching instances at the beginning."""
    result: BulkResult
    created_at: datetime
    ended_at: datetime | None


class BulkJobs:
    """Creates, runs and shows stored bulk actions. One process works on a job at a time, under a lease."""

    def __init__(self, store: Store, actions: BulkActions, local: LocalWork, requests: Requests) -> None:
        self.lease_ms = _LEASE_MS
        self._store = store
        self._actions = actions
        self._local = local
        self._requests = requests
        self._process = requests.new_id()
        self._takes = count(1)
        self._running: set[str] = set()
        self._taking = asyncio.Lock()
        self._next_check: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()

    def watch(self) -> None:
        """Take up jobs of processes that have ended, now and after each lease, until ``stop``."""
        if self._next_check is None and not self._stopped.is_set():
            self._check()

    def _check(self) -> None:
        self._next_check = asyncio.get_running_loop().call_later(self.lease_ms / 1000, self._check)
        if not self._taking.locked():
            self._local.run_in_background(self._take_up())

    async def _take_up(self, id: str | None = None) -> None:
        try:
            await self.resume(id)
        except AppClosedError:  # the harness closes its store without closing the client
            self.stop()
        except StoreError as error:
            _log.warning("bulk jobs: the store failed (%s), trying again after %d ms", error, self.lease_ms)

    async def create(
        self, action: str, filters: Sequence[Filter], arguments: Mapping[str, Any], *, rate: float | None = None
    ) -> str:
        """Store a job and begin it; returns its id.

        An error means that the job may not be stored. If it is stored and cannot be taken up now, the next look does.
        """
        self._actions.act(action, dict(arguments))
        visits = Visits(self._store, filters)
        upto = await visits.newest()
        content = {
            "action": action,
            "arguments": dict(arguments),
            "filters": [filter_content(one) for one in filters],
            "actor": current_actor.get(),
            "rate": check_rate(rate),
            "total": await visits.count(upto),
        }
        job = NewBulkJob(
            self._requests.new_id(),
            codec.encode(content, what="job"),
            upto,
            BulkProgress().encode(),
        )
        await self._store.bulk(job)
        await self._take_up(job.id)
        self.watch()
        return job.id

    async def get(self, id: str) -> BulkJob | None:
        """A job and its progress. A job that no process works on is taken up."""
        rows = await self._store.bulk(BulkJobById(id))
        if not rows:
            return None
        if rows[0].ended_at is None and id not in self._running:
            await self.resume(id)
        return _job(rows[0])

    async def resume(self, id: str | None = None) -> None:
        """Take up the jobs that no process works on.

        A job on which this process still works is not taken, also if its lease has expired: another process may have
        advanced it since, and the work here would save its progress over that. Calls follow each other: the row of a
        late reply would be older than the work that the next call had begun, or ended. Each call is an owner of its
        own: a save that failed here, and reaches the database after the job was taken again, changes nothing.
        """
        async with self._taking:
            owner = f"{self._process}-{next(self._takes)}"
            rows = await self._store.bulk(TakeBulkJobs(owner, self.lease_ms, id, [*sorted(self._running)]))
            for row in rows:
                self._running.add(row.id)
                self._local.run_in_background(self._run(row, owner))

    def stop(self) -> None:
        """Stop working after the current batches; another process, or the next start, continues."""
        self._stopped.set()
        if self._next_check is not None:
            self._next_check.cancel()

    async def _run(self, row: BulkJobRow, owner: str) -> None:
        token = current_actor.set(codec.plain(row.content)["actor"])
        try:
            await BulkWork(self._store, self._actions, row, owner, self.lease_ms, self._stopped).run()
        except StoreError as error:
            _log.warning("bulk job %s: the store failed (%s), and the job continues after its lease", row.id, error)
        except Exception:
            _log.exception("bulk job %s was interrupted; it continues when a server takes it up again", row.id)
        finally:
            current_actor.reset(token)
            self._running.discard(row.id)


def _job(row: BulkJobRow) -> BulkJob:
    content = codec.plain(row.content)
    return BulkJob(
        row.id,
        content["action"],
        content["actor"],
        content["arguments"].get("reason"),
        content["total"],
        BulkProgress.decode(row.progress).result,
        from_ms(row.created_at),
        optional_from_ms(row.ended_at),
    )
