"""The work of one process on a stored bulk job.

A job is saved before each batch, with the instances of the batch, and after it, with the counts. If the process dies in
between, the next one acts on the instances of that batch whose audit records do not show the action yet, if they still
match the filter: much time may have passed.

The lease of a job does not prevent a process that has lost it from sending the requests of the batch in which it is.
Therefore an action that two processes apply to one instance takes effect once: an event has the id of the job, a fork
has a fixed id, and a restart, retry or deletion names the run that matched the filter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.client.bulk import BulkActions, BulkError, BulkResult, Visits, act_on, batch_size
from holdfast.core import codec
from holdfast.core.filters import Filter
from holdfast.core.model import Status
from holdfast.store.protocol import REFUSED, AuditQuery, BulkJobRow, RunRecord, SaveBulkJob, Store

FIELDS = ("workflow", "status", "error", "id_prefix", "version", "queue")
TIMES = ("created_after", "created_before", "ended_after", "ended_before")
_ON_ONE_RUN = ("retry", "delete")
"""Actions on the run that matched the filter, and on no later one."""
_RECORDS = 20
"""Number of audit records of an instance that are read at a time."""


class Visited(NamedTuple):
    """An instance of a batch, and the run that matched the filter, with its status at that time."""

    workflow: str
    instance_id: str
    run: int
    status: str

    @property
    def pid(self) -> str:
        return f"{self.workflow}/{self.instance_id}"


class Batch(NamedTuple):
    """A batch on which a process acts."""

    end: int
    """The position after the batch."""
    visited: Sequence[Visited]

    @classmethod
    def of(cls, rows: Sequence[RunRecord]) -> Batch:
        return cls(
            rows[-1].instance, [Visited(row.workflow, row.instance_id, row.run, row.status.value) for row in rows]
        )


class BulkProgress(NamedTuple):
    """The stored progress of a job."""

    result: BulkResult = BulkResult()
    batch: Batch | None = None
    """The batch after the position, which the counts do not include; None: no process acts."""

    def encode(self) -> bytes:
        result, batch = self.result, self.batch
        errors = [[error.pid, error.message] for error in result.errors]
        content: dict[str, Any] = {"done": result.done, "failed": result.failed, "skipped": result.skipped}
        if batch is not None:
            content["batch"] = [batch.end, [list(one) for one in batch.visited]]
        return codec.encode(content | {"errors": errors}, what="progress")

    @classmethod
    def decode(cls, progress: bytes) -> BulkProgress:
        content = codec.plain(progress)
        errors = tuple(BulkError(pid, message) for pid, message in content["errors"])
        result = BulkResult(content["done"], content["failed"], content["skipped"], errors)
        if "batch" not in content:  # also a job of a release before this one
            return cls(result)
        end, visited = content["batch"]
        return cls(result, Batch(end, [Visited(*one) for one in visited]))


class BulkWork:
    """The work on a job that this process has taken as ``owner``. It ends early if stopped, or if the job is lost."""

    def __init__(
        self, store: Store, actions: BulkActions, row: BulkJobRow, owner: str, lease_ms: int, stopped: asyncio.Event
    ) -> None:
        self._store = store
        self._row = row
        self._owner = owner
        self._lease_ms = lease_ms
        self._stopped = stopped
        self._content = codec.plain(row.content)
        self._position, self._progress = row.position, BulkProgress.decode(row.progress)
        self._visits = Visits(store, [filter_of(one) for one in self._content["filters"]])
        self._act = actions.act(self._content["action"], self._arguments())

    async def run(self) -> None:
        interrupted = self._progress.batch
        if interrupted is not None and not await self._complete(await self._act_again(interrupted)):
            return
        async for rows in self._visits.batches(self._position, self._row.upto, batch_size(self._content["rate"])):
            self._progress = self._progress._replace(batch=Batch.of(rows))
            if not await self._save() or not await self._complete(await act_on(rows, self._act)):
                return
        await self._save(ended=True)

    def _arguments(self) -> dict[str, Any]:
        """The arguments of the action. An event has an id and an audit record, because a crash may repeat its batch."""
        arguments: dict[str, Any] = self._content["arguments"]
        if self._content["action"] != "send_event":
            return arguments
        id_, reason = arguments.get("id"), arguments.get("reason")
        return {**arguments, "id": f"bulk {self._row.id}" if id_ is None else id_, "reason": reason or ""}

    async def _complete(self, result: BulkResult) -> bool:
        """Save the counts of the batch, and wait until the next one is due; returns False if the work ends here."""
        batch, rate = self._progress.batch, self._content["rate"]
        if batch is None:
            raise RuntimeError("no batch has begun")
        self._position, self._progress = batch.end, BulkProgress(self._progress.result.plus(result))
        seconds = len(batch.visited) / rate if rate is not None and batch.end < self._row.upto else 0
        return await self._save() and await self._rest(seconds)

    async def _rest(self, seconds: float) -> bool:
        """Wait, and keep the lease; returns False if the work ends here."""
        while seconds > 0:
            part = min(seconds, self._lease_ms / 3000)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), part)
            seconds -= part
            if (seconds > 0 or self._stopped.is_set()) and not await self._save():
                return False
        return True

    async def _save(self, *, ended: bool = False) -> bool:
        """Save the progress; returns False if the work ends here."""
        stopped = self._stopped.is_set()
        lease_ms = 0 if stopped else self._lease_ms
        request = SaveBulkJob(self._row.id, self._owner, lease_ms, self._position, self._progress.encode(), ended)
        return bool(await self._store.bulk(request)) and not stopped

    # --- a batch in which another process was interrupted

    async def _act_again(self, batch: Batch) -> BulkResult:
        size, matching = max(1, len(batch.visited)), dict[str, RunRecord]()
        async for rows in self._visits.batches(self._position, batch.end, size):
            matching |= {row.pid: row for row in rows}
        result = BulkResult()
        for one in batch.visited:
            result = result.plus(await self._act_once(one, matching.get(one.pid)))
        return result

    async def _act_once(self, visited: Visited, row: RunRecord | None) -> BulkResult:
        """Act on an instance, unless its audit records show the action. ``row``: its current run, if that matches."""
        if await self._is_recorded(visited):
            return BulkResult(done=1)
        result = BulkResult(skipped=1)
        if row is not None and row.run == visited.run:
            result = await act_on([row], self._act)
        elif row is not None and self._content["action"] not in _ON_ONE_RUN:
            result = await act_on([replace(row, run=visited.run, status=Status(visited.status))], self._act)
        if result.skipped and await self._is_recorded(visited):  # the other process still lives, and acted meanwhile
            return BulkResult(done=1)
        return result

    async def _is_recorded(self, visited: Visited) -> bool:
        """True if a record of the instance since the beginning of the job shows the action."""
        content, before = self._content, None
        reason = content["arguments"].get("reason")
        if content["action"] == "send_event":
            reason = reason or f"event {content['arguments']['type']}"
        wanted = (content["action"], content["actor"], reason)
        while True:
            records = await self._store.read(AuditQuery(visited.pid, before, _RECORDS))
            since = [record for record in records if record.at >= self._row.created_at]
            if any(
                (record.action, record.actor, record.reason) == wanted and record.outcome != REFUSED for record in since
            ):
                return True
            if len(since) < _RECORDS:
                return False
            before = since[-1].n


def filter_content(filter: Filter) -> dict[str, Any]:
    """A filter as JSON."""
    content: dict[str, Any] = {name: getattr(filter, name) for name in FIELDS}
    times = {name: getattr(filter, name) for name in TIMES}
    content |= {name: None if when is None else when.isoformat() for name, when in times.items()}
    return content | {"search": [list(condition) for condition in filter.conditions()]}


def filter_of(content: dict[str, Any]) -> Filter:
    search: dict[str, list[Any]] = {}
    for key, op, value in content["search"]:
        search.setdefault(key, []).append((op, value))
    fields: dict[str, Any] = {name: content[name] for name in FIELDS}
    fields |= {name: content[name] and datetime.fromisoformat(content[name]) for name in TIMES}
    return Filter(**fields, search=search or None)
