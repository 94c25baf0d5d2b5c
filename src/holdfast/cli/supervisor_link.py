"""The link between a worker process and its supervisor: a pair of sockets.

The worker sends one message, when it is ready. The supervisor sends none: closing its end is the request to stop,
whether the supervisor closed the socket or was killed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.ports import start_thread

READY = b"+"


class SupervisorLink:
    """The worker's end of the link."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # programs started by steps must not keep the socket open
        self._socket = socket.socket(fileno=fd)

    def ready(self) -> None:
        with suppress(OSError):  # the supervisor has ended; ``watch`` stops this process
            self._socket.send(READY)

    def watch(self, stop: Callable[[], None], timeout: float) -> None:
        """Call ``stop`` when the supervisor's end is closed, and exit this process if it runs ``timeout`` s longer.

        The watch runs in a thread, because user code may block the event loop.
        """
        start_thread(lambda: self._watch(stop, timeout), "holdfast-supervisor-link")

    def _watch(self, stop: Callable[[], None], timeout: float) -> None:
        with suppress(OSError):
            self._socket.recv(1)
        stop()
        time.sleep(timeout)
        os._exit(1)
