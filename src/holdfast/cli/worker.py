"""``holdfast worker``: one worker process, which runs until a signal or until its supervisor stops it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.app import Holdfast
from holdfast.cli.errors import WrongUsageError
from holdfast.cli.loading import load_app, split_target
from holdfast.cli.logs import set_up_logging
from holdfast.cli.metrics_server import metrics_server
from holdfast.cli.redaction import without_password
from holdfast.cli.supervisor_link import SupervisorLink
from holdfast.core.collector import tune_collector
from holdfast.core.durations import describe, to_ms
from holdfast.errors import InvalidDurationError
from holdfast.runner.config import WorkerConfig
from holdfast.store_url import shown_url

_log = logging.getLogger("holdfast")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CLOSE_SECONDS = 10.0
"""Time for closing the database after the drain; a worker whose supervisor has ended then exits."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of the command line; None and () mean the setting of the app."""

    target: str
    app_dir: Path
    concurrency: int | None = None
    queues: tuple[str, ...] = ()
    drain: str | None = None
    log_level: str | None = None
    log_format: str | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_ports: int = 1
    """Number of ports from ``metrics_port`` on: several worker processes take one each."""

    def __post_init__(self) -> None:
        split_target(self.target)
        _queues(self.queues)
        if self.drain is not None:
            _seconds_or_text(self.drain)

    def applied_to(self, config: WorkerConfig) -> WorkerConfig:
        changes: dict[str, Any] = {}
        if self.concurrency is not None:
            changes["concurrency"] = self.concurrency
        if self.queues:
            changes["queues"] = _queues(self.queues)
        if self.drain is not None:
            changes["drain"] = _seconds_or_text(self.drain)
        return dataclasses.replace(config, **changes)

    def arguments(self) -> list[str]:
        """These options as arguments of another ``holdfast worker``."""
        named = [("--app-dir", self.app_dir), ("--concurrency", self.concurrency), ("--drain", self.drain)]
        named += [("--log-level", self.log_level), ("--log-format", self.log_format)]
        if self.metrics_port is not None:
            named += [("--metrics-port", self.metrics_port), ("--metrics-host", self.metrics_host)]
            named += [("--metrics-ports", self.metrics_ports)]
        named += [("--queue", queue) for queue in self.queues]
        return [*(f"{name}={value}" for name, value in named if value is not None), "--", self.target]


def _queues(texts: Sequence[str]) -> tuple[str, ...] | dict[str, int]:
    """The queues of ``--queue``: names, or names with shares such as ``bulk=20,default=80``."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    if not all(parts):
        raise WrongUsageError("--queue: the name of a queue must not be empty")
    shares = [part.rpartition("=") for part in parts]
    if not any(equals for _, equals, _ in shares):
        return tuple(dict.fromkeys(parts))
    if not all(name and share.isdecimal() and int(share) > 0 for name, _, share in shares):
        raise WrongUsageError("--queue: either every queue has a share, a positive whole number, or none: bulk=20")
    return {name: int(share) for name, _, share in shares}


def _seconds_or_text(drain: str) -> float | str:
    value: float | str = drain
    with suppress(ValueError):
        value = float(drain)
    try:
        to_ms(value, "--drain")
    except InvalidDurationError as error:
        raise WrongUsageError(str(error)) from None
    return value


def work(options: WorkerOptions, supervisor_fd: int | None) -> None:
    _end_at_signals()  # before the database is open there is no task to release
    app = load_app(options.target, options.app_dir)
    tune_collector()
    set_up_logging(options.log_level, options.log_format)
    app.worker_config = options.applied_to(app.worker_config)
    if options.metrics_port is not None:
        app.collect_metrics()
    asyncio.run(_work(app, options, SupervisorLink(supervisor_fd) if supervisor_fd is not None else None))


def _metrics(app: Holdfast, options: WorkerOptions) -> AbstractAsyncContextManager[object]:
    if options.metrics_port is None:
        return nullcontext()
    return metrics_server(app, options.metrics_host, options.metrics_port, options.metrics_ports)


async def _work(app: Holdfast, options: WorkerOptions, link: SupervisorLink | None) -> None:
    config, pid = app.worker_config, os.getpid()
    stopping = asyncio.Event()
    stop = _threadsafe_set(stopping)
    _drain_at_signals(stop)
    if link is not None:
        link.watch(stop, config.drain_ms / 1000 + _CLOSE_SECONDS)
    async with app, _metrics(app, options):
        _log_start(app)
        if link is not None:
            link.ready()
        await stopping.wait()
        _log.info(
            "worker %d draining: steps in flight have %s; a second signal ends it at once", pid, _drain_text(config)
        )
    _log.info("worker %d stopped", pid)


def _threadsafe_set(event: asyncio.Event) -> Callable[[], None]:
    """A function that sets the event from a signal handler or a thread, also after the loop is closed."""
    loop = asyncio.get_running_loop()

    def set_event() -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(event.set)

    return set_event


def _drain_at_signals(stop: Callable[[], None]) -> None:
    """Drain at the first signal.

    The signal handlers of the event loop are not used: a step that blocks the loop would delay them.
    """

    def drain(_number: int, _frame: FrameType | None) -> None:
        _end_at_signals()
        stop()

    for number in STOP_SIGNALS:
        signal.signal(number, drain)


def _end_at_signals() -> None:
    """End this process at the next signal, by the default handling of the system, which no Python code can delay.

    The system does not end process 1, which a worker is in most containers, so process 1 exits in a handler.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _exit if os.getpid() == 1 else signal.SIG_DFL)


def _exit(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def _log_start(app: Holdfast) -> None:
    queues, database = ", ".join(app.worker_config.queues), without_password(shown_url(app.url), app.url)
    _log.info("worker %d started: queues %s; database %s", os.getpid(), queues, database)
    if not app.registry.runnable():
        _log.warning("the app has no workflows, so no run will be claimed: import the modules that register them")


def _drain_text(config: WorkerConfig) -> str:
    return f"{describe(config.drain_ms)} to end" if config.drain_ms else "no time to end"
