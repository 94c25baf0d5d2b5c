"""``holdfast worker --processes N``: keeps N worker processes running and ends them together.

The supervisor runs no user code. Each worker has its own session, so that Ctrl-C in a terminal reaches only the
supervisor. The supervisor drains workers over their supervisor links, not by signals: with a service manager that
signals every process of the service, workers would receive two signals, and the second ends a worker at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from contextlib import suppress

from holdfast.cli.logs import set_up_logging
from holdfast.cli.supervisor_link import READY
from holdfast.cli.worker import STOP_SIGNALS, WorkerOptions

_log = logging.getLogger("holdfast")

_QUICK_EXIT_SECONDS = 30.0
"""A worker process that ends within this time after its start counts as a quick exit."""
_FIRST_DELAY, _MAX_DELAY = 0.5, 30.0


def supervise(options: WorkerOptions, processes: int) -> int:
    """Run ``processes`` workers until a signal; return the exit code."""
    set_up_logging(options.log_level, options.log_format)
    options = dataclasses.replace(options, metrics_ports=processes)
    command = [sys.executable, "-P", "-m", "holdfast.cli", "worker"]
    return asyncio.run(Supervisor(command, options.arguments(), processes).run())


def restart_delay(quick_exits: int) -> float:
    """Seconds to wait after this number of consecutive quick exits: 0 after the first, then doubling."""
    if quick_exits <= 1:
        return 0.0
    return min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** min(quick_exits - 2, 10))


class Child:
    """A worker process, and the supervisor's end of its supervisor link."""

    def __init__(self, process: Process, link: socket.socket) -> None:
        self.pid = process.pid
        self._started_at = time.monotonic()
        self._process = process
        self._link = link
        self._ended = asyncio.ensure_future(process.wait())

    @classmethod
    async def start(cls, command: Sequence[str], arguments: Sequence[str]) -> Child:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            fd = theirs.fileno()
            words = [*command, f"--supervisor-fd={fd}", *arguments]
            try:
                process = await asyncio.create_subprocess_exec(
                    *words, stdin=DEVNULL, pass_fds=[fd], start_new_session=True
                )
            except BaseException:
                ours.close()
                raise
        return cls(process, ours)

    async def started(self) -> bool:
        """Wait until the process reports that it is ready (True) or ends before that (False)."""
        message = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(self._link, len(READY)))
        await asyncio.wait([message, self._ended], return_when=asyncio.FIRST_COMPLETED)
        if not message.done():
            message.cancel()
            return False
        return message.result() == READY

    def drain(self) -> None:
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> int:
        """Wait for the end of the process; return its exit code."""
        code = await self._ended
        self._link.close()
        return code

    @property
    def ended_quickly(self) -> bool:
        return time.monotonic() - self._started_at < _QUICK_EXIT_SECONDS


class Supervisor:
    """Starts, watches, replaces and ends the workers."""

    def __init__(self, command: Sequence[str], arguments: Sequence[str], processes: int) -> None:
        self._command = command
        self._arguments = arguments
        self._processes = processes
        self._children: set[Child] = set()
        self._stopping = asyncio.Event()
        self._killed_by = 0

    async def run(self) -> int:
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)
        _log.info("supervisor %d started: %d workers", os.getpid(), self._processes)
        first = await self._start()
        # The others start only after the first has loaded and opened the app, so that an error is printed only once.
        if not await first.started():
            return _exit_code(await self._wait_for_end(first))
        codes = await asyncio.gather(self._keep(first), *(self._keep(None) for _ in range(1, self._processes)))
        _log.info("supervisor %d stopped", os.getpid())
        if self._killed_by:
            return 128 + self._killed_by
        return max(_exit_code(code) for code in codes)

    def _signalled(self, number: int) -> None:
        if self._stopping.is_set():
            self._killed_by = number
        self._stopping.set()
        for child in self._children:
            if self._killed_by:
                child.kill()
            else:
                child.drain()

    async def _start(self) -> Child:
        child = await Child.start(self._command, self._arguments)
        self._children.add(child)
        if self._killed_by:
            child.kill()
        elif self._stopping.is_set():
            child.drain()
        return child

    async def _wait_for_end(self, child: Child) -> int:
        code = await child.ended()
        self._children.discard(child)
        return code

    async def _keep(self, child: Child | None) -> int:
        """Keep one worker running until the supervisor stops; return the exit code of the last process."""
        quick_exits = 0
        child = child or await self._start()
        while True:
            code = await self._wait_for_end(child)
            if self._stopping.is_set():
                return code
            quick_exits = quick_exits + 1 if child.ended_quickly else 1
            delay = restart_delay(quick_exits)
            _log.warning("worker %d ended (%s), restarting it in %g s", child.pid, _exit_reason(code), delay)
            restarted = await self._restart(delay)
            if restarted is None:
                return 0
            _log.info("worker %d restarted as %d", child.pid, restarted.pid)
            child = restarted

    async def _restart(self, delay: float) -> Child | None:
        """Start a worker after a delay; return None if the supervisor stops meanwhile.

        While the system cannot start a process, the other workers continue.
        """
        while not await self._stopping_within(delay):
            try:
                return await self._start()
            except OSError as error:
                delay = _MAX_DELAY
                _log.warning("cannot start a worker, trying again in %g s: %s", delay, error)
        return None

    async def _stopping_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()


def _exit_code(code: int) -> int:
    """Exit code as a shell reports it: 128 + N for a process killed by signal N."""
    return 128 - code if code < 0 else code


def _exit_reason(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
