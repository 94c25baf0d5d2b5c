"""The event loop of simulated users' workflows: idle time is skipped, and I/O is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from random import Random
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from holdfast.kernel.attempt import current_attempt
from holdfast.testing.simulation.loop import SimulatedLoop
from holdfast.testing.simulation.report import SimulationError

_IO = (
    "add_reader", "add_writer", "connect_accepted_socket", "create_connection", "create_datagram_endpoint",
    "create_server", "create_unix_connection", "create_unix_server", "connect_read_pipe", "connect_write_pipe",
    "getaddrinfo", "getnameinfo", "sendfile", "sock_accept", "sock_connect", "sock_recv", "sock_recv_into",
    "sock_sendall", "sock_sendfile", "start_tls", "subprocess_exec", "subprocess_shell",
)  # fmt: skip
"""Methods of an event loop that do I/O."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ScenarioLoop(SimulatedLoop):
    def __init__(self, order: Random, max_callbacks: int) -> None:
        super().__init__(order, max_callbacks)
        self.refused: SimulationError | None = None
        """The first operation of a step that the simulation does not support."""
        self._thread = threading.get_ident()

    def skip_time(self, seconds: float) -> None:
        """Skip idle time. Timers move with it: one that was due in a second is still due in a second."""
        self._time += seconds
        for _, _, timer in self._timers:
            timer._when += seconds  # type: ignore[attr-defined]
        self._timers = [(when + seconds, number, timer) for when, number, timer in self._timers]

    def refuse(self, reason: str) -> NoReturn:
        raise self._record_refusal(reason)

    def _record_refusal(self, reason: str) -> SimulationError:
        attempt = current_attempt.get()
        subject = "A step" if attempt is None else f"Step {attempt.key!r} of {attempt.pid}"
        error = SimulationError(f"{subject} {reason}")
        self.refused = self.refused or error
        return error

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Run the function without interruption in a task: there is only one thread."""
        del executor

        async def call() -> T:
            return func(*args)

        return self.create_task(call())

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Any = None
    ) -> asyncio.Handle:
        if threading.get_ident() == self._thread:
            return self.call_soon(callback, *args, context=context)
        # Recorded, not raised: in the other thread the error would be lost.
        self._record_refusal(
            "works in its own thread, for which virtual time does not wait; use a fake without threads."
        )
        return asyncio.Handle(callback, args, self, context)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: ScenarioLoop, *_args: Any, **_options: Any) -> NoReturn:
        self.refuse(
            f"does I/O ({name}), which a simulation does not support: put a fake in its place, such as a function that "
            "records its calls."
        )

    return refuse


for _name in _IO:
    setattr(ScenarioLoop, _name, _refusing(_name))
