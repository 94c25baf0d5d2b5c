"""``logs --follow``: log lines as they come, each once, until the run has ended.

The cursor is kept here, so that a server that goes away and comes back is asked for what follows the last line shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from holdfast.cli.remote import Remote, RequestFailedError, say
from holdfast.cli.wire import TERMINAL, Fields, first_time

T = TypeVar("T")

PAGE = 100
_POLL_SECONDS = 0.5
_LONGEST_PAUSE = 5.0


class Follower:
    """Reads the logs of one instance. Without ``run``, from its current run on and into those that follow it."""

    def __init__(
        self,
        remote: Remote,
        path: tuple[str, ...],
        filters: dict[str, object],
        cursor: str | None,
        *,
        replayed: bool = False,
    ) -> None:
        self._remote = remote
        self._path = path
        self._filters = filters
        self._cursor = cursor
        self._replayed = replayed

    def lines(self, run: int | None) -> Iterator[Fields]:
        """The lines. The first request fails as any other; afterwards a server that is away is waited for."""
        instance = self._remote.get(*self._path, expect="meta")
        only, number = run is not None, _current(instance) if run is None else run
        while True:
            yield from self._new_lines(number)
            if _ended(instance, number):
                if only or number >= _current(instance):
                    return
                number, self._cursor = number + 1, None
            else:
                time.sleep(_POLL_SECONDS)
            # Asked before the lines: what a run has written by its end is then in what is read next.
            instance = self._patiently(lambda: self._remote.get(*self._path, expect="meta"))

    def _new_lines(self, number: int) -> Iterator[Fields]:
        more = True
        while more:
            page = self._patiently(lambda: self._page(number))
            logs = page.list("logs")
            yield from logs if self._replayed else first_time(logs)
            self._cursor = page.text("logsCursor") or self._cursor
            more = page.true("logsHasNextPage")

    def _page(self, number: int) -> Fields:
        query = self._filters | {
            "runNumber": number,
            "includeLogs": "true",
            "pageSize": PAGE,
            "logsCursor": self._cursor,
        }
        return self._remote.get(*self._path, "history", expect="logs", query=query)

    def _patiently(self, ask: Callable[[], T]) -> T:
        attempt = 0
        while True:
            try:
                return ask()
            except RequestFailedError as failure:
                if not failure.passing:
                    raise
                if attempt == 0:
                    say(f"{failure}; waiting for the server (Ctrl-C ends this)")
                pause = failure.retry_after or min(self._remote.pause_before(attempt, failure), _LONGEST_PAUSE)
                time.sleep(max(pause, _POLL_SECONDS))
                attempt += 1


def _current(instance: Fields) -> int:
    return instance.fields("meta").number("runNumber") or 0


def _ended(instance: Fields, number: int) -> bool:
    return number < _current(instance) or instance.fields("details").text("status") in TERMINAL
