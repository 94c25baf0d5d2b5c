"""The worker of the client's own process, in which the client's starts and sends begin turns without a poll."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Container, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from holdfast.store.protocol import Created, Fact, NewEvent, NewRun, Sent


class LocalWorker(Protocol):
    """The interface of a worker in the client's own process."""

    lease_ms: int

    @property
    def id(self) -> str: ...

    def reserve(self, new: NewRun) -> int: ...

    def begin(self, created: Created, slots: int, plan: Sequence[Fact] = ()) -> None: ...

    def send(self, event: NewEvent) -> Awaitable[Sent]: ...

    def cancel_reservation(self, slots: int = 1) -> None: ...

    def executes(self, run: int) -> bool:
        """True if the worker has a turn of the run, and the task is not lost."""
        ...

    def noting_ends(self) -> AbstractContextManager[Container[int]]: ...


class LocalWork:
    """The worker of this process, if it has one, and the client's calls that may begin turns in it."""

    def __init__(self) -> None:
        self.worker: LocalWorker | None = None
        self._pending: set[asyncio.Future[Any]] = set()
        """Starts and sends in progress that may begin turns. ``wait`` waits for them before the worker stops."""

    def run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    def executes(self, run: int) -> bool:
        """True if the worker of this process executes the run."""
        return self.worker is not None and self.worker.executes(run)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count the block as a call in progress."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.add(ended)
        try:
            yield
        finally:
            self._pending.discard(ended)
            ended.set_result(None)

    async def wait(self) -> None:
        """Wait for the calls in progress."""
        await asyncio.gather(*self._pending, return_exceptions=True)
