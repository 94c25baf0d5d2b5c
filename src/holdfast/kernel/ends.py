"""Waiting for runs to end, wherever they are run.

Ends in this process are told by the hub. For those in others, one look for everybody: while anyone waits, the
store is asked now and then whether another process has written, and only then about the runs that are waited for.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from holdfast.errors import StoreError
from holdfast.kernel.notify import Hub
from holdfast.store.protocol import Finish, RunRecord, Store

_log = logging.getLogger("holdfast")

_PAUSE_SECONDS = 0.5
_RUNS_AT_ONCE = 500


class Expected(NamedTuple):
    """The end of a run, told of as soon as it comes. Many may wait for it, so nobody awaits the future itself."""

    run: int
    end: asyncio.Future[Finish | None]


class Ends:
    """Answers when runs have ended."""

    def __init__(self, store: Store, hub: Hub) -> None:
        self._store = store
        self._hub = hub
        self._looking: asyncio.Task[None] | None = None

    async def of(self, run: int) -> Finish | None:
        """Wait for a run to end; None if it was ended from outside."""
        expected = self.expect(run)
        try:
            [row] = await self._store.get([run])
            return _finish(row) if row.status.terminal else await self.met(expected)
        finally:
            self._hub.give_back(*expected)

    def expect(self, run: int) -> Expected:
        """Be told of the end from now on, also if that is before anybody waits."""
        return Expected(run, self._hub.wait(run))

    async def met(self, expected: Expected) -> Finish | None:
        """Wait for it, with an eye on other processes."""
        if expected.end.done():
            return expected.end.result()
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="holdfast-ends")
        end = self._hub.wait(expected.run)
        try:
            return await end
        finally:
            self._hub.give_back(expected.run, end)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        version: int | None = None
        try:
            while self._hub.waited_for:
                try:
                    version = await self._look_once(version)
                except StoreError as error:  # waiting outlasts a store that is away for a moment
                    _log.warning("cannot see what other processes did (%s): %s", error.code, error)
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._looking = None

    async def _look_once(self, before: int | None) -> int:
        version = await self._store.changed(before)
        if version != before:
            runs = list(self._hub.waited_for)
            for start in range(0, len(runs), _RUNS_AT_ONCE):
                for row in await self._store.get(runs[start : start + _RUNS_AT_ONCE]):
                    if row.status.terminal:
                        self._hub.ended(row.run, _finish(row))
        return version


def _finish(row: RunRecord) -> Finish | None:
    """How it ended, unless it was ended from outside, or another run came after it: then there is more to look at."""
    if not row.current or (row.output is None and row.error is None):
        return None
    return Finish(row.status, row.output, row.error)
