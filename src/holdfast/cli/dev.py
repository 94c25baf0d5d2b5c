"""``holdfast dev``: keeps one ``holdfast serve --worker`` running and restarts it when a source file changes.

This process runs no user code, so code that crashes, hangs or cannot be imported does not stop it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.cli.errors import WrongUsageError
from holdfast.cli.logs import set_up_logging
from holdfast.cli.server import ServeOptions, listening
from holdfast.cli.supervisor import Child

_log = logging.getLogger("holdfast")

_POLL_SECONDS = 0.25
_STOP_TIMEOUT_SECONDS = 20.0
_IGNORED_DIRECTORIES = {"__pycache__", "node_modules", "site-packages"}

Snapshot: TypeAlias = dict[str, tuple[int, int]]


def develop(options: ServeOptions) -> int:
    """Serve until a signal; return the exit code."""
    if not options.app_dir.is_dir():
        raise WrongUsageError(f"--app-dir {options.app_dir}: there is no such directory")
    set_up_logging(options.log_level, options.log_format)
    with listening(
        options.host, options.port
    ) as listener:  # fixes a port chosen by the system, so that restarts keep it
        port: int = listener.getsockname()[1]
    return asyncio.run(Reloader(dataclasses.replace(options, port=port)).run())


def snapshot(directory: Path) -> Snapshot:
    """Modification time and size of each Python file below ``directory``."""
    return {entry.path: (entry.stat().st_mtime_ns, entry.stat().st_size) for entry in _sources(str(directory))}


def _sources(directory: str) -> Iterator[os.DirEntry[str]]:
    """Python files, without hidden directories and virtual environments. Files removed meanwhile are skipped."""
    with suppress(OSError):
        entries = list(os.scandir(directory))
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _IGNORED_DIRECTORIES:
                    yield from _sources(entry.path)
            elif entry.name.endswith(".py") and entry.is_file():
                yield entry


class Reloader:
    """Runs the server process and restarts it after changes."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._stopping = asyncio.Event()
        self._child: Child | None = None
        self._killed_by = 0

    async def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)
        before = snapshot(self._options.app_dir)
        child = await self._start(hints=True)
        if not await child.started():
            return _exit_code(await self._end(child))  # the child has printed the reason
        while not self._stopping.is_set():
            before = await self._until_changed(child, before)
            await self._end(child)
            if not self._stopping.is_set():
                child = await self._start(hints=False)
        await self._end(child)
        return 128 + self._killed_by if self._killed_by else 0

    async def _start(self, *, hints: bool) -> Child:
        options = dataclasses.replace(self._options, worker=True, hints=hints)
        command = [sys.executable, "-P", "-m", "holdfast.cli", "serve"]
        self._child = await Child.start(command, options.arguments())
        return self._child

    async def _until_changed(self, child: Child, before: Snapshot) -> Snapshot:
        """Wait for a change or a signal. A server that ends on its own is not restarted: it would end again."""
        ended = asyncio.ensure_future(child.ended())
        while not self._stopping.is_set():
            now = snapshot(self._options.app_dir)
            if now != before:
                _log.info("%s changed; restarting", _changed(before, now))
                return now
            if ended.done() and self._child is not None:
                self._child = None
                _log.warning("the server ended with exit code %d; waiting for a change", ended.result())
            await _wait_at_most(self._stopping.wait(), _POLL_SECONDS)
        return before

    async def _end(self, child: Child) -> int:
        """Stop the child in an orderly way, or kill it after a timeout; return its exit code."""
        child.drain()
        ended = asyncio.ensure_future(child.ended())
        await asyncio.wait([ended], timeout=_STOP_TIMEOUT_SECONDS)
        if not ended.done():
            child.kill()
        return await ended

    def _signalled(self, number: int) -> None:
        if self._stopping.is_set():
            self._killed_by = number
            if self._child is not None:
                self._child.kill()
        self._stopping.set()


def _exit_code(code: int) -> int:
    """Exit code as a shell reports it: 128 + N for a process killed by signal N."""
    return 128 - code if code < 0 else code


async def _wait_at_most(wait: Coroutine[Any, Any, Any], seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(wait, seconds)


def _changed(before: Snapshot, now: Snapshot) -> str:
    paths = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{Path(paths[0]).name}{more}"
