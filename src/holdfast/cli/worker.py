"""``holdfast worker``: one process that works until a signal, or its supervisor, tells it to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.app import Holdfast, shown_url
from holdfast.cli import memory
from holdfast.cli.errors import WrongUsageError
from holdfast.cli.lifeline import Lifeline
from holdfast.cli.loading import load_app, split_target
from holdfast.cli.logs import set_up_logging
from holdfast.cli.secret import without_password
from holdfast.core.durations import describe, to_ms
from holdfast.errors import InvalidDurationError
from holdfast.runner.config import WorkerConfig

_log = logging.getLogger("holdfast")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PATIENCE_SECONDS = 10.0
"""What a worker without a supervisor gets on top of its drain, to close the database."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What was asked for on the command line; None and () leave it to the app."""

    target: str
    app_dir: Path
    concurrency: int | None = None
    queues: tuple[str, ...] = ()
    drain: str | None = None
    log_level: str | None = None

    def __post_init__(self) -> None:
        split_target(self.target)
        if not all(self.queues):
            raise WrongUsageError("--queue: a queue has a name")
        if self.drain is not None:
            _seconds_or_text(self.drain)

    def applied_to(self, config: WorkerConfig) -> WorkerConfig:
        changes: dict[str, Any] = {}
        if self.concurrency is not None:
            changes["concurrency"] = self.concurrency
        if self.queues:
            changes["queues"] = tuple(dict.fromkeys(self.queues))
        if self.drain is not None:
            changes["drain"] = _seconds_or_text(self.drain)
        return dataclasses.replace(config, **changes)

    def arguments(self) -> list[str]:
        """The same, for another ``holdfast worker``."""
        named = [("--app-dir", self.app_dir), ("--concurrency", self.concurrency), ("--drain", self.drain)]
        named += [("--log-level", self.log_level), *(("--queue", queue) for queue in self.queues)]
        return [*(f"{name}={value}" for name, value in named if value is not None), "--", self.target]


def _seconds_or_text(drain: str) -> float | str:
    value: float | str = drain
    with suppress(ValueError):
        value = float(drain)
    try:
        to_ms(value, "--drain")
    except InvalidDurationError as error:
        raise WrongUsageError(str(error)) from None
    return value


def work(options: WorkerOptions, lifeline: int | None) -> None:
    _end_at_signals()  # until the database is open there is nothing to give back
    app = load_app(options.target, options.app_dir)
    memory.settle()
    set_up_logging(options.log_level)
    app.worker_config = options.applied_to(app.worker_config)
    asyncio.run(_work(app, Lifeline(lifeline) if lifeline is not None else None))


async def _work(app: Holdfast, lifeline: Lifeline | None) -> None:
    config, pid = app.worker_config, os.getpid()
    stop = asyncio.Event()
    tell = _from_anywhere(stop)
    _drain_at_signals(tell)
    if lifeline is not None:
        lifeline.watch(tell, config.drain_ms / 1000 + _PATIENCE_SECONDS)
    async with app:
        _say_started(app)
        if lifeline is not None:
            lifeline.ready()
        await stop.wait()
        _log.info("worker %d draining: steps in flight have %s; a second signal ends it at once", pid, _drain(config))
    _log.info("worker %d stopped", pid)


def _from_anywhere(stop: asyncio.Event) -> Callable[[], None]:
    """Sets the event from a signal handler or a thread, also when the loop is over."""
    loop = asyncio.get_running_loop()

    def tell() -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)

    return tell


def _drain_at_signals(tell: Callable[[], None]) -> None:
    """The first signal drains. Not by the loop's handlers: they would wait behind a step that blocks the loop."""

    def drain(_number: int, _frame: FrameType | None) -> None:
        _end_at_signals()
        tell()

    for number in STOP_SIGNALS:
        signal.signal(number, drain)


def _end_at_signals() -> None:
    """The next signal ends this process; by the system itself, so that no code here can hold it up.

    Process 1, which a worker is in most containers, is not ended by the system.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _exit if os.getpid() == 1 else signal.SIG_DFL)


def _exit(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def _say_started(app: Holdfast) -> None:
    queues, database = ", ".join(app.worker_config.queues), without_password(shown_url(app.url), app.url)
    _log.info("worker %d started: queues %s; database %s", os.getpid(), queues, database)
    if not app.registry.runnable():
        _log.warning("the app has no workflows: import the modules that register them, or nothing will be run")


def _drain(config: WorkerConfig) -> str:
    return f"{describe(config.drain_ms)} to end" if config.drain_ms else "no time to end"
