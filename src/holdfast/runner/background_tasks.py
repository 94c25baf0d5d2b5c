"""Asyncio tasks of a worker that run in the background; the worker waits for them only when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

_log = logging.getLogger("holdfast")


class BackgroundTasks:
    """Asyncio tasks of a worker that belong to no turn."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(self._tasks)

    def run(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Run a coroutine without waiting for it. ``what`` names the work in the log line of a failure."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, what))

    def _done(self, what: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("could not %s: %s", what, task.exception())
