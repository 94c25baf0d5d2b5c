"""Hears of other processes' writes by LISTEN; without it, by guessing.

What is heard is a number that moves. A connection that was made anew moves it too, for nobody knows what was missed.
While nothing can be heard, because the server is away or a pooler is in between, it moves by itself every so often:
then everyone looks, as with a poll.

Listeners know of each other: each says hello when it begins, which the others answer, and is heard every so often.
Where nobody else is, single writes are not told at all: to tell takes a tenth of their time. Who was alone and hears of
another tells it that something was written, at once and a little later: a write may have been under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from holdfast.ports import Clock, Randomness
from holdfast.store.postgres.errors import DRIVER

_log = logging.getLogger("holdfast")

_ECHO, _HELLO = "echo", "hello"

_LOOK_S = 1.0
_GUESS_S = 0.5
_FIRST_S = 5.0
_ECHO_S = 2.0
_CHECK_S = 20.0
_FORGET_S = 3 * _CHECK_S
_GRACE_S = 0.1
"""How long others have to answer a hello before they count as not there."""
_UNDER_WAY_S = 1.0
_LONGEST_PAUSE_S = 10.0


class Listener:
    def __init__(
        self, connect: Callable[[], Awaitable[Any]], channel: str, by: str, random: Randomness, clock: Clock
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._by = by
        self._random = random
        self._clock = clock
        self._number = 1
        self._news = asyncio.Event()
        self._hears = False
        self._since = 0.0
        """When it began to hear."""
        self._company = -_FORGET_S
        """When another one was heard last."""
        self._echo = asyncio.Event()
        self._up = asyncio.Event()
        """There is something to do for who listens: to say something, or the connection is gone."""
        self._untold = False
        """Something may have been written that was not told."""
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

    def is_alone(self) -> bool:
        """Nobody else listens."""
        now = self._clock.monotonic()
        return self._hears and now - self._since > _GRACE_S and now - self._company > _FORGET_S

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
        connection.add_termination_listener(lambda _: self._up.set())
        try:
            await connection.add_listener(self._channel, self._heard)
            pooled = await self._say(connection, f"{_HELLO} {self._by}") != connection.get_server_pid()
            if pooled:
                self._tried.set()  # whether it hears takes a while to find out, and the answer is mostly no
            while not connection.is_closed() and await self._hears_itself(connection, pooled=pooled):
                if not self._hears:
                    self._hears, self._since = True, self._clock.monotonic()
                    self._move()
                    self._tried.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_S):
                        await self._up.wait()
                self._up.clear()
                if self._untold:
                    self._untold = False
                    await self._say(connection, self._by)
        finally:
            connection.terminate()

    async def _hears_itself(self, connection: Any, *, pooled: bool) -> bool:
        """``pooled``: through a pooler one hears only what one says oneself, so somebody else has to say it."""
        self._echo.clear()
        caller = await self._connect() if pooled else connection
        try:
            async with asyncio.timeout(_ECHO_S):
                await self._say(caller, f"{_ECHO} {self._by}")
                await self._echo.wait()
        except TimeoutError:
            return False
        finally:
            if pooled:
                caller.terminate()
        return True

    async def _say(self, connection: Any, what: str) -> int:
        """Answers which process of the server said it: a pooler gives its clients numbers of its own."""
        async with connection.transaction():  # a pooler would send the parts of a statement to different servers
            pid: int = await connection.fetchval("SELECT pg_backend_pid() FROM pg_notify($1, $2)", self._channel, what)
        return pid

    def _heard(self, _connection: Any, _pid: int, _channel: str, said: object) -> None:
        what, _, who = str(said).rpartition(" ")
        if who == self._by:
            if what == _ECHO:
                self._echo.set()
        elif what:
            self._met(begins=what == _HELLO)
        else:
            self._move()

    def _met(self, *, begins: bool) -> None:
        was_alone = self.is_alone()
        self._company = self._clock.monotonic()
        if was_alone:
            self._tell()
            asyncio.get_running_loop().call_later(_UNDER_WAY_S, self._tell)
        if begins:
            self._up.set()  # and so be heard

    def _tell(self) -> None:
        self._untold = True
        self._up.set()
