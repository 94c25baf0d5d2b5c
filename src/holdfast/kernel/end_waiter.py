"""Waiting for the end of runs, in this process or another.

The hub notifies of runs that end in this process. For runs that end in other processes, one task polls on behalf of all
waiting callers: it waits until the store has changed, and then reads the awaited runs.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from holdfast.errors import StoreError
from holdfast.kernel.notify import Hub
from holdfast.store.protocol import Finish, RunRecord, Store

_log = logging.getLogger("holdfast")

_RETRY_SECONDS = 0.5
_RUNS_PER_READ = 500


class ExpectedEnd(NamedTuple):
    """The future end of a run, set by the hub.

    Several callers may share it, so none of them awaits the future itself: cancelling one would cancel all.
    """

    run: int
    end: asyncio.Future[Finish | None]


class EndWaiter:
    """Waits for the end of runs."""

    def __init__(self, store: Store, hub: Hub) -> None:
        self._store = store
        self._hub = hub
        self._polling: asyncio.Task[None] | None = None

    async def wait_for_run(self, run: int) -> Finish | None:
        """Wait for the end of a run; None if the end has no result, or a successor follows."""
        expected = self.expect(run)
        try:
            [row] = await self._store.get([run])
            return _finish(row) if row.status.terminal else await self.wait(expected)
        finally:
            self._hub.stop_waiting(*expected)

    def expect(self, run: int) -> ExpectedEnd:
        """Subscribe to the end of a run, so that an end before the call of ``wait`` is not missed."""
        return ExpectedEnd(run, self._hub.wait(run))

    async def wait(self, expected: ExpectedEnd) -> Finish | None:
        """Wait for an expected end; polls the store for ends in other processes."""
        if expected.end.done():
            return expected.end.result()
        if self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._poll(), name="holdfast-ends")
        end = self._hub.wait(expected.run)
        try:
            return await end
        finally:
            self._hub.stop_waiting(expected.run, end)

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def _poll(self) -> None:
        version: int | None = None
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
                for row in await self._store.get(runs[start : start + _RUNS_PER_READ]):
                    if row.status.terminal:
                        self._hub.ended(row.run, _finish(row))
        return version


def _finish(row: RunRecord) -> Finish | None:
    """How the run ended; None if it has no result (it was terminated) or a successor: the caller reads more then."""
    if not row.current or (row.output is None and row.error is None):
        return None
    return Finish(row.status, row.output, row.error)
