"""Bulk actions in the background, stored so that they continue after a restart of the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.client.bulk import BulkActions, BulkError, BulkResult, Visits, act_on, batch_size, check_rate
from holdfast.client.local_worker import LocalWork
from holdfast.core import codec
from holdfast.core.actor import current_actor
from holdfast.core.filters import Filter
from holdfast.core.model import from_ms, optional_from_ms
from holdfast.errors import AppClosedError, HoldfastError, StoreError
from holdfast.store.protocol import (
    REFUSED,
    AuditQuery,
    BulkJobById,
    BulkJobRow,
    NewBulkJob,
    RunRecord,
    SaveBulkJob,
    Store,
    TakeBulkJobs,
)

if TYPE_CHECKING:
    from holdfast.kernel.requests import Requests

_log = logging.getLogger("holdfast.bulk")
_CREATING = ("restart", "retry")
"""Actions that give the instance a new run, and must not be repeated on it."""
_RECORDS = 20
"""Number of the latest audit records of an instance that are searched for the action."""
_LEASE_MS = 30_000
_FIELDS = ("workflow", "status", "error", "id_prefix", "version", "queue")
_TIMES = ("created_after", "created_before", "ended_after", "ended_before")


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
        self._store = store
        self._actions = actions
        self._local = local
        self._requests = requests
        self._owner = requests.new_id()
        self._running: set[str] = set()
        self._next_look: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()

    def watch(self) -> None:
        """Take up jobs of processes that have ended, now and after each lease, until ``stop``."""
        if self._next_look is None and not self._stopped.is_set():
            self._look()

    def _look(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(_LEASE_MS / 1000, self._look)
        self._local.run_in_background(self._take_up())

    async def _take_up(self) -> None:
        try:
            await self.resume()
        except AppClosedError:  # the harness closes its store without closing the client
            self.stop()
        except StoreError as error:
            _log.warning("bulk jobs: the store failed (%s), trying again after %d ms", error, _LEASE_MS)

    async def create(
        self, action: str, filters: Sequence[Filter], arguments: Mapping[str, Any], *, rate: float | None = None
    ) -> str:
        """Store a job and begin it; returns its id."""
        self._actions.act(action, dict(arguments))
        visits = Visits(self._store, filters)
        content = {
            "action": action,
            "arguments": dict(arguments),
            "filters": [_filter_content(one) for one in filters],
            "actor": current_actor.get(),
            "rate": check_rate(rate),
            "total": await visits.count(),
        }
        job = NewBulkJob(
            self._requests.new_id(), codec.encode(content, what="job"), await visits.newest(), _encoded(BulkResult())
        )
        await self._store.bulk(job)
        await self.resume(job.id)
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
        """Take up the jobs that no process works on."""
        for row in await self._store.bulk(TakeBulkJobs(self._owner, _LEASE_MS, id)):
            if row.id not in self._running:
                self._running.add(row.id)
                self._local.run_in_background(self._run(row))

    def stop(self) -> None:
        """Stop working after the current batches; another process, or the next start, continues."""
        self._stopped.set()
        if self._next_look is not None:
            self._next_look.cancel()

    async def _run(self, row: BulkJobRow) -> None:
        content = codec.plain(row.content)
        token = current_actor.set(content["actor"])
        try:
            await self._work(row, content)
        except HoldfastError:
            _log.exception("bulk job %s was interrupted; it continues when a server takes it up again", row.id)
        finally:
            current_actor.reset(token)
            self._running.discard(row.id)

    async def _work(self, row: BulkJobRow, content: dict[str, Any]) -> None:
        arguments = content["arguments"]
        if content["action"] == "send_event" and arguments.get("id") is None:
            arguments = {**arguments, "id": f"bulk {row.id}"}  # a batch that is repeated after a crash sends it again
        act = self._actions.act(content["action"], arguments)
        visits = Visits(self._store, [_filter(one) for one in content["filters"]])
        position, result, rate = row.position, _decoded(row.progress), content["rate"]
        async for batch in visits.batches(row.position, row.upto, batch_size(rate)):
            done = await self._done_before(content["action"], batch, row) if position == row.position else set()
            result = result.plus(BulkResult(done=len(done)))
            result = result.plus(await act_on([one for one in batch if one.pid not in done], act))
            position = batch[-1].instance
            if not await self._save(row.id, position, result) or self._stopped.is_set():
                return
            if rate is not None and not await self._rest(row.id, position, result, len(batch) / rate):
                return
        await self._save(row.id, position, result, ended=True)

    async def _rest(self, id: str, position: int, result: BulkResult, seconds: float) -> bool:
        """Wait until the next instances are due, and keep the lease; returns False if this process must not go on."""
        while seconds > 0:
            part = min(seconds, _LEASE_MS / 3000)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), part)
            seconds -= part
            if (seconds > 0 or self._stopped.is_set()) and not await self._save(id, position, result):
                return False
            if self._stopped.is_set():
                return False
        return True

    async def _done_before(self, action: str, batch: Sequence[RunRecord], row: BulkJobRow) -> set[str]:
        """The instances of the first batch that have a new run from a process that was interrupted before it saved its
        position. Their audit records say so."""
        done = set()
        for one in batch if action in _CREATING else ():
            records = await self._store.read(AuditQuery(one.pid, None, _RECORDS))
            mine = [record for record in records if record.action == action and record.at >= row.created_at]
            if any(record.outcome != REFUSED for record in mine):
                done.add(one.pid)
        return done

    async def _save(self, id: str, position: int, result: BulkResult, *, ended: bool = False) -> bool:
        lease_ms = 0 if self._stopped.is_set() else _LEASE_MS
        request = SaveBulkJob(id, self._owner, lease_ms, position, _encoded(result), ended)
        return bool(await self._store.bulk(request))


def _job(row: BulkJobRow) -> BulkJob:
    content = codec.plain(row.content)
    return BulkJob(
        row.id,
        content["action"],
        content["actor"],
        content["arguments"].get("reason"),
        content["total"],
        _decoded(row.progress),
        from_ms(row.created_at),
        optional_from_ms(row.ended_at),
    )


def _encoded(result: BulkResult) -> bytes:
    errors = [[error.pid, error.message] for error in result.errors]
    content = {"done": result.done, "failed": result.failed, "skipped": result.skipped, "errors": errors}
    return codec.encode(content, what="progress")


def _decoded(progress: bytes) -> BulkResult:
    content = codec.plain(progress)
    errors = tuple(BulkError(pid, message) for pid, message in content["errors"])
    return BulkResult(content["done"], content["failed"], content["skipped"], errors)


def _filter_content(filter: Filter) -> dict[str, Any]:
    content: dict[str, Any] = {name: getattr(filter, name) for name in _FIELDS}
    content |= {name: None if when is None else when.isoformat() for name, when in _times(filter)}
    return content | {"search": [list(condition) for condition in filter.conditions()]}


def _times(filter: Filter) -> list[tuple[str, datetime | None]]:
    return [(name, getattr(filter, name)) for name in _TIMES]


def _filter(content: dict[str, Any]) -> Filter:
    search: dict[str, list[Any]] = {}
    for key, op, value in content["search"]:
        search.setdefault(key, []).append((op, value))
    fields: dict[str, Any] = {name: content[name] for name in _FIELDS}
    fields |= {name: content[name] and datetime.fromisoformat(content[name]) for name in _TIMES}
    return Filter(**fields, search=search or None)
