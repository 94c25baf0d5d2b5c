"""Hears of other processes' writes by LISTEN; without it, by guessing.

What is heard is a number that moves. A connection that was made anew moves it too, for nobody knows what was missed.
While nothing can be heard, because the server is away or a pooler is in between, it moves by itself every so often:
then everyone looks, as with a poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from holdfast.ports import Randomness
from holdfast.store.postgres.errors import DRIVER

_log = logging.getLogger("holdfast")

_LOOK_S = 1.0
_GUESS_S = 0.5
_FIRST_S = 5.0
_ECHO_S = 2.0
_CHECK_S = 20.0
_LONGEST_PAUSE_S = 10.0


class Listener:
    def __init__(self, connect: Callable[[], Awaitable[Any]], channel: str, by: str, random: Randomness) -> None:
        self._connect = connect
        self._channel = channel
        self._by = by
        self._random = random
        self._number = 1
        self._news = asyncio.Event()
        self._hears = False
        self._echo = asyncio.Event()
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to listen; returns once it hears, or did not manage to."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="holdfast-listener")
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_S):
                await self._tried.wait()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def changed(self, since: int | None) -> int:
        if since != self._number:
            return self._number
        news = self._news
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S if self._hears else _GUESS_S):
                await news.wait()
        if not self._hears and self._number == since:
            self._move()
        return self._number

    def _move(self) -> None:
        self._number += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen()
            except DRIVER as error:
                _log.debug("cannot listen for changes, and guess instead: %s", error)
            except Exception:  # a listener that silently ended would leave everyone waiting
                _log.exception("cannot listen for changes, and guess instead")
            failures = 0 if self._hears else failures + 1
            self._hears = False
            self._tried.set()
            await asyncio.sleep(min(_LONGEST_PAUSE_S, 0.05 * 2 ** min(failures, 10)) * (0.5 + self._random.random()))

    async def _listen(self) -> None:
        """Listen as long as one's own voice is heard: behind a pooler LISTEN is granted, and nothing ever comes."""
        connection = await self._connect()
        closed = asyncio.Event()
        connection.add_termination_listener(lambda _: closed.set())
        try:
            await connection.add_listener(self._channel, self._heard)
            while not closed.is_set() and await self._hears_itself(connection):
                if not self._hears:
                    self._hears = True
                    self._move()
                    self._tried.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_S):
                        await closed.wait()
        finally:
            connection.terminate()

    async def _hears_itself(self, connection: Any) -> bool:
        self._echo.clear()
        try:
            async with asyncio.timeout(_ECHO_S):
                await connection.execute("SELECT pg_notify($1, $2)", self._channel, self._echo_text)
                await self._echo.wait()
        except TimeoutError:
            return False
        return True

    @property
    def _echo_text(self) -> str:
        return f"echo {self._by}"

    def _heard(self, _connection: Any, _pid: int, _channel: str, said: object) -> None:
        if said == self._echo_text:
            self._echo.set()
        elif said != self._by and not str(said).startswith("echo "):
            self._move()
