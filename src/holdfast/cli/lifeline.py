"""What ties a worker process to its supervisor: a pair of sockets.

The worker says once that it works. The supervisor says nothing: that its end is closed is the message to stop,
whether it was closed on purpose or by the supervisor's death.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.ports import start_thread

READY = b"+"


class Lifeline:
    """The worker's end."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # programs that steps start have no business with it
        self._socket = socket.socket(fileno=fd)

    def ready(self) -> None:
        with suppress(OSError):  # the supervisor is gone: whoever watches knows
            self._socket.send(READY)

    def watch(self, closed: Callable[[], None], patience: float) -> None:
        """Call ``closed`` when the other end is, and end this process if it still lives so many seconds later.

        In a thread: user code that blocks the event loop must not outlive its supervisor for ever.
        """
        start_thread(lambda: self._watch(closed, patience), "holdfast-lifeline")

    def _watch(self, closed: Callable[[], None], patience: float) -> None:
        with suppress(OSError):
            self._socket.recv(1)
        closed()
        time.sleep(patience)
        os._exit(1)
