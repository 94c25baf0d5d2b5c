"""The loop in which users' workflows are simulated: time is skipped while everything rests, and there is no I/O."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from random import Random
from typing import Any, NoReturn

from holdfast.kernel.attempt import current_attempt
from holdfast.testing.simulation.loop import SimulatedLoop
from holdfast.testing.users.report import SimulationError

_IO = (
    "add_reader", "add_writer", "connect_accepted_socket", "create_connection", "create_datagram_endpoint",
    "create_server", "create_unix_connection", "create_unix_server", "connect_read_pipe", "connect_write_pipe",
    "getaddrinfo", "getnameinfo", "sendfile", "sock_accept", "sock_connect", "sock_recv", "sock_recv_into",
    "sock_sendall", "sock_sendfile", "start_tls", "subprocess_exec", "subprocess_shell",
)  # fmt: skip
"""Methods of a loop that reach the world outside."""


class UsersLoop(SimulatedLoop):
    def __init__(self, order: Random, most_callbacks: int) -> None:
        super().__init__(order, most_callbacks)
        self.refused: SimulationError | None = None
        """The first thing that somebody wanted and a simulation cannot do."""
        self._thread = threading.get_ident()

    def pass_time(self, seconds: float) -> None:
        """Let time pass in which nothing happens: what was to come in a second still comes in a second."""
        self._time += seconds
        for _, _, timer in self._timers:
            timer._when += seconds  # type: ignore[attr-defined]
        self._timers = [(when + seconds, number, timer) for when, number, timer in self._timers]

    def refuse(self, what: str) -> NoReturn:
        raise self._remember(what)

    def _remember(self, what: str) -> SimulationError:
        attempt = current_attempt.get()
        where = "A step" if attempt is None else f"Step {attempt.key!r} of {attempt.pid}"
        error = SimulationError(f"{where} {what}")
        self.refused = self.refused or error
        return error

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """There is one thread: the function runs whole, in a turn of its own."""

        async def whole() -> Any:
            return func(*args)

        return self.create_task(whole())

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        if threading.get_ident() == self._thread:
            return self.call_soon(callback, *args, context=context)
        # Not raised: that would be in the other thread, where nobody hears it.
        self._remember(
            "works in a thread of its own, for which virtual time does not wait; use a fake without threads."
        )
        return asyncio.Handle(callback, args, self, context)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: UsersLoop, *_args: Any, **_options: Any) -> NoReturn:
        self.refuse(
            f"does I/O ({name}), and in a simulation there is none: put a fake in its place, such as a function that "
            "remembers what it was asked for."
        )

    return refuse


for _name in _IO:
    setattr(UsersLoop, _name, _refusing(_name))
