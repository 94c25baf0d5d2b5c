"""Notifications inside one process, so that workers and clients need not query the store.

Notifications are hints. A lost notification costs time (until the next poll), never correctness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from holdfast.store.protocol import AffectedRuns, Finish, Signal

_SMALL_BATCHES = 200
"""Number of batches that stay small after a request was served."""


class Hub:
    """Passes notifications between the clients and the workers of one app."""

    def __init__(self) -> None:
        self._on_work: list[Callable[[int | None], None]] = []
        self._on_signal: list[Callable[[int, Signal | None], None]] = []
        self._on_outbox: list[Callable[[], None]] = []
        self._on_schedules: list[Callable[[], None]] = []
        self._on_limits: list[Callable[[], None]] = []
        self._waiting: dict[int, set[asyncio.Future[Finish | None]]] = {}
        self._reading_streams: dict[int, set[asyncio.Future[None]]] = {}
        self._awaiting_reply: set[asyncio.Future[None]] = set()
        self._small_batches_left = 0
        self.store_version: int | None = None
        """The last version of the store that a worker of this process has seen (``Store.wait_for_change``)."""

    def subscribe(
        self,
        on_work: Callable[[int | None], None],
        on_signal: Callable[[int, Signal | None], None],
        on_outbox: Callable[[], None],
    ) -> Callable[[], None]:
        """Add a worker's listeners; returns a function that removes them."""
        self._on_work.append(on_work)
        self._on_signal.append(on_signal)
        self._on_outbox.append(on_outbox)

        def unsubscribe() -> None:
            if on_work in self._on_work:
                self._on_work.remove(on_work)
                self._on_signal.remove(on_signal)
                self._on_outbox.remove(on_outbox)

        return unsubscribe

    def subscribe_to_schedules(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Add a listener for changes of schedules; returns a function that removes it."""
        return _added(listener, self._on_schedules)

    def subscribe_to_limits(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Add a listener for changes of limits; returns a function that removes it."""
        return _added(listener, self._on_limits)

    def schedules_changed(self) -> None:
        """Notify workers that a schedule was created or changed."""
        for listener in self._on_schedules:
            listener()

    def limits_changed(self) -> None:
        """Notify workers that a limit was changed: waiting permits may have room."""
        for listener in self._on_limits:
            listener()

    @property
    def has_workers(self) -> bool:
        """True if a worker of this process listens."""
        return bool(self._on_work)

    def request_served(self) -> None:
        """Record that this event loop serves requests from outside: the worker's next batches are small."""
        self._small_batches_left = _SMALL_BATCHES

    def sharing_loop(self) -> bool:
        """True if the next batch should be small; each call counts as one batch."""
        self._small_batches_left = max(0, self._small_batches_left - 1)
        return self._small_batches_left > 0

    def work(self, due_at: int | None = None) -> None:
        """Notify workers that a task is due now, or at ``due_at``."""
        for listener in self._on_work:
            listener(due_at)

    def outbox_written(self) -> None:
        """Notify workers that outbound events were written."""
        for listener in self._on_outbox:
            listener()

    def signal(self, run: int, signal: Signal | None) -> None:
        """Notify workers of a signal to the owner of a run; None: the run was ended by another writer."""
        for listener in self._on_signal:
            listener(run, signal)

    def affected(self, affected: AffectedRuns) -> None:
        """Notify workers and waiting callers of runs that a write ended or woke."""
        for run in affected.ended:
            self.signal(run, None)
            self.ended(run, None)
        for run in affected.woken:
            self.signal(run, Signal.EVENTS)
        if affected.work or affected.woken:
            self.work()

    def ended(self, run: int, finish: Finish | None) -> None:
        """Notify callers that wait for the end of a run. ``finish`` None: the callers have to read the run."""
        if self._reading_streams:
            self.stream_written(run)
        for future in self._waiting.pop(run, ()):
            if not future.done():
                future.set_result(finish)

    def wait_for_reply(self) -> asyncio.Future[None]:
        """A future that is done when a run in this process has written any reply. Cancel it when it is not needed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaiting_reply.add(future)
        future.add_done_callback(self._awaiting_reply.discard)
        return future

    def replied(self) -> None:
        """Notify all callers that wait for a reply; each reads the store to check whether the reply is its own."""
        for future in list(self._awaiting_reply):
            if not future.done():
                future.set_result(None)

    def wait_for_stream(self, run: int) -> asyncio.Future[None]:
        """A future that is done when a stream of the run may have changed. Cancel it when it is not needed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading_streams.setdefault(run, set()).add(future)
        future.add_done_callback(lambda done: self._forget_reader(run, done))
        return future

    def _forget_reader(self, run: int, future: asyncio.Future[None]) -> None:
        readers = self._reading_streams.get(run)
        if readers is not None:
            readers.discard(future)
            if not readers:
                del self._reading_streams[run]

    @property
    def read_streams(self) -> Collection[int]:
        """Runs of which a stream is being read."""
        return self._reading_streams.keys()

    def stream_written(self, run: int) -> None:
        """Notify the readers of a run's streams that items were written or decided, or that the run has ended."""
        for future in list(self._reading_streams.get(run, ())):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Notify all waiting callers a last time, so that each reads its run from the store."""
        for run in list(self._waiting):
            self.ended(run, None)
        for run in list(self._reading_streams):
            self.stream_written(run)

    @property
    def waited_for(self) -> Collection[int]:
        """Runs for whose end a caller waits."""
        return self._waiting.keys()

    def wait(self, run: int) -> asyncio.Future[Finish | None]:
        """A future that is done when the run ends in this process. Pass it to ``stop_waiting`` when it is unneeded."""
        future: asyncio.Future[Finish | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run, set()).add(future)
        return future

    def stop_waiting(self, run: int, future: asyncio.Future[Finish | None]) -> None:
        waiting = self._waiting.get(run)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[run]


def _added(listener: Callable[[], None], listeners: list[Callable[[], None]]) -> Callable[[], None]:
    listeners.append(listener)
    return lambda: listeners.remove(listener) if listener in listeners else None
