"""Jobs of a database: their modes, and the delivery of their results."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol

from holdfast.store.sqlite.tx import Work


class Mode(Enum):
    SINGLE = 1
    """One call per job."""
    MERGED = 2
    """Takes a list and returns a list: adjacent jobs in the queue become one call."""
    BARE = 3
    """Runs outside of any transaction."""
    EXCLUSIVE = 4
    """As BARE; afterwards the argument, an ``ExclusiveUser``, has the connection to itself."""
    LAST = 5
    """As BARE; afterwards the thread ends."""


class ExclusiveUser(Protocol):
    """An object that has the connection, and the thread, to itself."""

    def serve(self) -> None:
        """Use the connection until it is no longer needed.

        Without a thread, return at once and call ``Database.resume_queue`` at the end.
        """
        ...

    def request_end(self) -> None:
        """Request the end of the exclusive use. May be called by any thread, and before ``serve``."""
        ...

    def submit_read(self, job: Job) -> bool:
        """Run a read during the exclusive use; False if that has ended."""
        ...


class Job:
    __slots__ = ("argument", "error", "future", "inline", "mode", "result", "work")

    def __init__(
        self, work: Work[Any, Any], argument: Any, mode: Mode, future: asyncio.Future[Any], inline: bool
    ) -> None:
        self.work = work
        self.inline = inline
        self.argument = argument
        self.mode = mode
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None


_BARE = (Mode.BARE, Mode.EXCLUSIVE, Mode.LAST)


def is_bare(job: Job) -> bool:
    return job.mode in _BARE


def resolve(jobs: list[Job]) -> None:
    """Resolve the futures of the jobs; called on the event loop of the futures."""
    for job in jobs:
        if job.future.done():  # the caller was cancelled; the job's writes are committed all the same
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)


def resolve_from_thread(job: Job) -> None:
    with suppress(RuntimeError):  # the loop is closed, and so are its waiters
        job.future.get_loop().call_soon_threadsafe(resolve, [job])
