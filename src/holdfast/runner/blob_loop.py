"""The blob loop: deletes blobs of deleted runs, and orphans of commits that never happened."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from holdfast.ports import Randomness
from holdfast.runner.background_loop import BackgroundLoop
from holdfast.store.protocol import Store

_log = logging.getLogger("holdfast")

PAUSE_SECONDS = 600.0
"""Time between two passes. Listing a folder or a bucket takes time, and orphans are rare."""


class BlobLoop:
    """Deletes blobs in the background, in apps with a blob store: their ``store`` has ``collect_blobs``."""

    def __init__(self, store: Store, random: Randomness) -> None:
        self.loop = BackgroundLoop("blobs", self._step, random)
        self._collect: Callable[[], Awaitable[int]] | None = getattr(store, "collect_blobs", None)
        self._random = random
        self.pause = PAUSE_SECONDS
        self._started = False

    @property
    def needed(self) -> bool:
        return self._collect is not None

    async def _step(self) -> float:
        if self._started:
            await self.collect()
        self._started = True
        return self.pause * (0.5 + self._random.random())  # many workers start at the same time

    async def collect(self) -> int:
        """Delete garbage once; returns the number of blobs."""
        if self._collect is None:
            return 0
        deleted = await self._collect()
        if deleted:
            _log.info("blobs: deleted %d without references", deleted)
        return deleted
