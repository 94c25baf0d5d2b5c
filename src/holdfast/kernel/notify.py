"""Notifications inside a process: who waits for what, woken without asking the store.

They are hints. A lost one costs time (until the next poll), never correctness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from holdfast.store.protocol import Finish, Signal, Touched

_BITES = 200


class Hub:
    """Joins the clients and the worker of one app."""

    def __init__(self) -> None:
        self._on_work: list[Callable[[int | None], None]] = []
        self._on_signal: list[Callable[[int, Signal | None], None]] = []
        self._on_post: list[Callable[[], None]] = []
        self._waiting: dict[int, set[asyncio.Future[Finish | None]]] = {}
        self._asking: set[asyncio.Future[None]] = set()
        self._company = 0

    def join(
        self,
        on_work: Callable[[int | None], None],
        on_signal: Callable[[int, Signal | None], None],
        on_post: Callable[[], None],
    ) -> Callable[[], None]:
        """Add a worker's listeners; the answer takes them away again."""
        self._on_work.append(on_work)
        self._on_signal.append(on_signal)
        self._on_post.append(on_post)

        def leave() -> None:
            if on_work in self._on_work:
                self._on_work.remove(on_work)
                self._on_signal.remove(on_signal)
                self._on_post.remove(on_post)

        return leave

    def visit(self) -> None:
        """A request from outside is answered on this loop: for a while the worker takes small bites."""
        self._company = _BITES

    def in_company(self) -> bool:
        """Whether the next bite should be a small one."""
        self._company = max(0, self._company - 1)
        return self._company > 0

    def work(self, due_at: int | None = None) -> None:
        """A task became due, or will be at a time."""
        for listener in self._on_work:
            listener(due_at)

    def posted(self) -> None:
        """There is something to go out."""
        for listener in self._on_post:
            listener()

    def signal(self, run: int, signal: Signal | None) -> None:
        """Somebody wants something of a run that may be held here; None: it was ended from outside."""
        for listener in self._on_signal:
            listener(run, signal)

    def touched(self, touched: Touched) -> None:
        """A write has changed other runs."""
        for run in touched.ended:
            self.signal(run, None)
            self.ended(run, None)
        for run in touched.woken:
            self.signal(run, Signal.MAIL)
        if touched.work or touched.woken:
            self.work()

    def ended(self, run: int, finish: Finish | None) -> None:
        """A run has come to its end (with what, where that is known)."""
        for future in self._waiting.pop(run, ()):
            if not future.done():
                future.set_result(finish)

    def wait_for_answer(self) -> asyncio.Future[None]:
        """A future that is done when a run here has answered somebody. Cancel it when it is not needed any more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking.add(future)
        future.add_done_callback(self._asking.discard)
        return future

    def answered(self) -> None:
        """A run has answered somebody: all who wait for an answer look."""
        for future in list(self._asking):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Nobody will be told any more: whoever waits looks for himself."""
        for run in list(self._waiting):
            self.ended(run, None)

    @property
    def waited_for(self) -> Collection[int]:
        """The runs whose end somebody waits for."""
        return self._waiting.keys()

    def wait(self, run: int) -> asyncio.Future[Finish | None]:
        """A future that is done when the run ends in this process. Give it back when it is not needed any more."""
        future: asyncio.Future[Finish | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run, set()).add(future)
        return future

    def give_back(self, run: int, future: asyncio.Future[Finish | None]) -> None:
        waiting = self._waiting.get(run)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[run]
