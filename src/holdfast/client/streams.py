"""Reading of streams: iteration over the items of a run, during the run and afterwards.

A reader holds an offset, and reads the store from there; it never makes a writer wait. In between it waits for the hub,
which notifies of writes in this process, and one task per client waits for writes of other processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal

from holdfast.client.instances import Instances
from holdfast.core import codec
from holdfast.core.checks import is_whole_number
from holdfast.core.limits import Limits
from holdfast.core.model import from_ms
from holdfast.core.names import check_stream_name
from holdfast.core.show import shown
from holdfast.core.stream_records import MAX_OFFSET, StreamInfo, StreamItem
from holdfast.errors import InvalidNameError, InvalidOptionError, StoreError
from holdfast.kernel.notify import Hub
from holdfast.store.protocol import Store, StreamHeadsQuery
from holdfast.store.protocol.streams import StreamChunk, StreamPage, StreamQuery, WriterState

_log = logging.getLogger("holdfast")
_RETRY_SECONDS = 0.5
_PAGE = 64
"""Number of chunks that are read at once."""

Attempts = Literal["successful", "all"]


class StreamReads:
    """Reads the streams of runs."""

    def __init__(self, store: Store, hub: Hub, instances: Instances, limits: Limits) -> None:
        self._store = store
        self._hub = hub
        self._instances = instances
        self._limits = limits
        self._watching: asyncio.Task[None] | None = None

    async def infos(self, workflow: str, id: str, run_number: int | None = None) -> list[StreamInfo]:
        row = await self._instances.find(workflow, id, run_number)
        return [
            StreamInfo(head.name, head.items, head.size, bool(head.closed_by))
            for head in await self._store.read(StreamHeadsQuery(row.run))
        ]

    async def run_of(self, workflow: str, id: str, run_number: int | None = None) -> int:
        return (await self._instances.find(workflow, id, run_number)).run

    async def read(
        self, workflow: str, id: str, name: str, after: int = 0, attempts: Attempts = "successful",
        run_number: int | None = None,
    ) -> AsyncIterator[StreamItem]:  # fmt: skip
        """Iterate over the items after an offset, until the stream is closed or the run has ended."""
        self.check(name, after, attempts)
        run = await self.run_of(workflow, id, run_number)
        async for batch in self.batches(run, name, after, attempts):
            for item in batch:
                yield item

    def check(self, name: str, after: int, attempts: str) -> None:
        try:
            check_stream_name(name, self._limits)
        except InvalidNameError as error:
            raise InvalidOptionError(str(error)) from None
        if not is_whole_number(after, 0, MAX_OFFSET):
            raise InvalidOptionError(
                f"after must be an offset, a whole number from 0 to {MAX_OFFSET}, not {shown(after)}"
            )
        if attempts not in ("successful", "all"):
            raise InvalidOptionError(f'attempts must be "successful" or "all", not {shown(attempts)}')

    async def batches(
        self, run: int, name: str, after: int, attempts: Attempts
    ) -> AsyncGenerator[list[StreamItem], None]:
        """The items after an offset, in the batches in which they are read."""
        position = after
        while True:
            changed = self._hub.wait_for_stream(run)  # before the read, so that no write is missed
            try:
                page = await self._store.read(StreamQuery(run, name, position, _PAGE))
                items, position, over, blocked = _items(page, position, attempts)
                if items:
                    yield items
                if over:
                    return
                if len(page.chunks) == _PAGE and not blocked:
                    continue
                if page.ended:
                    return
                self._watch()
                await changed
            finally:
                changed.cancel()

    # --- writes of other processes

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._wake_readers(), name="holdfast-streams")

    async def _wake_readers(self) -> None:
        """Wake all readers whenever another process has written, while there are readers."""
        version: int | None = None
        try:
            while self._hub.read_streams:
                try:
                    seen = await self._store.wait_for_change(version, streams=True)
                except StoreError as error:
                    _log.warning("cannot read changes of other processes (%s): %s", error.code, error)
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if seen != version:
                    version = seen
                    for run in list(self._hub.read_streams):
                        self._hub.stream_written(run)
        finally:
            self._watching = None

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)


def _items(page: StreamPage, after: int, attempts: Attempts) -> tuple[list[StreamItem], int, bool, bool]:
    """The items to return, the new offset, whether the stream is closed there, and whether the reader must wait.

    A reader of successful attempts waits at the first item whose attempt is undecided: a later item of another attempt
    would otherwise be returned before it, and a reader that resumes there would miss it.
    """
    items: list[StreamItem] = []
    position = after
    for chunk in page.chunks:
        waits = chunk.closes or attempts == "successful"
        if waits and chunk.state is WriterState.UNDECIDED and not page.ended:
            return items, position, False, True
        if chunk.closes and chunk.state is WriterState.SUCCEEDED:
            return items, chunk.first, True, False
        if attempts == "all" or chunk.state is WriterState.SUCCEEDED:
            items += _decoded(chunk, position)
        position = max(position, chunk.first + chunk.length - 1)
    return items, position, False, False


def _decoded(chunk: StreamChunk, after: int) -> list[StreamItem]:
    failed = chunk.state is WriterState.FAILED
    return [
        StreamItem(offset, codec.plain(value), chunk.step_key, chunk.attempt, from_ms(at), failed)
        for offset, at, value in chunk.items()
        if offset > after
    ]
