"""Finds calls that block the event loop: all runs of the worker stand still meanwhile.

The loop counts a beat several times within the limit, and a thread looks whether it does. If no beat came for as long
as the limit, the stack of the loop's thread shows the call, and the engine's frames in it show whose call it is. A
process that is suspended (SIGSTOP, a laptop that sleeps) does not look either: such a pause is not counted.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from holdfast.core import traces
from holdfast.kernel.attempt import Attempt, current_attempt
from holdfast.ports import Spawn
from holdfast.runner import report
from holdfast.runner.attempts import Running
from holdfast.runner.report import Blocker
from holdfast.runner.turn import Turn
from holdfast.runner.units import UnitTurn

_LOOKS = 8
"""Looks within the limit."""
_LATE_SECONDS = 0.5
"""A look that comes so much too late while the process did not work: it was suspended."""


class StallWatch:
    """Watches the event loop that it is started on."""

    def __init__(self, spawn: Spawn, limit_ms: int) -> None:
        self._spawn = spawn
        self._limit = limit_ms / 1000
        self._pause = self._limit / _LOOKS
        self._thread = 0
        self._beats = 0
        self._seen = 0
        self._silent = 0.0
        """Seconds of silence that the thread has seen since the last beat."""
        self._reported = False
        self._timer: asyncio.TimerHandle | None = None
        self._end: Callable[[], None] | None = None

    def start(self) -> None:
        self._thread = threading.get_ident()
        self._end = self._spawn.watch(self._look, self._pause)
        if self._end is not None:
            self._beat()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._end is not None:
            self._end()
            self._end = None

    def _beat(self) -> None:
        self._beats += 1
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._beat)

    def _look(self, waited: float, worked: float) -> None:
        """Called in the watching thread."""
        if self._beats != self._seen:
            self._seen, self._silent, self._reported = self._beats, 0.0, False
            return
        if waited > self._pause + _LATE_SECONDS and worked < waited / 2:
            return
        self._silent += waited
        if self._silent >= self._limit and not self._reported and self._end is not None:
            self._reported = True
            frame = sys._current_frames().get(self._thread)  # noqa: SLF001  (documented)
            report.stalled(*blocker(frame, self._limit))


def blocker(frame: FrameType | None, seconds: float) -> tuple[Blocker, float, str | None]:
    """Whose call the innermost frame of the event loop's thread belongs to, and the stack below the engine's call."""
    inner: list[FrameType] = []
    while frame is not None:
        known = _KNOWN.get(frame.f_code)
        found = None if known is None else known(frame.f_locals.get("self"))
        if found is not None:
            return found, seconds, traces.stack(reversed(inner))
        inner.append(frame)
        frame = frame.f_back
    other = Blocker("code that is neither a step nor workflow code", "the stack shows it")
    return other, seconds, traces.stack(reversed(inner))


def _of_running(running: Any) -> Blocker:
    return _step(running.key, running.number, running.pid)


def _of_handle(handle: Any) -> Blocker | None:
    """A callback of the loop, such as a step of a task that a step function has started."""
    attempt: Attempt | None = handle._context.get(current_attempt)  # noqa: SLF001  (asyncio has no other way)
    return None if attempt is None else _step(attempt.key, attempt.number, attempt.pid)


def _of_turn(turn: Any) -> Blocker:
    run = turn.claim.run
    return Blocker(f"workflow code of run {report.named(run)}", "put the call into a step", run.pid)


def _step(key: str, attempt: int, pid: str) -> Blocker:
    advice = "make the step a plain function, which runs in a thread, or await the call"
    return Blocker(f"step {key!r} of run {pid}, attempt {attempt}", advice, pid, key)


_KNOWN: dict[CodeType, Callable[[Any], Blocker | None]] = {
    Running._run.__code__: _of_running,  # noqa: SLF001  (frames of the engine itself)
    Turn._advance.__code__: _of_turn,  # noqa: SLF001
    UnitTurn._begin.__code__: _of_turn,  # noqa: SLF001
    asyncio.Handle._run.__code__: _of_handle,  # noqa: SLF001
}
