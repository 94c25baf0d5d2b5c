"""``logs --follow``: new log lines, each once, until the run has ended.

The follower keeps the cursor, so that after an outage of the server it continues with the line after the last one
shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from holdfast.cli.remote import Remote, RequestFailedError, print_note
from holdfast.cli.response_fields import TERMINAL, Fields, without_replayed

T = TypeVar("T")

_PAGE_SIZE = 100
_POLL_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 5.0


class Follower:
    """Reads the logs of one instance."""

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
        """Log lines of ``run``, or of the current run and its successors if ``run`` is None.

        A failure of the first request is an error. Later requests are repeated until the server responds.
        """
        instance = self._remote.get(*self._path, expect="meta")
        one_run, number = run is not None, _current(instance) if run is None else run
        while True:
            yield from self._new_lines(number)
            if _ended(instance, number):
                if one_run or number >= _current(instance):
                    return
                number, self._cursor = number + 1, None
            else:
                time.sleep(_POLL_SECONDS)
            # The status is read before the lines: lines read after the end of a run are complete.
            instance = self._until_available(lambda: self._remote.get(*self._path, expect="meta"))

    def _new_lines(self, number: int) -> Iterator[Fields]:
        more = True
        while more:
            page = self._until_available(lambda: self._page(number))
            logs = page.list("logs")
            yield from logs if self._replayed else without_replayed(logs)
            self._cursor = page.text("logsCursor") or self._cursor
            more = page.true("logsHasNextPage")

    def _page(self, number: int) -> Fields:
        query = self._filters | {
            "runNumber": number,
            "includeLogs": "true",
            "pageSize": _PAGE_SIZE,
            "logsCursor": self._cursor,
        }
        return self._remote.get(*self._path, "history", expect="logs", query=query)

    def _until_available(self, request: Callable[[], T]) -> T:
        """Repeat a request until it succeeds or fails permanently."""
        attempt = 0
        while True:
            try:
                return request()
            except RequestFailedError as failure:
                if not failure.transient:
                    raise
                if attempt == 0:
                    print_note(f"{failure}; waiting for the server (Ctrl-C ends this)")
                pause = failure.retry_after or min(self._remote.pause_before(attempt, failure), _MAX_PAUSE_SECONDS)
                time.sleep(max(pause, _POLL_SECONDS))
                attempt += 1


def _current(instance: Fields) -> int:
    return instance.fields("meta").number("runNumber") or 0


def _ended(instance: Fields, number: int) -> bool:
    return number < _current(instance) or instance.fields("details").text("status") in TERMINAL
