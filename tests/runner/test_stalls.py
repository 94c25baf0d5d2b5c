"""Calls that block the event loop are logged once each, with the stack and the step or workflow that made the call."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Context, Holdfast, InvalidOptionError, WorkerConfig
from holdfast.ports import LocalSpawn, WatchCallback
from holdfast.runner.stalls import StallWatch
from holdfast.testing import Harness

SHORT_LIMIT = WorkerConfig(stall="100 ms")


def block(logged: threading.Event) -> None:
    logged.wait(60)


@pytest.fixture
def logged() -> Iterator[threading.Event]:
    """Set when a call of ``block`` has been logged, however late the watching thread is."""
    event, handler, logger = threading.Event(), logging.Handler(), logging.getLogger("holdfast")

    def emit(record: logging.LogRecord) -> None:
        if _is_of_block(record):
            event.set()

    handler.emit = emit  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield event
    logger.removeHandler(handler)


def stalls(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines of ``block``. On a machine with other work the loop may be late elsewhere, too."""
    return [one.getMessage() for one in caplog.records if _is_of_block(one)]


def all_stalls(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "event loop has been blocked" in one.getMessage()]


def _is_of_block(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return "event loop has been blocked" in text and "in block\n" in text


async def run_once(app: Holdfast, workflow: Any) -> None:
    async with app:
        await (await app.start(workflow, id="o-1")).result(timeout=60)


def blocking_app() -> Holdfast:
    return Holdfast("sqlite://", worker=SHORT_LIMIT)


async def test_a_step_that_blocks_is_logged_once_with_its_stack(
    caplog: pytest.LogCaptureFixture, logged: threading.Event
) -> None:
    app = blocking_app()

    async def charge() -> None:
        block(logged)

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.do("charge", charge)

    await run_once(app, shop)

    [text] = stalls(caplog)
    assert text.startswith(
        "the event loop has been blocked for more than 0.1 s by step 'charge' of run shop/o-1, attempt 1; "
        "make the step a plain function, which runs in a thread, or await the call\n"
    )
    assert "    block(logged)" in text
    assert "    logged.wait(60)" in text
    assert str(Path(holdfast.__file__).parent) not in text  # no frames of the engine
    [record] = [one for one in caplog.records if "blocked" in one.getMessage()]
    assert (record.workflow, record.instance_id, record.step_key) == ("shop", "o-1", "charge")  # type: ignore[attr-defined]


async def test_a_task_of_a_step_that_blocks_is_logged_with_the_step(
    caplog: pytest.LogCaptureFixture, logged: threading.Event
) -> None:
    app = blocking_app()

    async def inner() -> None:
        block(logged)

    async def charge() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner())

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.do("charge", charge)

    await run_once(app, shop)

    [text] = stalls(caplog)
    assert "by step 'charge' of run shop/o-1, attempt 1;" in text
    assert "in inner" in text


async def test_workflow_code_that_blocks_is_logged(caplog: pytest.LogCaptureFixture, logged: threading.Event) -> None:
    app = blocking_app()

    @app.workflow
    async def shop(ctx: Context) -> None:
        block(logged)

    await run_once(app, shop)

    [text] = stalls(caplog)
    assert "by workflow code of run shop/o-1 (run 0); put the call into a step" in text
    assert "    block(logged)" in text


async def test_other_code_on_the_loop_that_blocks_is_logged_with_its_stack(
    caplog: pytest.LogCaptureFixture, logged: threading.Event
) -> None:
    async with blocking_app():
        block(logged)
        await asyncio.sleep(0.05)

    [text] = stalls(caplog)
    assert "by code that is neither a step nor workflow code" in text
    assert "    block(logged)" in text


async def test_two_stalls_are_logged_twice(caplog: pytest.LogCaptureFixture, logged: threading.Event) -> None:
    async with blocking_app():
        for _ in range(2):
            logged.clear()
            block(logged)
            await asyncio.sleep(0.1)

    assert len(stalls(caplog)) == 2


async def test_a_step_in_a_thread_and_short_calls_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = Holdfast("sqlite://")

    def charge() -> None:
        time.sleep(1.5)

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.do("charge", charge)
        time.sleep(0.05)

    await run_once(app, shop)

    assert not [text for text in all_stalls(caplog) if "shop/o-1" in text]


async def test_the_watch_can_be_disabled_and_its_thread_ends_with_the_worker() -> None:
    def watching() -> bool:
        return any(thread.name == "holdfast-watch" for thread in threading.enumerate())

    async with Holdfast("sqlite://", worker=WorkerConfig(stall=None)):
        assert not watching()
    async with Holdfast("sqlite://"):
        assert watching()
    async with asyncio.timeout(60):
        while watching():
            await asyncio.sleep(0.005)


async def test_a_harness_has_no_stall_watch(app: Holdfast) -> None:
    async with Harness(app):
        assert not any(thread.name == "holdfast-watch" for thread in threading.enumerate())


@pytest.mark.parametrize("stall", [0, "soon", -1])
def test_a_bad_stall_limit_is_refused(stall: Any) -> None:
    with pytest.raises(InvalidOptionError, match="stall"):
        WorkerConfig(stall=stall)


# --- suspended processes


class _ManualSpawn(LocalSpawn):
    """Stores the watch callback, which the test calls itself."""

    check: WatchCallback

    def watch(self, check: WatchCallback, seconds: float) -> Callable[[], None]:
        self.check = check
        return lambda: None


async def test_time_during_which_the_process_was_suspended_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    spawn = _ManualSpawn()
    watch = StallWatch(spawn, 1000)
    watch.start()
    spawn.check(0.125, 0.0)

    spawn.check(3600.0, 0.001)
    assert all_stalls(caplog) == []

    for _ in range(8):
        spawn.check(0.125, 0.0)
    watch.stop()
    assert len(all_stalls(caplog)) == 1


async def test_a_call_that_holds_the_interpreter_lock_counts(caplog: pytest.LogCaptureFixture) -> None:
    spawn = _ManualSpawn()
    watch = StallWatch(spawn, 1000)
    watch.start()
    spawn.check(0.125, 0.0)

    spawn.check(2.0, 1.9)
    watch.stop()

    assert len(all_stalls(caplog)) == 1


PROGRAM = """
import asyncio, sys
from holdfast import Holdfast, WorkerConfig

async def main():
    async with Holdfast("sqlite://", worker=WorkerConfig(stall="2 seconds")):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.sleep(0.8)

asyncio.run(main())
"""


def test_a_process_that_continues_after_a_stop_signal_logs_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(4)  # must not count as a stall
        os.kill(process.pid, signal.SIGCONT)
        _, errors = process.communicate("\n", timeout=300)

    assert errors == ""
