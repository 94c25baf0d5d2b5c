"""Commits of many turns, written together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from holdfast.ports import Randomness
from holdfast.runner.grouping import GroupWriter
from holdfast.runner.patience import patiently
from holdfast.store.protocol import Commit, Committed, Store


class Committer:
    """Hands commits to the store in batches."""

    def __init__(
        self, store: Store, random: Randomness, in_company: Callable[[], bool], is_alone: Callable[[], bool]
    ) -> None:
        self._store = store
        self._random = random
        self._group = GroupWriter("holdfast-committer", self._write, in_company, is_alone)

    def commit(self, commit: Commit) -> Awaitable[Committed]:
        """Write one turn; done once it is durable or refused."""
        return self._group.put(commit)

    @property
    def busy(self) -> bool:
        return self._group.busy

    def abandon(self) -> None:
        """Stop writing, whoever waits for it. For crash tests."""
        self._group.abandon()

    def _write(self, commits: list[Commit]) -> Awaitable[Sequence[Committed]]:
        return patiently(lambda: self._store.commit(commits), "commit", self._random)
