"""Worker processes, forked from a process that has everything imported, so that one starts in milliseconds.

They end when the process that started them ends, also if it is killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from postgres_server import die_with_parent

from .waiting import until

_PRELOADED = ["asyncpg", "chaos.program", "holdfast.app"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_PRELOADED)


class Child:
    """A process and its log."""

    def __init__(self, log: Path, target: Callable[..., None], **spec: Any) -> None:
        self.log = log
        self._process: BaseProcess = _context.Process(target=_run, args=(str(log), target, spec), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._process.exitcode

    @property
    def alive(self) -> bool:
        return self.code is None

    @property
    def stopped(self) -> bool:
        """True if the process is stopped by SIGSTOP."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except FileNotFoundError:
            return False

    def send(self, number: int) -> None:
        if self.alive:
            os.kill(self.pid, number)

    async def end(self, number: int = signal.SIGTERM, seconds: float = 120) -> int:
        """Send a signal that ends the process; returns the exit code. SIGTERM is sent when the process handles it."""
        if number == signal.SIGTERM:
            await until(lambda: not self.alive or self._catches(number), "the process does not start", seconds)
        self.send(number)
        await until(lambda: not self.alive, lambda: f"the process does not stop: {self.log_text()[-3000:]}", seconds)
        assert self.code is not None
        return self.code

    def _catches(self, number: int) -> bool:
        """True if the process has a handler for a signal, or if this system does not tell."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except FileNotFoundError:
            return True
        [caught] = [line for line in status.splitlines() if line.startswith("SigCgt:")]
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def _run(log: str, target: Callable[..., None], spec: dict[str, Any]) -> None:
    die_with_parent(signal.SIGKILL)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    target(**spec)
