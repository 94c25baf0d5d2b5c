"""Group commit: commits of several turns share one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.errors import StoreError
from holdfast.kernel.telemetry import Telemetry
from holdfast.ports import Randomness
from holdfast.runner.batch_limit import batch_limit
from holdfast.runner.store_retry import log_and_pause
from holdfast.store.batching import Batcher
from holdfast.store.protocol import Commit, Committed, Store
from holdfast.store.retry import call_with_retry


class Committer:
    """Writes commits to the store in batches."""

    def __init__(
        self,
        store: Store,
        random: Randomness,
        sharing_loop: Callable[[], bool],
        is_alone: Callable[[], bool],
        telemetry: Telemetry | None = None,
    ) -> None:
        """``sharing_loop``: the event loop also serves requests. ``is_alone``: there is at most one turn."""
        self._store = store
        self._telemetry = telemetry
        self.is_alone = is_alone
        """True if commits are written at once, possibly without an iteration of the event loop."""
        self._pause_after = log_and_pause("commit", random)
        self._batcher = Batcher(
            "holdfast-committer",
            self._write,
            max_items=batch_limit(sharing_loop, store.writers),
            writers=store.writers,
            by_caller=is_alone,
        )

    def commit(self, commits: list[Commit]) -> Awaitable[list[Committed]]:
        """Write commits; their results are available once they are durable or refused."""
        return self._batcher(commits)

    @property
    def busy(self) -> bool:
        return self._batcher.busy

    def abandon(self) -> None:
        """Stop writing; callers that wait get no result. For crash tests."""
        self._batcher.abandon()

    def _write(self, commits: list[Commit]) -> Awaitable[list[Committed]]:
        if self._telemetry is not None:
            return self._write_timed(commits, self._telemetry)
        return call_with_retry(lambda: self._store.commit(commits), StoreError, self._pause_after)

    async def _write_timed(self, commits: list[Commit], telemetry: Telemetry) -> list[Committed]:
        clock = asyncio.get_running_loop().time
        began = clock()
        results = await call_with_retry(lambda: self._store.commit(commits), StoreError, self._pause_after)
        telemetry.batch_written(clock() - began)
        return results
