"""``holdfast dev``: keeps one ``holdfast serve --worker`` running and starts it anew when a source file changes.

It runs no user code, so that code which breaks, hangs or does not even load cannot take it along.
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

_LOOK_SECONDS = 0.25
_PATIENCE_SECONDS = 20.0
_NOT_SOURCES = {"__pycache__", "node_modules", "site-packages"}

Snapshot: TypeAlias = dict[str, tuple[int, int]]


def develop(options: ServeOptions) -> int:
    """Serve until a signal; the exit code."""
    if not options.app_dir.is_dir():
        raise WrongUsageError(f"--app-dir {options.app_dir}: there is no such directory")
    set_up_logging(options.log_level)
    with listening(options.host, options.port) as listener:  # so that a port chosen by the system stays the same
        port: int = listener.getsockname()[1]
    return asyncio.run(Reloader(dataclasses.replace(options, port=port)).run())


def snapshot(directory: Path) -> Snapshot:
    """When each Python file below was changed, and its size."""
    return {entry.path: (entry.stat().st_mtime_ns, entry.stat().st_size) for entry in _sources(str(directory))}


def _sources(directory: str) -> Iterator[os.DirEntry[str]]:
    """Without hidden directories and virtual environments. A file that goes away meanwhile is no file."""
    with suppress(OSError):
        entries = list(os.scandir(directory))
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _NOT_SOURCES:
                    yield from _sources(entry.path)
            elif entry.name.endswith(".py") and entry.is_file():
                yield entry


class Reloader:
    """The life of ``holdfast dev``."""

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
        if not await child.works():
            return _exit_code(await self._end(child))  # it has said why
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
        """Wait for a change, or for the signal. A server that ends by itself is left alone: it would end again."""
        ended = asyncio.ensure_future(child.ended())
        while not self._stopping.is_set():
            now = snapshot(self._options.app_dir)
            if now != before:
                _log.info("%s changed; restarting", _changed(before, now))
                return now
            if ended.done() and self._child is not None:
                self._child = None
                _log.warning("the server ended with exit code %d; waiting for a change", ended.result())
            await _first(self._stopping.wait(), _LOOK_SECONDS)
        return before

    async def _end(self, child: Child) -> int:
        """Ask it to end, and see that it does."""
        child.drain()
        ended = asyncio.ensure_future(child.ended())
        await asyncio.wait([ended], timeout=_PATIENCE_SECONDS)
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
    """As a shell says it."""
    return 128 - code if code < 0 else code


async def _first(waiting: Coroutine[Any, Any, Any], seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(waiting, seconds)


def _changed(before: Snapshot, now: Snapshot) -> str:
    paths = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{Path(paths[0]).name}{more}"
