"""The writer of streams: stores the items of all attempts of a worker in batches.

One batch is written at a time, so that the items of an attempt keep their order. Items that are buffered during a write
form the next batch: a slow stream is stored item by item and at once, and many fast streams share a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.errors import StoreError
from holdfast.kernel.notify import Hub
from holdfast.kernel.streams import AttemptStream
from holdfast.ports import Randomness
from holdfast.runner.store_retry import log_and_pause
from holdfast.store.protocol import Store
from holdfast.store.retry import call_with_retry

_MAX_WRITES = 256


class StreamWriter:
    """The ``StreamSink`` of a worker."""

    def __init__(
        self, store: Store, hub: Hub, random: Randomness, run_in_background: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._store = store
        self._hub = hub
        self._run_in_background = run_in_background
        self._pause_after = log_and_pause("write to streams", random)
        self._waiting: dict[AttemptStream, None] = {}
        """Streams with buffered items, in the order in which they were written to."""
        self._writing = False
        self.abandoned = False
        """The worker stopped as a killed process does: nothing more is written."""

    def put(self, stream: AttemptStream) -> None:
        self._waiting[stream] = None
        if not self._writing and not self.abandoned:
            self._writing = True
            self._run_in_background(self._write())

    async def _write(self) -> None:
        try:
            while self._waiting and not self.abandoned:
                await self._write_batch()
        finally:
            self._writing = False

    async def _write_batch(self) -> None:
        batch = [stream for stream, _ in zip(list(self._waiting), range(_MAX_WRITES), strict=False)]
        for stream in batch:
            del self._waiting[stream]
        writes = [(stream, stream.take()) for stream in batch if stream.has_unstored]
        if not writes:
            return
        calls = [write for _, write in writes]
        try:
            results = await call_with_retry(lambda: self._store.write_streams(calls), StoreError, self._pause_after)
        except Exception as error:
            for stream, _ in writes:
                stream.failed(error)
            raise
        for (stream, write), result in zip(writes, results, strict=True):
            stream.written(write, result)
        for run in {write.task.run for write in calls}:
            self._hub.stream_written(run)
