"""``holdfast worker --processes N``: keeps N worker processes alive and ends them together.

It runs no user code. Workers have sessions of their own, so that a terminal's Ctrl-C reaches only this process, and are
told to drain over their lifelines: a service manager that signals every process of the service would otherwise give
them two signals, and the second ends a worker at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from contextlib import suppress

from holdfast.cli.lifeline import READY
from holdfast.cli.logs import set_up_logging
from holdfast.cli.worker import STOP_SIGNALS, WorkerOptions

_log = logging.getLogger("holdfast")

_QUICK_SECONDS = 30.0
"""A worker that lived shorter has died quickly."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


def supervise(options: WorkerOptions, processes: int) -> int:
    """Run so many workers until a signal; the exit code."""
    set_up_logging(options.log_level)
    command = [sys.executable, "-P", "-m", "holdfast.cli", "worker"]
    return asyncio.run(Supervisor(command, options.arguments(), processes).run())


def pause_before_restart(quick_deaths: int) -> float:
    """Seconds to wait after so many quick deaths in a row: none at first, then doubling."""
    if quick_deaths <= 1:
        return 0.0
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(quick_deaths - 2, 10))


class Child:
    """A worker process and the supervisor's end of its lifeline."""

    def __init__(self, process: Process, lifeline: socket.socket) -> None:
        self.pid = process.pid
        self.born = time.monotonic()
        self._process = process
        self._lifeline = lifeline
        self._ended = asyncio.ensure_future(process.wait())

    @classmethod
    async def start(cls, command: Sequence[str], arguments: Sequence[str]) -> Child:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            fd = theirs.fileno()
            line = [*command, f"--lifeline={fd}", *arguments]
            try:
                process = await asyncio.create_subprocess_exec(
                    *line, stdin=DEVNULL, pass_fds=[fd], start_new_session=True
                )
            except BaseException:
                ours.close()
                raise
        return cls(process, ours)

    async def works(self) -> bool:
        """Wait until it works (True) or has ended before it did."""
        said = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(self._lifeline, len(READY)))
        await asyncio.wait([said, self._ended], return_when=asyncio.FIRST_COMPLETED)
        if not said.done():
            said.cancel()
            return False
        return said.result() == READY

    def drain(self) -> None:
        with suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        code = await self._ended
        self._lifeline.close()
        return code

    @property
    def died_quickly(self) -> bool:
        return time.monotonic() - self.born < _QUICK_SECONDS


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
        # Only the first one shows whether the app can be loaded and opened; it has said why, and once is enough.
        if not await first.works():
            return _exit_code(await self._end_of(first))
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

    async def _end_of(self, child: Child) -> int:
        code = await child.ended()
        self._children.discard(child)
        return code

    async def _keep(self, child: Child | None) -> int:
        """Keep one worker alive until the end; the exit code with which the last one drained."""
        quick_deaths = 0
        child = child or await self._start()
        while True:
            code = await self._end_of(child)
            if self._stopping.is_set():
                return code
            quick_deaths = quick_deaths + 1 if child.died_quickly else 1
            pause = pause_before_restart(quick_deaths)
            _log.warning("worker %d ended (%s), restarting it in %g s", child.pid, _how(code), pause)
            restarted = await self._restart(pause)
            if restarted is None:
                return 0
            _log.info("worker %d restarted as %d", child.pid, restarted.pid)
            child = restarted

    async def _restart(self, pause: float) -> Child | None:
        """A new worker after a pause, or None if it is time to stop. The others go on if there is no room for it."""
        while not await self._told_to_stop_within(pause):
            try:
                return await self._start()
            except OSError as error:
                pause = _LONGEST_PAUSE
                _log.warning("cannot start a worker, trying again in %g s: %s", pause, error)
        return None

    async def _told_to_stop_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()


def _exit_code(code: int) -> int:
    """As a shell says it."""
    return 128 - code if code < 0 else code


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
