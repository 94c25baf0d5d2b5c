"""``holdfast check``: the open runs of a database on the code of an app, read-only."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checking import Checker, CheckOptions, CheckReport
from holdfast.checking.checker import Progress
from holdfast.cli.errors import WrongUsageError
from holdfast.cli.loading import load_app
from holdfast.cli.redaction import without_password
from holdfast.cli.terminal_text import escape_controls
from holdfast.client.replaying import Replayer
from holdfast.errors import HoldfastError
from holdfast.kernel.requests import Requests
from holdfast.open_app import payload_store
from holdfast.ports import milliseconds
from holdfast.store_url import check_url, make_store

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class CheckCommand:
    """The options of the command line."""

    target: str
    app_dir: Path
    against: str | None
    """The URL of the database; None: that of the app."""
    schema: str | None
    workflow: str | None
    sample: int | None
    junit: Path | None
    processes: int


class CheckFailedError(HoldfastError):
    """The database cannot be read."""

    code = "CHECK_FAILED"


def run(command: CheckCommand) -> int:
    """Check the runs and print the report; return the exit code: 1 if a run does not fit."""
    app = load_app(command.target, command.app_dir)
    url = command.against or app.url
    try:
        check_url(url, command.schema)
        with _progress_line() as progress:
            report = _in_processes(command, progress) if command.processes > 1 else _check(command, 0, progress)
    except WrongUsageError:
        raise
    except Exception as error:
        text = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        raise CheckFailedError(without_password(text, url)) from None
    if not report.checked and command.workflow is not None and command.workflow not in app.registry:
        raise WrongUsageError(
            f"--workflow {command.workflow}: the app has no such workflow, and there are no runs of it"
        )
    if command.junit is not None:
        command.junit.write_text(report.junit(), encoding="utf-8", errors="replace")
    sys.stdout.write(f"{escape_controls(report.text(), keep=NEWLINE)}\n")
    return 0 if report.ok else 1


NEWLINE = "\n"


def _check(command: CheckCommand, part: int, progress: Progress) -> CheckReport:
    """Check the share of one process."""
    app = load_app(command.target, command.app_dir)
    app.registry.check()
    url, schema = command.against or app.url, command.schema or (None if command.against else app.schema)

    async def check() -> CheckReport:
        store = payload_store(app, make_store(url, schema, app.runtime))
        await store.open(migrate=False)
        try:
            requests = Requests(app.registry, app.limits, app.runtime, store.clock)
            strict = app.worker_config.replay == "strict"
            replayer = Replayer(app.registry, requests, milliseconds(store.clock), strict=strict)
            options = CheckOptions(command.workflow, command.sample, part, command.processes)
            return await Checker(store, replayer, app.worker_config.version).check(options, progress)
        finally:
            await store.close()

    return asyncio.run(check())


# --- several processes


def _in_processes(command: CheckCommand, progress: Progress) -> CheckReport:
    spawn = multiprocessing.get_context("spawn")
    counts: Any = spawn.Array("q", 2 * command.processes)
    report = CheckReport(sampled=command.sample is not None)
    with spawn.Pool(command.processes, _set_counts, (counts,)) as pool:
        waiting = [pool.apply_async(_check_part, (command, part)) for part in range(command.processes)]
        while not all(one.ready() for one in waiting):
            waiting[0].wait(_POLL_SECONDS)
            progress(sum(counts[0::2]), sum(counts[1::2]))
        for one in waiting:
            report.merge(one.get())
    return report


_counts: Any = None
"""Checked runs and runs to check of each process, in a worker process."""


def _set_counts(counts: Any) -> None:
    global _counts  # noqa: PLW0603  (a shared array can only be passed when a process starts)
    _counts = counts


def _check_part(command: CheckCommand, part: int) -> CheckReport:
    def progress(checked: int, total: int) -> None:
        _counts[2 * part], _counts[2 * part + 1] = checked, total

    return _check(command, part, progress)


# --- progress


@contextmanager
def _progress_line() -> Iterator[Progress]:
    """Progress on standard error: a line that changes on a terminal, otherwise one line for each tenth."""
    terminal = sys.stderr.isatty()
    shown = -1

    def show(checked: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * checked // total if total else 10
        if terminal:
            sys.stderr.write(f"\rchecked {checked:,} of {total:,} runs")
        elif tenth > shown and total >= 1000:
            sys.stderr.write(f"checked {checked:,} of {total:,} runs\n")
        shown = tenth
        sys.stderr.flush()

    try:
        yield show
    finally:
        if terminal:
            sys.stderr.write("\r\x1b[K")
