"""Detection of calls that block the event loop, which stops all runs of the worker.

A timer of the event loop increments a counter several times within the limit, and a thread checks the counter. If the
counter has not changed for the length of the limit, the stack of the loop's thread shows the blocking call, and the
engine's frames in it identify the step or workflow. Time during which the whole process was suspended (SIGSTOP, a
sleeping laptop) is not counted.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from holdfast.core import tracebacks
from holdfast.kernel.attempt import Attempt, current_attempt
from holdfast.ports import Spawn
from holdfast.runner import report
from holdfast.runner.attempts import RunningAttempt
from holdfast.runner.report import Blocker
from holdfast.runner.unit_turns import UnitTurn
from holdfast.store.protocol import RunRecord

_CHECKS_PER_LIMIT = 8
_LATE_SECONDS = 0.5
"""A check that is later than this while the process used little CPU time shows that the process was suspended."""


class StallWatch:
    """Watches the event loop on which it is started."""

    def __init__(self, spawn: Spawn, limit_ms: int) -> None:
        self._spawn = spawn
        self._limit = limit_ms / 1000
        self._pause = self._limit / _CHECKS_PER_LIMIT
        self._thread = 0
        self._beats = 0
        self._seen = 0
        self._silent = 0.0
        """Seconds since the counter last changed, as counted by the thread."""
        self._reported = False
        self._timer: asyncio.TimerHandle | None = None
        self._stop_watch: Callable[[], None] | None = None

    def start(self) -> None:
        self._thread = threading.get_ident()
        self._stop_watch = self._spawn.watch(self._check, self._pause)
        if self._stop_watch is not None:
            self._beat()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stop_watch is not None:
            self._stop_watch()
            self._stop_watch = None

    def _beat(self) -> None:
        self._beats += 1
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._beat)

    def _check(self, waited: float, worked: float) -> None:
        """Check the counter; called in the watching thread."""
        if self._beats != self._seen:
            self._seen, self._silent, self._reported = self._beats, 0.0, False
            return
        if waited > self._pause + _LATE_SECONDS and worked < waited / 2:
            return
        self._silent += waited
        if self._silent >= self._limit and not self._reported and self._stop_watch is not None:
            self._reported = True
            frame = sys._current_frames().get(self._thread)
            report.stalled(*blocker(frame, self._limit))


def blocker(frame: FrameType | None, seconds: float) -> tuple[Blocker, float, str | None]:
    """The step or workflow that the event loop's thread runs, the limit, and the stack below the engine's call."""
    inner: list[FrameType] = []
    while frame is not None:
        known, owner = _KNOWN.get(frame.f_code), frame.f_locals.get("self")
        if known is None and getattr(owner, "runs_workflow_code", False):
            known = _of_workflow_loop
        identified = None if known is None else known(owner)
        if identified is not None:
            return identified, seconds, tracebacks.format_stack(reversed(inner))
        inner.append(frame)
        frame = frame.f_back
    other = Blocker("code that is neither a step nor workflow code", "the stack shows it")
    return other, seconds, tracebacks.format_stack(reversed(inner))


def _of_running(running: Any) -> Blocker:
    return _step(running.key, running.number, running.pid)


def _of_handle(handle: Any) -> Blocker | None:
    """The step of a callback of the loop, for example of a task that a step function has started."""
    attempt: Attempt | None = handle._context.get(current_attempt)
    return None if attempt is None else _step(attempt.key, attempt.number, attempt.pid)


def _of_workflow_loop(loop: Any) -> Blocker | None:
    return None if loop.run is None else _code_of(loop.run)


def _of_unit(turn: Any) -> Blocker:
    return _code_of(turn.claim.run)


def _code_of(run: RunRecord) -> Blocker:
    return Blocker(f"workflow code of run {report.named(run)}", "put the call into a step", run.pid)


def _step(key: str, attempt: int, pid: str) -> Blocker:
    advice = "make the step a plain function, which runs in a thread, or await the call"
    return Blocker(f"step {key!r} of run {pid}, attempt {attempt}", advice, pid, key)


# Only functions of modules that are never compiled: compiled functions have no frames.
_KNOWN: dict[CodeType, Callable[[Any], Blocker | None]] = {
    RunningAttempt._run.__code__: _of_running,
    UnitTurn._begin.__code__: _of_unit,
    asyncio.Handle._run.__code__: _of_handle,
}
