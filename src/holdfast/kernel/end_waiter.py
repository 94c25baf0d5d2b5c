"""Waiting for the end of runs, in this process or another.

The hub notifies of runs that end in this process. For runs that end in other processes, one task polls on behalf of all
waiting callers: it waits until another process has written to the store, and then reads the awaited runs. As long as no
other process writes, waiting for a run that was started here needs no query.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from holdfast.errors import StoreError
from holdfast.kernel.notify import Hub
from holdfast.store.protocol import Finish, RunRecord, RunsById, Store

_log = logging.getLogger("holdfast")

_RETRY_SECONDS = 0.5
_RUNS_PER_READ = 500


class ExpectedEnd(NamedTuple):
    """A run, and the future that the hub sets when the run ends.

    Several callers may share the future, so ``wait`` awaits a future of its own: cancelling a shared future would
    cancel all waits.
    """

    run: int
    end: asyncio.Future[Finish | None]
    version: int | None
    """The store's version before the run was created or read; None: unknown."""


class EndWaiter:
    """Waits for the end of runs."""

    def __init__(self, store: Store, hub: Hub) -> None:
        self._store = store
        self._hub = hub
        self._polling: asyncio.Task[None] | None = None

    async def wait_for_run(self, run: int, is_executed_here: Callable[[int], bool]) -> Finish | None:
        """Wait for the end of a run; None if the end has no result or a successor, or the run is gone or damaged.

        ``is_executed_here``: True if this process executes the run. The hub notifies of its end, so it is not read.
        """
        expected = self.expect(run, self._hub.store_version)
        try:
            if is_executed_here(run):
                return await self.wait(expected)
            rows = await self._store.read(RunsById([run]))
            if not rows:
                return None
            return _finish(rows[0]) if rows[0].status.terminal else await self.wait(expected)
        finally:
            self._hub.stop_waiting(run, expected.end)

    def expect(self, run: int, version: int | None) -> ExpectedEnd:
        """Subscribe to the end of a run, so that an end before the call of ``wait`` is not missed.

        ``version``: ``hub.store_version`` from before the run was created or read.
        """
        return ExpectedEnd(run, self._hub.wait(run), version)

    async def wait(self, expected: ExpectedEnd) -> Finish | None:
        """Wait for an expected end; polls the store for ends in other processes."""
        if expected.end.done():
            return expected.end.result()
        if self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._poll(expected.version), name="holdfast-ends")
        end = self._hub.wait(expected.run)
        try:
            return await end
        finally:
            self._hub.stop_waiting(expected.run, end)

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def _poll(self, version: int | None) -> None:
        """Read the awaited runs whenever the store's version changes, beginning with a change of ``version``."""
        try:
            while self._hub.waited_for:
                try:
                    version = await self._poll_once(version)
                except StoreError as error:  # callers keep waiting while the store is unavailable
                    _log.warning("cannot read changes of other processes (%s): %s", error.code, error)
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._polling = None

    async def _poll_once(self, before: int | None) -> int:
        version = await self._store.wait_for_change(before)
        if version != before:
            runs = list(self._hub.waited_for)
            for start in range(0, len(runs), _RUNS_PER_READ):
                page = runs[start : start + _RUNS_PER_READ]
                rows = {row.run: row for row in await self._store.read(RunsById(page))}
                for run in page:
                    row = rows.get(run)
                    if row is None:  # deleted, or lost in a failover: the caller reads the instance
                        self._hub.ended(run, None)
                    elif row.status.terminal:
                        self._hub.ended(run, _finish(row))
        return version


def _finish(row: RunRecord) -> Finish | None:
    """The end of a run; None if it was terminated, has a successor or is damaged: the caller then reads it again."""
    if not row.current or row.damage is not None or (row.output is None and row.error is None):
        return None
    return Finish(row.status, row.output, row.error)
