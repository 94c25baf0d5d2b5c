"""Kill points: a process sends itself a signal at its n-th call of the store."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import apsw

from holdfast.store.protocol import Commit, FactState
from holdfast.store.sqlite import SqliteStore, opening
from holdfast.store.sqlite.jobs import Mode

from .workload import SideFile

# The store calls that are counted: all that affect a run. ``wait_for_change``, which only detects writes, is left out.
CALLS = ("create", "send", "claim", "commit", "heartbeat", "fetch_signals", "reap", "release", "read")
WHEN = ("before", "during", "after")


class Counter:
    """Counts the calls of this process (``during``: its transactions), and sends the signal at the chosen one."""

    def __init__(self, kill_at: str | None, number: int = signal.SIGKILL) -> None:
        n, _, self._when = (kill_at or "0:never").partition(":")
        self._n = int(n)
        self._number = number
        self.calls = 0
        self.transactions = 0

    def arm(self, calls: Sequence[str] = CALLS) -> None:
        for name in calls:
            setattr(SqliteStore, name, self._counted(getattr(SqliteStore, name)))
        make = opening.writer

        def writer(*args: Any) -> apsw.Connection:
            connection = make(*args)
            connection.set_commit_hook(self._committing)
            return connection

        opening.writer = writer

    def _counted(self, method: Any) -> Any:
        @functools.wraps(method)
        async def call(*args: Any, **options: Any) -> Any:
            self.calls += 1
            mine = self.calls
            self._maybe("before", mine)
            try:
                return await method(*args, **options)
            finally:
                self._maybe("after", mine)

        return call

    def _committing(self) -> bool:
        self.transactions += 1
        self._maybe("during", self.transactions)
        return False

    def _maybe(self, when: str, n: int) -> None:
        if n == self._n and when == self._when:
            os.kill(os.getpid(), self._number)


def limit_pages(most: int) -> None:
    """Limit the size of the database to ``most`` pages in this process, until the process receives SIGUSR1."""
    make, opened = opening.writer, list[apsw.Connection]()
    limit = most

    def writer(*args: Any) -> apsw.Connection:
        connection = make(*args)
        connection.pragma("max_page_count", limit)
        opened.append(connection)
        return connection

    def free(*_: object) -> None:
        nonlocal limit
        limit = 1_000_000
        opened[-1].pragma("max_page_count", limit)  # waits for the thread that uses the connection

    opening.writer = writer
    signal.signal(signal.SIGUSR1, free)


def _stop_here(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.1)  # other threads stop a little later: none of them may begin the next transaction before that


def stop_before_results(side: SideFile) -> None:
    """Stop this process (SIGSTOP) before its first commit with results; record the verdicts of that commit."""
    method = SqliteStore.commit
    stopped = False

    async def commit(self: SqliteStore, commits: Sequence[Commit]) -> Any:
        nonlocal stopped
        mine = not stopped and any(f.state == FactState.RESULT for c in commits for f in c.observed.facts)
        if mine:
            stopped = True
            # On the writer thread, between two transactions: inside one the process would hold the lock of the file.
            await self._write(_stop_here, None, Mode.BARE)
        answers = await method(self, commits)
        if mine:
            side.write({"verdicts": [answer.verdict for answer in answers]})
        return answers

    SqliteStore.commit = commit  # type: ignore[method-assign]
