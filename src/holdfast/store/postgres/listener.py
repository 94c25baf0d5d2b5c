"""Notices writes of other processes by LISTEN; without it, by polling.

A change is a new value of a counter. A new connection also increments it, because notifications may have been missed.
While no notifications arrive, because the server is unavailable or a pooler is in between, the counter is incremented
at intervals, and callers query the store as with polling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from holdfast.ports import Randomness
from holdfast.store.postgres.errors import DRIVER_ERRORS
from holdfast.store.retry import backoff

_log = logging.getLogger("holdfast")

_ECHO = "echo"
_STREAM = "stream"

_WAIT_S = 1.0
_POLL_S = 0.5
_START_TIMEOUT_S = 5.0
_ECHO_S = 2.0
_CHECK_INTERVAL_S = 20.0
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 10.0


class Listener:
    def __init__(self, connect: Callable[[], Awaitable[Any]], channel: str, store_id: str, random: Randomness) -> None:
        self._connect = connect
        self._channel = channel
        self._store_id = store_id
        self._random = random
        self._counter = 1
        self._stream_counter = 1
        """Incremented with ``_counter``, and by notifications of items of streams."""
        self._stream_changed = asyncio.Event()
        self._changed = asyncio.Event()
        self._receives = False
        self._echo = asyncio.Event()
        self._closed = asyncio.Event()
        """The connection was closed."""
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start listening; returns once notifications arrive, or the first attempt failed."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="holdfast-listener")
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._tried.wait()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def wait_for_change(self, since: int | None, *, streams: bool = False) -> int:
        if since != self._version(streams=streams):
            return self._version(streams=streams)
        changed = self._stream_changed if streams else self._changed
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S if self._receives else _POLL_S):
                await changed.wait()
        if not self._receives and self._version(streams=streams) == since:
            self._increment()
        return self._version(streams=streams)

    def _version(self, *, streams: bool) -> int:
        return self._stream_counter if streams else self._counter

    def _increment(self) -> None:
        self._counter += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._increment_streams()

    def _increment_streams(self) -> None:
        self._stream_counter += 1
        changed, self._stream_changed = self._stream_changed, asyncio.Event()
        changed.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen()
            except DRIVER_ERRORS as error:
                _log.debug("cannot listen for changes; polling instead: %s", error)
            except Exception:  # a listener that ended silently would leave all callers waiting
                _log.exception("cannot listen for changes; polling instead")
            failures = 0 if self._receives else failures + 1
            self._receives = False
            self._tried.set()
            await asyncio.sleep(backoff(failures + 1, self._random, _FIRST_BACKOFF_S, _MAX_BACKOFF_S))

    async def _listen(self) -> None:
        """Listen while test notifications arrive: behind a pooler LISTEN succeeds, but no notification ever arrives."""
        connection = await self._connect()
        connection.add_termination_listener(lambda _: self._closed.set())
        try:
            await connection.add_listener(self._channel, self._on_notification)
            pooled = await self._send_echo(connection) != connection.get_server_pid()
            if pooled:
                self._tried.set()  # the check below takes time, and mostly fails behind a pooler
            while not connection.is_closed() and await self._receives_own(connection, pooled=pooled):
                if not self._receives:
                    self._receives = True
                    self._increment()
                    self._tried.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_INTERVAL_S):
                        await self._closed.wait()
                self._closed.clear()
        finally:
            connection.terminate()

    async def _receives_own(self, connection: Any, *, pooled: bool) -> bool:
        """True if a test notification arrives.

        ``pooled``: another connection sends it, because through a pooler a connection receives only its own.
        """
        self._echo.clear()
        sender_connection = await self._connect() if pooled else connection
        try:
            async with asyncio.timeout(_ECHO_S):
                await self._send_echo(sender_connection)
                await self._echo.wait()
        except TimeoutError:
            return False
        finally:
            if pooled:
                sender_connection.terminate()
        return True

    async def _send_echo(self, connection: Any) -> int:
        """Send a test notification; returns the server process's pid. A pooler reports another pid to the driver."""
        async with connection.transaction():  # a pooler could send the parts of a statement to different servers
            sql = "SELECT pg_backend_pid() FROM pg_notify($1, $2)"
            pid: int = await connection.fetchval(sql, self._channel, f"{_ECHO} {self._store_id}")
        return pid

    def _on_notification(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        kind, _, sender = str(payload).rpartition(" ")
        if sender == self._store_id:
            if kind == _ECHO:
                self._echo.set()
        elif kind == _STREAM:
            self._increment_streams()
        elif not kind:
            self._increment()
