"""Kill points: this process ends itself with SIGKILL at its n-th call of the store."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import apsw

from holdfast.store.sqlite import SqliteStore, opening

# Everything that a run's fate can depend on. What only looks whether another process wrote is left out.
CALLS = (
    "create", "send", "claim", "commit", "heartbeat", "signals", "reap", "release", "load", "undelivered", "get",
)  # fmt: skip
WHEN = ("before", "during", "after")


class Counter:
    """Counts the calls of this process (``during``: its transactions) and ends it at the chosen one."""

    def __init__(self, kill_at: str | None) -> None:
        n, _, self._when = (kill_at or "0:never").partition(":")
        self._n = int(n)
        self.calls = 0
        self.transactions = 0

    def arm(self) -> None:
        for name in CALLS:
            setattr(SqliteStore, name, self._counted(getattr(SqliteStore, name)))
        make = opening.writer

        def writer(*args: Any) -> apsw.Connection:
            connection = make(*args)
            connection.set_commit_hook(self._committing)
            return connection

        opening.writer = writer

    def _counted(self, method: Any) -> Any:
        @functools.wraps(method)
        async def call(*args: Any) -> Any:
            self.calls += 1
            mine = self.calls
            self._maybe_die("before", mine)
            try:
                return await method(*args)
            finally:
                self._maybe_die("after", mine)

        return call

    def _committing(self) -> bool:
        self.transactions += 1
        self._maybe_die("during", self.transactions)
        return False

    def _maybe_die(self, when: str, n: int) -> None:
        if n == self._n and when == self._when:
            os.kill(os.getpid(), signal.SIGKILL)
