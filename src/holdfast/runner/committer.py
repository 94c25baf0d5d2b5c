"""Group commit: commits of several turns share one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from holdfast.ports import Randomness
from holdfast.runner.grouping import GroupWriter
from holdfast.runner.store_retry import call_with_retry
from holdfast.store.protocol import Commit, Committed, Store


class Committer:
    """Writes commits to the store in batches."""

    def __init__(
        self, store: Store, random: Randomness, sharing_loop: Callable[[], bool], is_alone: Callable[[], bool]
    ) -> None:
        self._store = store
        self._random = random
        self._group = GroupWriter("holdfast-committer", self._write, sharing_loop, is_alone)

    def commit(self, commit: Commit) -> Awaitable[Committed]:
        """Write a commit; the result is available once it is durable or refused."""
        return self._group.put(commit)

    @property
    def busy(self) -> bool:
        return self._group.busy

    def abandon(self) -> None:
        """Stop writing; callers that wait are not answered. For crash tests."""
        self._group.abandon()

    def _write(self, commits: list[Commit]) -> Awaitable[Sequence[Committed]]:
        return call_with_retry(lambda: self._store.commit(commits), "commit", self._random)
