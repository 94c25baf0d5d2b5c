"""Handle of a worker process of the demo, for the process that starts and kills it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Sequence


class WorkerProcess:
    """A process that runs ``demo_worker``, and a queue of the reports it has written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reports: deque[Sequence[str]] = deque()
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self, url: str) -> None:
        command = (sys.executable, "-m", "holdfast.cli.demo_worker", url)
        # In a new session, so that Ctrl-C in the terminal reaches only the demo, which then ends its workers.
        self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
        self._reader = asyncio.create_task(self._read_reports(self._process))

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        return self._started().returncode

    @property
    def failed(self) -> bool:
        """True if the process ended without being stopped or killed by the demo."""
        return self._process is not None and self.returncode not in (None, 0, -signal.SIGKILL)

    async def ended(self) -> None:
        """Wait until the process has ended and all its output is in ``reports``."""
        await self._started().wait()
        if self._reader is not None:
            await self._reader

    async def stop(self) -> None:
        """Stop the worker in an orderly way: it releases its tasks."""
        stdin = self._started().stdin
        if stdin is not None:
            stdin.close()
        await self.ended()

    async def kill(self) -> None:
        """Kill the process if it is still running."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _read_reports(self, process: Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            self.reports.append(json.loads(line))

    def _started(self) -> Process:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process
