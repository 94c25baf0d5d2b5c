"""A worker process of the demo, seen from the process that starts and kills it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Sequence


class WorkerProcess:
    """Runs ``demo_worker`` and keeps what it says until somebody takes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.said: deque[Sequence[str]] = deque()
        self._process: Process | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self, url: str) -> None:
        command = (sys.executable, "-m", "holdfast.cli.demo_worker", url)
        # A session of its own: Ctrl-C in the terminal is for the demo, which then ends its workers.
        self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
        self._listening = asyncio.create_task(self._listen(self._process))

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        return self._started().returncode

    @property
    def failed(self) -> bool:
        """It ended, and nobody wanted it to."""
        return self._process is not None and self.returncode not in (None, 0, -signal.SIGKILL)

    async def ended(self) -> None:
        """Wait until it is gone and everything it said is in ``said``."""
        await self._started().wait()
        if self._listening is not None:
            await self._listening

    async def stop(self) -> None:
        """Let it finish in order: it gives back what it holds."""
        stdin = self._started().stdin
        if stdin is not None:
            stdin.close()
        await self.ended()

    async def kill(self) -> None:
        """Leave nothing behind."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _listen(self, process: Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            self.said.append(json.loads(line))

    def _started(self) -> Process:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process
