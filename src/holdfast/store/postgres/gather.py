"""Calls that come at the same time become one: one round trip, one transaction, one notification.

It matters more than it seems: PostgreSQL lets only one transaction that notifies commit at a time, in the whole server.
Nobody waits for company: a call goes out at once while there is a writer free, and the calls that come meanwhile
go together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from holdfast.errors import StoreError

A = TypeVar("A")
R = TypeVar("R")

_WRITERS = 4
"""One may have to wait for a lock, and must not hold up the others."""
_MOST = 500


class _Asked(NamedTuple, Generic[A, R]):
    items: Sequence[A]
    answer: asyncio.Future[list[R]]


class Gathered(Generic[A, R]):
    """A function from a list to a list, whose calls are merged."""

    def __init__(self, write: Callable[[list[A]], Awaitable[list[R]]]) -> None:
        self._write = write
        self._queue: deque[_Asked[A, R]] = deque()
        self._writing = 0
        self._serving: set[asyncio.Task[None]] = set()
        """Kept, or they might be collected."""
        self._draining: list[asyncio.Future[None]] = []

    def __call__(self, items: Sequence[A]) -> Awaitable[list[R]]:
        return self._write_alone(list(items)) if self._writing < _WRITERS else self._write_with_others(items)

    async def _write_with_others(self, items: Sequence[A]) -> list[R]:
        answer: asyncio.Future[list[R]] = asyncio.get_running_loop().create_future()
        self._queue.append(_Asked(items, answer))
        return await answer

    async def drain(self) -> None:
        """Wait for what was asked for."""
        while self._writing:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._draining.append(idle)
            await idle

    async def _write_alone(self, items: list[A]) -> list[R]:
        """At once and by the caller itself: a task of its own would take longer to begin than the call to be made."""
        self._writing += 1
        try:
            return await self._write(items)
        finally:
            if self._queue:
                serving = asyncio.get_running_loop().create_task(self._serve())
                self._serving.add(serving)
                serving.add_done_callback(self._serving.discard)
            else:
                self._done()

    async def _serve(self) -> None:
        while self._queue:
            await self._answer(self._next())
        self._done()

    def _done(self) -> None:
        self._writing -= 1
        while self._draining and not self._writing:
            idle = self._draining.pop()
            if not idle.done():
                idle.set_result(None)

    def _next(self) -> list[_Asked[A, R]]:
        taken = [self._queue.popleft()]
        size = len(taken[0].items)
        while self._queue and size + len(self._queue[0].items) <= _MOST:
            size += len(self._queue[0].items)
            taken.append(self._queue.popleft())
        return taken

    async def _answer(self, asked: list[_Asked[A, R]]) -> None:
        try:
            answers = iter(await self._write([item for one in asked for item in one.items]))
        except Exception as error:
            if len(asked) == 1 or isinstance(error, StoreError):
                _fail(asked, error)
            else:  # each alone, so that only the guilty one fails
                for one in asked:
                    await self._answer([one])
            return
        for one in asked:
            found = [next(answers) for _ in one.items]
            if not one.answer.done():
                one.answer.set_result(found)


def _fail(asked: list[_Asked[A, R]], error: Exception) -> None:
    for one in asked:
        if not one.answer.done():
            one.answer.set_exception(error)
